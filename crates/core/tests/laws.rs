//! Drives every scheme through the ledger with random arrivals, joins, leaves, duplicates and silent workers.

#![allow(clippy::disallowed_methods, reason = "tests decide nothing")]

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use paceline_core::run_times::{Draws, Size};
use paceline_core::{
    Action, Aggregate, Assignment, Commit, Event, Ledger, LedgerError, LocalLength, Pretrained, Refusal, Report,
    SampleCounts, SavedLedger, Scheme, SchemeEntry, SchemePace, SchemeSpec, Setup, Span, TaskId, Time, Until, Version,
    WorkerActivities, WorkerActivity, WorkerId, catalogue, combination_examples,
};
use proptest::prelude::*;

const WORKERS: usize = 6;

/// All schemes with all their variants and every dispatch, all combinations, and some that fit this number of workers.
fn specs() -> Vec<String> {
    let of_entry = |entry: &'static SchemeEntry| {
        let with_variants = move |dispatch: String| {
            let variants = [""].iter().chain(entry.variants);
            variants.map(|variant| entry.example(&format!("{dispatch},{variant}"), WORKERS)).collect::<Vec<_>>()
        };
        entry.dispatch_settings().into_iter().flat_map(with_variants)
    };
    let more = [
        "backup:k=6",
        "lb-bsp:k=4,change=0",
        "cutoff:predictor=dmm,samples=3",
        "lb-bsp:change=0+cutoff:predictor=dmm,samples=3",
        "lb-bsp:change=0+backup:k=2,dispatch=push-interrupt",
        "lb-bsp:change=0+backup:k=2,dispatch=pull+late:staleness=2",
        "backup:k=1,dispatch=pull+late:weight=1,staleness=1",
    ];
    let combined = combination_examples(WORKERS);
    catalogue().into_iter().flat_map(of_entry).chain(combined).chain(more.map(String::from)).collect()
}

/// A run-time model with random weights.
fn pretrained() -> Pretrained {
    let size = Size { workers: WORKERS, lag: 3, latent: 2, hidden: 2 };
    let mut draws = Draws::at(&[1]);
    let tensor = |(name, shape): (String, Vec<usize>)| {
        let values = (0..shape.iter().product()).map(|_| draws.normal() as f32).collect();
        (name, (shape, values))
    };
    Pretrained { tensors: size.shapes().into_iter().map(tensor).collect(), notes: size.notes(1.0).collect() }
}

/// The statistics of a commit: sometimes none, as without a model, otherwise numbers that make dynamic schemes change
/// k.
fn aggregate_of(version: Version) -> Option<Aggregate> {
    let wave = (version.0 as f64 * 1.7).sin();
    let loss = match version.0 % 16 {
        5 => f64::NAN,
        11 => f64::INFINITY,
        _ => 1.0 + 0.5 * wave,
    };
    let aggregate =
        Aggregate { loss, rate: 0.1, mean_square: 2.0 + 1.5 * wave, square_of_mean: 1.0, ..Aggregate::default() };
    (!version.0.is_multiple_of(7)).then_some(aggregate)
}

/// One random event. The numbers choose among the events that are possible at that moment.
#[derive(Debug, Clone, Copy)]
enum Move {
    Finish(usize),
    Join(u32),
    Leave(u32),
    Timer,
    Plan(usize),
    Restore,
    RepeatReport(usize),
    RepeatQuestion(usize),
    InvalidQuestion(usize, u32),
    InvalidReport(u32, u64),
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let one = prop_oneof![
        12 => any::<usize>().prop_map(Move::Finish),
        1 => (0..9_u32).prop_map(Move::Join),
        1 => (0..9_u32).prop_map(Move::Leave),
        1 => Just(Move::Timer),
        2 => any::<usize>().prop_map(Move::Plan),
        1 => Just(Move::Restore),
        1 => any::<usize>().prop_map(Move::RepeatReport),
        2 => any::<usize>().prop_map(Move::RepeatQuestion),
        1 => (any::<usize>(), 0..9_u32).prop_map(|(choice, count)| Move::InvalidQuestion(choice, count)),
        1 => (0..12_u32, 0..40_u64).prop_map(|(worker, number)| Move::InvalidReport(worker, number)),
    ];
    prop::collection::vec(one, 1..200)
}

/// A task and its progress.
#[derive(Clone, Copy)]
struct TrackedTask {
    assignment: Assignment,
    /// Iterations assigned so far.
    assigned: u32,
    /// Iterations done, as of the last question.
    done: u32,
    /// The update was requested.
    collected: bool,
}

