//! ESync on the paper's cluster: four workers with 0.03 s per iteration and two with 3.5 s.

mod common;

use common::{outcome, timing, training};
use paceline_runtime::WorkerTimes;
use paceline_sim::{NetworkSpec, Script, Simulation, SimulationOutcome};

const FAST: f64 = 0.03;

fn uneven(mut simulation: Simulation) -> Simulation {
    simulation.slowness = "4-5=116.66666666666667".parse().unwrap();
    simulation
}

fn cluster(scheme: &str, times: &str, until: &str) -> Simulation {
    uneven(timing(scheme, 6, times, until))
}

fn least_computing(outcome: &SimulationOutcome) -> f64 {
    outcome.summary.worker_times.iter().map(WorkerTimes::computing_share).fold(1.0, f64::min)
}

/// Log-normal with a median of 0.03 s and a deviation of 10 %.
const NOISY: &str = "lognormal:-3.506557897319982,0.1";

#[test]
fn every_worker_computes_nearly_all_the_time() {
    for mode in ["blocking", "non-blocking"] {
        let steady = outcome(&cluster(&format!("esync:mode={mode}"), "deterministic:0.03", "iterations=200"));
        assert!(least_computing(&steady) >= 0.95, "{mode}: {:?}", steady.summary.worker_times);
        for worker in &steady.summary.worker_times {
            let iteration = if worker.worker < 4 { FAST } else { 3.5 };
            // One sample per iteration.
            let expected = worker.computing_share() / iteration;
            assert!((worker.samples_per_second / expected - 1.0).abs() < 0.01, "{mode}: {worker:?}");
        }
        let noisy = outcome(&cluster(&format!("esync:mode={mode}"), NOISY, "iterations=200"));
        assert!(least_computing(&noisy) >= 0.90, "{mode}: {:?}", noisy.summary.worker_times);
    }
    let bsp = outcome(&cluster("bsp", "deterministic:0.03", "iterations=200"));
    assert!(least_computing(&bsp) < 0.01);
}

#[test]
fn no_worker_is_blocked_for_as_long_as_the_fastest_iteration() {
    let rounds = 200.0;
    let run = outcome(&cluster("esync", "deterministic:0.03", "iterations=200"));
    for worker in &run.summary.worker_times {
        // The first round is excluded: the speeds are not known yet.
        let blocked = (worker.waiting - (3.5 - FAST)).max(0.0) / (rounds - 1.0);
        assert!(blocked < FAST, "{worker:?}");
    }
}

#[test]
fn traffic_is_less_than_half_of_asps() {
    let network: NetworkSpec = "latency=0.001,bytes=1e6".parse().unwrap();
    let bytes = |scheme: &str| {
        let mut simulation = cluster(scheme, "deterministic:0.03", "time=200");
        simulation.network = Some(network);
        outcome(&simulation).summary.bytes_per_second
    };
    assert!(bytes("esync") <= 0.5 * bytes("asp"), "{} {}", bytes("esync"), bytes("asp"));
}

#[test]
fn high_latency_costs_little_in_non_blocking_mode() {
    let lost = |mode: &str| {
        let mut simulation = cluster(&format!("esync:mode={mode}"), "deterministic:0.03", "iterations=100");
        simulation.network = Some("latency=0.1,bytes=0".parse().unwrap());
        let share = |worker: &WorkerTimes| (worker.querying + worker.waiting) / worker.total();
        let run = outcome(&simulation);
        (run.summary.worker_times.iter().map(share).collect::<Vec<_>>(), run)
    };
    let (non_blocking, run) = lost("non-blocking");
    assert!(non_blocking.iter().all(|&share| share < 0.05), "{non_blocking:?} {:?}", run.summary.worker_times);
    // In blocking mode, a fast worker computes 0.03 s out of every 0.23 s.
    let (blocking, run) = lost("blocking");
    assert!(blocking[0] > 0.8, "{blocking:?} {:?}", run.summary.worker_times);
}

