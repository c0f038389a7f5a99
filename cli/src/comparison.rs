//! Comparing contestants by simulation: the same seeds, data and times for all of them.

use std::path::Path;

use anyhow::bail;
use clap::Arg;
use paceline_config::file::Configuration;
use paceline_config::{Contestant, Failure, PreparedScenario, Scenario, parallel};
use paceline_report::comparison::{ContestantRuns, Ranking, RunResult};
use paceline_report::live_table::LiveTable;
use paceline_report::page::{self, Recommendation};
use paceline_runtime::{
    EventLogHeader, Goals, Iteration, Monitor, Observer, REPORT, RunEnding, RunFolder, is_interrupted,
};
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

/// Simulates every contestant with every seed, several runs at once. `live` shows them while they run. `folder` creates a
/// run's folder, for the runs that get one. After an interrupt, the results are those of the complete runs.
pub fn simulate(
    prepared: &PreparedScenario<'_>,
    contestants: &[Contestant],
    seeds: &[u64],
    threads: usize,
    live: &LiveTable,
    folder: impl Fn(&Contestant, &Simulation) -> anyhow::Result<Option<RunFolder>> + Sync,
) -> anyhow::Result<Vec<ContestantRuns>> {
    let jobs: Vec<(usize, u64)> =
        (0..contestants.len()).flat_map(|contestant| seeds.iter().map(move |&seed| (contestant, seed))).collect();
    let at_once = threads.min(jobs.len()).max(1);
    let mut results: Vec<ContestantRuns> = contestants.iter().map(without_runs).collect();
    let work = |&(index, seed): &(usize, u64)| {
        let contestant = &contestants[index];
        let simulation = prepared.simulation_of(contestant, seed, threads / at_once)?;
        let mut folder = folder(contestant, &simulation)?;
        let mut curve = CurveRecorder::default();
        let mut observer = live.observer(index);
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
        live.finish_run(index, &outcome.summary);
        Ok(Some((index, RunResult { summary: outcome.summary, curve: curve.0 })))
    };
    let each = |(index, result): (usize, RunResult)| results[index].runs.push(result);
    parallel::run(&jobs, at_once, work, each)?;
    Ok(results)
}

/// Creates the run folder of a contestant's simulation in this folder. `configuration` is that of the comparison.
pub fn run_folder(
    out: &Path,
    configuration: &Configuration,
    contestant: &Contestant,
    simulation: &Simulation,
) -> anyhow::Result<RunFolder> {
    let Simulation { scheme, setup, seed, .. } = simulation;
    let mut configuration =
        configuration.clone().with("scheme", scheme).with("seeds", seed).with("lr", contestant.rate.0);
    if let Some(ranks) = &contestant.ranks {
        configuration = configuration.with("only", ranks);
    }
    let header = EventLogHeader::simulated(scheme.clone(), setup);
    let layout = simulation.training.as_ref().map(|training| training.workload.layout());
    let folder = out.join(folder_name(&contestant.to_string()));
    Ok(RunFolder::create(&folder, &configuration.to_string(), &header, layout)?)
}

/// A contestant's name as that of a folder.
pub fn folder_name(contestant: &str) -> String {
    contestant.replace([':', ','], "_").replace(['/', ' '], "-")
}

/// Writes the page of a comparison to the folder that has the run folders of its contestants.
pub fn write_page(
    out: &Path,
    title: String,
    results: Vec<ContestantRuns>,
    ranking: &Ranking,
    answers: Vec<Recommendation>,
) -> anyhow::Result<()> {
    let with_folder = |contestant: ContestantRuns| {
        let folder = out.join(folder_name(&contestant.name));
        (contestant, folder)
    };
    let contestants = results.into_iter().map(with_folder).collect();
    Ok(page::write_ranking(&out.join(REPORT), title, contestants, ranking, answers)?)
}

/// A contestant before its runs.
pub fn without_runs(contestant: &Contestant) -> ContestantRuns {
    ContestantRuns {
        name: contestant.to_string(),
        step_kind: contestant.scheme.step_kind(),
        rate: contestant.rate.0,
        at_edge: None,
        runs: Vec::new(),
    }
}

/// The names of contestants.
pub fn names(contestants: &[Contestant]) -> Vec<String> {
    contestants.iter().map(Contestant::to_string).collect()
}

/// Leaves out contestants without a complete run, of which there are some after an interrupt. Tells how many runs are
/// done.
pub fn complete(mut results: Vec<ContestantRuns>, seeds: usize) -> Result<Vec<ContestantRuns>, Failure> {
    if is_interrupted() {
        let (done, all) = (results.iter().map(|found| found.runs.len()).sum::<usize>(), results.len() * seeds);
        eprintln!("{done} of {all} runs are done");
        results.retain(|found| !found.runs.is_empty());
    }
    if results.is_empty() { interrupt::check().map(|()| results) } else { Ok(results) }
}