impl TrackedTask {
    fn new(assignment: Assignment) -> Self {
        let assigned = if let Some(LocalLength::Iterations(count)) = assignment.work.length() { count } else { 1 };
        TrackedTask { assignment, assigned, done: 0, collected: false }
    }

    fn length(&self) -> Option<LocalLength> {
        self.assignment.work.length().filter(|length| !matches!(length, LocalLength::Iterations(_)))
    }

    fn samples(&self) -> u64 {
        u64::from(self.assignment.samples) * u64::from(self.assigned)
    }
}

/// An independent record of the ledger's state, derived from events and actions alone.
#[derive(Default)]
struct ExpectedState {
    running: BTreeMap<WorkerId, TrackedTask>,
    queued: BTreeMap<WorkerId, TrackedTask>,
    present: BTreeSet<WorkerId>,
    arrived: BTreeMap<TaskId, TrackedTask>,
    finished: Vec<TaskId>,
    /// The updates of the last commit.
    committed: BTreeMap<TaskId, TrackedTask>,
    version: u64,
    samples: SampleCounts,
}

impl ExpectedState {
    fn lose(&mut self, task: TrackedTask) {
        self.samples.dropped += task.samples();
    }

    fn leave(&mut self, worker: WorkerId) {
        self.present.remove(&worker);
        let arrived: Vec<TaskId> = self.arrived.keys().copied().filter(|task| task.worker == worker).collect();
        let mut lost: Vec<TrackedTask> = arrived.iter().filter_map(|task| self.arrived.remove(task)).collect();
        lost.extend(self.running.remove(&worker));
        lost.extend(self.queued.remove(&worker));
        lost.into_iter().for_each(|task| self.lose(task));
    }

    fn leave_out(&mut self, task: TaskId) {
        let update = self.committed.remove(&task).expect("only updates of the last commit are left out");
        self.samples.used -= update.samples();
        self.lose(update);
    }

    fn finish(&mut self, worker: WorkerId) -> TaskId {
        let mut task = self.running.remove(&worker).expect("only running tasks are finished");
        if task.length().is_some() {
            self.samples.reissued += u64::from(task.assignment.samples) * u64::from(task.assigned - task.done);
            task.assigned = task.done;
        }
        let id = task.assignment.task;
        self.arrived.insert(id, task);
        self.finished.push(id);
        self.start_queued(worker);
        id
    }

    fn start_queued(&mut self, worker: WorkerId) {
        if let Some(next) = self.queued.remove(&worker) {
            self.running.insert(worker, next);
        }
    }

    /// The worker has done one more iteration. If it does not wait for the answer, it has started the next.
    fn iterate(&mut self, worker: WorkerId) -> (TaskId, u32) {
        let task = self.running.get_mut(&worker).expect("only running tasks iterate");
        task.done += 1;
        assert_eq!(task.done, task.assigned, "workers do assigned iterations only");
        if task.length() == Some(LocalLength::AskAndContinue) {
            task.assigned += 1;
            self.samples.issued += u64::from(task.assignment.samples);
        }
        (task.assignment.task, task.done)
    }

