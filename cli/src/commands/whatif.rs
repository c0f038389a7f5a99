//! `paceline whatif`: which scheme suits a recorded trace.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::bail;
use clap::Args;
use paceline_config::{Contestant, Failure, Scenario, SchemeList, Seeds, parallel, whole};
use paceline_report::comparison::Ranking;
use paceline_report::live_table::LiveTable;
use paceline_report::numbers::counted;
use paceline_report::stragglers::Analysis;
use paceline_sim::Times;
use paceline_trace::{PROFILER_STEP, Trace};
use serde_json::{Value, json};

use crate::comparison;
use crate::interrupt;
use crate::output::say;

/// Find the stragglers in a recorded trace, their cost, and which scheme would have used the cluster best
#[derive(Args)]
#[command(
    mut_arg("times", |arg| arg.hide(true).conflicts_with("trace")),
    mut_args(comparison::small_defaults),
    after_help = "A TRACE is one of
  a table, .csv: a row per step, a column per worker, seconds, as --record writes it
  a run folder, or its events.jsonl
  a .json of spans as PyTorch's profiler and Chrome write it: ProfilerStep#N of every process

For spans, give one file per rank, or one file with all ranks. Spans that include waiting for other workers hide the \
stragglers: choose spans of computing alone with --span.

Every scheme is simulated on these times with a small model, the same target and the same seeds. The scheme that reaches \
it first is recommended, or bsp if that can't be told apart from it.

Examples:
  paceline whatif times.csv
  paceline whatif runs/1 --network latency=0.001,bandwidth=1e8,bytes=1e8
  paceline whatif rank0.json rank1.json --span forward_backward --json"
)]
pub struct WhatifArgs {
    /// Recorded trace (see below); several files make one trace
    #[arg(required = true, value_name = "TRACE")]
    trace: Vec<PathBuf>,

    /// In traces of spans: the name of the spans that are steps, NAME or NAME#N
    #[arg(long, value_name = "NAME", default_value = PROFILER_STEP)]
    span: String,

    /// Schemes to compare: all, or a list with commas
    #[arg(long, value_name = "SCHEMES", default_value = "all")]
    schemes: SchemeList,

    /// Seeds to simulate each scheme with: 7, 1..20 (both ends included) or 1,5,9
    #[arg(long, value_name = "SEEDS", default_value = "1..5")]
    seeds: Seeds,

    /// Threads; the results do not depend on their number [default: all cores]
    #[arg(long, value_name = "N", value_parser = whole::<u16>(1..=1024))]
    threads: Option<u16>,

    #[command(flatten)]
    scenario: Scenario,

    /// Print JSON: an object with the recommendation and the workers, then one per scheme
    #[arg(long, help_heading = "Output")]
    json: bool,
}

/// What a trace shows, and how the schemes compare on it.
pub struct ComparedSchemes {
    analysis: Analysis,
    ranking: Ranking,
    /// The workers that are used.
    workers: usize,
}

impl ComparedSchemes {
    /// An object with the recommendation and the workers, then one per scheme.
    pub fn json_lines(&self) -> Vec<Value> {
        let ComparedSchemes { analysis, ranking, .. } = self;
        let recommended = ranking.recommended().map(|best| best.name.as_str());
        let head = json!({ "recommended": recommended, "why": ranking.explanation(), "trace": analysis });
        std::iter::once(head).chain(ranking.places.iter().map(|place| json!(place))).collect()
    }
}

impl WhatifArgs {
    pub fn run(self) -> Result<(), Failure> {
        let compared = self.compare(|names, runs| {
            interrupt::listen_for_result()?;
            Ok(LiveTable::new(names, runs))
        })?;
        if self.json {
            compared.json_lines().into_iter().for_each(say);
        } else {
            self.print(&compared);
        }
        interrupt::check()
    }

    /// Compares the schemes. `start` is called when all input is read, and returns what shows the progress. After an
    /// interrupt, the complete runs count.
    pub fn compare(
        &self,
        start: impl FnOnce(&[String], usize) -> Result<LiveTable, Failure>,
    ) -> Result<ComparedSchemes, Failure> {
        self.check().map_err(Failure::Input)?;
        let trace = Trace::read_all(&self.trace, &self.span).map_err(Failure::input)?;
        let analysis = Analysis::new(&trace);
        let prepared = self.scenario.prepare_with(Times::of_trace(trace)).map_err(Failure::Input)?;
        let schemes = self.schemes.specs(prepared.setup(), true).map_err(Failure::Input)?;
        let threads = parallel::threads(self.threads);
        let contestants: Vec<Contestant> =
            schemes.iter().map(|scheme| self.scenario.contestant(scheme, None)).collect();
        let names = comparison::names(&contestants);
        let live = start(&names, self.seeds.0.len())?;
        let results = comparison::simulate(&prepared, &contestants, &self.seeds.0, threads, &live, |_, _| Ok(None));
        let results = results.map_err(Failure::Run)?;
        let results = comparison::complete(results, self.seeds.0.len())?;
        let ranking = Ranking::new(&results, prepared.goals());
        Ok(ComparedSchemes { analysis, ranking, workers: prepared.setup().workers })
    }

    fn check(&self) -> anyhow::Result<()> {
        comparison::check_target(&self.scenario)?;
        if self.scenario.cluster.workers.is_some() {
            bail!("--workers can't be given: the number of workers follows from the trace");
        }
        let mut seen = BTreeSet::new();
        let real = |path: &PathBuf| path.canonicalize().unwrap_or_else(|_| path.clone());
        if let Some(twice) = self.trace.iter().find(|path| !seen.insert(real(path))) {
            bail!("{} is given twice", twice.display());
        }
        Ok(())
    }

    /// The options of `train` that decide about steps as in the simulation.
    fn options(&self, scheme: &str, workers: usize) -> String {
        let Scenario { training, dispatch, .. } = &self.scenario;
        let mut options = format!("--workers {workers} --scheme {scheme}");
        options += &dispatch.map_or(String::new(), |dispatch| format!(" --dispatch {dispatch}"));
        options + &format!(" --lr-rule {}", training.lr_rule)
    }

    fn print(&self, ComparedSchemes { analysis, ranking, workers }: &ComparedSchemes) {
        if let Some(best) = ranking.recommended() {
            say(format_args!("Recommended: {} (paceline train {})", best.name, self.options(&best.name, *workers)));
        }
        say(ranking.explanation());
        say(analysis.explanation());
        if analysis.is_balanced() {
            say("All workers' steps take equally long. If they include waiting for other workers, they hide the \
                 stragglers: record the computing alone.");
        }
        let (steps, workers) = (counted(analysis.steps, "step"), counted(analysis.workers.len(), "worker"));
        say(format_args!("\n{steps} of {workers}\n{}", analysis.table()));
        let Scenario { model, training, .. } = &self.scenario;
        let (data, seeds) = (&training.data, counted(self.seeds.0.len(), "seed"));
        say(format_args!(
            "\nSimulated on these times: {model} on {data}, {seeds}; the time of a task is proportional to its samples\n{}",
            ranking.table()
        ));
    }
}
