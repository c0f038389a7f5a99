//! The memory that a worker shares with a shard on its host.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use paceline_protocol::WorkerToShard;

use crate::outbox::Outbox;
use crate::shared_memory::{MemoryIdentity, Region};

/// The vectors that the shard has at a time: models and updates. The next one takes the place of the oldest.
const MAX_VECTORS: usize = 8;

/// The vectors that a shard knows.
pub(super) struct SharedVectors {
    outbox: Arc<Outbox>,
    /// Where the shard's part starts.
    start: usize,
    /// The length of the whole vectors.
    length: usize,
    known: Mutex<KnownVectors>,
}

#[derive(Default)]
struct KnownVectors {
    /// By their numbers.
    memories: Vec<MemoryIdentity>,
    /// The number that the next one gets.
    next: usize,
}

impl SharedVectors {
    /// No vectors yet, for a shard that is reached by this outbox.
    pub(super) fn new(outbox: Arc<Outbox>, start: usize, length: usize) -> Self {
        SharedVectors { outbox, start, length, known: Mutex::default() }
    }

    /// Calls `send` with the number of a vector, which the shard knows by then. `region` is the vector or a part of it.
    pub(super) fn send(&self, region: &Region, send: impl FnOnce(u8) -> io::Result<()>) -> io::Result<()> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let memory = region.identity();
        if let Some(number) = known.memories.iter().position(|known| *known == memory) {
            return send(number as u8);
        }
        let number = known.next;
        known.next = (number + 1) % MAX_VECTORS;
        match known.memories.get_mut(number) {
            Some(oldest) => *oldest = memory,
            None => known.memories.push(memory),
        }
        let file = region.file().ok_or(io::ErrorKind::Unsupported)?.try_clone_to_owned()?;
        let (vector, start, length) = (number as u8, self.start as u64, self.length as u64);
        self.outbox.send_with(&WorkerToShard::Share { vector, start, length }, Some(file))?;
        send(number as u8)
    }
}