    fn carry_out(&mut self, action: &Action) {
        match action {
            Action::Commit(Commit { version, updates, .. }) => {
                self.version += 1;
                self.committed.clear();
                assert_eq!(version.0, self.version, "versions rise by one");
                assert!(updates.windows(2).all(|pair| pair[0].task < pair[1].task), "shares are ordered by rank");
                let weight: f32 = updates.iter().map(|share| share.weight).sum();
                assert!((weight - 1.0).abs() < 1e-5, "weights add up to one");
                for share in updates.iter() {
                    let update = self.arrived.remove(&share.task).expect("committed once, after it arrived");
                    assert!(self.present.contains(&share.task.worker), "committed while its worker is joined");
                    self.samples.used += update.samples();
                    self.committed.insert(share.task, update);
                }
            }
            Action::Discard { task } => {
                let update = self.arrived.remove(task).expect("discarded once, after it arrived");
                if update.assignment.version.0 < self.version {
                    self.samples.stale += update.samples();
                } else {
                    self.lose(update);
                }
            }
            Action::Assign(assignment) => {
                let worker = assignment.task.worker;
                assert_eq!(assignment.version.0, self.version, "work is assigned at the newest version");
                assert_eq!(assignment.queued, self.running.contains_key(&worker));
                let task = TrackedTask::new(*assignment);
                self.samples.issued += task.samples();
                let slot = if assignment.queued { &mut self.queued } else { &mut self.running };
                if let Some(replaced) = slot.insert(worker, task) {
                    let offset = replaced.assignment.offset;
                    assert_eq!(offset, assignment.offset, "the samples of a replaced assignment are not lost");
                    self.samples.reissued += replaced.samples();
                }
            }
            Action::Continue { task } => {
                let running = self.running.get_mut(&task.worker).expect("only running tasks continue");
                assert!(!running.collected && running.length() == Some(LocalLength::AskAndWait));
                if running.assigned == running.done {
                    running.assigned += 1;
                    self.samples.issued += u64::from(running.assignment.samples);
                }
            }
            Action::Collect { task } => {
                let running = self.running.get_mut(&task.worker).expect("only running tasks are collected");
                assert!(running.done > 0 && running.length().is_some(), "at least one iteration is done");
                running.collected = true;
                if running.length() == Some(LocalLength::AskAndWait) {
                    let unstarted = running.assigned - running.done;
                    self.samples.reissued += u64::from(running.assignment.samples) * u64::from(unstarted);
                    running.assigned = running.done;
                }
            }
            Action::Interrupt { task } => {
                let stopped = self.running.remove(&task.worker).expect("only running tasks are interrupted");
                assert_eq!(stopped.assignment.task, *task);
                self.lose(stopped);
                self.start_queued(task.worker);
            }
            Action::Hold { worker, .. } => assert!(!self.running.contains_key(worker)),
            Action::Wake { .. } => {}
        }
    }

    fn outstanding(&self) -> u64 {
        let tasks = self.running.values().chain(self.queued.values()).chain(self.arrived.values());
        tasks.map(TrackedTask::samples).sum()
    }
}

fn build(spec: &SchemeSpec) -> Box<dyn Scheme> {
    spec.build(&Setup::new(WORKERS, 3)).unwrap()
}

struct LedgerDriver {
    spec: SchemeSpec,
    /// It is saved now and then, and restored with a newly built scheme.
    ledger: Ledger,
    /// It gets the same events and is never restored.
    uninterrupted: Ledger,
    activities: WorkerActivities,
    expected: ExpectedState,
    now: Time,
}

impl LedgerDriver {
    fn new(spec: &str) -> Self {
        let mut spec: SchemeSpec = spec.parse().unwrap();
        spec.context.pretrained = Some(Arc::new(pretrained()));
        LedgerDriver {
            ledger: Ledger::new(build(&spec)),
            uninterrupted: Ledger::new(build(&spec)),
            spec,
            activities: WorkerActivities::default(),
            expected: ExpectedState::default(),
            now: Time::START,
        }
    }

