//! DBW in the simulator: k follows the workers' times and the progress of training.

mod common;

use std::path::Path;
use std::sync::Arc;

use common::{observed, timing, training};
use paceline_core::Dispatch;
use paceline_runtime::{Iteration, Monitor, Observer};
use paceline_sim::{Script, Simulation};
use paceline_workload::{Order, Partition, Sampler, SoftmaxRegression, synthetic_digits};

const WORKERS: usize = 16;

/// Records the time and k of each iteration.
#[derive(Debug, Default)]
struct QuorumRecorder(Vec<(f64, usize)>);

impl Observer for QuorumRecorder {
    fn on_iteration(&mut self, iteration: &Iteration, _monitor: &Monitor) {
        self.0.push((iteration.time, iteration.waited_for));
    }
}

impl QuorumRecorder {
    /// The k of the iterations that ended in this interval, in seconds.
    fn within(&self, from: f64, to: f64) -> Vec<usize> {
        self.0.iter().filter(|(time, _)| from < *time && *time <= to).map(|&(_, k)| k).collect()
    }
}

fn quorums(simulation: &Simulation) -> QuorumRecorder {
    let mut quorums = QuorumRecorder::default();
    observed(simulation, &mut quorums);
    quorums
}

fn scripted(mut simulation: Simulation, script: &str) -> Simulation {
    simulation.script = Script::of(Path::new("script"), script, simulation.setup.workers).unwrap();
    simulation
}

/// Softmax regression with large batches, so that the gradient noise is small.
fn with_large_batches(scheme: &str, times: &str, until: &str, rate: f32) -> Simulation {
    let mut simulation = training(scheme, WORKERS, times, until, rate, 2);
    let splits = synthetic_digits(3, 4000, 200).unwrap();
    let sampler = Sampler::new(splits.train().labels(), Partition::Iid, Order::WithReplacement, WORKERS, 3).unwrap();
    simulation.setup.batch = 512;
    if let Some(training) = &mut simulation.training {
        training.workload = Arc::new(SoftmaxRegression::new(splits, sampler, 0.0));
    }
    simulation
}

fn share(quorums: &[usize], k: usize) -> f64 {
    quorums.iter().filter(|&&chosen| chosen == k).count() as f64 / quorums.len() as f64
}

/// The slowdown of the paper's fig. 9: the k before and after it.
fn slowdown(scheme: &str) -> (Vec<usize>, Vec<usize>) {
    let simulation = with_large_batches(scheme, "deterministic:1", "time=260", 0.02);
    let quorums = quorums(&scripted(simulation, "160 slow 8-15 5"));
    (quorums.within(0.0, 160.0), quorums.within(160.0, 260.0))
}

#[test]
fn k_follows_a_slowdown_of_half_the_workers_at_once() {
    for scheme in ["dbw:formulas=printed", "dbw:memory=discount-0.9"] {
        let (before, after) = slowdown(scheme);
        assert_eq!((before.len(), share(&before, 16)), (160, 1.0), "{scheme}");
        assert!(after[..5].iter().any(|&k| k <= 8), "{scheme}: {after:?}");
    }
}

#[test]
fn dbw_with_discounted_memory_waits_for_the_fast_half_only() {
    let (_, after) = slowdown("dbw:memory=discount-0.9");
    assert!(share(&after, 8) >= 0.8, "{after:?}");
    // The paper's formulas keep trying all workers.
    let (_, after) = slowdown("dbw:formulas=printed");
    assert!(share(&after, 16) > 0.2, "{after:?}");
}

#[test]
fn k_is_small_early_and_large_late() {
    let quorums = quorums(&with_large_batches("dbw", "shifted-exponential:0.3,0.7", "iterations=500", 0.1)).0;
    let mean = |part: &[(f64, usize)]| part.iter().map(|&(_, k)| k as f64).sum::<f64>() / part.len() as f64;
    let (early, late) = (mean(&quorums[2..12]), mean(&quorums[400..]));
    assert!(early < 4.0 && late > 12.0, "{early} early, {late} late");
}

#[test]
fn dbw_is_faster_than_the_best_static_choice() {
    let time = |scheme: &str, rule: &str| {
        let mut simulation = with_large_batches(scheme, "shifted-exponential:0,1", "loss<0.8,iterations=2000", 0.05);
        simulation.setup.rate_rule = rule.parse().unwrap();
        let summary = observed(&simulation, &mut ());
        assert!(summary.reached, "{summary:?}");
        summary.time
    };
    let best =
        [8, 12, 16].map(|k| time(&format!("backup:k={k}"), "proportional")).into_iter().reduce(f64::min).unwrap();
    for scheme in ["dbw", "dbw:formulas=printed"] {
        let time = time(scheme, "fixed");
        assert!(1.5 * time < best, "{scheme}: {time} against {best}");
    }
}

#[test]
fn with_equal_workers_k_is_n() {
    for scheme in ["dbw", "dbw:formulas=printed", "b-dbw"] {
        let quorums = quorums(&training(scheme, WORKERS, "deterministic:1", "iterations=60", 0.1, 1)).0;
        assert!(quorums.iter().all(|&(_, k)| k == WORKERS), "{scheme}: {quorums:?}");
    }
}

#[test]
fn blind_dbw_chooses_the_k_with_the_most_gradients_per_second() {
    // With interruption, k of n exponentials take H(n) − H(n − k): k/T is largest at k = 1 and nearly flat near it.
    let mut simulation = timing("b-dbw", WORKERS, "shifted-exponential:0.3,0.7", "iterations=3000");
    simulation.setup.dispatch = Some(Dispatch::PushInterrupt);
    let expected = |k: usize| 0.3 + 0.7 * (WORKERS - k + 1..=WORKERS).map(|i| 1.0 / i as f64).sum::<f64>();
    let rate = |k: usize| k as f64 / expected(k);
    let best = (1..=WORKERS).map(rate).fold(0.0, f64::max);
    let quorums = quorums(&simulation).0;
    let settled = &quorums[1000..];
    let mean = settled.iter().map(|&(_, k)| rate(k)).sum::<f64>() / settled.len() as f64;
    assert!(mean > 0.97 * best, "{mean} of {best}");
}

#[test]
fn k_follows_workers_that_leave_and_rejoin() {
    for dispatch in [Dispatch::Pull, Dispatch::PushWait, Dispatch::PushInterrupt] {
        for scheme in ["dbw", "b-dbw", "adasync"] {
            let mut simulation = training(scheme, WORKERS, "deterministic:1", "time=60", 0.1, 1);
            simulation.setup.dispatch = Some(dispatch);
            let quorums = quorums(&scripted(simulation, "20.5 leave 4-15\n40.5 join 4-15\n"));
            assert!(quorums.within(21.0, 40.0).iter().all(|&k| k <= 4), "{scheme} {dispatch}: {quorums:?}");
            assert!(quorums.within(21.0, 40.0).len() >= 18, "{scheme} {dispatch}");
            if scheme != "adasync" {
                assert_eq!(quorums.0.last().map(|&(_, k)| k), Some(WORKERS), "{scheme} {dispatch}");
            }
        }
    }
}

#[test]
fn an_unnoticed_crash_does_not_stall_blind_dbw() {
    let simulation = timing("b-dbw", WORKERS, "shifted-exponential:0,1", "time=400");
    let quorums = quorums(&scripted(simulation, "50 crash 3 100\n"));
    // k is far below n here; the crash is noticed after 100 s.
    assert!(quorums.within(50.0, 150.0).len() > 30, "{:?}", quorums.within(50.0, 150.0));
    assert!(quorums.within(150.0, 400.0).len() > 75);
}
