//! A few hundred seeds of every scheme, and schemes that are broken on purpose.

use std::collections::BTreeSet;

use paceline_core::{Law, Reason, Scheme, SchemeSpec, Setup, Span, TaskId, Turn, Until, Update, WorkerId};
use paceline_torture::{Failure, History, Trouble, schemes, shorten, torture};

const SEEDS: u64 = 200;

#[test]
fn every_scheme_survives() {
    for seed in 0..SEEDS {
        let history = History::of(seed);
        for scheme in schemes(history.workers) {
            let build = |setup: &Setup| scheme.build(setup).unwrap();
            if let Err(failure) = torture(&history, &build) {
                let (history, failure) = shorten(&history, failure, &build);
                panic!("seed {seed}, {scheme}: {failure}\n{history:#?}");
            }
        }
    }
}

#[test]
fn a_seed_replays_exactly() {
    let scheme: SchemeSpec = "dbw".parse().unwrap();
    let build = |setup: &Setup| scheme.build(setup).unwrap();
    for seed in [3, 14, 15] {
        let history = History::of(seed);
        assert_eq!(torture(&history, &build), torture(&history, &build));
    }
}

/// Bulk synchronous, but careless: what it is careless of is chosen by its field.
struct Careless {
    about: About,
    batch: u32,
    awaited: BTreeSet<WorkerId>,
    arrived: Vec<TaskId>,
    asleep: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum About {
    /// It forgets that those who left will not report.
    Leaving,
    /// It commits what those who left had sent.
    TheDead,
    /// When somebody has left it goes to sleep, and only ever sets the next alarm.
    Time,
}

impl Careless {
    fn try_round(&mut self, turn: &mut Turn<'_>) {
        if self.asleep || self.arrived.is_empty() || self.awaited.iter().any(|worker| turn.running(*worker).is_some()) {
            return self.wait(turn);
        }
        if self.about == About::Leaving && !self.awaited.is_empty() {
            return self.wait(turn);
        }
        turn.commit(&std::mem::take(&mut self.arrived), Reason::NewVersion);
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

impl Scheme for Careless {
    fn on_joined(&mut self, turn: &mut Turn<'_>, worker: WorkerId) {
        self.awaited.insert(worker);
        turn.assign(worker, self.batch, Reason::Joined);
    }

    fn on_left(&mut self, turn: &mut Turn<'_>, worker: WorkerId) {
        match self.about {
            About::Leaving => {}
            About::TheDead => {
                self.awaited.remove(&worker);
            }
            About::Time => {
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

/// The first seed that the scheme does not survive, shortened.
fn caught(about: About) -> (History, Failure) {
    let build = |setup: &Setup| -> Box<dyn Scheme> {
        Box::new(Careless { about, batch: setup.batch, awaited: BTreeSet::new(), arrived: Vec::new(), asleep: false })
    };
    let first = (0..SEEDS).map(History::of).find_map(|history| Some((torture(&history, &build).err()?, history)));
    let (failure, history) = first.expect("a broken scheme is caught");
    let shortened = shorten(&history, failure, &build);
    assert!(shortened.0.troubles.len() <= history.troubles.len());
    shortened
}

/// Whether nothing but a worker's going is left of a history.
fn only_departures(history: &History) -> bool {
    let goes = |trouble: &Trouble| {
        !matches!(trouble, Trouble::Jump(by) if *by < 0) && !matches!(trouble, Trouble::Start(_) | Trouble::DiskFull(_))
    };
    (1..=2).contains(&history.troubles.len()) && history.troubles.iter().all(|(_, trouble)| goes(trouble))
}

#[test]
fn a_scheme_that_waits_for_those_who_left_is_caught() {
    let (history, failure) = caught(About::Leaving);
    let stuck = |law: &Law| matches!(law, Law::WaitsForNothing { .. });
    assert!(matches!(&failure, Failure::Law(broken) if stuck(&broken.law)), "{failure}");
    assert!(only_departures(&history), "{history:#?}");
}

#[test]
fn a_scheme_that_commits_updates_of_those_who_left_is_caught() {
    let (history, failure) = caught(About::TheDead);
    let settled = |law: &Law| matches!(law, Law::NothingToSettle { .. });
    assert!(matches!(&failure, Failure::Law(broken) if settled(&broken.law)), "{failure}");
    assert!(only_departures(&history), "{history:#?}");
}

#[test]
fn a_scheme_that_keeps_the_laws_but_stands_still_is_caught() {
    let (history, failure) = caught(About::Time);
    assert!(matches!(failure, Failure::StandsStill { .. }), "{failure}");
    assert!(only_departures(&history), "{history:#?}");
}
