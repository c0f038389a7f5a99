//! What server and workers say to each other.

use paceline_core::{Assignment, Report, TaskId, WorkerId};

/// A message on its way, in the conversation that a worker began with its hello.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Envelope<Words> {
    pub(crate) worker: WorkerId,
    pub(crate) session: u64,
    pub(crate) words: Words,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum ToServer {
    Hello,
    /// Is this conversation still on?
    Ping,
    Report(TaskId, Report),
    Ask(TaskId, u32, Report),
    Bye,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum ToWorker {
    Welcome,
    /// The conversation is over.
    Refuse,
    /// The rank is taken: try again.
    Later,
    /// Work; everything but the task `after` is called off.
    Assign(Assignment, Option<u64>),
    /// Go on after so many local iterations.
    Continue(TaskId, u32),
    Collect(TaskId),
    Interrupt(TaskId),
}
