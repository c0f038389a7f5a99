//! Momentum and the moments of Adam last longer than a round: with equal workers and one local iteration per round,
//! averaging replicas is bsp.

mod common;

use common::{outcome, training};
use paceline_runtime::{Iteration, Monitor, Observer};
use paceline_sim::Script;
use std::path::Path;

/// The loss of every iteration.
#[derive(Default)]
struct LossRecorder(Vec<f64>);

impl Observer for LossRecorder {
    fn on_iteration(&mut self, iteration: &Iteration, _monitor: &Monitor) {
        self.0.extend(iteration.loss);
    }
}

fn losses(scheme: &str, optimizer: &str, rate: f32) -> Vec<f64> {
    let mut simulation = training(scheme, 4, "deterministic:1", "iterations=60", rate, 1);
    simulation.training.as_mut().unwrap().optimizer = optimizer.parse().unwrap();
    let mut losses = LossRecorder::default();
    simulation.run(&mut losses).unwrap();
    losses.0
}

fn mean(losses: &[f64]) -> f64 {
    losses.iter().sum::<f64>() / losses.len() as f64
}

#[test]
fn with_momentum_one_local_iteration_per_round_is_bsp() {
    let bsp = losses("bsp", "momentum:0.9", 0.02);
    for scheme in ["local-sgd:tau=1", "esync"] {
        for (found, expected) in losses(scheme, "momentum:0.9", 0.02).iter().zip(&bsp) {
            assert!((found - expected).abs() < 1e-4 * expected, "{scheme}: {found}, bsp {expected}");
        }
    }
    // Without momentum the loss falls much more slowly.
    assert!(mean(&losses("bsp", "sgd", 0.02)[50..]) > 1.5 * mean(&bsp[50..]));
}

#[test]
fn adam_trains_under_local_iterations_as_under_bsp() {
    let bsp = losses("bsp", "adam", 0.01);
    assert!(mean(&bsp[50..]) < 0.3 * bsp[0], "{bsp:?}");
    for scheme in ["local-sgd:tau=1", "esync"] {
        let local = losses(scheme, "adam", 0.01);
        let (found, expected) = (mean(&local[50..]), mean(&bsp[50..]));
        assert!((found - expected).abs() < 0.15 * expected, "{scheme}: {found}, bsp {expected}");
    }
    // Rounds of several iterations get there in fewer rounds.
    let several = losses("local-sgd:tau=4", "adam", 0.01);
    assert!(mean(&several[20..25]) < mean(&bsp[50..]), "{several:?}");
}

#[test]
fn a_worker_that_rejoins_starts_over_and_the_run_goes_on() {
    let mut simulation = training("local-sgd:tau=2", 3, "deterministic:1", "iterations=20", 0.02, 1);
    simulation.script = Script::of(Path::new("script"), "5 leave 1\n12 join 1\n", 3).unwrap();
    simulation.training.as_mut().unwrap().optimizer = "adam".parse().unwrap();
    assert!(outcome(&simulation).summary.loss.unwrap() < 1.5);
}
