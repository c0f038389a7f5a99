//! Local rounds: every worker iterates on a replica of the model, then the replicas are averaged.
//!
//! All synchronous schemes with local iterations share this code. They differ in the [`LocalPolicy`], which decides how
//! many iterations each worker does, and in the [`Sizing`], which chooses the samples of an iteration.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::rounds::{FixedBatch, Sizing};
use crate::{
    Aggregate, CommitRequest, CommitStep, LocalWork, Question, Reason, Restorable, RestoreError, Scheme, TaskId, Time,
    Turn, Until, Update, Work, WorkerId,
};

/// A [`LocalPolicy`]'s answer to a worker's question.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum LocalDecision {
    /// The worker does one more iteration.
    Continue(Reason),
    /// The worker sends its update.
    Collect(Reason),
}

/// Decides how many local iterations each worker does.
pub trait LocalPolicy: Send + Restorable {
    /// Whether workers iterate on while others are still at work.
    fn fills_waiting(&self) -> bool {
        false
    }

    /// The worker is about to start a round. Called for all workers before [`work`](LocalPolicy::work) is called for
    /// any of them.
    fn on_start(&mut self, _now: Time, _worker: WorkerId) {}

    /// The worker's work in this round. `reason` is why it gets work; the policy may replace it.
    fn work(&mut self, now: Time, worker: WorkerId, reason: Reason) -> (LocalWork, Reason);

    /// The worker asks whether to continue. Not called for work that does not ask.
    fn on_asked(&mut self, _now: Time, _question: &Question) -> LocalDecision {
        LocalDecision::Collect(Reason::AllReady)
    }

    /// The worker's update has arrived.
    fn on_reported(&mut self, _now: Time, _update: &Update) {}

    /// The worker left.
    fn on_left(&mut self, _worker: WorkerId) {}

    /// The replicas were averaged. The next round has already begun.
    fn on_averaged(&mut self, _now: Time, _aggregate: Option<&Aggregate>) {}
}

/// The state of a [`LocalRounds`] scheme.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedLocalRounds {
    policy: Box<RawValue>,
    arrived: Vec<(TaskId, u32)>,
    /// `None` if it was saved before batches could differ.
    #[serde(default)]
    sizing: Option<Box<RawValue>>,
}

/// A scheme of rounds in which every worker iterates locally.
///
/// A worker that joins takes part in the present round at once. A round ends when every joined worker has sent its
/// update.
pub struct LocalRounds {
    policy: Box<dyn LocalPolicy>,
    step: CommitStep,
    sizing: Box<dyn Sizing>,
    /// This round's updates so far, and the local iterations in them.
    arrived: Vec<(TaskId, u32)>,
    /// It is to be replaced. Not saved: who replaces it says so again.
    retired: bool,
}

impl LocalRounds {
    /// Rounds with `batch` samples per local iteration, after which the model moves as `step` says: by an average.
    pub fn new(policy: impl LocalPolicy + 'static, step: CommitStep, batch: u32) -> Self {
        LocalRounds::sized(Box::new(policy), step, Box::new(FixedBatch(batch)))
    }

    /// The same, where `sizing` sets each worker's samples per local iteration, and so the weight of its replica.
    pub fn sized(policy: Box<dyn LocalPolicy>, step: CommitStep, sizing: Box<dyn Sizing>) -> Self {
        LocalRounds { policy, step, sizing, arrived: Vec::new(), retired: false }
    }

    fn end_round_if_complete(&mut self, turn: &mut Turn<'_>) {
        let live = turn.live();
        if live == 0 || self.arrived.len() < live {
            return;
        }
        let (tasks, iterations): (Vec<TaskId>, Vec<u32>) = self.arrived.drain(..).unzip();
        let iterations = iterations.into_iter().map(u64::from).sum();
        let reason = Reason::Averaged { workers: live as u32, iterations };
        turn.commit(CommitRequest::of(&tasks).step(self.step), reason);
        if self.retired {
            return;
        }
        let workers: Vec<WorkerId> = turn.workers().collect();
        self.sizing.begin(&workers);
        workers.iter().for_each(|&worker| self.policy.on_start(turn.now(), worker));
        workers.iter().for_each(|&worker| self.assign(turn, worker, Reason::NewVersion));
    }

    fn assign(&mut self, turn: &mut Turn<'_>, worker: WorkerId, reason: Reason) {
        let (local, reason) = self.policy.work(turn.now(), worker, reason);
        let (samples, why) = self.sizing.size(worker);
        turn.assign_work(worker, Work::Local(local), samples, why.unwrap_or(reason));
    }

    fn work_in_background(&mut self, turn: &mut Turn<'_>) {
        let again = self.sizing.in_background(&mut turn.workers());
        if let Some((delay, reason)) = again {
            turn.wake(delay, reason);
        }
    }
}

impl Scheme for LocalRounds {
    fn waits_for_all(&self) -> bool {
        !self.policy.fills_waiting()
    }

    fn commits_all(&self) -> bool {
        true
    }

    fn retire(&mut self) {
        self.retired = true;
    }

    fn save(&self) -> Option<String> {
        let (policy, sizing) = (self.policy.save()?, Some(self.sizing.save()?));
        serde_json::to_string(&SavedLocalRounds { policy, arrived: self.arrived.clone(), sizing }).ok()
    }

    fn restore(&mut self, state: &str) -> Result<(), RestoreError> {
        let SavedLocalRounds { policy, arrived, sizing } = serde_json::from_str(state)?;
        self.arrived = arrived;
        if let Some(sizing) = sizing {
            self.sizing.restore(&sizing)?;
        }
        self.policy.restore(&policy)
    }

    fn on_joined(&mut self, turn: &mut Turn<'_>, worker: WorkerId) {
        self.policy.on_start(turn.now(), worker);
        self.assign(turn, worker, Reason::Joined);
    }

    fn on_left(&mut self, turn: &mut Turn<'_>, worker: WorkerId) {
        self.arrived.retain(|(task, _)| task.worker != worker);
        self.policy.on_left(worker);
        self.end_round_if_complete(turn);
    }

    fn on_reported(&mut self, turn: &mut Turn<'_>, update: &Update) {
        self.policy.on_reported(turn.now(), update);
        self.sizing.on_arrival(update, turn.now());
        self.arrived.push((update.task, update.iterations));
        let before = turn.version();
        self.end_round_if_complete(turn);
        // The workers of a round that has ended have work already, or are left to the next scheme.
        while turn.version() == before
            && let Some(worker) = turn.next_unsettled()
        {
            turn.hold(worker, Until::Commit, Reason::Contributed);
        }
    }

    fn on_asked(&mut self, turn: &mut Turn<'_>, question: &Question) {
        match self.policy.on_asked(turn.now(), question) {
            LocalDecision::Continue(reason) => turn.continue_task(question.task.worker, reason),
            LocalDecision::Collect(reason) => turn.collect(question.task.worker, reason),
        }
    }

    fn on_committed(&mut self, turn: &mut Turn<'_>, aggregate: Option<&Aggregate>) {
        self.policy.on_averaged(turn.now(), aggregate);
        self.work_in_background(turn);
    }

    fn on_timer(&mut self, turn: &mut Turn<'_>) {
        self.work_in_background(turn);
    }
}
