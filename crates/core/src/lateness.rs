//! Lateness: how long each worker's tasks are expected to take, learned from its history.

use std::collections::VecDeque;

use crate::{Action, Assignment, Decision, Event, Ledger, LocalLength, Span, TaskId, Time, WorkerId};

/// How many of a worker's latest times are kept.
const HISTORY: usize = 32;

/// A task is late after this multiple of the median time …
const MEDIAN_FACTOR: f64 = 4.0;

/// … or after the median time plus this multiple of the spread, whichever is later. The spread is the median absolute
/// deviation, scaled to the standard deviation of a normal distribution.
const SPREAD_FACTOR: f64 = 8.0;
const MAD_TO_DEVIATION: f64 = 1.4826;

/// No task is late before this time: on a busy machine a healthy process may be delayed for about as long.
const MIN_LATE: Span = Span(1_000_000_000);

/// A worker is stuck if it makes no progress for this multiple of the expected time, and for at least [`MIN_STUCK`]. A
/// history of fewer than [`MIN_TIMES`] may be an accident; then only the ceiling holds.
const STUCK_FACTOR: u64 = 100;
const MIN_STUCK: Span = Span(60_000_000_000);
const MIN_TIMES: usize = 5;

/// A pause that a worker has recovered from is never taken for the end: it is stuck only after this multiple of it.
const PAUSE_FACTOR: u64 = 4;

/// What is expected of each busy worker.
///
/// The expectation follows the worker's own times: median and spread, which are robust against single outliers, in
/// proportion to the work. A task that takes longer than expected is evidence of a lasting change, so the history starts
/// again with it: with its time, if it is reported, or with the time that it has taken at least, if it is not.
#[derive(Debug, Clone)]
pub struct Lateness {
    ceiling: Span,
    workers: Vec<TaskHistory>,
    /// Workers whose task may have changed in this turn.
    changed: Vec<WorkerId>,
}

/// One worker's times.
#[derive(Debug, Clone, Default)]
struct TaskHistory {
    /// Times with their work in samples, oldest first.
    times: VecDeque<(Span, u64)>,
    running: Option<ExpectedReport>,
    /// The longest time without progress after which it made progress again.
    longest_pause: Span,
}

/// A report that has not arrived yet.
#[derive(Debug, Clone, Copy)]
struct ExpectedReport {
    task: TaskId,
    since: Time,
    work: u64,
    /// Whether the worker asks after every iteration. The report after its last question says nothing about its speed.
    asks: bool,
}

impl Lateness {
    /// No report is expected yet. `ceiling` is the time without progress after which a worker of unknown speed is stuck.
    pub fn new(ceiling: Span) -> Self {
        Lateness { ceiling, workers: Vec::new(), changed: Vec::new() }
    }

    fn history(&mut self, worker: WorkerId) -> &mut TaskHistory {
        if worker.index() >= self.workers.len() {
            self.workers.resize_with(worker.index() + 1, TaskHistory::default);
        }
        &mut self.workers[worker.index()]
    }

    /// An event led to these decisions. [`settle`](Lateness::settle) follows when they are carried out.
    pub fn observe(&mut self, now: Time, event: &Event, decisions: &[Decision]) {
        match *event {
            Event::Reported { task, report } | Event::Asked { task, report, .. } => {
                self.on_report(now, task.worker, report.compute, matches!(event, Event::Reported { .. }));
                self.changed.push(task.worker);
            }
            Event::Left { worker } => self.changed.push(worker),
            _ => {}
        }
        self.changed.extend(decisions.iter().filter_map(|decision| match decision.action {
            Action::Assign(Assignment { task, .. }) | Action::Interrupt { task } => Some(task.worker),
            _ => None,
        }));
    }

    /// The turn is over. Returns the workers whose task may have changed.
    pub fn settle(&mut self, now: Time, ledger: &Ledger) -> Vec<WorkerId> {
        let changed = std::mem::take(&mut self.changed);
        for &worker in &changed {
            self.update(now, worker, ledger.running(worker).as_ref());
        }
        changed
    }

    /// `running` is the worker's present task.
    fn update(&mut self, now: Time, worker: WorkerId, running: Option<&Assignment>) {
        let late_after = self.late_after(worker);
        let history = self.history(worker);
        let task = running.map(|assignment| assignment.task);
        if history.running.map(|expected| expected.task) == task {
            return;
        }
        // The task was interrupted, or its worker left. Its time is known from below.
        if let (Some(expected), Some(late_after)) = (history.running.take(), late_after)
            && now.since(expected.since) > late_after
        {
            history.times.clear();
            history.times.push_back((now.since(expected.since), expected.work));
        }
        history.running = running.map(|assignment| ExpectedReport {
            task: assignment.task,
            since: now,
            work: work(assignment),
            asks: matches!(assignment.work.length(), Some(LocalLength::AskAndWait | LocalLength::AskAndContinue)),
        });
    }

