//! `cutoff` on clusters with known times.

mod common;

use common::{observed, timing};
use paceline_core::WorkerId;
use paceline_runtime::{Iteration, Monitor, Observer};
use paceline_sim::Simulation;

/// Records the gradients per second of each iteration.
#[derive(Default)]
struct ThroughputRecorder(Vec<f64>);

impl Observer for ThroughputRecorder {
    fn on_iteration(&mut self, iteration: &Iteration, _monitor: &Monitor) {
        self.0.push(iteration.waited_for as f64 / iteration.duration);
    }
}

fn throughput(scheme: &str, workers: usize, times: &str, iterations: usize) -> Vec<f64> {
    let mut found = ThroughputRecorder::default();
    observed(&timing(scheme, workers, times, &format!("iterations={iterations}")), &mut found);
    found.0
}

/// The largest possible throughput of each iteration: the maximum of c / x₍c₎.
fn best_throughput(simulation: &Simulation, iterations: usize) -> Vec<f64> {
    let worker = |rank: usize| simulation.times.spans(simulation.seed, WorkerId(rank as u32));
    let mut times: Vec<_> = (0..simulation.setup.workers).map(worker).collect();
    let best = |_| {
        let mut ordered: Vec<f64> =
            times.iter_mut().filter_map(|spans| spans.next()).map(|span| span.seconds()).collect();
        ordered.sort_by(f64::total_cmp);
        ordered.iter().enumerate().map(|(index, time)| (index + 1) as f64 / time).fold(0.0, f64::max)
    };
    (0..iterations).map(best).collect()
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

#[test]
fn the_oracle_reaches_the_largest_throughput() {
    let times = "bursts:4,1,0.1,4,0.1,0.2";
    let found = throughput("cutoff:predictor=oracle", 24, times, 60);
    let largest = best_throughput(&timing("bsp", 24, times, "iterations=1"), 60);
    // No run time is known before the first iteration.
    assert!(found[0] < largest[0]);
    for (found, largest) in found.iter().zip(&largest).skip(1) {
        assert!((found / largest - 1.0).abs() < 1e-6, "{found} of {largest}");
    }
}

#[test]
fn order_statistics_come_close_to_the_oracle_where_times_are_independent() {
    let of = |scheme: &str| mean(&throughput(scheme, 158, "normal:1,0.2", 120)[20..]);
    let (normal, oracle, bsp) = (of("cutoff"), of("cutoff:predictor=oracle"), of("bsp"));
    assert!(normal > 0.97 * oracle, "{normal} of {oracle}");
    assert!(normal > 1.1 * bsp, "{normal} against {bsp}");
}

#[test]
fn imputation_keeps_the_predicted_times_from_shrinking() {
    // Only times below the cutoff are observed. Without imputation, each cutoff would be lower than the one before.
    let found = throughput("cutoff", 60, "normal:1,0.2", 400);
    let (early, late) = (mean(&found[20..120]), mean(&found[300..]));
    assert!((late / early - 1.0).abs() < 0.05, "{early}, then {late}");
}

#[test]
fn the_oracle_predictor_needs_the_simulator() {
    let simulation = timing("cutoff:predictor=oracle", 4, "normal:1,0.1", "iterations=1");
    assert!(Simulation::check(&simulation.scheme, &simulation.setup).is_ok());
    let refused = simulation.scheme.build(&simulation.setup).err().unwrap().to_string();
    assert!(refused.ends_with("only the simulator knows the future"), "{refused}");
}
