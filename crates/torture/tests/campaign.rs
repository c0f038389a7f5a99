//! Seeds for every scheme, and schemes with deliberate bugs that must be found.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use paceline_core::{
    CommitRequest, Law, Reason, Scheme, SchemeSpec, Setup, Span, TaskId, Turn, Until, Update, WorkerId,
};
use paceline_torture::{Fault, FaultSchedule, TortureFailure, schemes, shrink, torture};

/// The seeds of a search for a bug, those for every scheme, and those for a few of them.
const SEEDS: u64 = 100;
const SEEDS_OF_ALL: u64 = 12;
const SEEDS_OF_FEW: u64 = 150;

/// Runs seeds with the schemes that `chosen` gives for a schedule, on all processors.
fn run_seeds(seeds: u64, chosen: impl Fn(&FaultSchedule) -> Vec<SchemeSpec> + Sync) {
    let next = AtomicU64::new(0);
    let run = || {
        while let Some(seed) = Some(next.fetch_add(1, Ordering::Relaxed)).filter(|&seed| seed < seeds) {
            let schedule = FaultSchedule::from_seed(seed);
            for scheme in chosen(&schedule) {
                let build = |setup: &Setup| scheme.build(setup).unwrap();
                if let Err(failure) = torture(&schedule, &build) {
                    let (schedule, failure) = shrink(&schedule, failure, &build);
                    panic!("seed {seed}, {scheme}: {failure}\n{schedule:#?}");
                }
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(run);
        }
    });
}

#[test]
fn no_scheme_fails() {
    // Very short tasks make long runs.
    let is_short = |schedule: &FaultSchedule| schedule.task < Span::from_seconds(0.1);
    run_seeds(SEEDS_OF_ALL, |one| if is_short(one) { Vec::new() } else { schemes(one.workers) });
}

#[test]
fn shards_and_standbys_keep_the_laws() {
    let schedules: Vec<FaultSchedule> = (0..SEEDS_OF_FEW).map(FaultSchedule::from_seed).collect();
    let kinds = |shards: bool, standby: bool| {
        schedules.iter().filter(|one| (one.shards > 0, one.servers > 1) == (shards, standby)).count()
    };
    assert!(kinds(true, false) > 20 && kinds(false, true) > 20 && kinds(true, true) > 10);
    run_seeds(SEEDS_OF_FEW, |_| ["bsp", "dbw", "esync"].map(|text| text.parse().unwrap()).into());
}

#[test]
fn a_seed_replays_exactly() {
    let scheme: SchemeSpec = "dbw".parse().unwrap();
    let build = |setup: &Setup| scheme.build(setup).unwrap();
    let schedules: Vec<FaultSchedule> = (0..40).map(FaultSchedule::from_seed).collect();
    for schedule in schedules.into_iter().filter(|one| one.shards > 0 || one.servers > 1) {
        assert_eq!(torture(&schedule, &build), torture(&schedule, &build));
    }
}

/// A bulk synchronous scheme with a bug.
struct BuggyScheme {
    bug: Bug,
    batch: u32,
    awaited: BTreeSet<WorkerId>,
    arrived: Vec<TaskId>,
    asleep: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum Bug {
    /// Waits for reports of workers that left.
    WaitsForLeft,
    /// Commits updates of workers that left.
    CommitsLeft,
    /// Makes no decision after a worker left, except to set the next timer.
    Sleeps,
}

impl BuggyScheme {
    fn try_round(&mut self, turn: &mut Turn<'_>) {
        if self.asleep || self.arrived.is_empty() || self.awaited.iter().any(|worker| turn.running(*worker).is_some()) {
            return self.wait(turn);
        }
        if self.bug == Bug::WaitsForLeft && !self.awaited.is_empty() {
            return self.wait(turn);
        }
        turn.commit(CommitRequest::of(&std::mem::take(&mut self.arrived)), Reason::NewVersion);
        let workers: Vec<WorkerId> = turn.workers().filter(|&worker| turn.is_idle(worker)).collect();
        for worker in workers {
            self.awaited.insert(worker);
            turn.assign(worker, self.batch, Reason::NewVersion);
        }
    }

