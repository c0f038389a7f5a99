//! Report deadlines, learned from each worker's own history.

use std::collections::{BTreeSet, VecDeque};

use crate::{Action, Assignment, Decision, Event, LocalLength, Report, Span, Time, WorkerId};

/// How many of a worker's latest times are kept.
const HISTORY: usize = 32;

/// How many times are needed before the timeout is learned from them.
const MIN_HISTORY: usize = 5;

/// A worker times out after this multiple of its median time …
const MEDIAN_FACTOR: f64 = 4.0;

/// … or after its median time plus this multiple of the spread, whichever is later. The spread is the median absolute
/// deviation, scaled to the standard deviation of a normal distribution.
const SPREAD_FACTOR: f64 = 8.0;
const MAD_TO_DEVIATION: f64 = 1.4826;

/// The shortest timeout: on a busy machine a healthy process may be delayed for about as long.
const MIN_TIMEOUT: Span = Span(1_000_000_000);

/// A worker can't have computed for longer than its report was expected. Smaller clock errors than this are tolerated.
const CLOCK_TOLERANCE: Span = Span(1_000_000_000);

/// The deadline of each busy worker's next report.
///
/// Pass every event with its decisions to [`observe`](Deadlines::observe). When the [next](Deadlines::next) deadline
/// passes, [`take_expired`](Deadlines::take_expired) returns the worker that timed out.
///
/// A worker's timeout follows from its own times: several times the median, or the median plus several times the
/// spread, whichever is longer. Both are robust against single outliers. The timeout is proportional to the work. It is
/// never longer than the ceiling, and equal to it until enough times are known. After each timeout of a worker its next
/// one is twice as long, so that a lasting slowdown does not exclude the worker for good. Each report in time halves it
/// again.
#[derive(Debug, Clone)]
pub struct Deadlines {
    ceiling: Span,
    workers: Vec<WorkerDeadline>,
    /// All deadlines, earliest first.
    due: BTreeSet<(Time, WorkerId)>,
}

/// One worker's history and its present deadline.
#[derive(Debug, Clone, Default)]
struct WorkerDeadline {
    /// The present task.
    running: Option<Assignment>,
    /// The next task.
    queued: Option<Assignment>,
    /// Times with their work in samples, oldest first.
    times: VecDeque<(Span, u64)>,
    expected: Option<ExpectedReport>,
    /// How often the timeout is doubled.
    doublings: u32,
}

/// A report that has not arrived yet.
#[derive(Debug, Clone, Copy)]
struct ExpectedReport {
    since: Time,
    work: u64,
    deadline: Time,
}

impl Deadlines {
    /// No reports are expected yet. No timeout is longer than `ceiling`.
    pub fn new(ceiling: Span) -> Self {
        Deadlines { ceiling, workers: Vec::new(), due: BTreeSet::new() }
    }

    fn worker_mut(&mut self, worker: WorkerId) -> &mut WorkerDeadline {
        if worker.index() >= self.workers.len() {
            self.workers.resize_with(worker.index() + 1, WorkerDeadline::default);
        }
        &mut self.workers[worker.index()]
    }

    /// Updates the deadlines after an event and its decisions.
    pub fn observe(&mut self, now: Time, event: &Event, decisions: &[Decision]) {
        match *event {
            Event::Joined { worker } | Event::Left { worker } => {
                self.cancel(worker);
                let state = self.worker_mut(worker);
                (state.running, state.queued) = (None, None);
            }
            Event::Reported { task, .. } => {
                self.on_report(task.worker, now);
                self.start_queued(task.worker, now);
            }
            Event::Asked { task, .. } => {
                self.on_report(task.worker, now);
                let running = self.worker_mut(task.worker).running;
                if let Some(running) =
                    running.filter(|running| running.work.length() == Some(LocalLength::AskAndContinue))
                {
                    self.expect(task.worker, now, work(&running));
                }
            }
            Event::Committed { .. } | Event::Broken { .. } | Event::Timer => {}
        }
        for decision in decisions {
            match &decision.action {
                Action::Assign(assignment) if assignment.queued => {
                    self.worker_mut(assignment.task.worker).queued = Some(*assignment);
                }
                Action::Assign(assignment) => self.start(*assignment, now),
                Action::Interrupt { task } => self.start_queued(task.worker, now),
                Action::Continue { task } | Action::Collect { task } => {
                    if let Some(running) = self.worker_mut(task.worker).running {
                        self.expect(task.worker, now, work(&running));
                    }
                }
                Action::Commit { .. } | Action::Discard { .. } | Action::Hold { .. } | Action::Wake { .. } => {}
            }
        }
    }

