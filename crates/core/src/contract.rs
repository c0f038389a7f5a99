//! The contract between deciding and everything else.
//!
//! A driver (simulator or server) feeds [`Event`]s to a [`Ledger`](crate::Ledger), which calls the [`Scheme`] and
//! returns its [`Decision`]s for the driver to carry out.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use smallvec::{SmallVec, smallvec};

use crate::{CommitStep, PlanRequest, Reason, RestoreError, SchemePace, Span, Time, Turn, Work};

/// A worker's rank. It stays the same when a worker leaves and rejoins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct WorkerId(pub u32);

impl WorkerId {
    /// Stands for a process that evaluates the model. It has no rank and takes no part in a step.
    pub const EVALUATOR: WorkerId = WorkerId(u32::MAX);

    /// The rank as an index.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            WorkerId::EVALUATOR => write!(f, "the evaluator"),
            WorkerId(rank) => write!(f, "worker {rank}"),
        }
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

/// Identifies one assignment and the update it produces. Ordered by worker, then by age.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TaskId {
    /// The worker that does it.
    pub worker: WorkerId,
    /// Counts the worker's assignments from 0.
    pub number: u64,
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "task {} of {}", self.number, self.worker)
    }
}

/// Work on some of a worker's samples with one version of the model.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Assignment {
    /// Identifies the work and its worker.
    pub task: TaskId,
    /// The version of the model to use.
    pub version: Version,
    /// What to do.
    pub work: Work,
    /// The number of samples, per iteration if there are several.
    pub samples: u32,
    /// How many samples of the worker's stream come before these.
    pub offset: u64,
    /// The worker is busy: start when the present task is done.
    pub queued: bool,
}

/// A worker's measurements of a finished task or local iteration. The gradient is sent separately.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Report {
    /// How long the worker computed since its last report, measured by the worker.
    pub compute: Span,
    /// How long the worker waited for an answer since its last report, or computed an iteration that the answer made it
    /// drop.
    #[serde(default, skip_serializing_if = "Span::is_zero")]
    pub querying: Span,
    /// The share of the processors' time that other programs used, 0 to 1; `None` if unknown.
    #[serde(default, with = "crate::number", skip_serializing_if = "Option::is_none")]
    pub cpu: Option<f32>,
    /// The share of the memory in use, 0 to 1; `None` if unknown.
    #[serde(default, with = "crate::number", skip_serializing_if = "Option::is_none")]
    pub memory: Option<f32>,
    /// The part of `compute` in which the worker waited for its data, if it measures that.
    #[serde(default, skip_serializing_if = "Span::is_zero")]
    pub loading: Span,
    /// The samples of each iteration, if they were not as many as assigned: the last batch of an epoch is often smaller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples: Option<u32>,
}

/// A worker's question after a local iteration: do one more, or send the update?
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Question {
    /// The task.
    pub task: TaskId,
    /// How many local iterations are done.
    pub iterations: u32,
    /// The report on the last of them.
    pub report: Report,
}

/// A finished task, as the scheme sees it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Update {
    /// The task.
    pub task: TaskId,
    /// The version its gradient was computed at.
    pub version: Version,
    /// What the worker did.
    pub work: Work,
    /// The samples of each iteration.
    pub samples: u32,
    /// The number of iterations; 1 for a gradient.
    pub iterations: u32,
    /// When the worker was free to start it.
    pub started: Time,
    /// The worker's report.
    pub report: Report,
}

/// Statistics of a commit's updates. They exist for committed updates only: the gradients of discarded updates are
/// never read, and the simulator does not even compute them.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Aggregate {
    /// Mean training loss over the updates, weighted as they were.
    #[serde(with = "crate::number")]
    pub loss: f64,
    /// The learning rate of the step.
    #[serde(with = "crate::number")]
    pub rate: f64,
    /// The learning rate that the schedule gave, before the [rule](crate::RateRule) and the scheme's factor.
    #[serde(with = "crate::number")]
    pub scheduled_rate: f64,
    /// Σ wⱼ‖gⱼ‖²: the weighted mean of the squared norms.
    #[serde(with = "crate::number")]
    pub mean_square: f64,
    /// ‖Σ wⱼ gⱼ‖²: the squared norm of the weighted mean.
    #[serde(with = "crate::number")]
    pub square_of_mean: f64,
    /// The norm of each update, by rank. Broken updates have none.
    pub norms: Arc<[UpdateNorm]>,
}

