//! Metrics of a run, from its events and decisions alone.

use std::collections::VecDeque;

use paceline_core::{
    Action, Assignment, Commit, Decision, Event, Goodput, LocalLength, Reason, Report, SampleCounts, Setup, Span,
    TaskId, Time, WorkerId,
};
use paceline_protocol::Notice;
use paceline_workload::Evaluation;
use serde::{Deserialize, Serialize};

use crate::ending::{RunEnding, StopReason};
use crate::goal::{Goal, GoalProgress, Goals};
use crate::recent_loss::RecentLoss;

/// One iteration: one step of the model.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Iteration {
    /// Counts from 1; equals the version after it.
    pub iteration: u64,
    /// When it ended, in seconds.
    pub time: f64,
    /// How long it took, in seconds.
    pub duration: f64,
    /// How many updates it consists of.
    pub waited_for: usize,
    /// Samples in all committed updates so far.
    pub samples: u64,
    /// Their mean training loss.
    pub loss: Option<f64>,
    /// By how much the scheme expected the loss to fall, where it estimates that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gain: Option<f64>,
    /// How long the scheme expected it to take, in seconds, where it estimates that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected_time: Option<f64>,
    /// Why it ended then.
    #[serde(serialize_with = "as_text")]
    pub reason: Reason,
}

fn as_text<S: serde::Serializer>(reason: &Reason, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(reason)
}

/// A finished run in numbers. Times are seconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The scheme with its settings.
    pub scheme: String,
    /// The seed of everything random.
    pub seed: u64,
    /// How many workers it started with.
    pub workers: usize,
    /// How many times the model was stepped.
    pub iterations: u64,
    /// How long it took.
    pub time: f64,
    /// Whether it reached its target (loss or accuracy) or, without a target, its limit.
    pub reached: bool,
    /// When it reached it. For an accuracy, when the model that confirmed it was made.
    pub time_to_target: Option<f64>,
    /// The loss or accuracy that counted when it reached its target.
    #[serde(default)]
    pub counted: Option<f64>,
    /// What ended the run, in words.
    pub stopped_by: String,
    /// How it ended.
    #[serde(default)]
    pub ending: RunEnding,
    /// Mean of the last training losses, weighted by samples.
    pub loss: Option<f64>,
    /// Last measured held-out accuracy.
    pub accuracy: Option<f64>,
    /// Updates that entered the model.
    pub updates_committed: u64,
    /// Updates that arrived and were discarded.
    pub updates_discarded: u64,
    /// Updates that a commit left out because they were not finite.
    #[serde(default)]
    pub updates_broken: u64,
    /// Tasks that were interrupted.
    pub tasks_interrupted: u64,
    /// Samples in committed updates.
    pub samples_used: u64,
    /// Samples whose work was lost: discarded, broken or interrupted.
    pub samples_lost: u64,
    /// Share of the workers' time in which they were idle.
    pub idle_share: f64,
    /// Bytes of parameters and gradients that were moved.
    pub bytes: u64,
    /// Samples in committed updates, per second.
    pub samples_per_second: f64,
    /// Bytes of parameters and gradients that were moved, per second.
    pub bytes_per_second: f64,
    /// Samples per second, each counted for what it is worth under `bsp`.
    #[serde(default)]
    pub goodput: f64,
    /// How each worker spent its time, by rank.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub worker_times: Vec<WorkerTimes>,
}

impl Summary {
    /// When the run ended and how accurate its model was then. It is measured after the last line of the metrics.
    pub fn final_accuracy(&self) -> Option<(f64, f64)> {
        self.accuracy.map(|accuracy| (self.time, accuracy))
    }
}

/// How a worker spent its time, in seconds. A task that is unfinished when the run ends does not count.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct WorkerTimes {
    /// Its rank.
    pub worker: u32,
    /// Computing gradients, whether or not they were used.
    pub computing: f64,
    /// Waiting for its data; a part of `computing`. 0 if the worker does not measure it.
    #[serde(default)]
    pub loading: f64,
    /// Waiting for the answer whether to continue, or computing a local iteration that the answer made void.
    pub querying: f64,
    /// The rest: transfer of parameters and updates, and interrupted work.
    pub communicating: f64,
    /// Idle.
    pub waiting: f64,
    /// Samples in the updates that it sent, used or not, per second of its time.
    pub samples_per_second: f64,
}

impl WorkerTimes {
    /// All of its time, in seconds.
    pub fn total(&self) -> f64 {
        self.computing + self.querying + self.communicating + self.waiting
    }

