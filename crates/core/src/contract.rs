//! The contract between deciding and everything else.
//!
//! A driver (simulator or server) feeds [`Event`]s to a [`Ledger`](crate::Ledger), which calls the [`Scheme`] and
//! returns its [`Decision`]s for the driver to carry out.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{CommitStep, Reason, Span, Time, Turn, Work};

/// A worker's rank. It stays the same when a worker leaves and comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct WorkerId(pub u32);

impl WorkerId {
    /// The rank as an index.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "worker {}", self.0)
    }
}

/// How many times the model has been stepped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Version(pub u64);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "version {}", self.0)
    }
}

/// Names one piece of work, and the update that comes of it. Ordered by worker, then by age.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TaskId {
    /// Who does it.
    pub worker: WorkerId,
    /// Counts the worker's assignments from 0.
    pub number: u64,
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "task {} of {}", self.number, self.worker)
    }
}

/// A piece of work on some of the worker's samples with one version of the model.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Assignment {
    /// Which piece of work, and whose.
    pub task: TaskId,
    /// The model to use.
    pub version: Version,
    /// What to do.
    pub work: Work,
    /// How many samples to use, in each iteration if there are several.
    pub samples: u32,
    /// How many samples of the worker's stream come before these.
    pub offset: u64,
    /// The worker is busy: start when the present task is done.
    pub queued: bool,
}

/// What a worker says of a finished task or local iteration. Its gradient travels apart.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Report {
    /// How long the worker computed since its last report, by its own stopwatch.
    pub compute: Span,
    /// How long it waited for an answer since then, or was at an iteration that the answer made void.
    #[serde(default, skip_serializing_if = "Span::is_zero")]
    pub querying: Span,
    /// The share of its processors' time that other programs used, 0 to 1; `None` if it can't say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<f32>,
    /// The share of its memory in use, 0 to 1; `None` if it can't say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<f32>,
}

/// A worker's question after a local iteration: one more, or send what it has?
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Question {
    /// Which task.
    pub task: TaskId,
    /// How many local iterations are done.
    pub iterations: u32,
    /// What the worker says of the last of them.
    pub report: Report,
}

/// A finished task, as the scheme sees it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Update {
    /// Which task.
    pub task: TaskId,
    /// The version its gradient was computed at.
    pub version: Version,
    /// What the worker did.
    pub work: Work,
    /// The samples of each iteration.
    pub samples: u32,
    /// How many iterations; one for a gradient.
    pub iterations: u32,
    /// When the worker was free to start it.
    pub started: Time,
    /// What the worker said.
    pub report: Report,
}

/// What aggregating a commit's updates showed. Known only for what is committed: the gradients of discarded updates
/// need never be looked at, or even computed.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Aggregate {
    /// Mean training loss over the updates, weighted as they were.
    #[serde(with = "crate::number")]
    pub loss: f64,
    /// The learning rate of the step.
    #[serde(with = "crate::number")]
    pub rate: f64,
    /// Σ‖gⱼ‖² over the updates.
    #[serde(with = "crate::number")]
    pub sum_of_squares: f64,
    /// ‖Σ wⱼ gⱼ‖² of the weighted sum.
    #[serde(with = "crate::number")]
    pub square_of_sum: f64,
}

/// What happens to a scheme.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event {
    /// A worker is there and idle.
    Joined {
        /// Who.
        worker: WorkerId,
    },
    /// A worker is gone, with whatever it was doing and whatever it had reported that is not committed yet.
    Left {
        /// Who.
        worker: WorkerId,
    },
    /// A task is done and its gradient has arrived.
    Reported {
        /// Which task.
        task: TaskId,
        /// What the worker says of it.
        report: Report,
    },
    /// A worker has done a local iteration and asks whether to go on. A question may be repeated.
    Asked {
        /// Which task.
        task: TaskId,
        /// How many local iterations are done.
        iterations: u32,
        /// What the worker says of the last of them.
        report: Report,
    },
    /// The driver has carried out a commit. It follows each [`Action::Commit`] before any other event.
    Committed {
        /// The version that the commit made.
        version: Version,
        /// What the updates showed; `None` where there is no model.
        aggregate: Option<Aggregate>,
    },
    /// The time of a [`Action::Wake`] has come.
    Timer,
}

/// One update's part in a commit.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Share {
    /// The update.
    pub task: TaskId,
    /// Its weight in the sum.
    pub weight: f32,
}

/// What an idle worker waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Until {
    /// The next commit.
    Commit,
    /// This worker's next report, or its leaving.
    Worker(WorkerId),
    /// The next timer.
    Timer,
}

/// What a driver is to do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "action", rename_all = "kebab-case")]
pub enum Action {
    /// Sum these updates in this order (by rank), step the model: one version more.
    Commit {
        /// The version made.
        version: Version,
        /// The updates with their weights, by rank.
        updates: Arc<[Share]>,
        /// What to do with the sum.
        step: CommitStep,
    },
    /// Throw an arrived update away.
    Discard {
        /// Which.
        task: TaskId,
    },
    /// Give a worker work.
    Assign(Assignment),
    /// Answer a question: one more local iteration.
    Continue {
        /// Which task.
        task: TaskId,
    },
    /// Have a worker send what its local iterations have come to. It may be told more than once.
    Collect {
        /// Which task.
        task: TaskId,
    },
    /// Have a worker drop its present task.
    Interrupt {
        /// Which task.
        task: TaskId,
    },
    /// Leave a worker idle for now.
    Hold {
        /// Who.
        worker: WorkerId,
        /// What for.
        until: Until,
    },
    /// Send [`Event::Timer`] then.
    Wake {
        /// When.
        at: Time,
    },
}

/// An action and why it was taken.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// What to do.
    #[serde(flatten)]
    pub action: Action,
    /// Why.
    pub reason: Reason,
}

/// A synchronization scheme: a state machine that decides who works on what and which updates count.
///
/// Each call gets a [`Turn`] through which it sees the workers and takes its actions, carried out in the order they
/// are taken. By the end of a turn every worker that [`Turn::next_unsettled`] would name must have been given work or
/// something to wait for; the ledger holds a scheme to that and to its other [laws](crate::Law).
pub trait Scheme: Send {
    /// A worker has come and is idle.
    fn on_joined(&mut self, turn: &mut Turn<'_>, worker: WorkerId);

    /// A worker is gone; its task and its uncommitted updates are dropped already.
    fn on_left(&mut self, turn: &mut Turn<'_>, worker: WorkerId);

    /// An update has arrived, to be committed or discarded now or later.
    fn on_reported(&mut self, turn: &mut Turn<'_>, update: &Update);

    /// A worker has done a local iteration. If it [waits](crate::LocalLength::AskAndWait), it is to be answered in this turn.
    fn on_asked(&mut self, _turn: &mut Turn<'_>, _question: &Question) {}

    /// A commit was carried out; no other event came in between.
    fn on_committed(&mut self, _turn: &mut Turn<'_>, _aggregate: Option<&Aggregate>) {}

    /// A time asked for with [`Turn::wake`] has come.
    fn on_timer(&mut self, _turn: &mut Turn<'_>) {}

    /// Whether it commits by [`CommitStep::Compensated`]. Drivers then keep the models that gradients are computed from.
    fn compensates(&self) -> bool {
        false
    }
}
