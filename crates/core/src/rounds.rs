//! Rounds: wait for k of the n workers' gradients of the newest model, then step it.
//!
//! What all k-of-n schemes share. They differ in the [`Quorum`]: how k is chosen, and in the [`Sizing`]: how many samples
//! each worker gets.

use crate::{Aggregate, Dispatch, Reason, Scheme, Span, TaskId, Time, Turn, Until, Update, Version, WorkerId};

/// A gradient's arrival, timely or late.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Arrival {
    /// Whose it is.
    pub worker: WorkerId,
    /// The version the gradient was computed at.
    pub version: Version,
    /// Whether that is still the newest.
    pub timely: bool,
    /// How long the worker computed.
    pub compute: Span,
    /// When it was free to start.
    pub started: Time,
    /// Now.
    pub now: Time,
}

/// The rule by which k is chosen.
pub trait Quorum: Send {
    /// An iteration begins with these workers. [`choose`](Quorum::choose) follows.
    fn begin(&mut self, _workers: &[WorkerId]) {}

    /// How many gradients to wait for in the iteration that begins now, with `live` workers. More than there are means
    /// all of them.
    fn choose(&mut self, now: Time, live: usize) -> usize;

    /// Why the iteration's gradients were enough.
    fn reason(&self, waited_for: usize, live: usize) -> Reason {
        Reason::Quorum { waited_for: waited_for as u32, workers: live as u32 }
    }

    /// A gradient arrived.
    fn on_arrival(&mut self, _arrival: &Arrival) {}

    /// The iteration is over. [`begin`](Quorum::begin) follows.
    fn on_committed(&mut self, _now: Time, _updates: usize, _aggregate: Option<&Aggregate>) {}
}

/// The rule by which each worker's samples are chosen.
pub trait Sizing: Send {
    /// An iteration begins with these workers: time to choose their sizes.
    fn begin(&mut self, _workers: &[WorkerId]) {}

    /// How many samples the worker gets in the iteration under way, and why, if there is more to say than why it gets
    /// any.
    fn size(&self, worker: WorkerId) -> (u32, Option<Reason>);

    /// A gradient arrived, timely or late.
    fn on_arrival(&mut self, _update: &Update, _now: Time) {}

    /// Everyone has work: a moment for what must not keep them waiting. Returns after how long to be called again in
    /// this iteration, if at all, and what for.
    fn in_background(&mut self, _workers: &[WorkerId]) -> Option<(Span, Reason)> {
        None
    }
}

/// Everyone gets the same number of samples.
#[derive(Debug, Clone, Copy)]
pub struct Same(pub u32);

impl Sizing for Same {
    fn size(&self, _worker: WorkerId) -> (u32, Option<Reason>) {
        (self.0, None)
    }
}

/// A scheme that waits for a [`Quorum`] of gradients in every iteration, of as many samples as the [`Sizing`] says.
///
/// A worker that joins gets work on the newest model at once. When workers leave, k falls to the number left.
#[derive(Debug)]
pub struct Rounds<Q, S = Same> {
    quorum: Q,
    sizing: S,
    dispatch: Dispatch,
    /// k of this iteration; `None` before the first worker came.
    wanted: Option<usize>,
    /// This iteration's updates so far.
    arrived: Vec<TaskId>,
    /// The version that each worker last contributed to.
    contributed: Vec<Option<Version>>,
    /// Under [`Dispatch::Pull`]: how many gradients of the newest version are in or under way.
    handed_out: usize,
}

impl<Q: Quorum> Rounds<Q> {
    /// Rounds of `batch` samples per worker.
    pub fn new(quorum: Q, dispatch: Dispatch, batch: u32) -> Self {
        Rounds::sized(quorum, Same(batch), dispatch)
    }
}

impl<Q: Quorum, S: Sizing> Rounds<Q, S> {
    /// Rounds of as many samples per worker as the sizing says.
    pub fn sized(quorum: Q, sizing: S, dispatch: Dispatch) -> Self {
        Rounds { quorum, sizing, dispatch, wanted: None, arrived: Vec::new(), contributed: Vec::new(), handed_out: 0 }
    }

    /// k, as far as there are workers.
    fn waited_for(&self, turn: &Turn<'_>) -> usize {
        self.wanted.unwrap_or(usize::MAX).min(turn.live())
    }