    /// The worker has reported its task, or has asked about it, after it has computed for some time. That is known even
    /// if several reports were held up and arrive at once.
    fn on_report(&mut self, now: Time, worker: WorkerId, compute: Span, done: bool) {
        let late_after = self.late_after(worker);
        let history = self.history(worker);
        let Some(expected) = &mut history.running else { return };
        let (elapsed, work) = (now.since(expected.since).max(compute), expected.work);
        let is_measured = !(done && expected.asks);
        expected.since = now;
        if done {
            history.running = None;
        }
        if !is_measured {
            return;
        }
        if late_after.is_some_and(|late_after| elapsed > late_after) {
            history.times.clear();
        } else if history.times.len() == HISTORY {
            history.times.pop_front();
        }
        history.times.push_back((elapsed, work));
    }

    /// The worker made progress after it had made none for `pause`.
    pub fn on_progress(&mut self, worker: WorkerId, pause: Span) {
        let history = self.history(worker);
        history.longest_pause = history.longest_pause.max(pause);
    }

    /// The server stood still for `span`: all expected reports get that time in addition.
    pub fn delay(&mut self, span: Span) {
        for expected in self.workers.iter_mut().filter_map(|history| history.running.as_mut()) {
            expected.since = expected.since + span;
        }
    }

    /// The worker's present task and how long it has taken; `None` if the worker has no task.
    pub fn running(&self, worker: WorkerId, now: Time) -> Option<(TaskId, Span)> {
        let expected = self.workers.get(worker.index())?.running?;
        Some((expected.task, now.since(expected.since)))
    }

    /// How long the worker's present task usually takes; `None` without a task or a history.
    pub fn usual(&self, worker: WorkerId) -> Option<Span> {
        let history = self.workers.get(worker.index())?;
        history.usual(history.running?.work).map(|(usual, _)| usual)
    }

    /// How long the worker's present task may take before it is late; `None` without a task or a history.
    pub fn late_after(&self, worker: WorkerId) -> Option<Span> {
        let history = self.workers.get(worker.index())?;
        history.usual(history.running?.work).map(|(_, late_after)| late_after)
    }

    /// The time without progress after which the worker is stuck: the ceiling, or less if its history is known, but never
    /// less than what its history shows to be normal.
    pub fn stuck_after(&self, worker: WorkerId) -> Span {
        let Some(history) = self.workers.get(worker.index()) else { return self.ceiling };
        let times = |span: Span, factor: u64| Span(span.0.saturating_mul(factor));
        let usual = self.usual(worker);
        let known = usual.filter(|_| history.times.len() >= MIN_TIMES);
        let learned = known.map_or(self.ceiling, |usual| times(usual, STUCK_FACTOR).max(MIN_STUCK).min(self.ceiling));
        learned.max(times(history.longest_pause.max(usual.unwrap_or_default()), PAUSE_FACTOR))
    }
}

impl TaskHistory {
    /// How long a task of this work usually takes, and when it is late.
    fn usual(&self, work: u64) -> Option<(Span, Span)> {
        if self.times.is_empty() {
            return None;
        }
        let mut spans: Vec<f64> = self.times.iter().map(|(span, _)| span.seconds()).collect();
        let median = middle(&mut spans);
        let mut deviations: Vec<f64> = spans.iter().map(|seconds| (seconds - median).abs()).collect();
        let spread = MAD_TO_DEVIATION * middle(&mut deviations);
        let mut works: Vec<f64> = self.times.iter().map(|&(_, work)| work as f64).collect();
        let scale = (work as f64 / middle(&mut works).max(1.0)).max(1.0);
        let late_after = (MEDIAN_FACTOR * median).max(median + SPREAD_FACTOR * spread) * scale;
        Some((Span::from_seconds(median * scale), Span::from_seconds(late_after).max(MIN_LATE)))
    }
}

/// How many samples a worker processes before its next report.
fn work(assignment: &Assignment) -> u64 {
    let iterations = if let Some(LocalLength::Iterations(count)) = assignment.work.length() { count } else { 1 };
    u64::from(assignment.samples) * u64::from(iterations)
}

