//! What every driver keeps about a run: its metrics, its broken updates, and whether it is over.

use paceline_core::{Commit, CommitOutcome, Decision, Event, SampleCounts, TaskId, Time, WorkerId};
use paceline_workload::Evaluation;

use crate::broken_updates::{BrokenUpdates, Remedy};
use crate::{Goals, Iteration, Monitor, Observer, StopReason};

/// Follows a run, turn by turn.
///
/// A driver calls [`begin_turn`](RunTracker::begin_turn), [`committed`](RunTracker::committed) for every commit, and
/// [`end_turn`](RunTracker::end_turn). Then it dismisses the workers that are [to go](RunTracker::next_to_dismiss), and asks
/// whether the run [ends](RunTracker::take_stop).
pub struct RunTracker {
    monitor: Monitor,
    goals: Goals,
    evaluate_every: u64,
    broken_updates: BrokenUpdates,
    /// The last tasks of workers that are to be dismissed for broken updates.
    to_dismiss: Vec<TaskId>,
    /// The iteration that the event at hand completes.
    iteration: Option<Iteration>,
    stop: Option<StopReason>,
}

impl RunTracker {
    /// Follows a run with these metrics so far. The model is evaluated every `evaluate_every` samples; never with 0.
    pub fn new(monitor: Monitor, goals: Goals, evaluate_every: u64) -> Self {
        RunTracker {
            monitor,
            goals,
            evaluate_every,
            broken_updates: BrokenUpdates::default(),
            to_dismiss: Vec::new(),
            iteration: None,
            stop: None,
        }
    }

    /// The metrics so far.
    pub fn monitor(&self) -> &Monitor {
        &self.monitor
    }

    /// Records an event and the decisions that followed.
    #[inline]
    pub fn begin_turn(&mut self, now: Time, event: &Event, decisions: &[Decision], observer: &mut dyn Observer) {
        if let Event::Left { worker } = event {
            self.broken_updates.on_left(*worker);
        }
        observer.on_turn(now, event, decisions);
        if let Some(iteration) = self.monitor.observe(now, event, decisions) {
            self.iteration = Some(iteration);
        }
    }

    /// Records what became of a commit. `live` is the number of workers.
    pub fn committed(&mut self, commit: &Commit, outcome: &CommitOutcome, live: usize) {
        match self.broken_updates.settle(&commit.updates, outcome, live) {
            Remedy::Continue => {}
            Remedy::Dismiss(tasks) => self.to_dismiss.extend(tasks),
            Remedy::Diverged => self.stop = Some(StopReason::Diverged),
        }
    }

    /// Ends a turn. If an iteration ended with it, the model is evaluated where that is due, and the observer is told.
    /// `evaluate` returns `None` if the evaluation [follows](RunTracker::evaluated).
    #[inline]
    pub fn end_turn(
        &mut self,
        now: Time,
        samples: &SampleCounts,
        evaluate: impl FnOnce() -> Option<Evaluation>,
        observer: &mut dyn Observer,
    ) {
        if self.iteration.is_some() {
            self.end_iteration(now, samples, evaluate, observer);
        }
    }

    fn end_iteration(
        &mut self,
        now: Time,
        samples: &SampleCounts,
        evaluate: impl FnOnce() -> Option<Evaluation>,
        observer: &mut dyn Observer,
    ) {
        let Some(iteration) = &mut self.iteration else { return };
        self.monitor.complete(iteration, samples);
        if self.monitor.passed_multiple_of(self.evaluate_every)
            && let Some(evaluation) = evaluate()
        {
            self.monitor.evaluated(evaluation, now);
        }
        observer.on_iteration(iteration, &self.monitor);
        self.iteration = None;
        self.monitor.evaluation_reported();
        self.stop_if_met(now, samples);
    }

    /// Records an evaluation of the model as it was at `at`. It is reported with the next iteration.
    pub fn evaluated(&mut self, evaluation: Evaluation, at: Time, now: Time, samples: &SampleCounts) {
        self.monitor.evaluated(evaluation, at);
        self.stop_if_met(now, samples);
    }

    fn stop_if_met(&mut self, now: Time, samples: &SampleCounts) {
        if self.stop.is_none() {
            self.stop = self.monitor.met(&self.goals, now, samples).map(StopReason::Goal);
        }
    }

    /// A worker that is to be dismissed for broken updates, and why.
    #[inline]
    pub fn next_to_dismiss(&mut self) -> Option<(WorkerId, String)> {
        let task = self.to_dismiss.pop()?;
        Some((task.worker, format!("the update of {task} is the third in a row that is not finite")))
    }

    /// Whether the latest update of each of the `live` workers was broken, so that the model is not worth a checkpoint.
    pub fn suspect_model(&self, live: usize) -> bool {
        self.broken_updates.suspect_model(live)
    }

    /// Ends the run.
    pub fn stop(&mut self, reason: StopReason) {
        self.stop = Some(reason);
    }

    /// What ends the run, if anything.
    #[inline]
    pub fn take_stop(&mut self) -> Option<StopReason> {
        self.stop.take()
    }
}