    /// Steps the model if enough gradients are in, and gives everyone who needs it an answer.
    fn advance(&mut self, turn: &mut Turn<'_>, reason: Reason) {
        let waited_for = self.waited_for(turn);
        if waited_for > 0 && self.arrived.len() >= waited_for {
            turn.commit(&self.arrived, self.quorum.reason(waited_for, turn.live()));
            // The next turn confirms the commit and brings the new k; handing out needs neither.
            self.handed_out = 0;
            let workers: Vec<WorkerId> = turn.workers().collect();
            self.sizing.begin(&workers);
            self.hand_out(turn, &workers);
        } else {
            while let Some(worker) = turn.next_unsettled() {
                self.settle(turn, worker, reason);
            }
        }
    }

    fn hand_out(&mut self, turn: &mut Turn<'_>, workers: &[WorkerId]) {
        if self.dispatch == Dispatch::Pull {
            while let Some(worker) = turn.next_unsettled() {
                self.give(turn, worker, Reason::NewVersion);
            }
            return;
        }
        for &worker in workers {
            if self.dispatch == Dispatch::PushInterrupt && !turn.is_idle(worker) {
                turn.interrupt(worker, Reason::Superseded);
            }
            self.give(turn, worker, Reason::NewVersion);
        }
    }

    fn give(&mut self, turn: &mut Turn<'_>, worker: WorkerId, reason: Reason) {
        let (samples, why) = self.sizing.size(worker);
        turn.assign(worker, samples, why.unwrap_or(reason));
        self.handed_out += 1;
    }

    /// An iteration begins.
    fn begin(&mut self, turn: &Turn<'_>, workers: &[WorkerId]) {
        self.quorum.begin(workers);
        self.wanted = Some(self.quorum.choose(turn.now(), workers.len()));
    }

    fn work_in_background(&mut self, turn: &mut Turn<'_>, workers: &[WorkerId]) {
        if let Some((delay, reason)) = self.sizing.in_background(workers) {
            turn.wake(delay, reason);
        }
    }

    /// A worker is free in the middle of an iteration.
    fn settle(&mut self, turn: &mut Turn<'_>, worker: WorkerId, reason: Reason) {
        let contributed = self.contributed.get(worker.index()).copied().flatten() == Some(turn.version());
        let may_repeat = self.dispatch == Dispatch::Pull && self.handed_out < self.waited_for(turn);
        if !contributed || may_repeat {
            self.give(turn, worker, reason);
        } else {
            turn.hold(worker, Until::Commit, Reason::Contributed);
        }
    }

    /// Under [`Dispatch::Pull`], what a worker that left was to contribute is made up for by those who wait.
    fn make_up(&mut self, turn: &mut Turn<'_>) {
        let newest = turn.version();
        let is_newest = |worker: &WorkerId| turn.running(*worker).is_some_and(|task| task.version == newest);
        self.handed_out = self.arrived.len() + turn.workers().filter(is_newest).count();
        let idle: Vec<WorkerId> = turn.workers().filter(|&worker| turn.is_idle(worker)).collect();
        for worker in idle {
            if self.handed_out < self.waited_for(turn) {
                self.give(turn, worker, Reason::Free);
            }
        }
    }

    fn note_contribution(&mut self, worker: WorkerId, version: Option<Version>) {
        if worker.index() >= self.contributed.len() {
            self.contributed.resize(worker.index() + 1, None);
        }
        self.contributed[worker.index()] = version;
    }
}

impl<Q: Quorum, S: Sizing> Scheme for Rounds<Q, S> {
    fn on_joined(&mut self, turn: &mut Turn<'_>, _worker: WorkerId) {
        if self.wanted.is_none() {
            let workers: Vec<WorkerId> = turn.workers().collect();
            self.begin(turn, &workers);
        }
        self.advance(turn, Reason::Joined);
    }

    fn on_left(&mut self, turn: &mut Turn<'_>, worker: WorkerId) {
        self.arrived.retain(|task| task.worker != worker);
        self.note_contribution(worker, None);
        let before = turn.version();
        self.advance(turn, Reason::Free);
        if self.dispatch == Dispatch::Pull && turn.version() == before {
            self.make_up(turn);
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
            self.note_contribution(update.task.worker, Some(update.version));
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
