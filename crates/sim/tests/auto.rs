//! `auto` and its planner on simulated clusters.

use std::path::Path;

use paceline_core::{Decision, Event, GradientNoise, PlanRequest, Reason, RecentTimes, Setup, Time, WorkerId};
use paceline_runtime::{Observer, Summary};
use paceline_sim::{Script, Simulation, Slowness, Times, plan};

/// Writes down the schemes that came into force.
#[derive(Default)]
struct Switches(Vec<(f64, String)>);

impl Observer for Switches {
    fn on_turn(&mut self, now: Time, _: &Event, decisions: &[Decision]) {
        let is_switch = |reason| matches!(reason, Reason::Switched { .. } | Reason::Overdue { .. });
        let switched = decisions.iter().find(|decision| is_switch(decision.reason));
        if let Some(Decision { reason, .. }) = switched {
            self.0.push((now.seconds(), reason.to_string()));
        }
    }
}

fn simulation(scheme: &str, script: &str, until: &str) -> Simulation {
    Simulation {
        scheme: scheme.parse().unwrap(),
        setup: Setup { rate_rule: "proportional".parse().unwrap(), ..Setup::new(8, 8) },
        times: Times::load(&"normal:1,0.05".parse().unwrap()).unwrap(),
        slowness: Slowness::default(),
        script: Script::of(Path::new("script"), script, 8).unwrap(),
        network: None,
        training: None,
        goals: until.parse().unwrap(),
        seed: 1,
    }
}

fn run(scheme: &str, script: &str, until: &str) -> (Summary, Vec<(f64, String)>) {
    let mut switches = Switches::default();
    let outcome = simulation(scheme, script, until).run(&mut switches).unwrap();
    (outcome.summary, switches.0)
}

fn request(candidates: &[&str], workers: Vec<(Vec<f64>, f64)>) -> PlanRequest {
    let track = |(rank, (iterations, transfer))| RecentTimes { worker: WorkerId(rank), iterations, transfer };
    PlanRequest {
        setup: Setup { rate_rule: "proportional".parse().unwrap(), ..Setup::new(workers.len(), 8) },
        candidates: candidates.iter().map(|text| text.parse().unwrap()).collect(),
        workers: (0..).zip(workers).map(track).collect(),
        noise: GradientNoise::default(),
    }
}

#[test]
fn the_planner_agrees_with_closed_forms() {
    let paces = |candidates: &[&str], workers| -> Vec<f64> {
        plan(&request(candidates, workers)).into_iter().map(|found| found.pace).collect()
    };
    let close = |found: f64, expected: f64| assert!((found / expected - 1.0).abs() < 0.02, "{found}; {expected}");
    // Three workers of 1 s, one of 3 s, and 0.5 s for every exchange.
    let workers =
        |transfer| vec![(vec![1.0], transfer), (vec![1.0], transfer), (vec![1.0], transfer), (vec![3.0], transfer)];
    let found = paces(&["bsp", "backup:k=3", "lb-bsp:predictor=ema"], workers(0.5));
    close(found[0], 1.0 / 3.5);
    close(found[1], 0.75 / 1.5);
    // All together do 3 + 1/3 batches per second; a step has four.
    assert!((0.5..0.59).contains(&found[2]), "{found:?}");
    // Without exchanges, nobody waits under `anytime`: in rounds of 9 s all end an iteration together. Of 7.5 iterations each, 6.5
    // are local ones, which cost 0.04 each.
    let found = paces(&["anytime:tau=8"], workers(0.0));
    close(found[0], 7.5 / 9.0 / 1.26);
    // Of a worker nothing is known: who waits for it makes no progress.
    let mut unknown = workers(0.0);
    unknown[3].0.clear();
    let found = paces(&["bsp", "backup:k=3"], unknown);
    assert_eq!(found[0], 0.0);
    close(found[1], 0.75);
}

#[test]
fn a_worker_that_becomes_slow_costs_little() {
    let (summary, switches) = run("auto", "60 slow 0 4", "time=300");
    let (bsp, _) = run("bsp", "60 slow 0 4", "time=300");
    assert!(summary.goodput > 1.8 * bsp.goodput, "{} {}", summary.goodput, bsp.goodput);
    assert!(switches[0].1.starts_with("switched to lb-bsp:predictor=ema: expected to be 1."), "{switches:?}");
    // The same seed, the same decisions.
    assert_eq!(run("auto", "60 slow 0 4", "time=300"), (summary, switches));
}

#[test]
fn nobody_waits_long_for_a_worker_that_is_overdue() {
    // Its present iteration would take 50 s.
    let (summary, switches) = run("auto", "60 slow 0 50", "time=120");
    let (at, reason) = &switches[1];
    assert_eq!(reason, "switched to anytime:tau=4,rate=1: everybody waited for overdue workers: 1");
    assert!((60.0..64.0).contains(at), "{switches:?}");
    let (bsp, _) = run("bsp", "60 slow 0 50", "time=120");
    assert!(summary.goodput > 1.5 * bsp.goodput, "{} {}", summary.goodput, bsp.goodput);
}

#[test]
fn on_a_steady_cluster_auto_settles() {
    let (summary, switches) = run("auto", "", "time=600");
    assert!(switches.len() <= 2, "{switches:?}");
    let (bsp, _) = run("bsp", "", "time=600");
    assert!(summary.goodput > 0.98 * bsp.goodput, "{} {}", summary.goodput, bsp.goodput);
}

#[test]
fn workers_come_and_go() {
    let script = "20 leave 0-5\n60 join 0-3\n100 crash 1 2\n140 join 8-9\n180 leave 6-9";
    let (summary, _) = run("auto", script, "time=300");
    assert!(summary.goodput > 0.0 && summary.time == 300.0, "{summary:?}");
}
