//! Free running: every update is applied as it arrives, and a gate decides which workers may start their next
//! iteration.
//!
//! All asynchronous schemes share this code. They differ in the [`Gate`].

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

pub use crate::clocks::Clocks;
use crate::{
    CommitRequest, CommitStep, Reason, Restorable, RestoreError, Scheme, Span, Time, Turn, Until, Update, Work,
    WorkerId,
};

/// A gate's answer to a worker that is ready for its next iteration.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Admission {
    /// The worker starts its next iteration.
    Start(Reason),
    /// The worker waits at least until the named worker has reported.
    Wait(WorkerId, Reason),
}

/// What a gate requests after a review.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct GateRequest {
    /// Call [`admit`](Gate::admit) again for every waiting worker.
    pub readmit: bool,
    /// Call [`review`](Gate::review) again after this delay, for this reason.
    pub wake: Option<(Span, Reason)>,
}

/// Decides which workers may start their next iteration.
///
/// After each event [`review`](Gate::review) is called once, then [`admit`](Gate::admit) for every worker that is
/// ready.
pub trait Gate: Send + Restorable {
    /// Whether the worker may start its next iteration. At least one worker must always be admitted.
    fn admit(&mut self, worker: WorkerId, clocks: &Clocks, now: Time) -> Admission;

    /// What a worker that starts does, a gradient or local iterations, and why. `reason` is that of the admission.
    fn work(&mut self, _worker: WorkerId, reason: Reason) -> (Work, Reason) {
        (Work::Gradient, reason)
    }

    /// The worker's update has arrived.
    fn on_push(&mut self, _update: &Update, _now: Time) {}

    /// The worker joined. What was measured before an earlier leave no longer applies.
    fn on_joined(&mut self, _worker: WorkerId) {}

    /// The worker left.
    fn on_left(&mut self, _worker: WorkerId) {}

    /// Called once after each event, before any admission: the place to update plans.
    fn review(&mut self, _now: Time) -> GateRequest {
        GateRequest::default()
    }
}

/// The state of a [`FreeRunning`] scheme.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedFreeRunning {
    gate: Box<RawValue>,
    clocks: Clocks,
}

/// A scheme that applies every update as it arrives.
#[derive(Debug)]
pub struct FreeRunning<G> {
    gate: G,
    clocks: Clocks,
    batch: u32,
    step: CommitStep,
    /// It is to be replaced. Not saved: who replaces it says so again.
    retired: bool,
}

impl<G: Gate> FreeRunning<G> {
    /// A scheme with `batch` samples per update.
    pub fn new(gate: G, batch: u32) -> Self {
        FreeRunning { gate, clocks: Clocks::default(), batch, step: CommitStep::Optimizer, retired: false }
    }

    /// The same scheme with another [`CommitStep`].
    pub fn stepping_by(self, step: CommitStep) -> Self {
        FreeRunning { step, ..self }
    }

    fn advance(&mut self, turn: &mut Turn<'_>) {
        let GateRequest { readmit, wake } = self.gate.review(turn.now());
        if let Some((delay, reason)) = wake {
            turn.wake(delay, reason);
        }
        if readmit {
            let idle: Vec<WorkerId> = turn.workers().filter(|&worker| turn.is_idle(worker)).collect();
            idle.into_iter().for_each(|worker| self.admit(turn, worker));
        }
        while let Some(worker) = turn.next_unsettled() {
            self.admit(turn, worker);
        }
    }

    fn admit(&mut self, turn: &mut Turn<'_>, worker: WorkerId) {
        match self.gate.admit(worker, &self.clocks, turn.now()) {
            Admission::Start(reason) => {
                let (work, reason) = self.gate.work(worker, reason);
                turn.assign_work(worker, work, self.batch, reason);
            }
            Admission::Wait(on, reason) => turn.hold(worker, Until::Worker(on), reason),
        }
    }
}

impl<G: Gate> Scheme for FreeRunning<G> {
    fn retire(&mut self) {
        self.retired = true;
    }

    fn compensates(&self) -> bool {
        matches!(self.step, CommitStep::Compensated { .. })
    }

    fn save(&self) -> Option<String> {
        serde_json::to_string(&SavedFreeRunning { gate: self.gate.save()?, clocks: self.clocks.clone() }).ok()
    }

    fn restore(&mut self, state: &str) -> Result<(), RestoreError> {
        let SavedFreeRunning { gate, clocks } = serde_json::from_str(state)?;
        self.clocks = clocks;
        self.gate.restore(&gate)
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
        self.clocks.tick(update.task.worker);
        self.gate.on_push(update, turn.now());
        turn.commit(CommitRequest::of(&[update.task]).step(self.step), Reason::OnArrival);
        if !self.retired {
            self.advance(turn);
        }
    }

    fn on_timer(&mut self, turn: &mut Turn<'_>) {
        self.advance(turn);
    }
}
