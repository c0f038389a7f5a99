//! Rounds: wait for k of the n workers' gradients at the newest version, then step the model.
//!
//! All k-of-n schemes share this code. They differ in the [`Quorum`], which chooses k, and in the [`Sizing`], which
//! chooses each worker's number of samples.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::{
    Aggregate, CommitRequest, Dispatch, Reason, Restorable, RestoreError, Scheme, Span, TaskId, Time, Turn, Until,
    Update, Version, WorkerId,
};

/// The arrival of a gradient, in time or late.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Arrival {
    /// The worker that computed it.
    pub worker: WorkerId,
    /// The version the gradient was computed at.
    pub version: Version,
    /// Whether that version is still the newest.
    pub timely: bool,
    /// How long the worker computed.
    pub compute: Span,
    /// When the worker was free to start.
    pub started: Time,
    /// The time of arrival.
    pub now: Time,
}

/// Chooses k, the number of gradients that an iteration waits for.
pub trait Quorum: Send + Restorable {
    /// An iteration begins with these workers. [`choose`](Quorum::choose) follows.
    fn begin(&mut self, _workers: &[WorkerId]) {}

    /// k of the iteration that begins now with `live` workers. A larger k than `live` means all workers.
    fn choose(&mut self, now: Time, live: usize) -> usize;

    /// The reason for the commit that ends the iteration.
    fn reason(&self, waited_for: usize, live: usize) -> Reason {
        Reason::Quorum { waited_for: waited_for as u32, workers: live as u32 }
    }

    /// A gradient arrived.
    fn on_arrival(&mut self, _arrival: &Arrival) {}

    /// The iteration is over. [`begin`](Quorum::begin) follows.
    fn on_committed(&mut self, _now: Time, _updates: usize, _aggregate: Option<&Aggregate>) {}
}

/// Chooses each worker's number of samples.
pub trait Sizing: Send + Restorable {
    /// An iteration begins with these workers. Sizes are chosen here.
    fn begin(&mut self, _workers: &[WorkerId]) {}

    /// The worker's number of samples in the present iteration, with a reason if the size needs one of its own.
    fn size(&self, worker: WorkerId) -> (u32, Option<Reason>);

    /// A gradient arrived, in time or late.
    fn on_arrival(&mut self, _update: &Update, _now: Time) {}

    /// Does work that no worker waits for; called when every worker has its assignment. To be called again in this
    /// iteration, it returns a delay and the reason.
    fn in_background(&mut self, _workers: &[WorkerId]) -> Option<(Span, Reason)> {
        None
    }
}

/// Every worker gets the same number of samples.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct FixedBatch(pub u32);

impl Sizing for FixedBatch {
    fn size(&self, _worker: WorkerId) -> (u32, Option<Reason>) {
        (self.0, None)
    }
}

/// The state of a [`Rounds`] scheme.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedRounds {
    quorum: Box<RawValue>,
    sizing: Box<RawValue>,
    quorum_size: Option<usize>,
    arrived: Vec<TaskId>,
    contributed: Vec<Option<Version>>,
    assigned: usize,
}

/// A scheme that waits for a [`Quorum`] of gradients in every iteration. The [`Sizing`] sets their numbers of samples.
///
/// A worker that joins gets work at the newest version at once. When workers leave, k is at most the number of workers
/// that remain.
#[derive(Debug)]
pub struct Rounds<Q, S = FixedBatch> {
    quorum: Q,
    sizing: S,
    dispatch: Dispatch,
    /// k of this iteration; `None` before the first worker joined.
    quorum_size: Option<usize>,
    /// This iteration's updates so far.
    arrived: Vec<TaskId>,
    /// The version that each worker last contributed to.
    contributed: Vec<Option<Version>>,
    /// How many gradients of the newest version have arrived or are assigned. Used under [`Dispatch::Pull`].
    assigned: usize,
}

impl<Q: Quorum> Rounds<Q> {
    /// Rounds of `batch` samples per worker.
    pub fn new(quorum: Q, dispatch: Dispatch, batch: u32) -> Self {
        Rounds::sized(quorum, FixedBatch(batch), dispatch)
    }
}

impl<Q: Quorum, S: Sizing> Rounds<Q, S> {
    /// Rounds whose numbers of samples are set by `sizing`.
    pub fn sized(quorum: Q, sizing: S, dispatch: Dispatch) -> Self {
        Rounds {
            quorum,
            sizing,
            dispatch,
            quorum_size: None,
            arrived: Vec::new(),
            contributed: Vec::new(),
            assigned: 0,
        }
    }

    /// k, but at most the number of workers.
    fn waited_for(&self, turn: &Turn<'_>) -> usize {
        self.quorum_size.unwrap_or(usize::MAX).min(turn.live())
    }

    /// Commits if the quorum is reached, and settles every worker that needs a decision.
    fn advance(&mut self, turn: &mut Turn<'_>, reason: Reason) {
        let waited_for = self.waited_for(turn);
        if waited_for > 0 && self.arrived.len() >= waited_for {
            turn.commit(CommitRequest::of(&self.arrived), self.quorum.reason(waited_for, turn.live()));
            // The next turn confirms the commit and chooses the new k. Dispatch needs neither.
            self.assigned = 0;
            let workers: Vec<WorkerId> = turn.workers().collect();
            self.sizing.begin(&workers);
            self.dispatch(turn, &workers);
        } else {
            while let Some(worker) = turn.next_unsettled() {
                self.settle(turn, worker, reason);
            }
        }
    }

