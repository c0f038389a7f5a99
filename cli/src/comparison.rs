//! Schemes side by side: the same seeds, data and times for all of them.

use anyhow::bail;
use clap::Arg;
use paceline_config::{PreparedScenario, Scenario, parallel};
use paceline_core::SchemeSpec;
use paceline_report::comparison::{RunResult, SchemeRuns};
use paceline_report::page;
use paceline_runtime::{Goals, Iteration, Monitor, Observer, RunFolder};
use paceline_sim::Simulation;

use crate::live_table::LiveTable;

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

/// Collects the curve.
#[derive(Default)]
struct CurveRecorder(Vec<(f64, f64)>);

impl Observer for CurveRecorder {
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
    prepared: &PreparedScenario<'_>,
    schemes: &[SchemeSpec],
    seeds: &[u64],
    threads: usize,
    folder: impl Fn(&Simulation) -> anyhow::Result<Option<RunFolder>> + Sync,
) -> anyhow::Result<Vec<SchemeRuns>> {
    let jobs: Vec<(usize, u64)> =
        (0..schemes.len()).flat_map(|scheme| seeds.iter().map(move |&seed| (scheme, seed))).collect();
    let at_once = threads.min(jobs.len()).max(1);
    let live = LiveTable::new(schemes, seeds.len());
    let mut results: Vec<SchemeRuns> =
        schemes.iter().map(|scheme| SchemeRuns { scheme: scheme.clone(), runs: Vec::new() }).collect();
    let work = |&(scheme, seed): &(usize, u64)| {
        let simulation = prepared.simulation(&schemes[scheme], seed, threads / at_once)?;
        let mut folder = folder(&simulation)?;
        let mut curve = CurveRecorder::default();
        let mut watch = live.watch(scheme);
        let mut observers: Vec<&mut dyn Observer> = vec![&mut watch, &mut curve];
        observers.extend(folder.as_mut().map(|folder| folder as &mut dyn Observer));
        let outcome = simulation.run(&mut observers)?;
        if let Some(folder) = folder {
            let layout = simulation.training.as_ref().map(|training| training.workload.layout());
            page::finish_run_folder(folder, &outcome.summary, layout.zip(outcome.parameters.as_deref()))?;
        }
        live.done(scheme, &outcome.summary);
        Ok((scheme, RunResult { summary: outcome.summary, curve: curve.0 }))
    };
    parallel::run(&jobs, at_once, work, |(scheme, result)| results[scheme].runs.push(result))?;
    Ok(results)
}
