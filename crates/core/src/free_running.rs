//! Free running: every update is applied as it arrives, and a gate decides who may go on.
//!
//! What all asynchronous schemes share. They differ in the [`Gate`].

use std::collections::BTreeSet;

use crate::{CommitStep, Reason, Scheme, Span, Time, Turn, Until, Update, WorkerId};

/// How many iterations each worker that is there has completed.
///
/// A worker that joins starts level with the slowest, so that it neither holds the others back nor runs away.
#[derive(Debug, Default)]
pub struct Clocks {
    of: Vec<u64>,
    order: BTreeSet<(u64, WorkerId)>,
}

impl Clocks {
    fn join(&mut self, worker: WorkerId) {
        let level = self.order.first().map_or(0, |&(clock, _)| clock);
        if worker.index() >= self.of.len() {
            self.of.resize(worker.index() + 1, 0);
        }
        self.of[worker.index()] = level;
        self.order.insert((level, worker));
    }

    fn leave(&mut self, worker: WorkerId) {
        self.order.remove(&(self.of[worker.index()], worker));
    }

    fn tick(&mut self, worker: WorkerId) {
        self.leave(worker);
        self.of[worker.index()] += 1;
        self.order.insert((self.of[worker.index()], worker));
    }

    /// How many iterations the worker is ahead of the slowest.
    pub fn lead(&self, worker: WorkerId) -> u64 {
        self.order.first().map_or(0, |&(slowest, _)| self.of[worker.index()] - slowest)
    }

    /// One of the slowest workers: the first after `worker` in rank, cyclically. Spreading those who wait over those
    /// they wait for keeps a round's wake-ups at n log n in all instead of n².
    pub fn slowest_after(&self, worker: WorkerId) -> WorkerId {
        let Some(&(slowest, first)) = self.order.first() else { return worker };
        let next = self.order.range((slowest, worker)..).next();
        next.filter(|&&(clock, _)| clock == slowest).map_or(first, |&(_, next)| next)
    }
}

/// What a gate says to a worker that wants to go on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Verdict {
    /// Go on.
    Go(Reason),
    /// Wait at least until this worker has reported.
    Wait(WorkerId, Reason),
}

/// What a gate asks for beside its verdicts.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Request {
    /// Ask again whether those who wait may go on.
    pub recall: bool,
    /// [Review](Gate::review) again after so long, and why.
    pub wake: Option<(Span, Reason)>,
}

/// The rule by which workers may go on.
///
/// After each event comes one [`review`](Gate::review), then [`admit`](Gate::admit) for everyone who wants to go on.
pub trait Gate: Send {
    /// Whether the worker may start its next iteration. Someone always may.
    fn admit(&mut self, worker: WorkerId, clocks: &Clocks, now: Time) -> Verdict;

    /// The worker completed an iteration.
    fn on_push(&mut self, _worker: WorkerId, _now: Time) {}

    /// The worker has come; whatever was known of an earlier stay is void.
    fn on_joined(&mut self, _worker: WorkerId) {}

    /// The worker is gone.
    fn on_left(&mut self, _worker: WorkerId) {}

    /// Something has happened: time to make plans.
    fn review(&mut self, _now: Time) -> Request {
        Request::default()
    }
}

/// A scheme that applies every update as it arrives.
#[derive(Debug)]
pub struct FreeRunning<G> {
    gate: G,
    clocks: Clocks,
    batch: u32,
    step: CommitStep,
}

impl<G: Gate> FreeRunning<G> {
    /// Free running with `batch` samples per update.
    pub fn new(gate: G, batch: u32) -> Self {
        FreeRunning { gate, clocks: Clocks::default(), batch, step: CommitStep::Optimizer }
    }

    /// The same with another way of applying updates.
    pub fn stepping_by(self, step: CommitStep) -> Self {
        FreeRunning { step, ..self }
    }

    fn advance(&mut self, turn: &mut Turn<'_>) {
        let Request { recall, wake } = self.gate.review(turn.now());
        if let Some((delay, reason)) = wake {
            turn.wake(delay, reason);
        }
        if recall {
            let idle: Vec<WorkerId> = turn.workers().filter(|&worker| turn.is_idle(worker)).collect();
            idle.into_iter().for_each(|worker| self.admit(turn, worker));
        }
        while let Some(worker) = turn.next_unsettled() {
            self.admit(turn, worker);
        }
    }

    fn admit(&mut self, turn: &mut Turn<'_>, worker: WorkerId) {
        match self.gate.admit(worker, &self.clocks, turn.now()) {
            Verdict::Go(reason) => turn.assign(worker, self.batch, reason),
            Verdict::Wait(on, reason) => turn.hold(worker, Until::Worker(on), reason),
        }
    }
}

impl<G: Gate> Scheme for FreeRunning<G> {
    fn compensates(&self) -> bool {
        matches!(self.step, CommitStep::Compensated { .. })
    }

    fn on_joined(&mut self, turn: &mut Turn<'_>, worker: WorkerId) {
        self.clocks.join(worker);
        self.gate.on_joined(worker);
        self.advance(turn);
    }

    fn on_left(&mut self, turn: &mut Turn<'_>, worker: WorkerId) {
        self.clocks.leave(worker);
        self.gate.on_left(worker);
        self.advance(turn);
    }

    fn on_reported(&mut self, turn: &mut Turn<'_>, update: &Update) {
        let worker = update.task.worker;
        self.clocks.tick(worker);
        self.gate.on_push(worker, turn.now());
        turn.commit_by(self.step, &[update.task], Reason::OnArrival);
        self.advance(turn);
    }

    fn on_timer(&mut self, turn: &mut Turn<'_>) {
        self.advance(turn);
    }
}
