//! `async-local-sgd`: nobody waits, and every worker's local iterations follow its speed.

mod common;

use common::{outcome, training};
use paceline_core::{Action, Decision, Event, LocalLength, Time, WorkerId};
use paceline_runtime::Observer;
use paceline_sim::Simulation;

/// The local iterations of every assignment, by worker.
#[derive(Default)]
struct Assigned(Vec<Vec<u32>>);

impl Observer for Assigned {
    fn on_turn(&mut self, _: Time, _: &Event, decisions: &[Decision]) {
        for Decision { action, .. } in decisions {
            if let Action::Assign(assignment) = action
                && let Some(LocalLength::Iterations(count)) = assignment.work.length()
            {
                let WorkerId(rank) = assignment.task.worker;
                self.0.resize(self.0.len().max(rank as usize + 1), Vec::new());
                self.0[rank as usize].push(count);
            }
        }
    }
}

fn uneven(scheme: &str, until: &str) -> Simulation {
    let mut simulation = training(scheme, 4, "deterministic:1", until, 0.05, 1);
    simulation.slowness = "0=2,1=5,2=100".parse().unwrap();
    simulation
}

#[test]
fn iterations_follow_the_speeds_and_nobody_waits() {
    let simulation = uneven("async-local-sgd:tau=8", "time=500");
    let mut assigned = Assigned::default();
    let summary = simulation.run(&mut assigned).unwrap().summary;
    // The first task measures the worker. A worker that is the fastest known so far does τ; none is here.
    for (worker, (counts, expected)) in assigned.0.iter().zip([4, 1, 1, 8]).enumerate() {
        assert_eq!(counts[0], 1);
        assert!(counts.len() > 3 && counts[1..].iter().all(|&count| count == expected), "{worker}: {counts:?}");
    }
    assert_eq!(summary.idle_share, 0.0);
    assert_eq!(summary.updates_committed, summary.iterations, "every difference is a step of its own");
}

/// With one worker nothing is stale, and an arrival is a round.
#[test]
fn with_one_worker_it_is_local_sgd() {
    for (scheme, rounds) in [
        ("async-local-sgd:tau=1,rate=0.8", "local-sgd:tau=1,rate=0.8"),
        (
            "async-local-sgd:tau=1,outer=delayed-nesterov,rate=0.7,momentum=0.8",
            "local-sgd:tau=1,outer=nesterov,rate=0.7,momentum=0.8",
        ),
    ] {
        let parameters = |scheme| outcome(&training(scheme, 1, "deterministic:1", "iterations=40", 0.05, 1)).parameters;
        assert_eq!(parameters(scheme), parameters(rounds), "{scheme}");
    }
}

#[test]
fn the_whole_replicas_of_n_arrivals_add_up_to_a_step_by_their_mean() {
    // All workers compute on the first model and arrive together, so their n shares are the mean.
    let parameters =
        |scheme, until| outcome(&training(scheme, 4, "deterministic:1", until, 0.05, 1)).parameters.unwrap();
    let rounds = parameters("local-sgd:tau=1", "iterations=1");
    for scheme in ["async-local-sgd:tau=1", "async-local-sgd:tau=1,outer=delayed-nesterov,momentum=0"] {
        for (found, expected) in parameters(scheme, "iterations=4").iter().zip(&rounds) {
            assert!((found - expected).abs() < 1e-6, "{scheme}: {found}, {expected}");
        }
    }
}