    fn start(&mut self, assignment: Assignment, now: Time) {
        self.worker_mut(assignment.task.worker).running = Some(assignment);
        self.expect(assignment.task.worker, now, work(&assignment));
    }

    fn start_queued(&mut self, worker: WorkerId, now: Time) {
        self.cancel(worker);
        let state = self.worker_mut(worker);
        state.running = state.queued.take();
        if let Some(assignment) = state.running {
            self.start(assignment, now);
        }
    }

    /// Starts the deadline of the worker's next report. `work` is the number of samples before it.
    fn expect(&mut self, worker: WorkerId, now: Time, work: u64) {
        self.cancel(worker);
        let ceiling = self.ceiling;
        let state = self.worker_mut(worker);
        let deadline = now + state.timeout(work, ceiling);
        state.expected = Some(ExpectedReport { since: now, work, deadline });
        self.due.insert((deadline, worker));
    }

    /// The worker has reported.
    fn on_report(&mut self, worker: WorkerId, now: Time) {
        let Some(expected) = self.cancel(worker) else { return };
        let state = self.worker_mut(worker);
        if state.times.len() == HISTORY {
            state.times.pop_front();
        }
        state.times.push_back((now.since(expected.since), expected.work));
        state.doublings = state.doublings.saturating_sub(1);
    }

    /// Whether a report can't be true: its times are much longer than the time that the report was expected.
    pub fn is_implausible(&self, worker: WorkerId, now: Time, report: &Report) -> bool {
        let expected = self.workers.get(worker.index()).and_then(|state| state.expected);
        let Some(since) = expected.map(|expected| expected.since) else { return false };
        let elapsed = now.since(since);
        report.compute + report.querying > elapsed + elapsed.max(CLOCK_TOLERANCE)
    }

    /// Removes the worker's deadline, if it has one.
    fn cancel(&mut self, worker: WorkerId) -> Option<ExpectedReport> {
        let expected = self.worker_mut(worker).expected.take()?;
        self.due.remove(&(expected.deadline, worker));
        Some(expected)
    }

    /// The earliest deadline.
    pub fn next(&self) -> Option<Time> {
        self.due.first().map(|&(deadline, _)| deadline)
    }

    /// Removes an expired deadline. Returns its worker and how long the worker's report was expected.
    pub fn take_expired(&mut self, now: Time) -> Option<(WorkerId, Span)> {
        let &(_, worker) = self.due.first().filter(|&&(deadline, _)| deadline <= now)?;
        let expected = self.cancel(worker)?;
        let state = self.worker_mut(worker);
        state.doublings = (state.doublings + 1).min(u64::BITS - 1);
        Some((worker, now.since(expected.since)))
    }
}

/// How many samples a worker processes before its next report.
fn work(assignment: &Assignment) -> u64 {
    let iterations = if let Some(LocalLength::Iterations(count)) = assignment.work.length() { count } else { 1 };
    u64::from(assignment.samples) * u64::from(iterations)
}

impl WorkerDeadline {
    fn timeout(&self, work: u64, ceiling: Span) -> Span {
        if self.times.len() < MIN_HISTORY {
            return ceiling;
        }
        let mut spans: Vec<f64> = self.times.iter().map(|(span, _)| span.seconds()).collect();
        let median = middle(&mut spans);
        let mut deviations: Vec<f64> = spans.iter().map(|seconds| (seconds - median).abs()).collect();
        let spread = MAD_TO_DEVIATION * middle(&mut deviations);
        let mut works: Vec<f64> = self.times.iter().map(|&(_, work)| work as f64).collect();
        let scale = (work as f64 / middle(&mut works).max(1.0)).max(1.0);
        let seconds = (MEDIAN_FACTOR * median).max(median + SPREAD_FACTOR * spread) * scale;
        let learned = Span::from_seconds(seconds).max(MIN_TIMEOUT);
        Span(learned.0.saturating_mul(1_u64 << self.doublings)).min(ceiling)
    }
}

