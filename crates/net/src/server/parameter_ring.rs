//! The versions of the parameters that are still in use.

use std::io;
use std::sync::Arc;

use crate::shared_memory::{Region, RegionWriter};

/// One buffer of parameters. Every reader holds an [`Arc`] of it; it is written only when no reader is left.
#[derive(Debug)]
pub(super) struct ParameterBuffer {
    /// The index by which workers refer to it.
    pub(super) index: u32,
    pub(super) region: Region,
}

impl AsRef<[f32]> for ParameterBuffer {
    fn as_ref(&self) -> &[f32] {
        self.region.values()
    }
}

/// A ring of parameter buffers. A commit writes the next version into a buffer that has no reader, or into a new one.
/// A reader thus never sees its vector change, and the ring holds at most two more buffers than there are readers.
#[derive(Debug)]
pub(super) struct ParameterRing {
    buffers: Vec<Arc<ParameterBuffer>>,
    newest: usize,
    shared: bool,
}

impl ParameterRing {
    /// A ring that holds `initial`, in memory that workers can map if `shared`.
    pub(super) fn new(initial: &[f32], shared: bool) -> io::Result<Self> {
        let mut ring = ParameterRing { buffers: Vec::new(), newest: 0, shared };
        ring.grow(initial.len())?;
        let first = Arc::get_mut(&mut ring.buffers[0]).expect("a new buffer has no reader");
        first.region.values_mut().copy_from_slice(initial);
        Ok(ring)
    }

    fn grow(&mut self, length: usize) -> io::Result<()> {
        let region = if self.shared { Region::shared(length, RegionWriter::Owner)? } else { Region::private(length)? };
        self.buffers.push(Arc::new(ParameterBuffer { index: self.buffers.len() as u32, region }));
        Ok(())
    }

    /// The newest version.
    pub(super) fn newest(&self) -> &Arc<ParameterBuffer> {
        &self.buffers[self.newest]
    }

    /// Makes the next version: `step` gets the newest and writes the next.
    pub(super) fn advance<T>(&mut self, step: impl FnOnce(&[f32], &mut [f32]) -> T) -> io::Result<T> {
        // Held, so that the newest is not taken for a free buffer.
        let newest = self.newest().clone();
        let free = match self.buffers.iter_mut().position(|buffer| Arc::get_mut(buffer).is_some()) {
            Some(free) => free,
            None => {
                self.grow(newest.region.values().len())?;
                self.buffers.len() - 1
            }
        };
        let next = Arc::get_mut(&mut self.buffers[free]).expect("a free buffer has no reader");
        let result = step(newest.region.values(), next.region.values_mut());
        self.newest = free;
        Ok(result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn increment(old: &[f32], new: &mut [f32]) {
        new.iter_mut().zip(old).for_each(|(new, old)| *new = old + 1.0);
    }

    #[test]
    fn readers_keep_their_version_and_free_buffers_are_reused() {
        let mut ring = ParameterRing::new(&[0.0; 4], false).unwrap();
        for _ in 0..3 {
            ring.advance(increment).unwrap();
        }
        assert_eq!(ring.buffers.len(), 2, "no reader: two buffers take turns");

        let first = ring.newest().clone();
        ring.advance(increment).unwrap();
        let second = ring.newest().clone();
        ring.advance(increment).unwrap();
        assert_eq!(first.region.values(), [3.0; 4]);
        assert_eq!(second.region.values(), [4.0; 4]);
        assert_eq!(ring.newest().region.values(), [5.0; 4]);
        assert_eq!(ring.buffers.len(), 3);

        drop(first);
        let third = ring.newest().clone();
        ring.advance(increment).unwrap();
        assert_eq!(ring.buffers.len(), 3, "the first reader's buffer is reused");
        assert_eq!(third.region.values(), [5.0; 4]);
        assert_eq!(ring.newest().region.values(), [6.0; 4]);
    }
}
