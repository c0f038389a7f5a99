//! When silence means that a worker is gone: deadlines learnt from each worker's own history.

use std::collections::{BTreeSet, VecDeque};

use crate::{Action, Assignment, Decision, Event, LocalLength, Report, Span, Time, WorkerId};

/// How many of a worker's latest times count.
const REMEMBERED: usize = 32;

/// How many must be known before they say anything.
const ENOUGH: usize = 5;

/// A worker is late after so many times its median time.
const MEDIANS: f64 = 4.0;

/// And after so many spreads (median absolute deviations, scaled to a normal distribution's standard deviation) more
/// than its median.
const SPREADS: f64 = 8.0;
const NORMAL: f64 = 1.4826;

/// Nobody is given up sooner: a busy operating system makes processes that are well wait about as long.
const SHORTEST: Span = Span(1_000_000_000);

/// A worker can't have computed for longer than it was silent; a clock that is off by no more than this is forgiven.
const FORGIVEN: Span = Span(1_000_000_000);

/// By when each worker that is at something must be heard of.
///
/// [Show](Deadlines::observe) it every event with its decisions, and [give up](Deadlines::give_up) whoever is silent when
/// the [next](Deadlines::next) deadline passes.
///
/// A worker's deadline comes from how long it took before: several times the median, and the median and several times
/// the spread, whichever is later. Both are robust: one odd time moves them little. A time is in proportion to the work
/// that it was for. Before enough is known, and at the very most, the deadline is the ceiling. A worker that was given
/// up gets twice the time when it comes back, again and again, so that one which has become slow for good is not given
/// up for ever; each time it keeps a deadline, that is halved.
#[derive(Debug, Clone)]
pub struct Deadlines {
    ceiling: Span,
    seats: Vec<Seat>,
    /// All deadlines, earliest first.
    due: BTreeSet<(Time, WorkerId)>,
}

#[derive(Debug, Clone, Default)]
struct Seat {
    /// What it is at.
    running: Option<Assignment>,
    /// What it will be at next.
    queued: Option<Assignment>,
    /// Times and the work they were for, oldest first.
    times: VecDeque<(Span, u64)>,
    awaited: Option<Awaited>,
    /// How often its time has been doubled.
    doubled: u32,
}

#[derive(Debug, Clone, Copy)]
struct Awaited {
    since: Time,
    work: u64,
    deadline: Time,
}

impl Deadlines {
    /// Nobody is awaited. No deadline is further away than `ceiling`.
    pub fn new(ceiling: Span) -> Self {
        Deadlines { ceiling, seats: Vec::new(), due: BTreeSet::new() }
    }

    fn seat(&mut self, worker: WorkerId) -> &mut Seat {
        if worker.index() >= self.seats.len() {
            self.seats.resize_with(worker.index() + 1, Seat::default);
        }
        &mut self.seats[worker.index()]
    }

    /// Takes note of an event and the decisions it led to.
    pub fn observe(&mut self, now: Time, event: &Event, decisions: &[Decision]) {
        match *event {
            Event::Joined { worker } | Event::Left { worker } => {
                self.rest(worker);
                let seat = self.seat(worker);
                (seat.running, seat.queued) = (None, None);
            }
            Event::Reported { task, .. } => {
                self.heard(task.worker, now);
                self.begin_queued(task.worker, now);
            }
            Event::Asked { task, .. } => {
                self.heard(task.worker, now);
                let running = self.seat(task.worker).running;
                if let Some(running) =
                    running.filter(|running| running.work.length() == Some(LocalLength::AskAndContinue))
                {
                    self.expect(task.worker, now, work(&running));
                }
            }
            Event::Committed { .. } | Event::Timer => {}
        }
        for decision in decisions {
            match &decision.action {
                Action::Assign(assignment) if assignment.queued => {
                    self.seat(assignment.task.worker).queued = Some(*assignment);
                }
                Action::Assign(assignment) => self.begin(*assignment, now),
                Action::Interrupt { task } => self.begin_queued(task.worker, now),
                Action::Continue { task } | Action::Collect { task } => {
                    if let Some(running) = self.seat(task.worker).running {
                        self.expect(task.worker, now, work(&running));
                    }
                }
                Action::Commit { .. } | Action::Discard { .. } | Action::Hold { .. } | Action::Wake { .. } => {}
            }
        }
    }

    fn begin(&mut self, assignment: Assignment, now: Time) {
        self.seat(assignment.task.worker).running = Some(assignment);
        self.expect(assignment.task.worker, now, work(&assignment));
    }

    fn begin_queued(&mut self, worker: WorkerId, now: Time) {
        self.rest(worker);
        let seat = self.seat(worker);
        seat.running = seat.queued.take();
        if let Some(assignment) = seat.running {
            self.begin(assignment, now);
        }
    }

    /// The worker will be heard of. `work` is how much it is at, in samples.
    fn expect(&mut self, worker: WorkerId, now: Time, work: u64) {
        self.rest(worker);
        let ceiling = self.ceiling;
        let seat = self.seat(worker);
        let deadline = now + seat.allowance(work, ceiling);
        seat.awaited = Some(Awaited { since: now, work, deadline });
        self.due.insert((deadline, worker));
    }

    /// The worker was heard of.
    fn heard(&mut self, worker: WorkerId, now: Time) {
        let Some(awaited) = self.rest(worker) else { return };
        let seat = self.seat(worker);
        if seat.times.len() == REMEMBERED {
            seat.times.pop_front();
        }
        seat.times.push_back((now.since(awaited.since), awaited.work));
        seat.doubled = seat.doubled.saturating_sub(1);
    }

