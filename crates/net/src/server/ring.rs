//! The parameters in all the versions that somebody still reads.

use std::io;
use std::sync::Arc;

use crate::region::{Region, Writer};

/// One buffer of parameters. Whoever reads it holds an [`Arc`] of it; it is written only when nobody does.
#[derive(Debug)]
pub(super) struct Parameters {
    /// Its number, by which workers know it.
    pub(super) index: u32,
    pub(super) region: Region,
}

/// A ring of parameter buffers: the newest version is stepped in place when nobody reads it, else in a buffer that
/// is free, else in a new one. So nobody ever sees a vector change, and there are at most as many buffers as readers
/// and two more.
#[derive(Debug)]
pub(super) struct Ring {
    buffers: Vec<Arc<Parameters>>,
    newest: usize,
    shared: bool,
}

impl Ring {
    /// A ring that holds `initial`, in memory that workers can map if `shared`.
    pub(super) fn new(initial: &[f32], shared: bool) -> io::Result<Self> {
        let mut ring = Ring { buffers: Vec::new(), newest: 0, shared };
        ring.grow(initial.len())?;
        let first = Arc::get_mut(&mut ring.buffers[0]).expect("nobody else knows the new buffer");
        first.region.values_mut().copy_from_slice(initial);
        Ok(ring)
    }

    fn grow(&mut self, length: usize) -> io::Result<()> {
        let region = if self.shared { Region::shared(length, Writer::Maker)? } else { Region::private(length)? };
        self.buffers.push(Arc::new(Parameters { index: self.buffers.len() as u32, region }));
        Ok(())
    }

    /// The newest version.
    pub(super) fn newest(&self) -> &Arc<Parameters> {
        &self.buffers[self.newest]
    }

    /// Makes the next version out of the newest by `step`.
    pub(super) fn advance<T>(&mut self, step: impl FnOnce(&mut [f32]) -> T) -> io::Result<T> {
        let newest = self.newest;
        if let Some(unread) = Arc::get_mut(&mut self.buffers[newest]) {
            return Ok(step(unread.region.values_mut()));
        }
        // Held from here on, so that the newest itself is not found free when its last reader goes just now.
        let old = self.newest().clone();
        let free = match self.buffers.iter_mut().position(|buffer| Arc::get_mut(buffer).is_some()) {
            Some(free) => free,
            None => {
                self.grow(old.region.values().len())?;
                self.buffers.len() - 1
            }
        };
        let next = Arc::get_mut(&mut self.buffers[free]).expect("nobody reads a free buffer");
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
    fn readers_keep_what_they_read_and_buffers_are_used_again() {
        let mut ring = Ring::new(&[0.0; 4], false).unwrap();
        ring.advance(increment).unwrap();
        assert_eq!(ring.buffers.len(), 1, "unread: stepped in place");

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
        assert_eq!(ring.buffers.len(), 3, "the first reader's buffer is taken");
        assert_eq!(third.region.values(), [3.0; 4]);
        assert_eq!(ring.newest().region.values(), [4.0; 4]);
    }
}
