//! Combined schemes: equal to their parts where they must be, with the round times and weights that follow from them.

mod common;

use std::collections::BTreeMap;
use std::path::Path;

use common::{observed, summary, timing, training, with_dispatch};
use paceline_core::{Action, Decision, Dispatch, Event, TaskId, Time, WorkerId};
use paceline_runtime::Observer;
use paceline_sim::{Script, Simulation};

const NOISY: &str = "lognormal:0,0.5";

/// Every event with the decisions that followed.
#[derive(Default)]
struct TurnRecorder(Vec<(Time, Event, Vec<Decision>)>);

impl Observer for TurnRecorder {
    fn on_turn(&mut self, now: Time, event: &Event, decisions: &[Decision]) {
        self.0.push((now, event.clone(), decisions.to_vec()));
    }
}

fn turns(simulation: &Simulation) -> Vec<(Time, Event, Vec<Decision>)> {
    let mut recorder = TurnRecorder::default();
    observed(simulation, &mut recorder);
    recorder.0
}

/// Persistently unequal workers with random times, one of which leaves and returns.
fn unequal(scheme: &str, iterations: u64) -> Simulation {
    let mut simulation = training(scheme, 8, NOISY, &format!("iterations={iterations}"), 0.1, 1);
    simulation.slowness = "0-1=3,2-3=2".parse().unwrap();
    simulation.script = Script::of(Path::new("script"), "20.5 leave 3\n40.5 join 3\n", 8).unwrap();
    simulation
}

fn mean_iteration(simulation: &Simulation) -> f64 {
    let summary = summary(simulation);
    summary.time / summary.iterations as f64
}

#[test]
fn combinations_that_add_nothing_decide_as_their_part() {
    for dispatch in [Dispatch::Pull, Dispatch::PushWait, Dispatch::PushInterrupt] {
        let decisions = |scheme: &str| turns(&with_dispatch(unequal(scheme, 60), dispatch));
        let balanced = decisions("lb-bsp");
        for scheme in ["bsp+lb-bsp", "lb-bsp+bsp", "lb-bsp+backup:k=8", "backup:k=8+lb-bsp"] {
            assert!(decisions(scheme) == balanced, "{scheme}, {dispatch}");
        }
        if dispatch != Dispatch::PushInterrupt {
            assert!(decisions("lb-bsp+backup:k=5") == decisions("lb-bsp:k=5"), "{dispatch}");
            assert!(decisions("bsp+late") == decisions("bsp"), "{dispatch}");
        }
    }
    // Sizes that may not change: the same work, for other reasons.
    let actions = |scheme: &str| {
        let decisions = turns(&unequal(scheme, 40)).into_iter().flat_map(|(_, _, decisions)| decisions);
        decisions.map(|decision| decision.action).collect::<Vec<_>>()
    };
    assert_eq!(actions("local-sgd:tau=2+lb-bsp:predictor=ema,least=16,most=16"), actions("local-sgd:tau=2"));
}

#[test]
fn balanced_rounds_take_the_time_of_the_kth_of_equal_workers() {
    // Four workers of half the speed: the balanced batches take 8/6 of the time of an equal batch. The k-th smallest of
    // n uniform variables is expected at k/(n + 1).
    for k in [4, 6, 8] {
        let scheme = format!("lb-bsp:predictor=ema,change=0+backup:k={k},dispatch=push-interrupt");
        let mut simulation = timing(&scheme, 8, "uniform:0.9,1.1", "iterations=4000");
        simulation.setup.batch = 600;
        simulation.slowness = "0-3=2".parse().unwrap();
        let expected = 8.0 / 6.0 * (0.9 + 0.2 * f64::from(k) / 9.0);
        let found = mean_iteration(&simulation);
        assert!((found / expected - 1.0).abs() < 0.015, "k = {k}: {found}, expected {expected}");
    }
}