/// The middle value, or the upper of the middle two.
fn middle(values: &mut [f64]) -> f64 {
    let middle = values.len() / 2;
    *values.select_nth_unstable_by(middle, f64::total_cmp).1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LocalWork, ReplicaStart, Version, Work};

    const WORKER: WorkerId = WorkerId(3);

    fn seconds(seconds: f64) -> Span {
        Span::from_seconds(seconds)
    }

    /// A worker, its present task and the time.
    struct Course {
        lateness: Lateness,
        now: Time,
        number: u64,
    }

    impl Course {
        fn new() -> Self {
            Course { lateness: Lateness::new(seconds(3600.0)), now: Time::START, number: 0 }
        }

        fn start(&mut self, samples: u32) {
            self.number += 1;
            let task = TaskId { worker: WORKER, number: self.number };
            let work = Work::Gradient;
            let assignment = Assignment { task, version: Version(0), work, samples, offset: 0, queued: false };
            self.lateness.update(self.now, WORKER, Some(&assignment));
        }

        fn report(&mut self, after: f64) -> &mut Self {
            self.start(64);
            self.now = self.now + seconds(after);
            self.lateness.on_report(self.now, WORKER, Span::ZERO, true);
            self
        }

        /// After how many seconds a task of `samples` is late and its worker stuck.
        fn limits(&mut self, samples: u32) -> (Option<f64>, f64) {
            self.start(samples);
            (self.lateness.late_after(WORKER).map(Span::seconds), self.lateness.stuck_after(WORKER).seconds())
        }
    }

    fn after(times: impl IntoIterator<Item = f64>) -> Course {
        let mut course = Course::new();
        times.into_iter().for_each(|time| {
            course.report(time);
        });
        course
    }

    #[test]
    fn the_limits_follow_the_workers_own_times() {
        assert_eq!(after([]).limits(64), (None, 3600.0), "no history: nothing is late, and the ceiling holds");
        assert_eq!(after([2.0; 4]).limits(64), (Some(8.0), 3600.0), "little history: late, but not stuck");
        assert_eq!(after([2.0; 10]).limits(64), (Some(8.0), 200.0));
        assert_eq!(after([0.01; 10]).limits(64), (Some(1.0), 60.0), "the minima");
        assert_eq!(after([2.0; 10]).limits(128), (Some(16.0), 400.0), "twice the work, twice the limits");
        assert_eq!(after([2.0; 10]).limits(1), (Some(8.0), 200.0), "less work does not shorten them");
        assert_eq!(after([50.0; 10]).limits(64), (Some(200.0), 3600.0), "the ceiling");
        assert_eq!(after([7200.0; 10]).limits(64).1, 28_800.0, "the ceiling never cuts what is normal");
    }

    #[test]
    fn a_lasting_slowdown_is_late_once() {
        let mut course = after([1.0; 32]);
        for _ in 0..5 {
            course.start(64);
            let late_after = course.lateness.late_after(WORKER).unwrap();
            let is_late = seconds(5.0) > late_after;
            assert_eq!(is_late, course.number == 33, "only the first slow task is late");
            course.report(5.0);
        }
        assert_eq!(
            after([1.0; 32].into_iter().chain([5.0, 1.0, 1.0])).limits(64).0,
            Some(4.0),
            "an outlier is forgotten"
        );
    }

    #[test]
    fn a_task_that_is_never_reported_counts_with_the_time_that_it_took() {
        let mut course = after([1.0; 32]);
        course.start(64);
        course.now = course.now + seconds(30.0);
        course.lateness.update(course.now, WORKER, None);
        assert_eq!(course.limits(64).0, Some(120.0));
        let mut course = after([1.0; 32]);
        course.start(64);
        course.now = course.now + seconds(2.0);
        course.lateness.update(course.now, WORKER, None);
        assert_eq!(course.limits(64).0, Some(4.0), "in time: nothing is learned");
    }

    #[test]
    fn reports_that_were_held_up_count_with_the_time_that_they_took() {
        let mut course = Course::new();
        for _ in 0..10 {
            course.start(64);
            course.lateness.on_report(course.now, WORKER, seconds(2.0), true);
        }
        assert_eq!(course.limits(64), (Some(8.0), 200.0));
    }

    #[test]
    fn a_report_after_the_last_question_is_not_measured() {
        let mut course = Course::new();
        for number in 0..10 {
            let task = TaskId { worker: WORKER, number };
            let work = Work::Local(LocalWork { start: ReplicaStart::Model, length: LocalLength::AskAndWait });
            let assignment = Assignment { task, version: Version(0), work, samples: 64, offset: 0, queued: false };
            course.lateness.update(course.now, WORKER, Some(&assignment));
            course.now = course.now + seconds(2.0);
            course.lateness.on_report(course.now, WORKER, Span::ZERO, false);
            course.now = course.now + seconds(0.001);
            course.lateness.on_report(course.now, WORKER, Span::ZERO, true);
        }
        assert_eq!(course.limits(64), (Some(8.0), 200.0));
    }

    #[test]
    fn a_pause_that_ended_and_a_stall_of_the_server_are_no_reason() {
        let mut course = after([1.0; 10]);
        course.lateness.on_progress(WORKER, seconds(500.0));
        assert_eq!(course.limits(64).1, 2000.0);
        let (_, before) = course.lateness.running(WORKER, course.now + seconds(9.0)).unwrap();
        course.lateness.delay(seconds(5.0));
        let (_, delayed) = course.lateness.running(WORKER, course.now + seconds(9.0)).unwrap();
        assert_eq!((before, delayed), (seconds(9.0), seconds(4.0)));
    }
}