/// The norm of a committed update.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(from = "(u32, u64, f64)", into = "(u32, u64, f64)")]
pub struct UpdateNorm {
    /// The update.
    pub task: TaskId,
    /// ‖gⱼ‖².
    pub square: f64,
}

impl From<(u32, u64, f64)> for UpdateNorm {
    fn from((worker, number, square): (u32, u64, f64)) -> Self {
        UpdateNorm { task: TaskId { worker: WorkerId(worker), number }, square }
    }
}

impl From<UpdateNorm> for (u32, u64, f64) {
    fn from(UpdateNorm { task, square }: UpdateNorm) -> Self {
        (task.worker.0, task.number, square)
    }
}

/// An event that a scheme reacts to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event {
    /// A worker joined and is idle.
    Joined {
        /// The worker.
        worker: WorkerId,
    },
    /// A worker left. Its tasks and its uncommitted updates are lost.
    Left {
        /// The worker.
        worker: WorkerId,
    },
    /// A task is done and its gradient has arrived.
    Reported {
        /// The task.
        task: TaskId,
        /// The worker's report.
        report: Report,
    },
    /// A worker has done a local iteration and asks whether to do one more. A question may be repeated.
    Asked {
        /// The task.
        task: TaskId,
        /// How many local iterations are done.
        iterations: u32,
        /// The report on the last of them.
        report: Report,
    },
    /// The driver has carried out a commit. This event follows each [`Action::Commit`] before any other event.
    Committed {
        /// The version that the commit made.
        version: Version,
        /// Statistics of the updates; `None` if the run has no model, or if every update was broken.
        aggregate: Option<Aggregate>,
    },
    /// An update was broken: it holds a value that is not finite, or its loss is not. The commit left it out. This event
    /// follows the [`Committed`](Event::Committed) of that commit, before any other. No scheme sees it.
    Broken {
        /// The task.
        task: TaskId,
    },
    /// A task takes far longer than the worker's tasks so far. Only for schemes that
    /// [watch](Scheme::watches_lateness) for it.
    Late {
        /// The task.
        task: TaskId,
    },
    /// The time of an [`Action::Wake`] has come.
    Timer,
    /// A planner's answer to the scheme's [request](Scheme::plan_request).
    Planned {
        /// How fast the candidates would be.
        paces: Vec<SchemePace>,
    },
}

/// One update's part in a commit.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Share {
    /// The update.
    pub task: TaskId,
    /// Its weight in the sum.
    pub weight: f32,
}

/// A step of the model: sum these updates in this order and step by the sum, which makes a new version.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Commit {
    /// The new version.
    pub version: Version,
    /// The updates with their weights, by rank. The weights add up to one.
    pub updates: SmallVec<[Share; 1]>,
    /// What to do with the sum.
    pub step: CommitStep,
    /// The learning rate of this step is multiplied by it.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub rate_factor: f32,
}