#[test]
fn with_equal_workers_and_sgd_esync_is_bsp() {
    for mode in ["blocking", "non-blocking"] {
        let bsp = outcome(&training("bsp", 6, "deterministic:1", "iterations=30", 0.1, 1));
        let esync = outcome(&training(&format!("esync:mode={mode}"), 6, "deterministic:1", "iterations=30", 0.1, 1));
        assert_eq!(bsp.summary.time, esync.summary.time);
        assert_eq!(bsp.summary.samples_used, esync.summary.samples_used);
        for (bsp, esync) in bsp.parameters.unwrap().iter().zip(esync.parameters.unwrap()) {
            assert!((bsp - esync).abs() <= 1e-5 * bsp.abs().max(0.1), "{mode}: {bsp} {esync}");
        }
    }
}

#[test]
fn rounds_continue_when_the_slowest_worker_changes() {
    // The slowest worker crashes, another becomes slow during a round, the first rejoins, all but two leave.
    let script = "9 crash 5 2\n15 slow 0 200\n24 join 5\n40 leave 1-4\n47 join 2\n";
    let path = std::env::temp_dir().join(format!("paceline-esync-{}", std::process::id()));
    std::fs::write(&path, script).unwrap();
    let script = Script::read(&path, 6).unwrap();
    std::fs::remove_file(&path).unwrap();
    for scheme in ["esync", "esync:mode=non-blocking", "local-sgd:tau=2", "adacomm:tau=2,interval=10", "easgd:tau=1"] {
        for network in [None, Some("latency=0.1,bandwidth=1e7".parse().unwrap())] {
            let mut simulation = uneven(training(scheme, 6, NOISY, "time=80", 0.05, 1));
            (simulation.script, simulation.network) = (script.clone(), network);
            let late = outcome(&simulation).summary;
            simulation.goals = "time=50".parse().unwrap();
            let early = outcome(&simulation).summary;
            assert!(late.iterations > early.iterations && early.iterations > 1, "{scheme}: {early:?} {late:?}");
        }
    }
}

#[test]
fn schemes_with_local_iterations_reach_the_target_under_every_optimizer() {
    for (scheme, optimizer, rate) in [
        ("esync", "sgd", 0.1),
        ("esync:mode=non-blocking", "momentum:0.9", 0.02),
        ("esync:rate=0.7", "adam", 0.003),
        ("local-sgd:tau=8", "sgd", 0.1),
        ("adacomm:tau=16,interval=30", "sgd", 0.1),
        ("easgd:tau=4", "sgd", 0.1),
        ("async-local-sgd:tau=8", "adam", 0.01),
        ("async-local-sgd:tau=8,outer=delayed-nesterov,rate=0.7,momentum=0.5", "momentum:0.9", 0.01),
        ("dc-asgd:lambda=0.1", "sgd", 0.1),
    ] {
        let runs = [1, 3].map(|threads| {
            let mut simulation = training(scheme, 4, "uniform:0.1,1", "loss<0.7,time=400", rate, threads);
            simulation.training.as_mut().unwrap().optimizer = optimizer.parse().unwrap();
            outcome(&simulation)
        });
        assert!(runs[0].summary.reached, "{scheme}, {optimizer}: {:?}", runs[0].summary);
        assert_eq!(runs[0].summary, runs[1].summary, "{scheme}: threads don't matter");
        assert_eq!(runs[0].parameters, runs[1].parameters);
    }
}

#[test]
fn esync_reaches_the_target_seven_times_sooner_than_bsp() {
    let time_to_target = |scheme: &str| {
        let until = "accuracy>0.8,time=3500";
        let mut simulation = uneven(training(scheme, 6, "deterministic:0.03", until, 0.02, 1));
        simulation.training.as_mut().unwrap().evaluate_every = 1;
        outcome(&simulation).summary.time_to_target.unwrap()
    };
    let (bsp, esync) = (time_to_target("bsp"), time_to_target("esync"));
    assert!(bsp >= 7.0 * esync, "{bsp} s and {esync} s");
}
