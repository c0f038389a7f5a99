//! A scheme's turn: what it can see and do while it handles one event.

use super::law::Law;
use super::state::LedgerState;
use crate::{Action, Assignment, CommitRequest, Decision, Reason, Span, TaskId, Time, Until, Version, Work, WorkerId};

/// What a [`Scheme`](crate::Scheme) can see and do while it handles one event.
///
/// Actions take effect at once, so later calls see them. After the first broken law no action has an effect.
#[derive(Debug)]
pub struct Turn<'a> {
    pub(super) now: Time,
    pub(super) state: &'a mut LedgerState,
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
        self.state.version
    }

    /// The number of joined workers.
    pub fn live(&self) -> usize {
        self.state.live
    }

    /// The joined workers, by rank.
    pub fn workers(&self) -> impl Iterator<Item = WorkerId> + '_ {
        self.state.members()
    }

    /// Whether the worker has joined and has no task.
    pub fn is_idle(&self, worker: WorkerId) -> bool {
        self.state.is_idle(worker)
    }

    /// The worker's present task.
    pub fn running(&self, worker: WorkerId) -> Option<Assignment> {
        self.state.running(worker)
    }

    /// When the worker started its present task.
    pub fn running_since(&self, worker: WorkerId) -> Option<Time> {
        self.state.running_since(worker)
    }

    /// The next worker that needs a decision: it became idle in this turn, or its wait ended, and it has since got
    /// neither work nor something to wait for.
    pub fn next_unsettled(&mut self) -> Option<WorkerId> {
        if self.broken.is_some() {
            return None;
        }
        self.state.next_unsettled()
    }

    /// Steps the model by arrived updates, which makes a new version.
    pub fn commit(&mut self, request: CommitRequest, reason: Reason) {
        if let Some(commit) = self.attempt(|state, _| state.commit(&request)) {
            self.decide(Action::Commit(commit), reason);
        }
    }

    /// Discards an arrived update.
    pub fn discard(&mut self, update: TaskId, reason: Reason) {
        if self.attempt(|state, _| state.discard(update)).is_some() {
            self.decide(Action::Discard { task: update }, reason);
        }
    }

    /// Assigns the gradient of `samples` samples at the newest version: started at once if the worker is idle, else
    /// after its present task. Replaces an assignment that is already queued.
    pub fn assign(&mut self, worker: WorkerId, samples: u32, reason: Reason) {
        self.assign_work(worker, Work::Gradient, samples, reason);
    }

    /// As [`assign`](Turn::assign), for any kind of work. No work can be queued behind work that asks.
    pub fn assign_work(&mut self, worker: WorkerId, work: Work, samples: u32, reason: Reason) {
        if let Some(assignment) = self.attempt(|state, now| state.assign(now, worker, work, samples)) {
            self.decide(Action::Assign(assignment), reason);
        }
    }

    /// Answers a worker that asked: one more local iteration. A worker that
    /// [continues without an answer](crate::LocalLength::AskAndContinue) is sent nothing.
    pub fn continue_task(&mut self, worker: WorkerId, reason: Reason) {
        if let Some(Some(task)) = self.attempt(|state, _| state.continue_task(worker)) {
            self.decide(Action::Continue { task }, reason);
        }
    }

    /// Makes a worker send the update of its local iterations. At least one iteration must be done.
    pub fn collect(&mut self, worker: WorkerId, reason: Reason) {
        if let Some(task) = self.attempt(|state, _| state.collect(worker)) {
            self.decide(Action::Collect { task }, reason);
        }
    }

    /// Makes a worker drop its present task.
    pub fn interrupt(&mut self, worker: WorkerId, reason: Reason) {
        if let Some(task) = self.attempt(|state, now| state.interrupt(now, worker)) {
            self.decide(Action::Interrupt { task }, reason);
        }
    }

    /// Keeps an idle worker idle until `until` happens.
    pub fn hold(&mut self, worker: WorkerId, until: Until, reason: Reason) {
        if self.attempt(|state, _| state.hold_until(worker, until)).is_some() {
            self.decide(Action::Hold { worker, until }, reason);
        }
    }

    /// Requests a turn after `delay`, which must not be zero.
    pub fn wake(&mut self, delay: Span, reason: Reason) {
        let at = self.now + delay;
        if self.attempt(|state, now| state.wake(now, at)).is_some() {
            self.decide(Action::Wake { at }, reason);
        }
    }

    /// Gives the decisions of this turn that were taken for one reason another one.
    pub(crate) fn replace_reason(&mut self, from: Reason, to: Reason) {
        self.decisions.iter_mut().filter(|decision| decision.reason == from).for_each(|decision| decision.reason = to);
    }

    fn attempt<T>(&mut self, action: impl FnOnce(&mut LedgerState, Time) -> Result<T, Law>) -> Option<T> {
        if self.broken.is_some() {
            return None;
        }
        action(self.state, self.now).map_err(|law| self.broken = Some(law)).ok()
    }

    fn decide(&mut self, action: Action, reason: Reason) {
        self.decisions.push(Decision { action, reason });
    }
}
