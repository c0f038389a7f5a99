//! The inputs of the coordinator that are not handled yet. Whoever waits for a particular one in the middle of a turn takes it
//! from here; the others keep their order.

use std::collections::VecDeque;
use std::io;
use std::time::Instant;

use super::event_source::{EventSource, ServerInput};

/// The inputs of the coordinator, and where they come from.
pub(super) struct Inputs {
    source: EventSource,
    pending: VecDeque<ServerInput>,
}

impl Inputs {
    pub(super) fn new(source: EventSource) -> Self {
        Inputs { source, pending: VecDeque::new() }
    }

    /// Takes in everything that has arrived. Waits for something until `deadline`.
    pub(super) fn gather(&mut self, deadline: Option<Instant>) -> io::Result<()> {
        self.pending.extend(self.source.gather(deadline)?);
        Ok(())
    }

    /// The next input.
    pub(super) fn next(&mut self) -> Option<ServerInput> {
        self.pending.pop_front()
    }

    /// Shows all pending inputs to `take`, oldest first: those for which it returns `None` it has taken.
    pub(super) fn sift(&mut self, mut take: impl FnMut(ServerInput) -> Option<ServerInput>) {
        self.pending = std::mem::take(&mut self.pending).into_iter().filter_map(&mut take).collect();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }
}
