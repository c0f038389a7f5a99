//! Every scheme is driven through the ledger with random arrivals, joins, leaves, duplicates and silence.

use std::collections::{BTreeMap, BTreeSet};

use paceline_core::{
    Action, Aggregate, Assignment, Event, Handout, Ledger, LedgerError, Report, Samples, SchemeSpec, Setup, Span,
    TaskId, Time, Until, Version, WorkerId,
};
use proptest::prelude::*;

const WORKERS: usize = 6;

/// All schemes, with the settings that change how they move.
fn specs() -> Vec<String> {
    let handouts = Handout::NAMES.iter().map(|(name, _)| name);
    let rounds = handouts.flat_map(|handout| {
        [
            "bsp:",
            "backup:k=1,",
            "backup:k=4,",
            "backup:k=6,",
            "dbw:",
            "dbw:memory=window-3,formulas=printed,",
            "b-dbw:memory=discount-0.7,",
            "adasync:",
            "lb-bsp:warm-up=3,",
            "lb-bsp:predictor=ema,update=non-blocking,k=4,change=0,",
            "lb-bsp:mode=gpu,least=2,",
        ]
        .map(|scheme| format!("{scheme}handout={handout}"))
    });
    let free = [
        "asp",
        "ssp:staleness=0",
        "ssp:staleness=2",
        "dssp:min=0,max=3",
        "dssp:min=2,max=2",
        "elastic-bsp:r=1",
        "elastic-bsp:r=4,interval=ema",
        "elastic-bsp:r=20,interval=median",
    ];
    rounds.chain(free.map(String::from)).collect()
}

/// What a commit showed: nothing where there is no model, else numbers that make dynamic schemes change their minds.
fn shown(version: Version) -> Option<Aggregate> {
    let wave = (version.0 as f64 * 1.7).sin();
    let aggregate =
        Aggregate { loss: 1.0 + 0.5 * wave, rate: 0.1, sum_of_squares: 8.0 + 6.0 * wave, square_of_sum: 1.0 };
    (!version.0.is_multiple_of(7)).then_some(aggregate)
}

/// What happens next; the numbers choose among what is possible then.
#[derive(Debug, Clone, Copy)]
enum Move {
    Finish(usize),
    Join(u32),
    Leave(u32),
    Timer,
    RepeatReport(usize),
    StrangeReport(u32, u64),
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let one = prop_oneof![
        12 => any::<usize>().prop_map(Move::Finish),
        1 => (0..9_u32).prop_map(Move::Join),
        1 => (0..9_u32).prop_map(Move::Leave),
        1 => Just(Move::Timer),
        1 => any::<usize>().prop_map(Move::RepeatReport),
        1 => (0..12_u32, 0..40_u64).prop_map(|(worker, number)| Move::StrangeReport(worker, number)),
    ];
    prop::collection::vec(one, 1..200)
}

/// An independent record of what a driver sees, kept from the actions alone.
#[derive(Default)]
struct World {
    running: BTreeMap<WorkerId, Assignment>,
    queued: BTreeMap<WorkerId, Assignment>,
    present: BTreeSet<WorkerId>,
    arrived: BTreeMap<TaskId, Assignment>,
    finished: Vec<TaskId>,
    version: u64,
    samples: Samples,
}

impl World {
    fn lose(&mut self, assignment: Assignment) {
        self.samples.dropped += u64::from(assignment.samples);
    }

    fn leave(&mut self, worker: WorkerId) {
        self.present.remove(&worker);
        let arrived: Vec<TaskId> = self.arrived.keys().copied().filter(|task| task.worker == worker).collect();
        let mut lost: Vec<Assignment> = arrived.iter().filter_map(|task| self.arrived.remove(task)).collect();
        lost.extend(self.running.remove(&worker));
        lost.extend(self.queued.remove(&worker));
        lost.into_iter().for_each(|assignment| self.lose(assignment));
    }

    fn finish(&mut self, worker: WorkerId) -> TaskId {
        let assignment = self.running.remove(&worker).expect("only running tasks are finished");
        self.arrived.insert(assignment.task, assignment);
        self.finished.push(assignment.task);
        if let Some(next) = self.queued.remove(&worker) {
            self.running.insert(worker, next);
        }
        assignment.task
    }

    fn carry_out(&mut self, action: &Action) {
        match action {
            Action::Commit { version, updates } => {
                self.version += 1;
                assert_eq!(version.0, self.version, "versions rise by one");
                assert!(updates.windows(2).all(|pair| pair[0].task < pair[1].task), "shares come by rank");
                let weight: f32 = updates.iter().map(|share| share.weight).sum();
                assert!((weight - 1.0).abs() < 1e-5, "weights add up to one");
                for share in updates.iter() {
                    let update = self.arrived.remove(&share.task).expect("committed once, after it arrived");
                    assert!(self.present.contains(&share.task.worker), "committed while its worker is there");
                    self.samples.used += u64::from(update.samples);
                }
            }
            Action::Discard { task } => {
                let update = self.arrived.remove(task).expect("discarded once, after it arrived");
                if update.version.0 < self.version {
                    self.samples.stale += u64::from(update.samples);
                } else {
                    self.lose(update);
                }
            }
            Action::Assign(assignment) => {
                let worker = assignment.task.worker;
                assert_eq!(assignment.version.0, self.version, "work is on the newest model");
                assert_eq!(assignment.queued, self.running.contains_key(&worker));
                self.samples.issued += u64::from(assignment.samples);
                let slot = if assignment.queued { &mut self.queued } else { &mut self.running };
                if let Some(replaced) = slot.insert(worker, *assignment) {
                    assert_eq!(replaced.offset, assignment.offset, "the samples of a replaced assignment are not lost");
                    self.samples.reissued += u64::from(replaced.samples);
                }
            }
            Action::Interrupt { task } => {
                let stopped = self.running.remove(&task.worker).expect("only running tasks are interrupted");
                assert_eq!(stopped.task, *task);
                self.lose(stopped);
            }
            Action::Hold { worker, .. } => assert!(!self.running.contains_key(worker)),
            Action::Wake { .. } => {}
        }
    }