    fn wait(&self, turn: &mut Turn<'_>) {
        while let Some(worker) = turn.next_unsettled() {
            turn.hold(worker, Until::Commit, Reason::Contributed);
        }
    }
}

impl Scheme for BuggyScheme {
    fn on_joined(&mut self, turn: &mut Turn<'_>, worker: WorkerId) {
        self.awaited.insert(worker);
        turn.assign(worker, self.batch, Reason::Joined);
    }

    fn on_left(&mut self, turn: &mut Turn<'_>, worker: WorkerId) {
        match self.bug {
            Bug::WaitsForLeft => {}
            Bug::CommitsLeft => {
                self.awaited.remove(&worker);
            }
            Bug::Sleeps => {
                self.awaited.remove(&worker);
                self.arrived.retain(|task| task.worker != worker);
                self.asleep = true;
                return self.on_timer(turn);
            }
        }
        self.try_round(turn);
    }

    fn on_reported(&mut self, turn: &mut Turn<'_>, update: &Update) {
        self.awaited.remove(&update.task.worker);
        self.arrived.push(update.task);
        self.try_round(turn);
    }

    fn on_timer(&mut self, turn: &mut Turn<'_>) {
        turn.wake(Span::from_seconds(1.0), Reason::Free);
        self.wait(turn);
    }
}

/// The shrunken schedule of the first seed with which the scheme fails, and the failure.
fn first_failure(bug: Bug) -> (FaultSchedule, TortureFailure) {
    let build = |setup: &Setup| -> Box<dyn Scheme> {
        Box::new(BuggyScheme { bug, batch: setup.batch, awaited: BTreeSet::new(), arrived: Vec::new(), asleep: false })
    };
    let mut schedules = (0..SEEDS).map(FaultSchedule::from_seed);
    let first = schedules.find_map(|schedule| Some((torture(&schedule, &build).err()?, schedule)));
    let (failure, schedule) = first.expect("the bug is found");
    let smallest = shrink(&schedule, failure, &build);
    assert!(smallest.0.faults.len() <= schedule.faults.len());
    smallest
}

/// Whether a schedule has one or two faults, each of which can make a worker leave.
fn only_departures(schedule: &FaultSchedule) -> bool {
    let can_lose_worker = |fault: &Fault| {
        !matches!(fault, Fault::ClockJump(_, by) if *by < 0) && !matches!(fault, Fault::Start(_) | Fault::DiskFull(_))
    };
    (1..=2).contains(&schedule.faults.len()) && schedule.faults.iter().all(|(_, fault)| can_lose_worker(fault))
}

#[test]
fn a_scheme_that_waits_for_workers_that_left_is_found() {
    let (schedule, failure) = first_failure(Bug::WaitsForLeft);
    let stuck = |law: &Law| matches!(law, Law::WaitsForNothing { .. });
    assert!(matches!(&failure, TortureFailure::Law(broken) if stuck(&broken.law)), "{failure}");
    assert!(only_departures(&schedule), "{schedule:#?}");
}

#[test]
fn a_scheme_that_commits_updates_of_workers_that_left_is_found() {
    let (schedule, failure) = first_failure(Bug::CommitsLeft);
    let settled = |law: &Law| matches!(law, Law::NothingToSettle { .. });
    assert!(matches!(&failure, TortureFailure::Law(broken) if settled(&broken.law)), "{failure}");
    assert!(only_departures(&schedule), "{schedule:#?}");
}

#[test]
fn a_scheme_that_keeps_the_laws_but_stalls_is_found() {
    let (schedule, failure) = first_failure(Bug::Sleeps);
    assert!(matches!(failure, TortureFailure::Stalled { .. }), "{failure}");
    assert!(only_departures(&schedule), "{schedule:#?}");
}