    /// Share of its time that the worker computed, 0 to 1.
    pub fn computing_share(&self) -> f64 {
        if self.total() > 0.0 { self.computing / self.total() } else { 0.0 }
    }
}

/// What counts of a task.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct TaskSize {
    task: TaskId,
    /// The samples of each iteration.
    samples: u32,
    /// How many iterations are reported: the number that was assigned, or that of the last question.
    iterations: u32,
}

impl TaskSize {
    fn new(assignment: &Assignment) -> Self {
        let iterations = match assignment.work.length() {
            None => 1,
            Some(LocalLength::Iterations(count)) => count,
            Some(LocalLength::AskAndWait | LocalLength::AskAndContinue) => 0,
        };
        TaskSize { task: assignment.task, samples: assignment.samples, iterations }
    }
}

/// How one worker has spent its time so far, and what it does.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct WorkerClock {
    present_since: Option<Time>,
    /// The time of its last report, or of its last assignment after it was idle. Its time is accounted for until then.
    last_report: Time,
    present: Span,
    idle: Span,
    computing: Span,
    querying: Span,
    #[serde(default)]
    loading: Span,
    /// Samples in reported tasks.
    samples: u64,
    /// Since when it has no task.
    #[serde(default)]
    idle_since: Option<Time>,
    #[serde(default)]
    running: Option<TaskSize>,
    #[serde(default)]
    queued: Option<TaskSize>,
}

impl WorkerClock {
    fn join(&mut self, now: Time) {
        (self.present_since, self.last_report, self.idle_since) = (Some(now), now, Some(now));
    }

    fn leave(&mut self, now: Time) {
        self.end_idle(now);
        if let Some(since) = self.present_since.take() {
            self.present += now.since(since);
        }
        (self.running, self.queued) = (None, None);
    }

    fn on_report(&mut self, now: Time, report: &Report) {
        self.last_report = now;
        self.computing += report.compute;
        self.querying += report.querying;
        self.loading += report.loading;
    }

    fn assign(&mut self, now: Time, assignment: &Assignment) {
        let task = Some(TaskSize::new(assignment));
        if self.running.is_some() {
            self.queued = task;
        } else {
            self.end_idle(now);
            self.running = task;
        }
    }

    /// The present task ends. The queued one starts, or the worker becomes idle.
    fn end_task(&mut self, now: Time) {
        self.running = self.queued.take();
        self.idle_since = if self.running.is_none() { Some(now) } else { None };
    }

    fn end_idle(&mut self, now: Time) {
        if let Some(since) = self.idle_since.take().filter(|&since| since < now) {
            self.idle += now.since(since);
            self.last_report = now;
        }
    }

    fn times(&self, worker: u32, now: Time) -> WorkerTimes {
        let open = |since: Option<Time>, until: Time| since.map_or(Span::ZERO, |since| until.since(since));
        let accounted = if self.idle_since.is_some() { now } else { self.last_report };
        let present = self.present + open(self.present_since, accounted);
        let waiting = self.idle + open(self.idle_since, now);
        let seconds = present.seconds();
        WorkerTimes {
            worker,
            computing: self.computing.seconds(),
            loading: self.loading.seconds(),
            querying: self.querying.seconds(),
            communicating: (present - self.computing - self.querying - waiting).seconds(),
            waiting: waiting.seconds(),
            samples_per_second: if seconds > 0.0 { self.samples as f64 / seconds } else { 0.0 },
        }
    }
}

/// The last evaluations on the held-out set.
#[derive(Debug, Clone, Copy, Default)]
struct Evaluations {
    last: Option<(Time, Evaluation)>,
    before: Option<Evaluation>,
    /// Whether the last one is reported with no iteration yet.
    is_fresh: bool,
}

impl Evaluations {
    /// The accuracy that the last two evaluations confirm, i.e. the lower of them, and when the later model was made.
    fn confirmed(&self) -> Option<(Time, f64)> {
        let (at, last) = self.last?;
        Some((at, last.accuracy?.min(self.before?.accuracy?)))
    }
}

/// Computes the metrics of a run as it goes.
///
/// Call [`observe`](Monitor::observe) for every event with its decisions. When it returns an iteration,
/// [complete](Monitor::complete) it, record an [evaluation](Monitor::evaluated) if one is due, then ask whether a goal is
/// [met](Monitor::met).
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Monitor {
    /// By rank.
    clocks: Vec<WorkerClock>,
    iterations: u64,
    iteration_began: Time,
    committed: u64,
    discarded: u64,
    broken: u64,
    interrupted: u64,
    loss: RecentLoss,
    #[serde(default)]
    goodput: Goodput,
    /// Samples in committed updates after the last iteration, and before it.
    samples: u64,
    samples_before: u64,
    /// Not saved: the model is evaluated again.
    #[serde(skip)]
    evaluations: Evaluations,
    pending: VecDeque<(usize, Reason)>,
}