    fn dispatch(&mut self, turn: &mut Turn<'_>, workers: &[WorkerId]) {
        if self.dispatch == Dispatch::Pull {
            while let Some(worker) = turn.next_unsettled() {
                self.assign(turn, worker, Reason::NewVersion);
            }
            return;
        }
        for &worker in workers {
            if self.dispatch == Dispatch::PushInterrupt && !turn.is_idle(worker) {
                turn.interrupt(worker, Reason::Superseded);
            }
            self.assign(turn, worker, Reason::NewVersion);
        }
    }

    fn assign(&mut self, turn: &mut Turn<'_>, worker: WorkerId, reason: Reason) {
        let (samples, why) = self.sizing.size(worker);
        turn.assign(worker, samples, why.unwrap_or(reason));
        self.assigned += 1;
    }

    /// An iteration begins.
    fn begin(&mut self, turn: &Turn<'_>, workers: &[WorkerId]) {
        self.quorum.begin(workers);
        self.quorum_size = Some(self.quorum.choose(turn.now(), workers.len()));
    }

    fn work_in_background(&mut self, turn: &mut Turn<'_>, workers: &[WorkerId]) {
        if let Some((delay, reason)) = self.sizing.in_background(workers) {
            turn.wake(delay, reason);
        }
    }

    /// Decides about a worker that is idle in the middle of an iteration.
    fn settle(&mut self, turn: &mut Turn<'_>, worker: WorkerId, reason: Reason) {
        let contributed = self.contributed.get(worker.index()).copied().flatten() == Some(turn.version());
        let may_repeat = self.dispatch == Dispatch::Pull && self.assigned < self.waited_for(turn);
        if !contributed || may_repeat {
            self.assign(turn, worker, reason);
        } else {
            turn.hold(worker, Until::Commit, Reason::Contributed);
        }
    }

    /// Under [`Dispatch::Pull`], assigns the gradient of a worker that left to a waiting worker.
    fn replace_lost(&mut self, turn: &mut Turn<'_>) {
        let newest = turn.version();
        let is_newest = |worker: &WorkerId| turn.running(*worker).is_some_and(|task| task.version == newest);
        self.assigned = self.arrived.len() + turn.workers().filter(is_newest).count();
        let idle: Vec<WorkerId> = turn.workers().filter(|&worker| turn.is_idle(worker)).collect();
        for worker in idle {
            if self.assigned < self.waited_for(turn) {
                self.assign(turn, worker, Reason::Free);
            }
        }
    }

    fn record_contribution(&mut self, worker: WorkerId, version: Option<Version>) {
        if worker.index() >= self.contributed.len() {
            self.contributed.resize(worker.index() + 1, None);
        }
        self.contributed[worker.index()] = version;
    }
}

impl<Q: Quorum, S: Sizing> Scheme for Rounds<Q, S> {
    fn save(&self) -> Option<String> {
        let saved = SavedRounds {
            quorum: self.quorum.save()?,
            sizing: self.sizing.save()?,
            quorum_size: self.quorum_size,
            arrived: self.arrived.clone(),
            contributed: self.contributed.clone(),
            assigned: self.assigned,
        };
        serde_json::to_string(&saved).ok()
    }

    fn restore(&mut self, state: &str) -> Result<(), RestoreError> {
        let SavedRounds { quorum, sizing, quorum_size, arrived, contributed, assigned } = serde_json::from_str(state)?;
        (self.quorum_size, self.arrived, self.contributed, self.assigned) =
            (quorum_size, arrived, contributed, assigned);
        self.quorum.restore(&quorum)?;
        self.sizing.restore(&sizing)
    }

    fn on_joined(&mut self, turn: &mut Turn<'_>, _worker: WorkerId) {
        if self.quorum_size.is_none() {
            let workers: Vec<WorkerId> = turn.workers().collect();
            self.begin(turn, &workers);
        }
        self.advance(turn, Reason::Joined);
    }

    fn on_left(&mut self, turn: &mut Turn<'_>, worker: WorkerId) {
        self.arrived.retain(|task| task.worker != worker);
        self.record_contribution(worker, None);
        let before = turn.version();
        self.advance(turn, Reason::Free);
        if self.dispatch == Dispatch::Pull && turn.version() == before {
            self.replace_lost(turn);
        }
    }

    fn on_reported(&mut self, turn: &mut Turn<'_>, update: &Update) {
        let timely = update.version == turn.version();
        self.quorum.on_arrival(&Arrival {
            worker: update.task.worker,
            version: update.version,
            timely,
            compute: update.report.compute,
            started: update.started,
            now: turn.now(),
        });
        self.sizing.on_arrival(update, turn.now());
        if timely {
            self.arrived.push(update.task);
            self.record_contribution(update.task.worker, Some(update.version));
        } else {
            turn.discard(update.task, Reason::Stale { behind: turn.version().0 - update.version.0 });
        }
        self.advance(turn, Reason::Free);
    }

    fn on_committed(&mut self, turn: &mut Turn<'_>, aggregate: Option<&Aggregate>) {
        self.quorum.on_committed(turn.now(), self.arrived.len(), aggregate);
        self.arrived.clear();
        let workers: Vec<WorkerId> = turn.workers().collect();
        self.begin(turn, &workers);
        self.work_in_background(turn, &workers);
    }

    fn on_timer(&mut self, turn: &mut Turn<'_>) {
        let workers: Vec<WorkerId> = turn.workers().collect();
        self.work_in_background(turn, &workers);
    }
}