#[test]
fn dynamic_quorums_wait_for_all_workers_once_they_are_balanced() {
    // Steady times: nobody is late with the right batch, so nothing is gained by leaving a worker out.
    for quorum in ["cutoff", "b-dbw"] {
        let mut simulation = timing(&format!("lb-bsp:predictor=ema+{quorum}"), 4, "deterministic:1", "iterations=300");
        simulation.setup.batch = 100;
        simulation.slowness = "0=3".parse().unwrap();
        let combined = summary(&simulation);
        let rounds = combined.updates_committed as f64 / combined.iterations as f64;
        assert!(rounds > 3.95, "{quorum}: {rounds} updates per round");
        // 4 batches at a speed of 3 1/3 batches per second.
        let seconds = combined.time / combined.iterations as f64;
        assert!((seconds / 1.2 - 1.0).abs() < 0.02, "{quorum}: {seconds}");
    }
}

#[test]
fn a_worker_that_becomes_slow_is_not_interrupted_for_ever() {
    /// How many of the last commits have an update of worker 0.
    fn contributions(scheme: &str) -> usize {
        let mut simulation = timing(scheme, 8, "uniform:0.9,1.1", "iterations=600");
        simulation.setup.batch = 100;
        simulation.script = Script::of(Path::new("script"), "50.5 slow 0 4\n", 8).unwrap();
        let commits: Vec<bool> = turns(&simulation)
            .into_iter()
            .flat_map(|(_, _, decisions)| decisions)
            .filter_map(|decision| match decision.action {
                Action::Commit(commit) => Some(commit.updates.iter().any(|share| share.task.worker == WorkerId(0))),
                _ => None,
            })
            .collect();
        commits[commits.len() - 200..].iter().filter(|&&contributes| contributes).count()
    }
    let interrupting = "backup:k=7,dispatch=push-interrupt";
    assert_eq!(contributions(interrupting), 0);
    let balanced = contributions(&format!("lb-bsp:predictor=ema+{interrupting}"));
    assert!(balanced > 100, "{balanced} of 200");
}

/// What became of an update.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Settled {
    at: Time,
    /// How many versions it was behind.
    behind: u64,
    committed: bool,
}

/// What became of every update, and every commit's shares with what they should be relative to each other.
fn settled(simulation: &Simulation, weight: f64) -> BTreeMap<TaskId, Settled> {
    let (mut assigned, mut settled) = (BTreeMap::new(), BTreeMap::new());
    let mut version = 0;
    for (at, _, decisions) in turns(simulation) {
        for decision in decisions {
            match decision.action {
                Action::Assign(assignment) => {
                    assigned.insert(assignment.task, (assignment.version.0, f64::from(assignment.samples)));
                }
                Action::Discard { task } => {
                    settled.insert(task, Settled { at, behind: version - assigned[&task].0, committed: false });
                }
                Action::Commit(commit) => {
                    let wanted: Vec<f64> = commit
                        .updates
                        .iter()
                        .map(|share| {
                            let (computed_at, samples) = assigned[&share.task];
                            let behind = version - computed_at;
                            settled.insert(share.task, Settled { at, behind, committed: true });
                            samples * weight.powf(behind as f64)
                        })
                        .collect();
                    let total: f64 = wanted.iter().sum();
                    for (share, wanted) in commit.updates.iter().zip(wanted) {
                        assert!((f64::from(share.weight) - wanted / total).abs() < 1e-6, "{commit:?}");
                    }
                    version = commit.version.0;
                }
                _ => {}
            }
        }
    }
    settled
}