/// The middle value, or the upper of the middle two.
fn middle(values: &mut [f64]) -> f64 {
    let middle = values.len() / 2;
    *values.select_nth_unstable_by(middle, f64::total_cmp).1
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKER: WorkerId = WorkerId(3);

    fn seconds(seconds: f64) -> Span {
        Span::from_seconds(seconds)
    }

    /// The timeout in seconds after the worker's reports took these times.
    fn timeout(times: impl IntoIterator<Item = f64>, work: u64) -> f64 {
        let mut deadlines = Deadlines::new(seconds(60.0));
        let mut now = Time::START;
        for time in times {
            deadlines.expect(WORKER, now, 64);
            now = now + seconds(time);
            deadlines.on_report(WORKER, now);
        }
        deadlines.expect(WORKER, now, work);
        deadlines.next().unwrap().since(now).seconds()
    }

    #[test]
    fn the_timeout_follows_the_workers_own_times() {
        assert_eq!(timeout([], 64), 60.0, "no history");
        assert_eq!(timeout([2.0; 10], 64), 8.0);
        assert_eq!(timeout([0.01; 10], 64), 1.0, "the minimum");
        assert_eq!(timeout([50.0; 10], 64), 60.0, "the ceiling");
        assert_eq!(timeout([2.0; 10], 128), 16.0, "twice the work, twice the timeout");
        assert_eq!(timeout([2.0; 10], 1), 8.0, "less work does not shorten the timeout");
    }

    #[test]
    fn an_outlier_does_not_change_the_timeout_but_a_wide_spread_does() {
        let outlier = [2.0; 10].into_iter().chain([40.0]);
        assert_eq!(timeout(outlier, 64), 8.0);
        let wide = (0..20).map(|index| if index % 2 == 0 { 1.0 } else { 3.0 });
        let timeout = timeout(wide, 64);
        assert!((timeout - (3.0_f64 * 4.0).max(3.0 + 8.0 * 1.4826 * 2.0)).abs() < 1e-6, "{timeout}");
    }

    #[test]
    fn each_timeout_doubles_the_next() {
        let mut deadlines = Deadlines::new(seconds(60.0));
        let mut now = Time::START;
        for _ in 0..10 {
            deadlines.expect(WORKER, now, 1);
            now = now + seconds(2.0);
            deadlines.on_report(WORKER, now);
        }
        let mut timeouts = Vec::new();
        for _ in 0..4 {
            deadlines.expect(WORKER, now, 1);
            assert_eq!(deadlines.take_expired(now), None);
            let deadline = deadlines.next().unwrap();
            let elapsed = deadline.since(now);
            assert_eq!(deadlines.take_expired(deadline), Some((WORKER, elapsed)));
            assert_eq!(deadlines.next(), None);
            timeouts.push(elapsed.seconds());
            now = deadline;
        }
        assert_eq!(timeouts, [8.0, 16.0, 32.0, 60.0]);
    }

    #[test]
    fn only_busy_workers_have_a_deadline() {
        let mut deadlines = Deadlines::new(seconds(60.0));
        let spec: crate::SchemeSpec = "bsp".parse().unwrap();
        let setup = crate::Setup { workers: 2, batch: 4, dispatch: None };
        let mut ledger = crate::Ledger::new(spec.build(&setup).unwrap());
        let report = Report { compute: seconds(1.0), ..Report::default() };
        let task = |worker, number| crate::TaskId { worker: WorkerId(worker), number };
        let mut feed = |at: f64, event: Event| {
            let now = Time::START + seconds(at);
            let decisions = ledger.handle(now, event).unwrap();
            deadlines.observe(now, &event, decisions);
            (deadlines.next().map(Time::seconds), deadlines.clone())
        };
        assert_eq!(feed(0.0, Event::Joined { worker: WorkerId(0) }).0, Some(60.0));
        assert_eq!(feed(5.0, Event::Joined { worker: WorkerId(1) }).0, Some(60.0));
        let (next, deadlines) = feed(7.0, Event::Reported { task: task(0, 0), report });
        assert_eq!(next, Some(65.0), "only the second worker is busy");
        let now = Time::START + seconds(7.0);
        assert!(!deadlines.is_implausible(WorkerId(1), now, &Report { compute: seconds(2.5), ..report }));
        assert!(deadlines.is_implausible(WorkerId(1), now, &Report { compute: seconds(5.5), ..report }));
        assert_eq!(feed(9.0, Event::Left { worker: WorkerId(1) }).0, Some(69.0), "the first worker continues alone");
    }
}
