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

/// A ring of parameter buffers. A commit steps the newest version in place if it has no reader, else in a free buffer,
/// else in a new one. A reader thus never sees its vector change, and the ring holds at most two more buffers than
/// there are readers.
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

    /// Makes the next version by applying `step` to the newest.
    pub(super) fn advance<T>(&mut self, step: impl FnOnce(&mut [f32]) -> T) -> io::Result<T> {
        let newest = self.newest;
        if let Some(unread) = Arc::get_mut(&mut self.buffers[newest]) {
            return Ok(step(unread.region.values_mut()));
        }
        // Held, so that the newest is not taken for a free buffer if its last reader drops it just now.
        let old = self.newest().clone();
        let free = match self.buffers.iter_mut().position(|buffer| Arc::get_mut(buffer).is_some()) {
            Some(free) => free,
            None => {
                self.grow(old.region.values().len())?;
                self.buffers.len() - 1
            }
        };
        let next = Arc::get_mut(&mut self.buffers[free]).expect("a free buffer has no reader");
        next.region.values_mut().copy_from_slice(old.region.values());
        self.newest = free;
        Ok(step(next.region.values_mut()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn increment(values: &mut [f32]) {
        values.iter_mut().for_each(|value| *value += 1.0);
    }

    #[test]
    fn readers_keep_their_version_and_free_buffers_are_reused() {
        let mut ring = ParameterRing::new(&[0.0; 4], false).unwrap();
        ring.advance(increment).unwrap();
        assert_eq!(ring.buffers.len(), 1, "no reader: stepped in place");

        let first = ring.newest().clone();
        ring.advance(increment).unwrap();
        let second = ring.newest().clone();
        ring.advance(increment).unwrap();
        assert_eq!(first.region.values(), [1.0; 4]);
        assert_eq!(second.region.values(), [2.0; 4]);
        assert_eq!(ring.newest().region.values(), [3.0; 4]);
        assert_eq!(ring.buffers.len(), 3);

        drop(first);
        let third = ring.newest().clone();
        ring.advance(increment).unwrap();
        assert_eq!(ring.buffers.len(), 3, "the first reader's buffer is reused");
        assert_eq!(third.region.values(), [3.0; 4]);
        assert_eq!(ring.newest().region.values(), [4.0; 4]);
    }
}
