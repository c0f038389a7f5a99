//! What a run has to show: its metrics, from its events and decisions alone.

use std::collections::VecDeque;

use paceline_core::{
    Action, Assignment, Decision, Event, LocalLength, Reason, Report, SampleCounts, Span, TaskId, Time, WorkerId,
};
use paceline_workload::Evaluation;
use serde::{Deserialize, Serialize};

use crate::goal::{Goal, GoalProgress, Goals, LOSS_WINDOW};

/// One iteration: what led from one version to the next.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Iteration {
    /// Counts from 1; the version it made.
    pub iteration: u64,
    /// When it ended, in seconds.
    pub time: f64,
    /// How long it took, in seconds.
    pub duration: f64,
    /// How many updates it was made of.
    pub waited_for: usize,
    /// Their mean training loss.
    pub loss: Option<f64>,
    /// By how much the scheme expected the loss to fall, where it estimates that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gain: Option<f64>,
    /// How long the scheme expected it to take, in seconds, where it estimates that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected_time: Option<f64>,
    /// Why it ended then.
    #[serde(serialize_with = "in_words")]
    pub reason: Reason,
}

fn in_words<S: serde::Serializer>(reason: &Reason, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(reason)
}

/// A finished run in numbers. Times are seconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The scheme as written.
    pub scheme: String,
    /// The seed of everything random.
    pub seed: u64,
    /// How many workers it began with.
    pub workers: usize,
    /// How many versions were made.
    pub iterations: u64,
    /// How long it took.
    pub time: f64,
    /// Whether it reached its target (loss or accuracy), or, where none was set, its limit.
    pub reached: bool,
    /// When it did.
    pub time_to_target: Option<f64>,
    /// What ended it.
    pub stopped_by: String,
    /// Mean of the last training losses.
    pub loss: Option<f64>,
    /// Last measured held-out accuracy.
    pub accuracy: Option<f64>,
    /// Updates that entered the model.
    pub updates_committed: u64,
    /// Updates that arrived for nothing.
    pub updates_discarded: u64,
    /// Tasks that were dropped before they were done.
    pub tasks_interrupted: u64,
    /// SampleCounts in committed updates.
    pub samples_used: u64,
    /// SampleCounts worked on for nothing.
    pub samples_lost: u64,
    /// Share of the workers' time in which they had nothing to do.
    pub idle_share: f64,
    /// Parameters and gradients moved.
    pub bytes: u64,
    /// SampleCounts in committed updates, per second.
    pub samples_per_second: f64,
    /// Parameters and gradients moved, per second.
    pub bytes_per_second: f64,
    /// What each worker did with its time, by rank.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub worker_times: Vec<WorkerTimes>,
}

impl Summary {
    /// When the run ended and how accurate its model was then. It is measured after the last line of the metrics.
    pub fn final_accuracy(&self) -> Option<(f64, f64)> {
        self.accuracy.map(|accuracy| (self.time, accuracy))
    }
}

/// What a worker did with its time, in seconds. What it is at when the run ends does not count.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct WorkerTimes {
    /// Its rank.
    pub worker: u32,
    /// Computing gradients, whether or not they were used.
    pub computing: f64,
    /// Waiting for the answer whether to go on, or at a local iteration that the answer made void.
    pub querying: f64,
    /// The rest: moving parameters and updates, and work that was interrupted.
    pub communicating: f64,
    /// Having nothing to do.
    pub waiting: f64,
    /// SampleCounts in the updates that it sent, used or not, per second of its time.
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

/// A task that a worker has been given.
#[derive(Debug, Clone, Copy)]
struct Issued {
    number: u64,
    /// In each iteration.
    samples: u32,
    /// To be done, or done as far as they were asked about.
    iterations: u32,
}

#[derive(Debug, Clone, Default)]
struct Shift {
    present_since: Option<Time>,
    idle_since: Option<Time>,
    /// When it was last heard of, or given work after a wait: so far its time is accounted for.
    heard: Time,
    present: Span,
    idle: Span,
    computing: Span,
    querying: Span,
    /// Oldest first. Tasks are done in their order, so that none is older than the last one reported.
    issued: VecDeque<Issued>,
    /// SampleCounts in reported tasks.
    samples: u64,
}

impl Shift {
    fn issue(&mut self, Assignment { task, work, samples, .. }: &Assignment) {
        let iterations = match work.length() {
            None => 1,
            Some(LocalLength::Iterations(count)) => count,
            Some(LocalLength::AskAndWait | LocalLength::AskAndContinue) => 0,
        };
        self.issued.push_back(Issued { number: task.number, samples: *samples, iterations });
    }

    fn ask(&mut self, number: u64, iterations: u32) {
        if let Some(issued) = self.issued.iter_mut().find(|issued| issued.number == number) {
            issued.iterations = iterations;
        }
    }

