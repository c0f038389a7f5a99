//! `paceline whatif`: what would have been under another scheme?

mod stragglers;

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::bail;
use clap::Args;
use paceline_config::{Failure, Scenario, SchemeList, Seeds, parallel, whole};
use paceline_report::comparison::Ranking;
use paceline_report::numbers::counted;
use paceline_sim::Times;
use paceline_trace::{PROFILER_STEP, Trace};
use serde_json::json;

use crate::comparison;
use crate::output::say;
use stragglers::Analysis;

/// Say who straggles in a recorded trace, what it costs, and which scheme would have made most of it
#[derive(Args)]
#[command(
    mut_arg("times", |arg| arg.hide(true).conflicts_with("trace")),
    mut_args(comparison::small_race),
    after_help = "A TRACE is one of
  a table, .csv or .parquet: a row per step, a column per worker, seconds, as --record writes it
  a run folder, or its events.jsonl
  a .json of spans as PyTorch's profiler and Chrome write it: ProfilerStep#N of every process

Of spans, give one file per rank, or one with all. Those that include waiting for the other workers hide who is slow: \
name better ones with --span.

Every scheme is simulated on these times with a small model, to the same target: what counts is which is there first.

Examples:
  paceline whatif times.csv
  paceline whatif runs/1 --network latency=0.001,bandwidth=1e8,bytes=1e8
  paceline whatif rank0.json rank1.json --span forward_backward --json"
)]
pub struct WhatifArgs {
    /// What was recorded (see below); several files together are one trace
    #[arg(required = true, value_name = "TRACE")]
    trace: Vec<PathBuf>,

    /// In traces of spans: the spans that are steps, NAME or NAME#N
    #[arg(long, value_name = "NAME", default_value = PROFILER_STEP)]
    span: String,

    /// The schemes to try: all, or several with commas
    #[arg(long, value_name = "SCHEMES", default_value = "all")]
    schemes: SchemeList,

    /// Seeds of what is simulated: 7, 1..20 (both ends included) or 1,5,9
    #[arg(long, value_name = "SEEDS", default_value = "1..3")]
    seeds: Seeds,

    /// Threads that compute; results are the same for any number [default: all cores]
    #[arg(long, value_name = "N", value_parser = whole::<u16>(1..=1024))]
    threads: Option<u16>,

    #[command(flatten)]
    scenario: Scenario,

    /// Print JSON: an object with the recommendation and the workers, then one per scheme
    #[arg(long, help_heading = "Output")]
    json: bool,
}

impl WhatifArgs {
    pub fn run(self) -> Result<(), Failure> {
        self.check().map_err(Failure::Input)?;
        let trace = Trace::read_all(&self.trace, &self.span).map_err(Failure::input)?;
        let analysis = Analysis::new(&trace);
        let prepared = self.scenario.prepare_with(Times::of_trace(trace)).map_err(Failure::Input)?;
        let schemes = self.schemes.specs(prepared.setup(), true).map_err(Failure::Input)?;
        let threads = parallel::threads(self.threads);
        let results =
            comparison::simulate(&prepared, &schemes, &self.seeds.0, threads, |_| Ok(None)).map_err(Failure::Run)?;
        let ranking = Ranking::new(&results, prepared.goals());
        if self.json {
            self.print_json(&analysis, &ranking)
        } else {
            self.print(&analysis, &ranking)
        }
        Ok(())
    }

    fn check(&self) -> anyhow::Result<()> {
        comparison::check_target(&self.scenario)?;
        if self.scenario.cluster.workers.is_some() {
            bail!("--workers can't be chosen: the trace says how many there are");
        }
        let mut seen = BTreeSet::new();
        let real = |path: &PathBuf| path.canonicalize().unwrap_or_else(|_| path.clone());
        if let Some(twice) = self.trace.iter().find(|path| !seen.insert(real(path))) {
            bail!("{} is given twice", twice.display());
        }
        Ok(())
    }

    fn print(&self, analysis: &Analysis, ranking: &Ranking) {
        if let Some(winner) = ranking.winner() {
            say(format_args!("Recommended: {} (paceline train --scheme {})", winner.scheme, winner.scheme));
        }
        say(ranking.verdict());
        say(analysis.verdict());
        if analysis.in_step() {
            say(format_args!(
                "All workers' steps take alike. If they include waiting for each other, they do not show who is slow: record \
                 the computing alone."
            ));
        }
        say(format_args!(
            "\n{} of {}\n{}",
            counted(analysis.steps, "step"),
            counted(analysis.workers.len(), "worker"),
            analysis.table()
        ));
        let Scenario { model, training, .. } = &self.scenario;
        say(format_args!(
            "\nSimulated on these times: {model} on {}, {}; a task's time is in proportion to its samples\n{}",
            training.data,
            counted(self.seeds.0.len(), "seed"),
            ranking.table()
        ));
    }

    fn print_json(&self, analysis: &Analysis, ranking: &Ranking) {
        let recommended = ranking.winner().map(|winner| winner.scheme.as_str());
        say(json!({ "recommended": recommended, "why": ranking.verdict(), "trace": analysis }));
        for place in &ranking.places {
            say(json!(place));
        }
    }
}
