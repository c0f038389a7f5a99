//! Schemes side by side: the same seeds, data and times for all of them.

mod contenders;
mod live;
mod ranking;

use anyhow::bail;
use clap::Arg;
use paceline_core::SchemeSpec;
use paceline_run::{Goals, Iteration, Monitor, Observer, Summary};
use paceline_sim::Simulation;

use crate::batch;
use crate::options::{Prepared, Scenario};
use crate::run_folder::RunFolder;

pub use contenders::Contenders;
pub use live::{LiveTable, Standing};
pub use ranking::Ranking;

/// What schemes race for if nothing else is said: a model and a target that take seconds. A step's rate is in proportion to
/// its updates, so that a sample moves the model as far under every scheme.
pub fn small_race(arg: Arg) -> Arg {
    match arg.get_id().as_str() {
        "model" => arg.default_value("mlp"),
        "data" => arg.default_value("digits:4000,1000"),
        "until" => arg.default_value("accuracy>0.88,samples=400000"),
        "lr" => arg.default_value("0.2"),
        "lr_rule" => arg.default_value("proportional"),
        "evaluate_every" => arg.default_value("2"),
        _ => arg,
    }
}

/// What a scheme showed in its runs, one per seed.
pub struct Showing {
    /// The scheme.
    pub scheme: SchemeSpec,
    /// Its runs, in the order of the seeds.
    pub runs: Vec<Shown>,
}

/// One run.
pub struct Shown {
    /// The run in numbers.
    pub summary: Summary,
    /// Time and held-out accuracy, whenever that was measured.
    pub curve: Vec<(f64, f64)>,
}

/// Collects the curve.
#[derive(Default)]
struct Curve(Vec<(f64, f64)>);

impl Observer for Curve {
    fn on_iteration(&mut self, iteration: &Iteration, monitor: &Monitor) {
        self.0.extend(monitor.fresh_evaluation().map(|found| (iteration.time, found.accuracy)));
    }
}

/// Refuses conditions under which there is nothing to win.
pub fn check_target(scenario: &Scenario) -> anyhow::Result<()> {
    let goals = Goals::any(&scenario.until);
    if scenario.model.0.is_none() {
        bail!("--model none learns nothing, so no scheme can be first; choose a model");
    }
    if !goals.need_model() {
        bail!("--until {goals} sets no target to be first at; add loss<X or accuracy>X");
    }
    Ok(())
}

/// Simulates every scheme with every seed, several runs at once. `folder` makes the run folder of those that are to
/// leave one.
pub fn simulate(
    prepared: &Prepared<'_>,
    schemes: &[SchemeSpec],
    seeds: &[u64],
    threads: usize,
    folder: impl Fn(&Simulation) -> anyhow::Result<Option<RunFolder>> + Sync,
) -> anyhow::Result<Vec<Showing>> {
    let jobs: Vec<(usize, u64)> =
        (0..schemes.len()).flat_map(|scheme| seeds.iter().map(move |&seed| (scheme, seed))).collect();
    let at_once = threads.min(jobs.len()).max(1);
    let live = LiveTable::new(schemes, seeds.len());
    let mut showings: Vec<Showing> =
        schemes.iter().map(|scheme| Showing { scheme: scheme.clone(), runs: Vec::new() }).collect();
    let work = |&(scheme, seed): &(usize, u64)| {
        let simulation = prepared.simulation(&schemes[scheme], seed, threads / at_once)?;
        let mut folder = folder(&simulation)?;
        let mut curve = Curve::default();
        let mut watch = live.watch(scheme);
        let mut observers: Vec<&mut dyn Observer> = vec![&mut watch, &mut curve];
        observers.extend(folder.as_mut().map(|folder| folder as &mut dyn Observer));
        let outcome = simulation.run(&mut observers)?;
        if let Some(folder) = folder {
            let layout = simulation.training.as_ref().map(|training| training.workload.layout());
            folder.finish(&outcome.summary, layout.zip(outcome.parameters.as_deref()))?;
        }
        live.done(scheme, &outcome.summary);
        Ok((scheme, Shown { summary: outcome.summary, curve: curve.0 }))
    };
    batch::run(&jobs, at_once, work, |(scheme, shown)| showings[scheme].runs.push(shown))?;
    Ok(showings)
}