#[test]
fn late_gradients_join_the_next_commit_with_less_weight_and_change_no_time() {
    // Without a network, the dispatch `pull` gives the same work at the same times with and without `late`.
    let timed = |scheme: &str| {
        let mut simulation = timing(scheme, 8, NOISY, "iterations=400");
        simulation.setup.batch = 10;
        simulation.slowness = "0-1=3".parse().unwrap();
        simulation
    };
    for quorum in ["backup:k=5,dispatch=pull", "b-dbw:dispatch=pull", "lb-bsp:dispatch=pull+backup:k=5"] {
        let plain = settled(&timed(quorum), 1.0);
        let late = settled(&timed(&format!("{quorum}+late:weight=0.7,staleness=2")), 0.7);
        assert!(plain.values().all(|update| update.committed == (update.behind == 0)));
        let mut joined = 0;
        for (task, late) in &late {
            assert_eq!(late.committed, late.behind <= 2, "{quorum}: {task}: {late:?}");
            let Some(plain) = plain.get(task) else { continue };
            assert_eq!(plain.behind, late.behind, "{quorum}: {task}");
            if !late.committed || late.behind == 0 {
                assert_eq!(plain.at, late.at);
            } else {
                // It was discarded on arrival, and now waits for the commit.
                assert!(plain.at <= late.at);
                joined += 1;
            }
        }
        assert!(joined > 100, "{quorum}: {joined}");
    }
}

#[test]
fn late_gradients_are_used_under_push_wait() {
    let counts = |scheme: &str| {
        let mut simulation = timing(scheme, 8, NOISY, "iterations=400");
        simulation.network = Some("latency=0.02,link=1e6,bytes=1e4".parse().unwrap());
        simulation.slowness = "0-1=3".parse().unwrap();
        settled(&simulation, 0.8)
            .values()
            .fold((0, 0), |(used, lost), update| if update.committed { (used + 1, lost) } else { (used, lost + 1) })
    };
    let (plain_used, plain_lost) = counts("backup:k=5");
    let (used, lost) = counts("backup:k=5+late");
    assert_eq!(plain_used, 5 * 400);
    assert!(plain_lost > 600, "{plain_lost}");
    assert!(used > plain_used + 600 && lost < plain_lost / 10, "{used} used, {lost} lost");
}

#[test]
fn local_rounds_of_balanced_batches_end_together() {
    let mut simulation = timing("local-sgd:tau=4+lb-bsp:predictor=ema", 4, "deterministic:1", "iterations=100");
    simulation.setup.batch = 100;
    simulation.slowness = "0=3".parse().unwrap();
    let mut commits = turns(&simulation).into_iter().flat_map(|(now, _, decisions)| {
        decisions.into_iter().filter_map(move |decision| match decision.action {
            Action::Commit(commit) => Some((now, commit)),
            _ => None,
        })
    });
    let (before, _) = commits.by_ref().nth(89).unwrap();
    let (now, last) = commits.nth(8).unwrap();
    // Four iterations of 400 samples at a speed of 333 1/3 samples per second.
    let seconds = now.since(before).seconds() / 9.0;
    assert!((seconds / 4.8 - 1.0).abs() < 0.01, "{seconds}");
    // Replicas count by the samples of an iteration.
    let weights: Vec<f32> = last.updates.iter().map(|share| share.weight).collect();
    assert!((weights[0] - 0.1).abs() < 0.003 && (weights[3] - 0.3).abs() < 0.003, "{weights:?}");
}

#[test]
fn combinations_train_and_repeat_bit_for_bit() {
    for scheme in [
        "lb-bsp+cutoff",
        "lb-bsp+dbw",
        "lb-bsp+b-dbw+late",
        "adasync+late",
        "local-sgd:tau=4+lb-bsp",
        "adacomm+lb-bsp",
        "easgd:tau=2+lb-bsp",
    ] {
        let mut simulation = unequal(scheme, 2000);
        simulation.goals = "loss<0.7,iterations=2000".parse().unwrap();
        let runs = [1, 2].map(|threads| {
            let training = simulation.training.as_mut().unwrap();
            training.threads = threads;
            common::outcome(&simulation)
        });
        assert!(runs[0].summary.reached, "{scheme}: {:?}", runs[0].summary);
        assert_eq!(runs[0].summary, runs[1].summary, "{scheme}");
        assert_eq!(runs[0].parameters, runs[1].parameters, "{scheme}");
    }
}