impl Monitor {
    /// The metrics of a run with this setup, at its start.
    pub fn new(setup: &Setup) -> Self {
        Monitor { loss: RecentLoss::new(setup), goodput: Goodput::new(setup), ..Monitor::default() }
    }

    #[inline]
    fn clock(&mut self, worker: WorkerId) -> &mut WorkerClock {
        if worker.index() >= self.clocks.len() {
            self.clocks.resize_with(worker.index() + 1, WorkerClock::default);
        }
        &mut self.clocks[worker.index()]
    }

    /// Records an event and the decisions that followed. A confirmed commit completes an iteration.
    pub fn observe(&mut self, now: Time, event: &Event, decisions: &[Decision]) -> Option<Iteration> {
        let mut done = None;
        match event {
            Event::Committed { aggregate, .. } => {
                let loss = aggregate.as_ref().map(|aggregate| aggregate.loss);
                if let Some((updates, reason)) = self.pending.pop_front() {
                    if let Some(aggregate) = aggregate {
                        self.goodput.on_aggregate(&reason, aggregate);
                    }
                    done = Some(self.stepped(now, updates, loss, reason));
                }
            }
            Event::Reported { task, report } => {
                let clock = self.clock(task.worker);
                clock.on_report(now, report);
                if let Some(running) = clock.running {
                    let samples = report.samples.unwrap_or(running.samples);
                    clock.samples += u64::from(samples) * u64::from(running.iterations);
                    clock.end_task(now);
                }
            }
            Event::Asked { task, iterations, report } => {
                let clock = self.clock(task.worker);
                clock.on_report(now, report);
                if let Some(running) = &mut clock.running {
                    running.iterations = *iterations;
                }
            }
            Event::Broken { .. } => {
                self.committed -= 1;
                self.broken += 1;
            }
            Event::Joined { worker } => self.clock(*worker).join(now),
            Event::Left { worker } => self.clock(*worker).leave(now),
            Event::Late { .. } | Event::Timer | Event::Planned { .. } => {}
        }
        for decision in decisions {
            match &decision.action {
                Action::Assign(assignment) => self.clock(assignment.task.worker).assign(now, assignment),
                Action::Interrupt { task } => {
                    self.interrupted += 1;
                    self.clock(task.worker).end_task(now);
                }
                Action::Commit(Commit { updates, .. }) => self.pending.push_back((updates.len(), decision.reason)),
                Action::Discard { .. } => self.discarded += 1,
                Action::Continue { .. } | Action::Collect { .. } | Action::Hold { .. } | Action::Wake { .. } => {}
            }
        }
        done
    }

    /// Records a step of the model. [`observe`](Monitor::observe) calls it.
    pub fn stepped(&mut self, now: Time, updates: usize, loss: Option<f64>, reason: Reason) -> Iteration {
        self.goodput.on_commit(updates, &reason);
        self.iterations += 1;
        self.committed += updates as u64;
        let duration = now.since(self.iteration_began).seconds();
        self.iteration_began = now;
        let estimate = reason.estimate();
        Iteration {
            iteration: self.iterations,
            time: now.seconds(),
            duration,
            waited_for: updates,
            samples: self.samples,
            loss,
            gain: estimate.map(|estimate| estimate.gain),
            expected_time: estimate.map(|estimate| estimate.seconds),
            reason,
        }
    }

    /// Completes an iteration: these samples are committed now.
    pub fn complete(&mut self, iteration: &mut Iteration, samples: &SampleCounts) {
        self.samples_before = self.samples;
        self.samples = samples.used;
        iteration.samples = samples.used;
        if let Some(loss) = iteration.loss {
            self.loss.add(loss, self.samples.saturating_sub(self.samples_before));
        }
    }

    /// Whether the last iteration brought the samples to the next multiple of `count`, or beyond. Never with 0.
    pub fn passed_multiple_of(&self, count: u64) -> bool {
        count > 0 && self.samples / count > self.samples_before / count
    }

    /// Records an evaluation on the held-out set of the model as it was at `at`.
    pub fn evaluated(&mut self, evaluation: Evaluation, at: Time) {
        let before = self.evaluations.last.map(|(_, before)| before);
        self.evaluations = Evaluations { last: Some((at, evaluation)), before, is_fresh: true };
    }

    /// The last evaluation is reported.
    pub(crate) fn evaluation_reported(&mut self) {
        self.evaluations.is_fresh = false;
    }

