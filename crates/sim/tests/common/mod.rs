//! Helpers for the simulator's tests.
#![allow(dead_code, reason = "no test uses every helper")]

use std::sync::Arc;

use paceline_core::{Dispatch, SchemeSpec, Setup};
use paceline_runtime::{Observer, Summary};
use paceline_sim::{Script, Simulation, SimulationOutcome, Slowness, Times, TimesSpec, Training};
use paceline_workload::{Order, Partition, Sampler, SoftmaxRegression, synthetic_digits};

/// A simulation without a model.
pub fn timing(scheme: &str, workers: usize, times: &str, until: &str) -> Simulation {
    Simulation {
        scheme: scheme.parse().unwrap(),
        setup: Setup::new(workers, 1),
        times: Times::load(&times.parse::<TimesSpec>().unwrap()).unwrap(),
        slowness: Slowness::default(),
        script: Script::default(),
        network: None,
        training: None,
        goals: until.parse().unwrap(),
        seed: 1,
    }
}

/// A simulation that trains softmax regression on a few synthetic digits.
pub fn training(scheme: &str, workers: usize, times: &str, until: &str, rate: f32, threads: usize) -> Simulation {
    let splits = synthetic_digits(3, 600, 200).unwrap();
    let sampler = Sampler::new(splits.train().labels(), Partition::Iid, Order::WithReplacement, workers, 3).unwrap();
    let workload = Arc::new(SoftmaxRegression::new(splits, sampler, 0.0));
    let training = Training { evaluate_every: 0, threads, ..Training::new(workload, rate) };
    let mut simulation = timing(scheme, workers, times, until);
    simulation.setup.batch = 16;
    simulation.training = Some(training);
    simulation
}

pub fn outcome(simulation: &Simulation) -> SimulationOutcome {
    simulation.run(&mut ()).unwrap()
}

pub fn summary(simulation: &Simulation) -> Summary {
    outcome(simulation).summary
}

pub fn with_dispatch(mut simulation: Simulation, dispatch: Dispatch) -> Simulation {
    simulation.setup.dispatch = Some(dispatch);
    simulation
}

pub fn with_scheme(mut simulation: Simulation, scheme: &str) -> Simulation {
    simulation.scheme = scheme.parse::<SchemeSpec>().unwrap();
    simulation
}

/// Runs a simulation with an observer.
pub fn observed(simulation: &Simulation, observer: &mut dyn Observer) -> Summary {
    simulation.run(observer).unwrap().summary
}
