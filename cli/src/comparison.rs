//! Comparing schemes by simulation: the same seeds, data and times for all of them.

use anyhow::bail;
use clap::Arg;
use paceline_config::{Failure, PreparedScenario, Scenario, parallel};
use paceline_core::SchemeSpec;
use paceline_report::comparison::{RunResult, SchemeRuns};
use paceline_report::live_table::LiveTable;
use paceline_report::page;
use paceline_runtime::{Goals, Iteration, Monitor, Observer, RunEnding, RunFolder, is_interrupted};
use paceline_sim::Simulation;

use crate::interrupt;

/// The defaults of a comparison: a model and a target that take seconds. The learning rate is proportional to the
/// updates in a step, so that a sample moves the model equally far under every scheme.
pub fn small_defaults(arg: Arg) -> Arg {
    match arg.get_id().as_str() {
        "model" => arg.default_value("mlp"),
        "data" => arg.default_value("digits:4000,1000"),
        "until" => arg.default_value("accuracy>0.88,samples=400000"),
        "lr" => arg.default_value("0.2"),
        "lr_rule" => arg.default_value("proportional"),
        "evaluate_every" => arg.default_value("1000"),
        _ => arg,
    }
}

/// Collects the held-out accuracy over time.
#[derive(Default)]
struct CurveRecorder(Vec<(f64, f64)>);

impl Observer for CurveRecorder {
    fn on_iteration(&mut self, iteration: &Iteration, monitor: &Monitor) {
        let accuracy = monitor.fresh_evaluation().and_then(|found| found.accuracy);
        self.0.extend(accuracy.map(|accuracy| (iteration.time, accuracy)));
    }
}

/// Refuses a scenario without a model or a target, which no scheme can reach first.
pub fn check_target(scenario: &Scenario) -> anyhow::Result<()> {
    let goals = Goals::any(&scenario.until);
    if scenario.model.0.is_none() {
        bail!("--model none trains no model, so schemes can't be compared; choose a model");
    }
    if !goals.need_model() {
        bail!("--until {goals} has no target to compare schemes by; add loss<X or accuracy>X");
    }
    Ok(())
}

/// Simulates every scheme with every seed, several runs at once. `folder` creates a run's folder, for the runs that get
/// one. After an interrupt, the results are those of the complete runs.
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
        let mut observer = live.observer(scheme);
        let mut observers: Vec<&mut dyn Observer> = vec![&mut observer, &mut curve];
        observers.extend(folder.as_mut().map(|folder| folder as &mut dyn Observer));
        let outcome = simulation.run(&mut observers)?;
        if outcome.summary.ending == RunEnding::Interrupted {
            folder.map_or(Ok(()), RunFolder::discard)?;
            return Ok(None);
        }
        if let Some(folder) = folder {
            page::finish_run_folder(folder, &outcome.summary, outcome.parameters.as_deref())?;
        }
        live.finish_run(scheme, &outcome.summary);
        Ok(Some((scheme, RunResult { summary: outcome.summary, curve: curve.0 })))
    };
    let each = |(scheme, result): (usize, RunResult)| results[scheme].runs.push(result);
    parallel::run(&jobs, at_once, work, each)?;
    Ok(results)
}

/// Leaves out schemes without a complete run, of which there are some after an interrupt. Tells how many runs are done.
pub fn complete(mut results: Vec<SchemeRuns>, seeds: usize) -> Result<Vec<SchemeRuns>, Failure> {
    if is_interrupted() {
        let (done, all) = (results.iter().map(|scheme| scheme.runs.len()).sum::<usize>(), results.len() * seeds);
        eprintln!("{done} of {all} runs are done");
        results.retain(|scheme| !scheme.runs.is_empty());
    }
    if results.is_empty() { interrupt::check().map(|()| results) } else { Ok(results) }
}