    /// The last evaluation on the held-out set.
    pub fn evaluation(&self) -> Option<Evaluation> {
        self.evaluations.last.map(|(_, evaluation)| evaluation)
    }

    /// The last evaluation on the held-out set, if no iteration before this one reported it.
    pub fn fresh_evaluation(&self) -> Option<Evaluation> {
        self.evaluation().filter(|_| self.evaluations.is_fresh)
    }

    /// Mean of the last training losses, weighted by samples: of five rounds of all workers, fewer at the start.
    pub fn loss(&self) -> Option<f64> {
        self.loss.mean()
    }

    /// The same, once there were enough samples.
    pub fn smoothed_loss(&self) -> Option<f64> {
        self.loss().filter(|_| self.loss.is_full())
    }

    /// How many samples `bsp` would have needed for the progress so far.
    pub fn worth(&self) -> f64 {
        self.goodput.samples()
    }

    /// How many iterations are done.
    pub fn iterations(&self) -> u64 {
        self.iterations
    }

    /// The first goal that is met.
    pub fn met(&self, goals: &Goals, now: Time, samples: &SampleCounts) -> Option<Goal> {
        goals.met(&GoalProgress {
            iterations: self.iterations,
            samples: samples.used,
            now,
            loss: self.smoothed_loss(),
            accuracy: self.evaluations.confirmed().map(|(_, accuracy)| accuracy),
        })
    }

    /// Share of the workers' time in which they were idle, so far.
    pub fn idle_share(&self, now: Time) -> f64 {
        let mut present = 0.0;
        let mut idle = 0.0;
        for clock in &self.clocks {
            let open = |since: Option<Time>| since.map_or(0.0, |since| now.since(since).seconds());
            present += clock.present.seconds() + open(clock.present_since);
            idle += clock.idle.seconds() + open(clock.idle_since);
        }
        if present > 0.0 { idle / present } else { 0.0 }
    }

    /// The joined workers, by rank.
    pub(crate) fn members(&self) -> impl Iterator<Item = WorkerId> {
        let members = (0..).map(WorkerId).zip(&self.clocks).filter(|(_, clock)| clock.present_since.is_some());
        members.map(|(worker, _)| worker)
    }

    /// The worker's present task.
    pub(crate) fn running(&self, worker: WorkerId) -> Option<TaskId> {
        self.clocks.get(worker.index())?.running.map(|running| running.task)
    }

    /// Samples in the updates that the worker sent.
    pub(crate) fn worker_samples(&self, worker: WorkerId) -> u64 {
        self.clocks.get(worker.index()).map_or(0, |clock| clock.samples)
    }

    /// How each worker has spent its time so far, by rank.
    pub(crate) fn worker_times(&self, now: Time) -> Vec<WorkerTimes> {
        (0..).zip(&self.clocks).map(|(worker, clock)| clock.times(worker, now)).collect()
    }

    /// The run in numbers. `stop` ended it, `last` is an evaluation of its final model.
    pub fn summary(
        &self,
        run: &RunInfo<'_>,
        now: Time,
        stop: &StopReason,
        samples: &SampleCounts,
        bytes: u64,
        last: Option<Evaluation>,
    ) -> Summary {
        let per_second = |count: u64| if now > Time::START { count as f64 / now.seconds() } else { 0.0 };
        let ending = RunEnding::new(stop, run.goals);
        let reached = ending == RunEnding::Reached;
        let (at, counted) = match stop {
            StopReason::Goal(Goal::LossBelow(_)) => (now, self.loss()),
            StopReason::Goal(Goal::AccuracyAbove(_)) => {
                self.evaluations.confirmed().map_or((now, None), |(at, accuracy)| (at, Some(accuracy)))
            }
            _ => (now, None),
        };
        Summary {
            scheme: run.scheme.to_string(),
            seed: run.seed,
            workers: run.workers,
            iterations: self.iterations,
            time: now.seconds(),
            reached,
            time_to_target: reached.then(|| at.seconds()),
            counted,
            stopped_by: stop.to_string(),
            ending,
            loss: self.loss(),
            accuracy: last.or(self.evaluation()).and_then(|evaluation| evaluation.accuracy),
            updates_committed: self.committed,
            updates_discarded: self.discarded,
            updates_broken: self.broken,
            tasks_interrupted: self.interrupted,
            samples_used: samples.used,
            samples_lost: samples.stale + samples.dropped,
            idle_share: self.idle_share(now),
            bytes,
            samples_per_second: per_second(samples.used),
            bytes_per_second: per_second(bytes),
            goodput: if now > Time::START { self.goodput.samples() / now.seconds() } else { 0.0 },
            worker_times: self.worker_times(now),
        }
    }
}

