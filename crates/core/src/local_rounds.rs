//! Local rounds: every worker iterates on a replica of the model, then the replicas are averaged.
//!
//! All synchronous schemes with local iterations share this code. They differ in the [`LocalPolicy`], which decides how
//! many iterations each worker does.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

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
}

/// A scheme of rounds in which every worker iterates locally.
///
/// A worker that joins takes part in the present round at once. A round ends when every joined worker has sent its
/// update.
#[derive(Debug)]
pub struct LocalRounds<P> {
    policy: P,
    /// The global learning rate.
    rate: f32,
    batch: u32,
    /// This round's updates so far, and the local iterations in them.
    arrived: Vec<(TaskId, u32)>,
}

impl<P: LocalPolicy> LocalRounds<P> {
    /// Rounds with `batch` samples per local iteration, after which the model moves by `rate` of the mean difference.
    pub fn new(policy: P, rate: f32, batch: u32) -> Self {
        LocalRounds { policy, rate, batch, arrived: Vec::new() }
    }

    fn end_round_if_complete(&mut self, turn: &mut Turn<'_>) {
        let live = turn.live();
        if live == 0 || self.arrived.len() < live {
            return;
        }
        let (tasks, iterations): (Vec<TaskId>, Vec<u32>) = self.arrived.drain(..).unzip();
        let iterations = iterations.into_iter().map(u64::from).sum();
        let reason = Reason::Averaged { workers: live as u32, iterations };
        turn.commit(CommitRequest::of(&tasks).step(CommitStep::Average { rate: self.rate }), reason);
        let workers: Vec<WorkerId> = turn.workers().collect();
        workers.iter().for_each(|&worker| self.policy.on_start(turn.now(), worker));
        workers.iter().for_each(|&worker| self.assign(turn, worker, Reason::NewVersion));
    }

    fn assign(&mut self, turn: &mut Turn<'_>, worker: WorkerId, reason: Reason) {
        let (local, reason) = self.policy.work(turn.now(), worker, reason);
        turn.assign_work(worker, Work::Local(local), self.batch, reason);
    }
}

impl<P: LocalPolicy> Scheme for LocalRounds<P> {
    fn save(&self) -> Option<String> {
        serde_json::to_string(&SavedLocalRounds { policy: self.policy.save()?, arrived: self.arrived.clone() }).ok()
    }

    fn restore(&mut self, state: &str) -> Result<(), RestoreError> {
        let SavedLocalRounds { policy, arrived } = serde_json::from_str(state)?;
        self.arrived = arrived;
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
        self.arrived.push((update.task, update.iterations));
        self.end_round_if_complete(turn);
        while let Some(worker) = turn.next_unsettled() {
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
    }
}