    /// Feeds an event, then confirms the commits that follow from it.
    fn feed(&mut self, event: Event) -> Result<(), LedgerError> {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let expected = self.uninterrupted.handle(self.now, event.clone()).map(<[_]>::to_vec);
            let decisions = self.ledger.handle(self.now, event.clone()).map(<[_]>::to_vec);
            if decisions != expected {
                // NaN differs from itself.
                assert_eq!(format!("{decisions:?}"), format!("{expected:?}"), "restoring changes no decision");
            }
            let decisions = decisions?;
            self.activities.observe(self.now, &event, &decisions, |_| {});
            if let Event::Broken { task } = event {
                assert!(decisions.is_empty());
                self.expected.leave_out(task);
                let again = self.ledger.handle(self.now, event).map(<[_]>::len);
                assert_eq!(again, Err(LedgerError::Refused(Refusal::NotCommitted(task))));
            }
            for decision in decisions {
                self.expected.carry_out(&decision.action);
                if let Action::Commit(Commit { version, updates, .. }) = decision.action {
                    events.push_back(Event::Committed { version, aggregate: aggregate_of(version) });
                    // Now and then some of the updates are broken.
                    let broken = updates.iter().filter(|share| (version.0 + share.task.number).is_multiple_of(5));
                    events.extend(broken.map(|share| Event::Broken { task: share.task }));
                }
            }
        }
        self.check();
        Ok(())
    }

    /// Saves the ledger and restores it with a newly built scheme, which reads everything and forgets nothing.
    fn restore(&mut self) {
        let text = serde_json::to_string(&self.ledger.save()).unwrap();
        let saved: SavedLedger = serde_json::from_str(&text).unwrap();
        assert!(saved.has_scheme());
        assert_eq!(saved.workers(), self.expected.present);
        self.ledger = Ledger::restore(build(&self.spec), saved).unwrap();
        for same in [&self.ledger, &self.uninterrupted] {
            assert_eq!(serde_json::to_string(&same.save()).unwrap(), text, "{}", self.spec);
        }
    }

    fn check(&self) {
        let outstanding = self.expected.outstanding();
        assert_eq!(self.ledger.samples(), SampleCounts { outstanding, ..self.expected.samples });
        let samples = self.ledger.samples();
        let settled = samples.used + samples.stale + samples.dropped + samples.reissued;
        assert_eq!(samples.issued, settled + samples.outstanding, "every sample is accounted for");
        for worker in (0..12).map(WorkerId) {
            let activity = self.activities.of(worker);
            assert_eq!(
                activity.running().map(|running| running.assignment.task),
                self.ledger.running(worker).map(|assignment| assignment.task)
            );
            assert_eq!(activity.queued().copied(), self.ledger.queued(worker));
            let hold = if let WorkerActivity::Idle(idleness) = activity { idleness.hold } else { None };
            assert_eq!(hold.map(|(until, _)| until), self.ledger.waits_for(worker));
            assert_eq!(activity != WorkerActivity::Absent, self.expected.present.contains(&worker));
            let progress = activity.running().map(|running| (running.iterations, running.collected));
            let expected = self.expected.running.get(&worker).map(|task| (task.done, task.collected));
            assert_eq!(progress, expected);
        }
        // No lost wake-ups: every worker works or waits for something that can still happen.
        for worker in &self.expected.present {
            if !self.expected.running.contains_key(worker) {
                match self.ledger.waits_for(*worker) {
                    Some(Until::Worker(other)) => assert!(self.expected.running.contains_key(&other)),
                    Some(Until::Commit) => assert!(!self.expected.running.is_empty()),
                    other => panic!("{worker} is idle and waits for {other:?}"),
                }
            }
        }
    }

    /// The worker finishes its present iteration or task.
    fn finish(&mut self, worker: WorkerId, choice: usize) -> Result<(), LedgerError> {
        let task = self.expected.running[&worker];
        // Any compute time, including zero and the longest. Some reports include resources, not always valid ones.
        let compute = Span(if choice.is_multiple_of(31) { u64::MAX } else { choice as u64 % 500 });
        let cpu = [None, Some(0.5), Some(f32::NAN)][task.assignment.task.number as usize % 3];
        let report = Report { compute, cpu, memory: cpu, ..Report::default() };
        let asks = match task.length() {
            None => false,
            Some(LocalLength::AskAndContinue) => !task.collected || choice.is_multiple_of(2),
            Some(_) => !task.collected,
        };
        if asks {
            let (task, iterations) = self.expected.iterate(worker);
            return self.feed(Event::Asked { task, iterations, report });
        }
        let task = self.expected.finish(worker);
        self.feed(Event::Reported { task, report })
    }

    fn take(&mut self, step: Move) -> Result<(), LedgerError> {
        let refused = |result: Result<(), LedgerError>| match result {
            Err(LedgerError::Refused(_)) => Ok(()),
            Err(broken) => Err(broken),
            Ok(()) => panic!("an invalid event was accepted"),
        };
        match step {
            Move::Finish(choice) => {
                let running: Vec<WorkerId> = self.expected.running.keys().copied().collect();
                if running.is_empty() { Ok(()) } else { self.finish(running[choice % running.len()], choice) }
            }
            Move::Join(worker) => {
                let worker = WorkerId(worker);
                if !self.expected.present.insert(worker) {
                    return refused(self.feed(Event::Joined { worker }));
                }
                self.feed(Event::Joined { worker })
            }
            Move::Leave(worker) => {
                let worker = WorkerId(worker);
                if !self.expected.present.contains(&worker) {
                    return refused(self.feed(Event::Left { worker }));
                }
                self.expected.leave(worker);
                self.feed(Event::Left { worker })
            }
            Move::Timer => {
                // Every worker is silent until the next timer.
                let Some(at) = self.ledger.next_timer() else { return Ok(()) };
                self.now = self.now.max(at);
                self.feed(Event::Timer)
            }
            // A planner prefers one of the candidates.
            Move::Plan(choice) => {
                let Some(request) = self.ledger.plan_request() else {
                    return refused(self.feed(Event::Planned { paces: Vec::new() }));
                };
                let best = choice % request.candidates.len();
                let pace = |(index, scheme)| SchemePace { scheme, pace: if index == best { 2.0 } else { 1.0 } };
                self.feed(Event::Planned { paces: request.candidates.into_iter().enumerate().map(pace).collect() })
            }
            Move::Restore => {
                self.restore();
                Ok(())
            }
            // The answer was lost.
            Move::RepeatQuestion(choice) => {
                let asked: Vec<TrackedTask> =
                    self.expected.running.values().copied().filter(|task| task.done > 0).collect();
                let Some(task) = asked.get(choice % asked.len().max(1)) else { return Ok(()) };
                let report = Report { compute: Span(1), ..Report::default() };
                self.feed(Event::Asked { task: task.assignment.task, iterations: task.done, report })
            }
            Move::InvalidQuestion(choice, iterations) => {
                let running: Vec<TrackedTask> = self.expected.running.values().copied().collect();
                let Some(task) = running.get(choice % running.len().max(1)) else { return Ok(()) };
                let valid = [task.done.max(1), task.assigned].contains(&iterations);
                if task.length().is_some() && valid {
                    return Ok(());
                }
                let task = task.assignment.task;
                refused(self.feed(Event::Asked {
                    task,
                    iterations,
                    report: Report { compute: Span(1), ..Report::default() },
                }))
            }
            Move::RepeatReport(choice) => {
                let Some(&task) = self.expected.finished.get(choice % self.expected.finished.len().max(1)) else {
                    return Ok(());
                };
                refused(self.feed(Event::Reported { task, report: Report { compute: Span(1), ..Report::default() } }))
            }
            Move::InvalidReport(worker, number) => {
                let task = TaskId { worker: WorkerId(worker), number };
                let running = self.expected.running.get(&task.worker).filter(|running| running.assignment.task == task);
                if running.is_some_and(|running| running.length().is_none() || running.collected) {
                    return Ok(());
                }
                refused(self.feed(Event::Reported { task, report: Report { compute: Span(1), ..Report::default() } }))
            }
        }
    }
}

