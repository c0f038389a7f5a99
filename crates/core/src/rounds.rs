//! Rounds: wait for k of the n workers' gradients at the newest version, then step the model.
//!
//! All k-of-n schemes share this code. They differ in the [`Quorum`], which chooses k, in the [`Sizing`], which chooses
//! each worker's number of samples, and in the [`LateRule`], which says what becomes of gradients that arrive later.

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
    /// How work is dispatched if nobody says.
    fn dispatch(&self) -> Dispatch {
        Dispatch::default()
    }

    /// An iteration begins with these workers, by rank. Each one's batch takes this multiple of the time that the run's
    /// batch size would take it; 1 if all batches have that size. [`choose`](Quorum::choose) follows.
    fn begin(&mut self, _workers: &mut dyn Iterator<Item = (WorkerId, f64)>) {}

    /// k of the iteration that begins now with `live` workers. A larger k than `live` means all workers.
    fn choose(&mut self, now: Time, live: usize) -> usize;

    /// Whether k is all workers in every iteration.
    fn is_all(&self) -> bool {
        false
    }

    /// The reason for the commit that ends the iteration.
    fn reason(&self, waited_for: usize, live: usize) -> Reason {
        Reason::Quorum { waited_for: waited_for as u32, workers: live as u32 }
    }

    /// A gradient arrived.
    fn on_arrival(&mut self, _arrival: &Arrival) {}

    /// The iteration is over; it waited for `updates` gradients. [`begin`](Quorum::begin) follows.
    fn on_committed(&mut self, _now: Time, _updates: usize, _aggregate: Option<&Aggregate>) {}
}

/// Chooses each worker's number of samples.
pub trait Sizing: Send + Restorable {
    /// An iteration begins with these workers. Sizes are chosen here.
    fn begin(&mut self, _workers: &[WorkerId]) {}

    /// The worker's number of samples in the present iteration, with a reason if the size needs one of its own.
    fn size(&self, worker: WorkerId) -> (u32, Option<Reason>);

    /// How long the worker's present batch is expected to take, as a multiple of the time of the run's batch size.
    fn multiple(&self, _worker: WorkerId) -> f64 {
        1.0
    }

    /// An update arrived, in time or late.
    fn on_arrival(&mut self, _update: &Update, _now: Time) {}

    /// A task of this many samples was interrupted after it had taken this long.
    fn on_interrupted(&mut self, _worker: WorkerId, _samples: u32, _elapsed: Span) {}

    /// Does work that no worker waits for; called when every worker has its assignment. To be called again in this
    /// iteration, it returns a delay and the reason.
    fn in_background(&mut self, _workers: &mut dyn Iterator<Item = WorkerId>) -> Option<(Span, Reason)> {
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

/// What becomes of gradients that arrive after the commit of their round: they join the next commit, if they are not too
/// stale. Its weights remain those of a mean.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LateRule {
    /// A gradient's weight per sample is multiplied by it once for every version that it is behind. Above 0, at most 1.
    pub weight: f64,
    /// How many versions a gradient may be behind.
    pub staleness: u64,
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
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    late: Vec<(TaskId, f64)>,
}

/// A scheme that waits for a [`Quorum`] of gradients in every iteration. The [`Sizing`] sets their numbers of samples.
///
/// A worker that joins gets work at the newest version at once. When workers leave, k is at most the number of workers
/// that remain.
pub struct Rounds {
    quorum: Box<dyn Quorum>,
    sizing: Box<dyn Sizing>,
    dispatch: Dispatch,
    /// Whether the sizing hears of interrupted tasks.
    reports_interrupts: bool,
    late_rule: Option<LateRule>,
    /// k of this iteration; `None` before the first worker joined.
    quorum_size: Option<usize>,
    /// This iteration's updates so far.
    arrived: Vec<TaskId>,
    /// Updates of earlier versions that will be committed with them, with their weights.
    late: Vec<(TaskId, f64)>,
    /// The version that each worker last contributed to.
    contributed: Vec<Option<Version>>,
    /// How many gradients of the newest version have arrived or are assigned. Used under [`Dispatch::Pull`].
    assigned: usize,
    /// It is to be replaced. Not saved: who replaces it says so again.
    retired: bool,
}

impl Rounds {
    /// Rounds of `batch` samples per worker.
    pub fn new(quorum: impl Quorum + 'static, dispatch: Dispatch, batch: u32) -> Self {
        Rounds::sized(Box::new(quorum), Box::new(FixedBatch(batch)), dispatch)
    }

    /// Rounds whose numbers of samples are set by `sizing`.
    pub fn sized(quorum: Box<dyn Quorum>, sizing: Box<dyn Sizing>, dispatch: Dispatch) -> Self {
        Rounds {
            quorum,
            sizing,
            dispatch,
            reports_interrupts: false,
            late_rule: None,
            quorum_size: None,
            arrived: Vec::new(),
            late: Vec::new(),
            contributed: Vec::new(),
            assigned: 0,
            retired: false,
        }
    }

