//! Messages between the server and the workers.

use paceline_core::{Assignment, Report, TaskId, WorkerId};

/// A message of a session. A session starts with the worker's `Hello`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Envelope<Message> {
    pub(crate) worker: WorkerId,
    pub(crate) session: u64,
    pub(crate) message: Message,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum ToServer {
    Hello,
    /// The server answers with `Welcome` if the session is open, otherwise with `Refuse`.
    Heartbeat,
    Report(TaskId, Report),
    Ask(TaskId, u32, Report),
    Bye,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum ToWorker {
    Welcome,
    /// The session is closed.
    Refuse,
    /// The rank is taken: the worker tries again.
    Retry,
    /// An assignment. It cancels all earlier tasks except the one with this number, which the worker finishes first.
    Assign(Assignment, Option<u64>),
    /// Continue, in answer to the question after this many local iterations.
    Continue(TaskId, u32),
    Collect(TaskId),
    Interrupt(TaskId),
}
