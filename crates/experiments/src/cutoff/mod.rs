//! Cutoff SGD's experiments, on a simulated cluster like the paper's small one: four hosts, 158 workers, one host slow
//! until iteration 61.
//!
//! Each experiment trains the predictor on a recorded run of the same cluster with another seed.

mod fig2;
mod fig3;
mod fig4;

pub(super) use fig2::run as fig2;
pub(super) use fig3::run as fig3;
pub(super) use fig4::run as fig4;

use std::sync::Arc;

use paceline_config::{Failure, Scenario};
use paceline_core::{Pretrained, SchemeSpec};
use paceline_predictor::{RunTimes, TrainingConfig};
use paceline_report::plot::colour_of;
use paceline_report::progress::{RunBar, bars};
use paceline_runtime::{Iteration, Monitor, Observer};
use paceline_trace::Recorder;
use plotters::style::RGBColor;

use crate::train_predictor::train_predictor;
use crate::{Conditions, check_interrupt};

/// A file of `scenarios/cutoff/`, built into the program.
macro_rules! file {
    ($name:literal) => {
        ($name, include_str!(concat!("../../scenarios/cutoff/", $name)))
    };
}
use file;

/// Seed of the run that the predictor is trained on; experiments use other seeds.
const TRAINING_SEED: u64 = 1_000_003;

/// The last iteration with a slow host.
const CHANGE: usize = 61;

/// Iterations after the change that a predictor has to adapt.
const RECOVERY: usize = 25;

/// A scenario of `scenarios/cutoff/`, with the data of `--data`.
fn scenario((name, text): (&str, &str), conditions: &Conditions) -> Result<Scenario, Failure> {
    let mut scenario = Scenario::from_toml(name, text).map_err(Failure::Input)?;
    if let Some(data) = &conditions.data {
        scenario.training.data = data.clone();
    }
    Ok(scenario)
}

/// The run-times of a fully synchronous run.
fn recorded(scenario: &Scenario, seed: u64) -> Result<RunTimes, Failure> {
    let mut recorder = Recorder::default();
    let scheme = "bsp".parse().map_err(Failure::run)?;
    let simulation = scenario.prepare().and_then(|prepared| prepared.simulation(&scheme, seed, 1));
    simulation.map_err(Failure::Run)?.run(&mut recorder).map_err(Failure::run)?;
    check_interrupt()?;
    RunTimes::of_columns(recorder.finish().workers()).map_err(Failure::run)
}

/// Trains a predictor on the experiments' cluster.
fn pretrained(conditions: &Conditions) -> Result<Arc<Pretrained>, Failure> {
    let scenario = scenario(file!("recorded.toml"), conditions)?;
    let times = recorded(&scenario, TRAINING_SEED)?;
    let trained = train_predictor(&times, &TrainingConfig::default()).map_err(Failure::run)?;
    check_interrupt()?;
    Ok(Arc::new(trained.pretrained))
}

/// The schemes of these names; those with a predictor get the trained one.
fn contenders(names: &[&str], pretrained: &Arc<Pretrained>) -> Result<Vec<SchemeSpec>, Failure> {
    let contender = |name: &&str| {
        let mut scheme: SchemeSpec = name.parse()?;
        scheme.context.pretrained = Some(pretrained.clone());
        anyhow::Ok(scheme)
    };
    names.iter().map(contender).collect::<Result<_, _>>().map_err(Failure::Input)
}

/// One iteration of a run.
#[derive(Debug, Clone, Copy)]
struct CutoffIteration {
    time: f64,
    cutoff: usize,
    /// Gradients per second.
    throughput: f64,
    /// The held-out loss of the last evaluation.
    held_out: Option<f64>,
}

#[derive(Default)]
struct CutoffRecorder(Vec<CutoffIteration>);

impl Observer for CutoffRecorder {
    fn on_iteration(&mut self, iteration: &Iteration, monitor: &Monitor) {
        self.0.push(CutoffIteration {
            time: iteration.time,
            cutoff: iteration.waited_for,
            throughput: iteration.waited_for as f64 / iteration.duration,
            held_out: monitor.evaluation().map(|evaluation| evaluation.loss),
        });
    }
}

/// One run: a scheme with a seed.
struct CutoffRun {
    scheme: SchemeSpec,
    seed: u64,
    steps: Vec<CutoffIteration>,
}

/// Runs every scheme with every seed, several at once.
fn runs(jobs: Vec<(Scenario, SchemeSpec)>, conditions: &Conditions) -> Result<Vec<CutoffRun>, Failure> {
    let seeds = &conditions.seeds.0;
    let jobs: Vec<(Scenario, SchemeSpec, u64)> = jobs
        .into_iter()
        .flat_map(|(scenario, scheme)| seeds.iter().map(move |&seed| (scenario.clone(), scheme.clone(), seed)))
        .collect();
    if let Some((first, ..)) = jobs.first() {
        first.prepare().map(drop).map_err(Failure::Input)?;
    }
    let bars = bars();
    let work = |(scenario, scheme, seed): &(Scenario, SchemeSpec, u64)| {
        let simulation = scenario.prepare()?.simulation(scheme, *seed, 1)?;
        let mut progress = RunBar::new(&bars, format!("{scheme} seed {seed}"), &simulation.goals);
        let mut steps = CutoffRecorder::default();
        let mut observers: Vec<&mut dyn Observer> = vec![&mut progress, &mut steps];
        simulation.run(&mut observers)?;
        Ok(CutoffRun { scheme: scheme.clone(), seed: *seed, steps: steps.0 })
    };
    conditions.run(&jobs, work)
}

/// The colour of a scheme in all figures.
fn colour(scheme: &SchemeSpec) -> RGBColor {
    match scheme.to_string().as_str() {
        "cutoff:predictor=normal" => RGBColor(213, 94, 0),
        "cutoff:predictor=oracle" => RGBColor(170, 170, 170),
        other => colour_of(other),
    }
}

fn mean(values: impl IntoIterator<Item = f64>) -> f64 {
    let (count, sum) = values.into_iter().fold((0.0, 0.0), |(count, sum), value| (count + 1.0, sum + value));
    sum / count
}

fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}