    /// The same, where the sizing learns from interrupted tasks.
    pub fn reporting_interrupts(self) -> Self {
        Rounds { reports_interrupts: true, ..self }
    }

    /// The same, where late gradients join the next commit. Under [`Dispatch::PushInterrupt`] there are none.
    pub fn with_late(self, rule: LateRule) -> Self {
        Rounds { late_rule: Some(rule), ..self }
    }

    /// k, but at most the number of workers.
    fn waited_for(&self, turn: &Turn<'_>) -> usize {
        self.quorum_size.unwrap_or(usize::MAX).min(turn.live())
    }

    /// Commits if the quorum is reached, and settles every worker that needs a decision.
    fn advance(&mut self, turn: &mut Turn<'_>, reason: Reason) {
        let waited_for = self.waited_for(turn);
        if waited_for > 0 && self.arrived.len() >= waited_for {
            turn.commit(CommitRequest::of(&self.arrived).and(&self.late), self.quorum.reason(waited_for, turn.live()));
            if self.retired {
                return;
            }
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

    /// The weight per sample of an update that is this many versions behind; `None` if it is too stale.
    fn late_weight(&self, behind: u64) -> Option<f64> {
        let rule = self.late_rule.filter(|rule| behind <= rule.staleness)?;
        Some((0..behind).fold(1.0, |weight, _| weight * rule.weight))
    }

    fn dispatch(&mut self, turn: &mut Turn<'_>, workers: &[WorkerId]) {
        if self.dispatch == Dispatch::Pull {
            while let Some(worker) = turn.next_unsettled() {
                self.assign(turn, worker, Reason::NewVersion);
            }
            return;
        }
        for &worker in workers {
            if let Some(running) = turn.running(worker) {
                if self.dispatch == Dispatch::PushInterrupt {
                    let since = turn.running_since(worker);
                    turn.interrupt(worker, Reason::Superseded);
                    if let Some(since) = since.filter(|_| self.reports_interrupts) {
                        self.sizing.on_interrupted(worker, running.samples, turn.now().since(since));
                    }
                } else if self.late_weight(turn.version().0 - running.version.0).is_some() {
                    // A worker with a newer version queued would not send its late gradient.
                    continue;
                }
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
    fn begin(&mut self, turn: &Turn<'_>) {
        self.quorum.begin(&mut turn.workers().map(|worker| (worker, self.sizing.multiple(worker))));
        self.quorum_size = Some(self.quorum.choose(turn.now(), turn.live()));
    }

    fn work_in_background(&mut self, turn: &mut Turn<'_>) {
        let again = self.sizing.in_background(&mut turn.workers());
        if let Some((delay, reason)) = again {
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

impl Scheme for Rounds {
    fn waits_for_all(&self) -> bool {
        self.quorum.is_all()
    }

    fn commits_all(&self) -> bool {
        self.quorum.is_all() && self.late_rule.is_none()
    }

    fn retire(&mut self) {
        self.retired = true;
    }

    fn save(&self) -> Option<String> {
        let saved = SavedRounds {
            quorum: self.quorum.save()?,
            sizing: self.sizing.save()?,
            quorum_size: self.quorum_size,
            arrived: self.arrived.clone(),
            contributed: self.contributed.clone(),
            assigned: self.assigned,
            late: self.late.clone(),
        };
        serde_json::to_string(&saved).ok()
    }

    fn restore(&mut self, state: &str) -> Result<(), RestoreError> {
        let saved: SavedRounds = serde_json::from_str(state)?;
        (self.quorum_size, self.assigned) = (saved.quorum_size, saved.assigned);
        (self.arrived, self.late, self.contributed) = (saved.arrived, saved.late, saved.contributed);
        self.quorum.restore(&saved.quorum)?;
        self.sizing.restore(&saved.sizing)
    }

    fn on_joined(&mut self, turn: &mut Turn<'_>, _worker: WorkerId) {
        if self.quorum_size.is_none() {
            self.begin(turn);
        }
        self.advance(turn, Reason::Joined);
    }

    fn on_left(&mut self, turn: &mut Turn<'_>, worker: WorkerId) {
        self.arrived.retain(|task| task.worker != worker);
        self.late.retain(|(task, _)| task.worker != worker);
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
        let behind = turn.version().0 - update.version.0;
        if timely {
            self.arrived.push(update.task);
            self.record_contribution(update.task.worker, Some(update.version));
        } else if let Some(weight) = self.late_weight(behind) {
            self.late.push((update.task, weight * f64::from(update.samples)));
        } else {
            turn.discard(update.task, Reason::Stale { behind });
        }
        self.advance(turn, Reason::Free);
    }

    fn on_committed(&mut self, turn: &mut Turn<'_>, aggregate: Option<&Aggregate>) {
        self.quorum.on_committed(turn.now(), self.arrived.len(), aggregate);
        self.arrived.clear();
        self.late.clear();
        self.begin(turn);
        self.work_in_background(turn);
    }

    fn on_timer(&mut self, turn: &mut Turn<'_>) {
        self.work_in_background(turn);
    }
}
