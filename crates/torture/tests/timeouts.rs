//! Rules for timeouts that dismiss healthy workers must be found.

use std::collections::{BTreeMap, VecDeque};

use paceline_core::{Action, Decision, Event, Setup, Span, Time, WorkerId};
use paceline_protocol::{ToServer, WireReport};
use paceline_torture::{Fault, FaultSchedule, TimeoutRule, TortureFailure, schemes, torture_with};

const SEEDS: u64 = 300;
const SECOND: Span = Span(1_000_000_000);

/// An error in a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RuleError {
    /// A report is refused if it claims more time than the server saw pass since it handled the last one. The worker
    /// started when it sent the last one, so a server that stood still refuses the truth.
    CountsOwnStalls,
    /// A worker is overdue after four times its median time. Only reported times count, so a worker that becomes slower
    /// is dismissed again and again.
    ForgetsLateTasks,
    /// Every task may take a minute.
    FixedCeiling,
}

/// What a worker does, as far as the rule knows.
#[derive(Default)]
struct TimedWorker {
    queued: Option<u64>,
    /// The task that it computes, and since when.
    running: Option<(u64, Time)>,
    times: VecDeque<Span>,
    /// How often the timeout is doubled.
    doublings: u32,
}

struct FaultyRule {
    error: RuleError,
    workers: BTreeMap<WorkerId, TimedWorker>,
}

impl FaultyRule {
    fn with(error: RuleError) -> Self {
        FaultyRule { error, workers: BTreeMap::new() }
    }

    fn record(&mut self, worker: WorkerId) -> &mut TimedWorker {
        self.workers.entry(worker).or_default()
    }

    fn timeout(&self, record: &TimedWorker) -> Option<Span> {
        match self.error {
            RuleError::CountsOwnStalls => None,
            RuleError::FixedCeiling => Some(Span(60 * SECOND.0)),
            RuleError::ForgetsLateTasks if record.times.len() < 5 => None,
            RuleError::ForgetsLateTasks => {
                let mut times: Vec<Span> = record.times.iter().copied().collect();
                times.sort_unstable();
                let median = times[times.len() / 2];
                Some(Span((4 * median.0).max(SECOND.0) << record.doublings.min(10)))
            }
        }
    }

    fn deadline(&self, record: &TimedWorker) -> Option<Time> {
        Some(record.running?.1 + self.timeout(record)?)
    }
}

impl TimeoutRule for FaultyRule {
    fn observe(&mut self, now: Time, event: &Event, decisions: &[Decision]) {
        match *event {
            Event::Joined { worker } | Event::Left { worker } => {
                let record = self.record(worker);
                (record.queued, record.running) = (None, None);
            }
            Event::Reported { task, .. } | Event::Asked { task, .. } => {
                let done = matches!(event, Event::Reported { .. });
                let record = self.record(task.worker);
                if let Some((_, since)) = record.running.take() {
                    if record.times.len() == 32 {
                        record.times.pop_front();
                    }
                    record.times.push_back(now.since(since));
                    record.doublings = record.doublings.saturating_sub(1);
                }
                let next = if done { record.queued.take() } else { Some(task.number) };
                record.running = next.map(|number| (number, now));
            }
            _ => {}
        }
        for decision in decisions {
            match &decision.action {
                Action::Assign(assignment) if assignment.queued => {
                    self.record(assignment.task.worker).queued = Some(assignment.task.number);
                }
                Action::Assign(assignment) => {
                    self.record(assignment.task.worker).running = Some((assignment.task.number, now));
                }
                Action::Interrupt { task } => {
                    let record = self.record(task.worker);
                    record.running = record.queued.take().map(|number| (number, now));
                }
                _ => {}
            }
        }
    }

    fn next(&self) -> Option<Time> {
        self.workers.values().filter_map(|record| self.deadline(record)).min()
    }

    fn overdue(&mut self, now: Time) -> Option<(WorkerId, bool)> {
        let overdue = |record: &TimedWorker| self.deadline(record).is_some_and(|deadline| deadline <= now);
        let worker = *self.workers.iter().find(|(_, record)| overdue(record))?.0;
        let record = self.record(worker);
        (record.running, record.doublings) = (None, record.doublings + 1);
        Some((worker, true))
    }

    fn refuses(&mut self, now: Time, worker: WorkerId, message: &ToServer) -> Option<bool> {
        let (ToServer::Report { number, report, .. } | ToServer::Asked { number, report, .. }) = message else {
            return None;
        };
        let WireReport { compute, querying, .. } = *report;
        let (_, since) = self.record(worker).running.filter(|(running, _)| running == number)?;
        let elapsed = now.since(since);
        let refused = compute + querying > elapsed + elapsed.max(SECOND);
        (self.error == RuleError::CountsOwnStalls && refused).then_some(false)
    }
}

/// The first schedule with which the rule dismisses a healthy worker, and the scheme.
fn first_failure(error: RuleError) -> (FaultSchedule, String) {
    for schedule in (0..SEEDS).map(FaultSchedule::from_seed) {
        for scheme in schemes(schedule.workers) {
            let build = |setup: &Setup| scheme.build(setup).unwrap();
            if torture_with(&schedule, &build, None).is_err() {
                panic!("seed {} fails without the rule", schedule.seed);
            }
            match torture_with(&schedule, &build, Some(Box::new(FaultyRule::with(error)))) {
                Ok(_) => {}
                Err(TortureFailure::Dismissed { .. }) => return (schedule, scheme.to_string()),
                Err(failure) => panic!("seed {}, {scheme}: {failure}", schedule.seed),
            }
        }
    }
    panic!("{error:?} is not found with {SEEDS} seeds");
}

#[test]
fn a_rule_that_counts_the_servers_own_stalls_is_found() {
    let (schedule, _) = first_failure(RuleError::CountsOwnStalls);
    let stalls = |(_, fault): &(Time, Fault)| matches!(fault, Fault::ServerStall(..) | Fault::ClockJump(..));
    assert!(schedule.faults.iter().any(stalls), "{schedule:#?}");
}

#[test]
fn a_rule_that_forgets_late_tasks_is_found() {
    first_failure(RuleError::ForgetsLateTasks);
}

#[test]
fn a_fixed_ceiling_is_found() {
    let (schedule, _) = first_failure(RuleError::FixedCeiling);
    let slow = |(_, fault): &(Time, Fault)| matches!(fault, Fault::Slow(..));
    assert!(schedule.task > SECOND || schedule.faults.iter().any(slow), "{schedule:#?}");
}
