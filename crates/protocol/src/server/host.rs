//! What the protocol does to the world.

use paceline_core::{Commit, CommitOutcome, Decision, Event, Ledger, Span, TaskId, Time, WorkerId};
use paceline_workload::Evaluation;

use crate::group_message::FromMember;
use crate::message::{GradientLocation, RunPosition, ToWorker};
use crate::notice::Notice;
#[cfg(doc)]
use crate::{ServerProtocol, ToServer};

/// Identifies a connection. Numbers are never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u64);

/// How far the server trusts a peer, and how values travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerTrust {
    /// A process of the same user on the same machine. It needs no token; values are in shared memory.
    SameUser,
    /// A peer on a network. It needs the token, if there is one; values are sent.
    Network,
}

/// What a [`ServerProtocol`] does to the world: messages, the model, observers.
///
/// Times are those of the run, which begin when enough workers are ready.
pub trait ServerHost {
    /// Why the run can't continue.
    type Error;

    /// Sends a message.
    fn send(&mut self, session: SessionId, message: &ToWorker);

    /// Sends a last message and closes the connection. What the worker may still read or write stays as it is until
    /// the connection is closed from the other side, too.
    fn close(&mut self, session: SessionId, last: &ToWorker);

    /// A task is going to be sent, now or later: keeps the newest model for it. Returns how far the run is.
    fn prepare(&mut self, session: SessionId, task: TaskId) -> RunPosition;

    /// Sends an assignment; `message` is an [`Assign`](ToWorker::Assign) without shared buffers.
    ///
    /// # Errors
    /// If the run can't continue.
    fn assign(&mut self, session: SessionId, task: TaskId, message: ToWorker) -> Result<(), Self::Error>;

    /// The result of a task is no longer needed. If the assignment was not sent yet, it need not be; the host then
    /// answers in the worker's name that the task is [dropped](ToServer::Dropped).
    fn cancel(&mut self, session: SessionId, task: TaskId);

    /// A cancelled task is over: the worker has finished or dropped it, or never got it. Its buffers are free.
    fn release(&mut self, session: SessionId, task: TaskId);

    /// The update of a task has arrived. Returns `false` if its values are missing.
    fn keep(&mut self, session: SessionId, task: TaskId, update: ReportedUpdate) -> bool;

    /// The worker has left: its arrived updates are void.
    fn discard_all(&mut self, worker: WorkerId);

    /// An arrived update will not be committed.
    fn discard(&mut self, task: TaskId);

    /// Steps the model by `updates`; `live` workers take part.
    ///
    /// # Errors
    /// If the run can't continue.
    fn commit(&mut self, commit: &Commit, live: usize) -> Result<CommitOutcome, Self::Error>;

    /// An event led to these decisions, which are carried out next.
    ///
    /// # Errors
    /// If the run can't continue.
    fn begin_turn(&mut self, now: Time, event: &Event, decisions: &[Decision]) -> Result<(), Self::Error>;

    /// All decisions on `event` are carried out.
    ///
    /// # Errors
    /// If the run can't continue.
    fn end_turn(&mut self, now: Time, event: &Event, ledger: &Ledger) -> Result<(), Self::Error>;

    /// A process that may have to hold parameters can be reached at these ports of its host; that of a worker, or one
    /// without. Hosts that asked for none need not care.
    fn reachable_at(&mut self, _worker: Option<WorkerId>, _session: SessionId, _ports: Vec<u16>) {}

    /// A worker whose process holds the model together with others has said this.
    fn member_says(&mut self, _session: SessionId, _message: FromMember) {}

    /// The last worker has done all that it was started for, and is about to leave.
    ///
    /// # Errors
    /// If the run can't end like that.
    fn last_worker_leaves(&mut self) -> Result<(), Self::Error> {
        Ok(())
    }

    /// A process is ready to evaluate models; there is no other.
    fn evaluator_joined(&mut self, session: SessionId);

    /// It has left.
    fn evaluator_left(&mut self);

    /// It has evaluated the model of the assignment `number`, at the run's time `now`. Returns `false` if it has no such
    /// assignment.
    fn evaluated(&mut self, now: Time, number: u64, evaluation: Evaluation, ledger: &Ledger) -> bool;

    /// A worker computed a gradient or local iterations of a task, in `compute` altogether.
    fn computed(&mut self, task: TaskId, iterations: u32, compute: Span);

    /// Something happened that the user should know.
    fn notice(&mut self, notice: Notice);
}

/// An update that a worker has reported.
#[derive(Debug, Clone, PartialEq)]
pub struct ReportedUpdate {
    /// The mean loss of its samples.
    pub loss: f64,
    /// Where its values are.
    pub gradient: GradientLocation,
    /// The learning rates that the worker asks for, as in [`ToServer::Report`].
    pub rates: Vec<f64>,
    /// Its samples in all iterations.
    pub samples: u64,
}