    fn report(&mut self, number: u64) {
        while let Some(issued) = self.issued.pop_front_if(|issued| issued.number <= number) {
            if issued.number == number {
                self.samples += u64::from(issued.samples) * u64::from(issued.iterations);
            }
        }
    }

    fn times(&self, worker: u32, now: Time) -> WorkerTimes {
        let open = |since: Option<Time>, until: Time| since.map_or(Span::ZERO, |since| until.since(since));
        let accounted = if self.idle_since.is_some() { now } else { self.heard };
        let present = self.present + open(self.present_since, accounted);
        let waiting = self.idle + open(self.idle_since, now);
        let seconds = present.seconds();
        WorkerTimes {
            worker,
            computing: self.computing.seconds(),
            querying: self.querying.seconds(),
            communicating: (present - self.computing - self.querying - waiting).seconds(),
            waiting: waiting.seconds(),
            samples_per_second: if seconds > 0.0 { self.samples as f64 / seconds } else { 0.0 },
        }
    }
}

/// Follows a run.
///
/// Call [`observe`](Monitor::observe) for every event with its decisions, then, when it returns an iteration, decide
/// whether to [`evaluate`](Monitor::evaluated) and ask whether it is [over](Monitor::met).
#[derive(Debug, Default)]
pub struct Monitor {
    shifts: Vec<Shift>,
    iterations: u64,
    iteration_began: Time,
    committed: u64,
    discarded: u64,
    interrupted: u64,
    losses: VecDeque<f64>,
    evaluation: Option<(u64, Evaluation)>,
    pending: VecDeque<(usize, Reason)>,
}

impl Monitor {
    fn shift(&mut self, worker: WorkerId) -> &mut Shift {
        if worker.index() >= self.shifts.len() {
            self.shifts.resize_with(worker.index() + 1, Shift::default);
        }
        &mut self.shifts[worker.index()]
    }

    fn idles(&mut self, worker: WorkerId, now: Time) {
        let shift = self.shift(worker);
        shift.idle_since = shift.idle_since.or(Some(now));
    }

    fn works(&mut self, worker: WorkerId, now: Time) {
        let shift = self.shift(worker);
        if let Some(since) = shift.idle_since.take() {
            shift.idle += now.since(since);
            shift.heard = now;
        }
    }

    fn heard(&mut self, worker: WorkerId, now: Time, report: &Report) {
        let shift = self.shift(worker);
        shift.heard = now;
        shift.computing += report.compute;
        shift.querying += report.querying;
    }

    /// Takes note of an event and the decisions it led to. A confirmed commit is an iteration done.
    pub fn observe(&mut self, now: Time, event: &Event, decisions: &[Decision]) -> Option<Iteration> {
        let mut done = None;
        match event {
            Event::Joined { worker } => {
                let shift = self.shift(*worker);
                (shift.present_since, shift.heard) = (Some(now), now);
            }
            Event::Left { worker } => {
                self.works(*worker, now);
                let shift = self.shift(*worker);
                shift.issued.clear();
                if let Some(since) = shift.present_since.take() {
                    shift.present += now.since(since);
                }
            }
            Event::Committed { aggregate, .. } => {
                let loss = aggregate.map(|aggregate| aggregate.loss);
                let commit = self.pending.pop_front();
                done = commit.map(|(updates, reason)| self.stepped(now, updates, loss, reason));
            }
            Event::Asked { task, iterations, report } => {
                self.heard(task.worker, now, report);
                self.shift(task.worker).ask(task.number, *iterations);
            }
            Event::Reported { task, report } => {
                self.heard(task.worker, now, report);
                self.shift(task.worker).report(task.number);
            }
            Event::Timer => {}
        }
        for decision in decisions {
            match &decision.action {
                Action::Commit { updates, .. } => self.pending.push_back((updates.len(), decision.reason)),
                Action::Discard { .. } => self.discarded += 1,
                Action::Interrupt { task } => {
                    self.interrupted += 1;
                    self.shift(task.worker).issued.retain(|issued| issued.number != task.number);
                }
                Action::Assign(assignment) => {
                    self.works(assignment.task.worker, now);
                    self.shift(assignment.task.worker).issue(assignment);
                }
                Action::Hold { worker, .. } => self.idles(*worker, now),
                Action::Continue { .. } | Action::Collect { .. } | Action::Wake { .. } => {}
            }
        }
        done
    }