/// What a summary says about a run beside its metrics.
#[derive(Debug, Clone, Copy)]
pub struct RunInfo<'a> {
    /// The scheme with its settings.
    pub scheme: &'a str,
    /// The seed of everything random.
    pub seed: u64,
    /// How many workers it started with.
    pub workers: usize,
    /// When it was to end.
    pub goals: &'a Goals,
}

/// Follows a run as it goes: a log, a progress bar, a printed line per iteration.
pub trait Observer {
    /// An event led to these decisions.
    fn on_turn(&mut self, _now: Time, _event: &Event, _decisions: &[Decision]) {}

    /// A task was computed in `compute`, whether or not its update is used.
    fn on_task(&mut self, _task: TaskId, _compute: Span) {}

    /// An iteration is done.
    fn on_iteration(&mut self, _iteration: &Iteration, _monitor: &Monitor) {}

    /// Membership has changed.
    fn on_notice(&mut self, _notice: &Notice) {}
}

impl Observer for () {}

/// Several observers, called in turn.
impl Observer for Vec<&mut dyn Observer> {
    fn on_turn(&mut self, now: Time, event: &Event, decisions: &[Decision]) {
        self.iter_mut().for_each(|observer| observer.on_turn(now, event, decisions));
    }
    fn on_task(&mut self, task: TaskId, compute: Span) {
        self.iter_mut().for_each(|observer| observer.on_task(task, compute));
    }
    fn on_iteration(&mut self, iteration: &Iteration, monitor: &Monitor) {
        self.iter_mut().for_each(|observer| observer.on_iteration(iteration, monitor));
    }
    fn on_notice(&mut self, notice: &Notice) {
        self.iter_mut().for_each(|observer| observer.on_notice(notice));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Records an iteration that brings the samples to this number, and evaluates the model if that is due.
    fn step(monitor: &mut Monitor, samples: u64, evaluate_every: u64, accuracy: f64) -> bool {
        let now = Time(samples * 1_000_000_000);
        let mut iteration = monitor.stepped(now, 1, Some(1.0), Reason::OnArrival);
        monitor.complete(&mut iteration, &SampleCounts { used: samples, ..SampleCounts::default() });
        assert_eq!(iteration.samples, samples);
        let due = monitor.passed_multiple_of(evaluate_every);
        if due {
            monitor.evaluated(Evaluation { accuracy: Some(accuracy), loss: 0.0 }, now);
        }
        due
    }

    #[test]
    fn evaluations_are_after_the_same_samples_however_large_the_steps_are() {
        for (sizes, expected) in [
            (vec![10, 20, 30, 40], vec![false, true, false, true]),
            (vec![5, 25, 39, 41, 100], vec![false, true, false, true, true]),
        ] {
            let mut monitor = Monitor::default();
            let due: Vec<bool> = sizes.into_iter().map(|samples| step(&mut monitor, samples, 20, 0.5)).collect();
            assert_eq!(due, expected);
        }
        assert!(!step(&mut Monitor::default(), 10, 0, 0.5), "0 is never");
    }

    #[test]
    fn an_accuracy_counts_when_the_next_evaluation_confirms_it() {
        let goals: Goals = "accuracy>0.8,samples=100".parse().unwrap();
        let mut monitor = Monitor::default();
        let mut met = |samples, accuracy| {
            step(&mut monitor, samples, 10, accuracy);
            let counts = SampleCounts { used: samples, ..SampleCounts::default() };
            monitor.met(&goals, Time(samples), &counts)
        };
        assert_eq!(met(10, 0.9), None, "a lucky one");
        assert_eq!(met(20, 0.7), None);
        assert_eq!(met(30, 0.85), None);
        assert_eq!(met(40, 0.95), Some(Goal::AccuracyAbove(0.8)));
        let run = RunInfo { scheme: "bsp", seed: 1, workers: 2, goals: &goals };
        let stop = StopReason::Goal(Goal::AccuracyAbove(0.8));
        let last = Some(Evaluation { accuracy: Some(0.99), loss: 0.0 });
        // The run itself ends later: the model is evaluated beside the training.
        let summary = monitor.summary(&run, Time(50_000_000_000), &stop, &SampleCounts::default(), 0, last);
        assert_eq!((summary.time, summary.time_to_target), (50.0, Some(40.0)));
        assert_eq!((summary.counted, summary.accuracy), (Some(0.85), Some(0.99)), "the lower of both counts");
    }
}
