//! Copies of gradients that a thread makes while the backward pass goes on. They may go to the shards at once.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use paceline::net::UpdatePush;
use pyo3::prelude::*;

/// Values that are copied at a time. Whoever waits for the copies takes part in them, piece by piece.
const PIECE: usize = 1 << 16;

/// One piece of a copy.
struct CopyPiece {
    source: *const f32,
    target: *mut f32,
    length: usize,
    /// What it is a part of, and where, if that is sent as soon as it is copied.
    push: Option<(Arc<UpdatePush>, usize)>,
}

// SAFETY: whoever begins a copy keeps both memories and leaves them alone until it is finished.
unsafe impl Send for CopyPiece {}

impl CopyPiece {
    fn copy(self) {
        // SAFETY: as above; the memories are apart, as one is the server's and the other is not.
        unsafe { self.source.copy_to_nonoverlapping(self.target, self.length) };
        if let Some((push, start)) = self.push {
            // If it can't be sent, the report of the task finds out.
            let _ = push.ready(start..start + self.length);
        }
    }
}

#[derive(Default)]
struct CopyQueue {
    pieces: VecDeque<CopyPiece>,
    /// Whether the thread is copying a piece.
    is_copying: bool,
    is_closed: bool,
}

#[derive(Default)]
struct SharedCopyQueue {
    queue: Mutex<CopyQueue>,
    changed: Condvar,
}

impl SharedCopyQueue {
    fn lock(&self) -> MutexGuard<'_, CopyQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, queue: MutexGuard<'a, CopyQueue>) -> MutexGuard<'a, CopyQueue> {
        self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner)
    }

    /// What the thread does, until the queue is closed.
    fn serve(&self) {
        let mut queue = self.lock();
        while !queue.is_closed {
            let Some(piece) = queue.pieces.pop_front() else {
                queue = self.wait(queue);
                continue;
            };
            queue.is_copying = true;
            drop(queue);
            piece.copy();
            queue = self.lock();
            queue.is_copying = false;
            self.changed.notify_all();
        }
    }

    /// Copies what is left, and waits for the thread's piece.
    fn finish(&self) {
        let mut queue = self.lock();
        while let Some(piece) = queue.pieces.pop_back() {
            drop(queue);
            piece.copy();
            queue = self.lock();
        }
        while queue.is_copying {
            queue = self.wait(queue);
        }
    }
}

/// Copies that a thread of their own makes.
#[pyclass(name = "Copies", module = "paceline._paceline", frozen)]
pub struct PyCopies(Arc<SharedCopyQueue>);

#[pymethods]
impl PyCopies {
    /// Starts the thread.
    #[new]
    fn new() -> PyResult<Self> {
        let shared = Arc::new(SharedCopyQueue::default());
        let served = shared.clone();
        thread::Builder::new().name("copies".into()).spawn(move || served.serve())?;
        Ok(PyCopies(shared))
    }

    /// Begins to copy `length` values of 32 bits. Both memories must stay, and be left alone, until `finish` returns. With a
    /// push, they are sent: they are the values of the update from `offset` on.
    #[pyo3(signature = (source, target, length, push = None, offset = 0))]
    fn begin(&self, source: usize, target: usize, length: usize, push: Option<&PyUpdatePush>, offset: usize) {
        let piece = |start: usize| CopyPiece {
            source: (source as *const f32).wrapping_add(start),
            target: (target as *mut f32).wrapping_add(start),
            length: PIECE.min(length - start),
            push: push.map(|push| (push.0.clone(), offset + start)),
        };
        self.0.lock().pieces.extend((0..length).step_by(PIECE).map(piece));
        self.0.changed.notify_all();
    }

    /// Waits until everything is copied.
    fn finish(&self, py: Python<'_>) {
        py.detach(|| self.0.finish());
    }
}

/// An update whose parts go to their shards while others are computed.
#[pyclass(name = "UpdatePush", module = "paceline._paceline", frozen)]
pub struct PyUpdatePush(pub(crate) Arc<UpdatePush>);

#[pymethods]
impl PyUpdatePush {
    /// These values are in place. To be called once for each.
    fn ready(&self, start: usize, end: usize) {
        // If they can't be sent, the report of the task finds out.
        let _ = self.0.ready(start..end);
    }

    /// Values have changed since they were ready: what was sent is sent again.
    fn change(&self) {
        self.0.change();
    }

    /// Whether `length` values of 32 bits have the same bits. Both memories must stay meanwhile.
    #[staticmethod]
    fn are_same(py: Python<'_>, first: usize, second: usize, length: usize) -> bool {
        // SAFETY: the caller keeps both memories, which are as long; any bits are an integer.
        let bits = |address: usize| unsafe { std::slice::from_raw_parts(address as *const u32, length) };
        py.detach(|| length == 0 || bits(first) == bits(second))
    }
}

impl Drop for PyCopies {
    /// Ends the thread after its piece.
    fn drop(&mut self) {
        self.0.lock().is_closed = true;
        self.0.changed.notify_all();
    }
}