    /// Takes note of a step of the model; [`observe`](Monitor::observe) does so by itself.
    pub fn stepped(&mut self, now: Time, updates: usize, loss: Option<f64>, reason: Reason) -> Iteration {
        self.iterations += 1;
        self.committed += updates as u64;
        if let Some(loss) = loss {
            if self.losses.len() == LOSS_WINDOW {
                self.losses.pop_front();
            }
            self.losses.push_back(loss);
        }
        let duration = now.since(self.iteration_began).seconds();
        self.iteration_began = now;
        let estimate = reason.estimate();
        Iteration {
            iteration: self.iterations,
            time: now.seconds(),
            duration,
            waited_for: updates,
            loss,
            gain: estimate.map(|estimate| estimate.gain),
            expected_time: estimate.map(|estimate| estimate.seconds),
            reason,
        }
    }

    /// Takes note of a measurement on the held-out set, made at the present iteration.
    pub fn evaluated(&mut self, evaluation: Evaluation) {
        self.evaluation = Some((self.iterations, evaluation));
    }

    /// The last measurement on the held-out set.
    pub fn evaluation(&self) -> Option<Evaluation> {
        self.evaluation.map(|(_, evaluation)| evaluation)
    }

    /// The measurement on the held-out set made at the present iteration, if there was one.
    pub fn fresh_evaluation(&self) -> Option<Evaluation> {
        self.evaluation.filter(|(iteration, _)| *iteration == self.iterations).map(|(_, evaluation)| evaluation)
    }

    /// Mean of the last training losses, fewer than [`LOSS_WINDOW`] at the beginning.
    pub fn loss(&self) -> Option<f64> {
        let count = self.losses.len();
        (count > 0).then(|| self.losses.iter().sum::<f64>() / count as f64)
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
            loss: self.loss().filter(|_| self.losses.len() == LOSS_WINDOW),
            accuracy: self.fresh_evaluation().map(|evaluation| evaluation.accuracy),
        })
    }

    /// Share of the workers' time in which they had nothing to do, so far.
    pub fn idle_share(&self, now: Time) -> f64 {
        let mut present = 0.0;
        let mut idle = 0.0;
        for shift in &self.shifts {
            let open = |since: Option<Time>| since.map_or(0.0, |since| now.since(since).seconds());
            present += shift.present.seconds() + open(shift.present_since);
            idle += shift.idle.seconds() + open(shift.idle_since);
        }
        if present > 0.0 { idle / present } else { 0.0 }
    }

    /// What each worker did with its time so far, by rank.
    fn worker_times(&self, now: Time) -> Vec<WorkerTimes> {
        (0..).zip(&self.shifts).map(|(worker, shift)| shift.times(worker, now)).collect()
    }

    /// The run in numbers. `met` is the goal that ended it, if one did.
    pub fn summary(
        &self,
        run: &RunInfo<'_>,
        now: Time,
        met: Option<Goal>,
        samples: &SampleCounts,
        bytes: u64,
    ) -> Summary {
        let per_second = |count: u64| if now > Time::START { count as f64 / now.seconds() } else { 0.0 };
        let reached = met.is_some_and(|goal| goal.is_target() || !run.goals.need_model());
        Summary {
            scheme: run.scheme.to_string(),
            seed: run.seed,
            workers: run.workers,
            iterations: self.iterations,
            time: now.seconds(),
            reached,
            time_to_target: reached.then(|| now.seconds()),
            stopped_by: met.map_or_else(|| run.otherwise.to_string(), |goal| goal.to_string()),
            loss: self.loss(),
            accuracy: self.evaluation().map(|evaluation| evaluation.accuracy),
            updates_committed: self.committed,
            updates_discarded: self.discarded,
            tasks_interrupted: self.interrupted,
            samples_used: samples.used,
            samples_lost: samples.stale + samples.dropped,
            idle_share: self.idle_share(now),
            bytes,
            samples_per_second: per_second(samples.used),
            bytes_per_second: per_second(bytes),
            worker_times: self.worker_times(now),
        }
    }
}

/// What a summary says of a run beside its metrics.
#[derive(Debug, Clone, Copy)]
pub struct RunInfo<'a> {
    /// The scheme as written.
    pub scheme: &'a str,
    /// The seed of everything random.
    pub seed: u64,
    /// How many workers it began with.
    pub workers: usize,
    /// What was to end it.
    pub goals: &'a Goals,
    /// What ended it, if no goal did.
    pub otherwise: &'a str,
}

/// Something that follows a run as it goes: a log, a progress bar, a printed line per iteration.
pub trait Observer {
    /// An event came and led to these decisions.
    fn on_turn(&mut self, _now: Time, _event: &Event, _decisions: &[Decision]) {}

    /// A task was done after `compute`, whether or not it counted.
    fn on_task(&mut self, _task: TaskId, _compute: Span) {}

    /// An iteration is done.
    fn on_iteration(&mut self, _iteration: &Iteration, _monitor: &Monitor) {}
}

impl Observer for () {}

/// Several observers, each told in turn.
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
}