fn one() -> f32 {
    1.0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_one(factor: &f32) -> bool {
    *factor == 1.0
}

/// A [`Commit`] as a scheme requests it.
#[derive(Debug, Clone)]
pub struct CommitRequest {
    /// The updates, with weights that are not their samples.
    pub(crate) updates: SmallVec<[(TaskId, Option<f64>); 1]>,
    pub(crate) step: CommitStep,
    pub(crate) rate_factor: f32,
}

impl CommitRequest {
    /// The optimizer steps by these updates, each weighted by its samples per iteration.
    #[inline]
    pub fn of(updates: &[TaskId]) -> Self {
        if let [task] = *updates {
            return CommitRequest::new(smallvec![(task, None)]);
        }
        CommitRequest::new(updates.iter().map(|&task| (task, None)).collect())
    }

    /// The optimizer steps by these updates with these weights: finite and above 0. They are scaled to add up to one.
    pub fn weighted(updates: &[(TaskId, f64)]) -> Self {
        CommitRequest::new(updates.iter().map(|&(task, weight)| (task, Some(weight))).collect())
    }

    /// The same with further updates, whose weights count beside the samples of the others.
    pub fn and(mut self, updates: &[(TaskId, f64)]) -> Self {
        self.updates.extend(updates.iter().map(|&(task, weight)| (task, Some(weight))));
        self
    }

    #[inline]
    fn new(updates: SmallVec<[(TaskId, Option<f64>); 1]>) -> Self {
        CommitRequest { updates, step: CommitStep::Optimizer, rate_factor: 1.0 }
    }

    /// The same with another step.
    pub fn step(self, step: CommitStep) -> Self {
        CommitRequest { step, ..self }
    }

    /// The same with the learning rate times a factor: finite and above 0.
    pub fn rate_factor(self, rate_factor: f32) -> Self {
        CommitRequest { rate_factor, ..self }
    }
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

/// What a driver carries out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "action", rename_all = "kebab-case")]
pub enum Action {
    /// Step the model.
    Commit(Commit),
    /// Discard an arrived update.
    Discard {
        /// The update.
        task: TaskId,
    },
    /// Assign work to a worker.
    Assign(Assignment),
    /// Answer a question: the worker does one more local iteration.
    Continue {
        /// The task.
        task: TaskId,
    },
    /// The worker sends the update of its local iterations. The action may be repeated for one task.
    Collect {
        /// The task.
        task: TaskId,
    },
    /// The worker drops its present task.
    Interrupt {
        /// The task.
        task: TaskId,
    },
    /// The worker stays idle for now.
    Hold {
        /// The worker.
        worker: WorkerId,
        /// What the worker waits for.
        until: Until,
    },
    /// Send [`Event::Timer`] at this time.
    Wake {
        /// When.
        at: Time,
    },
}

/// An action and the reason for it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// The action.
    #[serde(flatten)]
    pub action: Action,
    /// The reason for it.
    pub reason: Reason,
}

/// A synchronization scheme: a state machine that assigns work to workers and decides which updates are committed.
///
/// Each call gets a [`Turn`], through which the scheme sees the workers and takes its actions. Actions are carried out
/// in the order they are taken. At the end of a turn every worker that [`Turn::next_unsettled`] would return must have
/// work or something to wait for. The ledger checks this and the other [laws](crate::Law).
pub trait Scheme: Send {
    /// A worker joined and is idle.
    fn on_joined(&mut self, turn: &mut Turn<'_>, worker: WorkerId);

    /// A worker left. Its task and its uncommitted updates are already dropped.
    fn on_left(&mut self, turn: &mut Turn<'_>, worker: WorkerId);

    /// An update has arrived. The scheme commits or discards it now or later.
    fn on_reported(&mut self, turn: &mut Turn<'_>, update: &Update);

    /// A worker has done a local iteration. If it [waits](crate::LocalLength::AskAndWait), the scheme must answer in
    /// this turn.
    fn on_asked(&mut self, _turn: &mut Turn<'_>, _question: &Question) {}

    /// A commit was carried out. No other event came in between.
    fn on_committed(&mut self, _turn: &mut Turn<'_>, _aggregate: Option<&Aggregate>) {}

    /// A task takes far longer than [expected](crate::Lateness) from the worker's own times. It may still be reported.
    fn on_late(&mut self, _turn: &mut Turn<'_>, _task: TaskId) {}

    /// A time requested with [`Turn::wake`] has come.
    fn on_timer(&mut self, _turn: &mut Turn<'_>) {}

    /// What the scheme wants to have planned. The driver answers with [`Event::Planned`], at once or later.
    fn plan_request(&self) -> Option<PlanRequest> {
        None
    }

    /// A planner's answer.
    fn on_planned(&mut self, _turn: &mut Turn<'_>, _paces: &[SchemePace]) {}

    /// The scheme is to be replaced: it goes on up to its next commit, which leaves no update pending, and then assigns
    /// nothing. Schemes that are never replaced need not do that.
    fn retire(&mut self) {}

    /// The scheme's state between two events, as text that [`restore`](Scheme::restore) reads; `None` if the scheme
    /// can't be saved. Then a resumed run starts it afresh.
    fn save(&self) -> Option<String> {
        None
    }

    /// Takes on the state that a scheme with the same settings has [saved](Scheme::save). From here on it decides as that
    /// one would have. After an error the scheme is not used.
    ///
    /// # Errors
    /// If the state can't be read, for example because another version of the scheme saved it.
    fn restore(&mut self, _state: &str) -> Result<(), RestoreError> {
        Err(RestoreError::new("the scheme can't be restored"))
    }

    /// Whether the scheme is told of late tasks with [`on_late`](Scheme::on_late).
    fn watches_lateness(&self) -> bool {
        false
    }

    /// Whether every commit waits for all workers, which do nothing in the meantime.
    fn waits_for_all(&self) -> bool {
        false
    }

    /// Whether every commit sums one update of every worker, weighted by its samples.
    fn commits_all(&self) -> bool {
        false
    }

    /// Whether the scheme commits with [`CommitStep::Compensated`]. Drivers then keep the versions that gradients are
    /// computed from.
    fn compensates(&self) -> bool {
        false
    }
}