    /// Whether a worker's report can't be true: it says that it computed for much longer than it has been at it.
    pub fn is_absurd(&self, worker: WorkerId, now: Time, report: &Report) -> bool {
        let awaited = self.seats.get(worker.index()).and_then(|seat| seat.awaited);
        let Some(since) = awaited.map(|awaited| awaited.since) else { return false };
        let silent = now.since(since);
        report.compute + report.querying > silent + silent.max(FORGIVEN)
    }

    fn rest(&mut self, worker: WorkerId) -> Option<Awaited> {
        let awaited = self.seat(worker).awaited.take()?;
        self.due.remove(&(awaited.deadline, worker));
        Some(awaited)
    }

    /// The earliest deadline.
    pub fn next(&self) -> Option<Time> {
        self.due.first().map(|&(deadline, _)| deadline)
    }

    /// A worker whose deadline has passed, and how long it has been silent. It is awaited no longer.
    pub fn give_up(&mut self, now: Time) -> Option<(WorkerId, Span)> {
        let &(_, worker) = self.due.first().filter(|&&(deadline, _)| deadline <= now)?;
        let awaited = self.rest(worker)?;
        let seat = self.seat(worker);
        seat.doubled = (seat.doubled + 1).min(u64::BITS - 1);
        Some((worker, now.since(awaited.since)))
    }
}

/// How many samples a worker goes through before it is heard of.
fn work(assignment: &Assignment) -> u64 {
    let iterations = if let Some(LocalLength::Iterations(count)) = assignment.work.length() { count } else { 1 };
    u64::from(assignment.samples) * u64::from(iterations)
}

impl Seat {
    fn allowance(&self, work: u64, ceiling: Span) -> Span {
        if self.times.len() < ENOUGH {
            return ceiling;
        }
        let mut spans: Vec<f64> = self.times.iter().map(|(span, _)| span.seconds()).collect();
        let median = middle(&mut spans);
        let mut deviations: Vec<f64> = spans.iter().map(|seconds| (seconds - median).abs()).collect();
        let spread = NORMAL * middle(&mut deviations);
        let mut works: Vec<f64> = self.times.iter().map(|&(_, work)| work as f64).collect();
        let scale = (work as f64 / middle(&mut works).max(1.0)).max(1.0);
        let seconds = (MEDIANS * median).max(median + SPREADS * spread) * scale;
        let usual = Span::from_seconds(seconds).max(SHORTEST);
        Span(usual.0.saturating_mul(1_u64 << self.doubled)).min(ceiling)
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

    /// Lets the worker take these times, then says how long it may be silent.
    fn allowed(times: impl IntoIterator<Item = f64>, work: u64) -> f64 {
        let mut deadlines = Deadlines::new(seconds(60.0));
        let mut now = Time::START;
        for time in times {
            deadlines.expect(WORKER, now, 64);
            now = now + seconds(time);
            deadlines.heard(WORKER, now);
        }
        deadlines.expect(WORKER, now, work);
        deadlines.next().unwrap().since(now).seconds()
    }

    #[test]
    fn silence_is_measured_by_the_workers_own_times() {
        assert_eq!(allowed([], 64), 60.0, "nothing is known");
        assert_eq!(allowed([2.0; 10], 64), 8.0);
        assert_eq!(allowed([0.01; 10], 64), 1.0, "no sooner than a machine's own hiccups");
        assert_eq!(allowed([50.0; 10], 64), 60.0, "the ceiling");
        assert_eq!(allowed([2.0; 10], 128), 16.0, "twice the work, twice the time");
        assert_eq!(allowed([2.0; 10], 1), 8.0, "little work may still take as long");
    }

    #[test]
    fn one_odd_time_changes_nothing_and_a_wide_spread_much() {
        let odd = [2.0; 10].into_iter().chain([40.0]);
        assert_eq!(allowed(odd, 64), 8.0);
        let wide = (0..20).map(|index| if index % 2 == 0 { 1.0 } else { 3.0 });
        let allowance = allowed(wide, 64);
        assert!((allowance - (3.0_f64 * 4.0).max(3.0 + 8.0 * 1.4826 * 2.0)).abs() < 1e-6, "{allowance}");
    }

    #[test]
    fn whoever_is_given_up_gets_more_time_when_it_comes_back() {
        let mut deadlines = Deadlines::new(seconds(60.0));
        let mut now = Time::START;
        for _ in 0..10 {
            deadlines.expect(WORKER, now, 1);
            now = now + seconds(2.0);
            deadlines.heard(WORKER, now);
        }
        let mut waits = Vec::new();
        for _ in 0..4 {
            deadlines.expect(WORKER, now, 1);
            assert_eq!(deadlines.give_up(now), None);
            let deadline = deadlines.next().unwrap();
            let silence = deadline.since(now);
            assert_eq!(deadlines.give_up(deadline), Some((WORKER, silence)));
            assert_eq!(deadlines.next(), None);
            waits.push(silence.seconds());
            now = deadline;
        }
        assert_eq!(waits, [8.0, 16.0, 32.0, 60.0]);
    }

    #[test]
    fn those_who_work_are_awaited_and_nobody_else() {
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
        assert_eq!(next, Some(65.0), "the second worker is awaited, the first waits for it");
        let now = Time::START + seconds(7.0);
        assert!(!deadlines.is_absurd(WorkerId(1), now, &Report { compute: seconds(2.5), ..report }));
        assert!(deadlines.is_absurd(WorkerId(1), now, &Report { compute: seconds(5.5), ..report }));
        assert_eq!(feed(9.0, Event::Left { worker: WorkerId(1) }).0, Some(69.0), "the first goes on alone");
    }
}
