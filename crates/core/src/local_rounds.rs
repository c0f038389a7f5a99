//! LocalWork rounds: everyone iterates on a replica of the model for a while, then the replicas are averaged.
//!
//! What all synchronous schemes with local iterations share. They differ in the [`Pace`]: for how long.

use crate::{
    Aggregate, CommitStep, LocalWork, Question, Reason, Scheme, TaskId, Time, Turn, Until, Update, Work, WorkerId,
};

/// What a [`Pace`] says to a worker that asks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Verdict {
    /// One more iteration.
    GoOn(Reason),
    /// Send what there is.
    Collect(Reason),
}

/// The rule by which local iterations go on.
pub trait Pace: Send {
    /// The worker is about to be given a round's model. Called for all of them before any is asked for with
    /// [`work`](Pace::work).
    fn on_start(&mut self, _now: Time, _worker: WorkerId) {}

    /// What the worker is to do in this round; `reason` says why it gets work at all.
    fn work(&mut self, now: Time, worker: WorkerId, reason: Reason) -> (LocalWork, Reason);

    /// The worker asks whether to go on; never, if it is given work that does not ask.
    fn on_asked(&mut self, _now: Time, _question: &Question) -> Verdict {
        Verdict::Collect(Reason::AllReady)
    }

    /// The worker's update is in.
    fn on_reported(&mut self, _now: Time, _update: &Update) {}

    /// The worker is gone.
    fn on_left(&mut self, _worker: WorkerId) {}

    /// The replicas were averaged. The next round has begun before.
    fn on_averaged(&mut self, _now: Time, _aggregate: Option<&Aggregate>) {}
}

/// A scheme of rounds in which everyone iterates locally.
///
/// A worker that joins takes part in the present round at once. A round ends when all that are there have sent their
/// updates.
#[derive(Debug)]
pub struct LocalRounds<P> {
    pace: P,
    /// The global learning rate.
    rate: f32,
    batch: u32,
    /// This round's updates so far, and the local iterations in them.
    arrived: Vec<(TaskId, u32)>,
}

impl<P: Pace> LocalRounds<P> {
    /// Rounds with `batch` samples per local iteration, after which the model moves by `rate` of the mean difference.
    pub fn new(pace: P, rate: f32, batch: u32) -> Self {
        LocalRounds { pace, rate, batch, arrived: Vec::new() }
    }

    fn end_round_if_all_are_in(&mut self, turn: &mut Turn<'_>) {
        let live = turn.live();
        if live == 0 || self.arrived.len() < live {
            return;
        }
        let (tasks, iterations): (Vec<TaskId>, Vec<u32>) = self.arrived.drain(..).unzip();
        let iterations = iterations.into_iter().map(u64::from).sum();
        let reason = Reason::Averaged { workers: live as u32, iterations };
        turn.commit_by(CommitStep::Average { rate: self.rate }, &tasks, reason);
        let workers: Vec<WorkerId> = turn.workers().collect();
        workers.iter().for_each(|&worker| self.pace.on_start(turn.now(), worker));
        workers.iter().for_each(|&worker| self.give(turn, worker, Reason::NewVersion));
    }

    fn give(&mut self, turn: &mut Turn<'_>, worker: WorkerId, reason: Reason) {
        let (local, reason) = self.pace.work(turn.now(), worker, reason);
        turn.assign_work(worker, Work::Local(local), self.batch, reason);
    }
}

impl<P: Pace> Scheme for LocalRounds<P> {
    fn on_joined(&mut self, turn: &mut Turn<'_>, worker: WorkerId) {
        self.pace.on_start(turn.now(), worker);
        self.give(turn, worker, Reason::Joined);
    }

    fn on_left(&mut self, turn: &mut Turn<'_>, worker: WorkerId) {
        self.arrived.retain(|(task, _)| task.worker != worker);
        self.pace.on_left(worker);
        self.end_round_if_all_are_in(turn);
    }

    fn on_reported(&mut self, turn: &mut Turn<'_>, update: &Update) {
        self.pace.on_reported(turn.now(), update);
        self.arrived.push((update.task, update.iterations));
        self.end_round_if_all_are_in(turn);
        while let Some(worker) = turn.next_unsettled() {
            turn.hold(worker, Until::Commit, Reason::Contributed);
        }
    }

    fn on_asked(&mut self, turn: &mut Turn<'_>, question: &Question) {
        match self.pace.on_asked(turn.now(), question) {
            Verdict::GoOn(reason) => turn.go_on(question.task.worker, reason),
            Verdict::Collect(reason) => turn.collect(question.task.worker, reason),
        }
    }

    fn on_committed(&mut self, turn: &mut Turn<'_>, aggregate: Option<&Aggregate>) {
        self.pace.on_averaged(turn.now(), aggregate);
    }
}
