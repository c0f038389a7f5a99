//! A scheme's turn: what it can see and do while it answers one event.

use super::law::Law;
use super::state::LedgerState;
use crate::{Action, Assignment, CommitStep, Decision, Reason, Span, TaskId, Time, Until, Version, Work, WorkerId};

/// What a [`Scheme`](crate::Scheme) can see and do while it answers one event.
///
/// Actions take effect at once, so that later looks see them. After the first broken law nothing has effect any more.
#[derive(Debug)]
pub struct Turn<'a> {
    pub(super) now: Time,
    pub(super) books: &'a mut LedgerState,
    pub(super) decisions: &'a mut Vec<Decision>,
    pub(super) broken: Option<Law>,
}

impl Turn<'_> {
    /// The time of the event.
    pub fn now(&self) -> Time {
        self.now
    }

    /// The newest version of the model.
    pub fn version(&self) -> Version {
        self.books.version
    }

    /// How many workers there are.
    pub fn live(&self) -> usize {
        self.books.live
    }

    /// The workers that are there, by rank.
    pub fn workers(&self) -> impl Iterator<Item = WorkerId> + '_ {
        (0..self.books.slots()).map(WorkerId).filter(|&worker| self.books.is_present(worker))
    }

    /// Whether the worker is there and has nothing to do.
    pub fn is_idle(&self, worker: WorkerId) -> bool {
        self.books.is_idle(worker)
    }

    /// What the worker is working on.
    pub fn running(&self, worker: WorkerId) -> Option<Assignment> {
        self.books.running(worker)
    }

    /// The next worker that needs an answer: it became idle in this turn, or what it waited for came, and it has been
    /// given neither work nor something to wait for since.
    pub fn next_unsettled(&mut self) -> Option<WorkerId> {
        if self.broken.is_some() {
            return None;
        }
        self.books.next_unsettled()
    }

    /// Steps the model by these arrived gradients, each weighted by its samples.
    pub fn commit(&mut self, updates: &[TaskId], reason: Reason) {
        self.commit_by(CommitStep::Optimizer, updates, reason);
    }

    /// Makes a version of these arrived updates in the way of `step`. Each is weighted by its samples, or if it comes
    /// of local iterations, by those of one.
    pub fn commit_by(&mut self, step: CommitStep, updates: &[TaskId], reason: Reason) {
        let shares = self.attempt(|books, _| books.commit(updates, step));
        if let Some(shares) = shares {
            self.decide(Action::Commit { version: self.books.version, updates: shares.into(), step }, reason);
        }
    }

    /// Throws an arrived update away.
    pub fn discard(&mut self, update: TaskId, reason: Reason) {
        if self.attempt(|books, _| books.discard(update)).is_some() {
            self.decide(Action::Discard { task: update }, reason);
        }
    }

    /// Has a worker compute the gradient of `samples` of its samples at the newest model: at once if it is idle, else
    /// after its present task. What was queued for it before is replaced.
    pub fn assign(&mut self, worker: WorkerId, samples: u32, reason: Reason) {
        self.assign_work(worker, Work::Gradient, samples, reason);
    }

    /// As [`assign`](Turn::assign), for any kind of work. Nothing can be queued behind work that asks.
    pub fn assign_work(&mut self, worker: WorkerId, work: Work, samples: u32, reason: Reason) {
        if let Some(assignment) = self.attempt(|books, now| books.assign(now, worker, work, samples)) {
            self.decide(Action::Assign(assignment), reason);
        }
    }

    /// Answers a worker that asked: one more local iteration. Where it goes on [by itself](crate::LocalLength::AskAndContinue)
    /// there is nothing to be said.
    pub fn go_on(&mut self, worker: WorkerId, reason: Reason) {
        if let Some(Some(task)) = self.attempt(|books, _| books.go_on(worker)) {
            self.decide(Action::Continue { task }, reason);
        }
    }

    /// Has a worker send what its local iterations have come to; at least one must be done.
    pub fn collect(&mut self, worker: WorkerId, reason: Reason) {
        if let Some(task) = self.attempt(|books, _| books.collect(worker)) {
            self.decide(Action::Collect { task }, reason);
        }
    }

    /// Has a worker drop its present task.
    pub fn interrupt(&mut self, worker: WorkerId, reason: Reason) {
        if let Some(task) = self.attempt(|books, now| books.interrupt(now, worker)) {
            self.decide(Action::Interrupt { task }, reason);
        }
    }

    /// Leaves an idle worker idle until something happens.
    pub fn hold(&mut self, worker: WorkerId, until: Until, reason: Reason) {
        if self.attempt(|books, _| books.hold_until(worker, until)).is_some() {
            self.decide(Action::Hold { worker, until }, reason);
        }
    }

    /// Asks for a turn after `delay`, which must not be zero.
    pub fn wake(&mut self, delay: Span, reason: Reason) {
        let at = self.now + delay;
        if self.attempt(|books, now| books.wake(now, at)).is_some() {
            self.decide(Action::Wake { at }, reason);
        }
    }

    fn attempt<T>(&mut self, action: impl FnOnce(&mut LedgerState, Time) -> Result<T, Law>) -> Option<T> {
        if self.broken.is_some() {
            return None;
        }
        action(self.books, self.now).map_err(|law| self.broken = Some(law)).ok()
    }

    fn decide(&mut self, action: Action, reason: Reason) {
        self.decisions.push(Decision { action, reason });
    }
}