/// A scheme starts afresh in the middle of a run: what was learned is lost, the laws hold, and the run goes on.
#[test]
fn every_scheme_can_start_afresh() {
    for spec in specs() {
        let mut driver = LedgerDriver::new(&spec);
        (0..WORKERS as u32).for_each(|worker| driver.take(Move::Join(worker)).unwrap());
        let finish = |driver: &mut LedgerDriver| {
            for round in 0..300 {
                driver.now = driver.now + Span(500);
                driver.take(Move::Finish(round)).unwrap();
            }
        };
        finish(&mut driver);
        let saved = driver.ledger.save().without_scheme();
        assert!(!saved.has_scheme() && saved.workers().is_empty());
        assert_eq!((saved.version().0, saved.samples().outstanding), (driver.expected.version, 0));
        driver.ledger = Ledger::restore(build(&driver.spec), saved.clone()).unwrap();
        driver.uninterrupted = Ledger::restore(build(&driver.spec), saved).unwrap();
        let members: Vec<WorkerId> = driver.expected.present.iter().copied().collect();
        members.iter().for_each(|&worker| driver.expected.leave(worker));
        driver.activities = WorkerActivities::default();
        let before = driver.expected.version;
        members.iter().for_each(|worker| driver.take(Move::Join(worker.0)).unwrap());
        finish(&mut driver);
        driver.restore();
        assert!(driver.expected.version > before, "{spec} makes no progress");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_scheme_breaks_a_law(steps in moves(), gaps in prop::collection::vec(0..1_000_u64, 200)) {
        for spec in specs() {
            let mut driver = LedgerDriver::new(&spec);
            let failure = |error: LedgerError| TestCaseError::fail(format!("{spec}: {error}"));
            for worker in 0..WORKERS as u32 {
                driver.take(Move::Join(worker)).map_err(failure)?;
            }
            for (step, gap) in steps.iter().zip(&gaps) {
                driver.now = driver.now + Span(*gap);
                driver.take(*step).map_err(failure)?;
            }
            // Silent workers leave, the others finish their tasks: the model must be stepped again.
            let silent: Vec<WorkerId> = driver.expected.present.iter().copied().skip(2).collect();
            for worker in silent {
                driver.take(Move::Leave(worker.0)).map_err(failure)?;
            }
            let before = driver.expected.version;
            // A round has up to 64 local iterations of each, or ends with a timer.
            for round in 0..200 {
                driver.now = driver.now + Span(500);
                let step = if round % 20 == 19 { Move::Timer } else { Move::Finish(round) };
                driver.take(step).map_err(failure)?;
            }
            let has_progressed = driver.expected.present.is_empty() || driver.expected.version > before;
            prop_assert!(has_progressed, "{spec} makes no progress");
        }
    }
}