    fn outstanding(&self) -> u64 {
        let tasks = self.running.values().chain(self.queued.values()).chain(self.arrived.values());
        tasks.map(|assignment| u64::from(assignment.samples)).sum()
    }
}

struct Drive {
    ledger: Ledger,
    world: World,
    now: Time,
}

impl Drive {
    fn new(spec: &str) -> Self {
        let spec: SchemeSpec = spec.parse().unwrap();
        let setup = Setup { workers: WORKERS, batch: 3, handout: None };
        Drive { ledger: Ledger::new(spec.build(&setup).unwrap()), world: World::default(), now: Time::START }
    }

    /// Feeds an event and then confirms commits until there are none left.
    fn feed(&mut self, event: Event) -> Result<(), LedgerError> {
        let mut next = Some(event);
        while let Some(event) = next.take() {
            let decisions = self.ledger.handle(self.now, event)?.to_vec();
            for decision in decisions {
                self.world.carry_out(&decision.action);
                if let Action::Commit { version, .. } = decision.action {
                    next = Some(Event::Committed { version, aggregate: shown(version) });
                }
            }
        }
        self.check();
        Ok(())
    }

    fn check(&self) {
        let outstanding = self.world.outstanding();
        assert_eq!(self.ledger.samples(), Samples { outstanding, ..self.world.samples });
        let samples = self.ledger.samples();
        let settled = samples.used + samples.stale + samples.dropped + samples.reissued;
        assert_eq!(samples.issued, settled + samples.outstanding, "every sample is accounted for");
        // No lost wake-ups: everyone works or waits for something that can still happen.
        for worker in &self.world.present {
            if !self.world.running.contains_key(worker) {
                match self.ledger.waits_for(*worker) {
                    Some(Until::Worker(other)) => assert!(self.world.running.contains_key(&other)),
                    Some(Until::Commit) => assert!(!self.world.running.is_empty()),
                    other => panic!("{worker} is idle and waits for {other:?}"),
                }
            }
        }
    }

    fn finish(&mut self, worker: WorkerId) -> Result<(), LedgerError> {
        let task = self.world.finish(worker);
        // Any time at all, none included; some say what else goes on, not always sensibly.
        let compute = Span(task.number * u64::from(worker.0) % 5);
        let cpu = [None, Some(0.5), Some(f32::NAN)][task.number as usize % 3];
        self.feed(Event::Reported { task, report: Report { compute, cpu, memory: cpu } })
    }

    fn take(&mut self, step: Move) -> Result<(), LedgerError> {
        let refused = |result: Result<(), LedgerError>| match result {
            Err(LedgerError::Refused(_)) => Ok(()),
            Err(broken) => Err(broken),
            Ok(()) => panic!("a wrong event was accepted"),
        };
        match step {
            Move::Finish(choice) => {
                let running: Vec<WorkerId> = self.world.running.keys().copied().collect();
                if running.is_empty() { Ok(()) } else { self.finish(running[choice % running.len()]) }
            }
            Move::Join(worker) => {
                let worker = WorkerId(worker);
                if !self.world.present.insert(worker) {
                    return refused(self.feed(Event::Joined { worker }));
                }
                self.feed(Event::Joined { worker })
            }
            Move::Leave(worker) => {
                let worker = WorkerId(worker);
                if !self.world.present.contains(&worker) {
                    return refused(self.feed(Event::Left { worker }));
                }
                self.world.leave(worker);
                self.feed(Event::Left { worker })
            }
            Move::Timer => {
                // Everyone is silent until the next timer.
                let Some(at) = self.ledger.next_timer() else { return Ok(()) };
                self.now = self.now.max(at);
                self.feed(Event::Timer)
            }
            Move::RepeatReport(choice) => {
                let Some(&task) = self.world.finished.get(choice % self.world.finished.len().max(1)) else {
                    return Ok(());
                };
                refused(self.feed(Event::Reported { task, report: Report { compute: Span(1), ..Report::default() } }))
            }
            Move::StrangeReport(worker, number) => {
                let task = TaskId { worker: WorkerId(worker), number };
                if self.world.running.get(&task.worker).is_some_and(|running| running.task == task) {
                    return Ok(());
                }
                refused(self.feed(Event::Reported { task, report: Report { compute: Span(1), ..Report::default() } }))
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_scheme_breaks_a_law(steps in moves(), gaps in prop::collection::vec(0..1_000_u64, 200)) {
        for spec in specs() {
            let mut drive = Drive::new(&spec);
            let told = |error: LedgerError| TestCaseError::fail(format!("{spec}: {error}"));
            for worker in 0..WORKERS as u32 {
                drive.take(Move::Join(worker)).map_err(told)?;
            }
            for (step, gap) in steps.iter().zip(&gaps) {
                drive.now = drive.now + Span(*gap);
                drive.take(*step).map_err(told)?;
            }
            // The silent ones are declared gone, the rest finish what they have: the model must move on.
            let silent: Vec<WorkerId> = drive.world.present.iter().copied().skip(2).collect();
            for worker in silent {
                drive.take(Move::Leave(worker.0)).map_err(told)?;
            }
            let before = drive.world.version;
            for round in 0..40 {
                drive.take(Move::Finish(round)).map_err(told)?;
            }
            prop_assert!(drive.world.present.is_empty() || drive.world.version > before, "{spec} stands still");
        }
    }
}
