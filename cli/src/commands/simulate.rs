//! `paceline simulate`: a scheme on a virtual clock.

use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use clap::Args;
use indicatif::{MultiProgress, ProgressDrawTarget};
use paceline_config::file::Configuration;
use paceline_config::{Cluster, Failure, ForceOption, PreparedScenario, Scenario, Seeds, parallel, scheme, whole};
use paceline_core::{Part, SchemeEntry, SchemeSpec, catalogue, combinable, parts};
use paceline_report::page;
use paceline_report::progress::{RunBar, bars};
use paceline_report::tables::table;
use paceline_run::NoticeLogger;
use paceline_runtime::{
    EventLogHeader, Iteration, Monitor, Observer, RunEnding, RunFolder, Summary, check_free, is_interrupted, set_aside,
};
use paceline_sim::{Simulation, TimesSpec};
use paceline_trace::Recorder;
use serde::Serialize;

use crate::destination::{check_trace, make_folder};
use crate::interrupt;
use crate::options::ConfigFile;
use crate::output::say;

/// Simulate a scheme on a virtual clock, with real gradients
#[derive(Args)]
#[command(after_help = after_help())]
pub struct SimulateArgs {
    /// The scheme, as NAME or NAME:KEY=VALUE,… (see below)
    #[arg(long, value_name = "SCHEME", default_value = "bsp", value_parser = scheme)]
    scheme: SchemeSpec,

    /// Seeds to run: 7, 1..20 (both ends included) or 1,5,9
    #[arg(long, value_name = "SEEDS", default_value = "1")]
    seeds: Seeds,

    /// Threads; the results do not depend on their number [default: all cores]
    #[arg(long, value_name = "N", value_parser = whole::<u16>(1..=1024))]
    threads: Option<u16>,

    #[command(flatten)]
    scenario: Scenario,

    #[command(flatten)]
    output: SimulateOutput,
}

/// Where results go.
#[derive(Args)]
#[command(next_help_heading = "Output")]
struct SimulateOutput {
    #[command(flatten)]
    config: ConfigFile,

    /// Run folder, for configuration, event log, metrics and model; with several seeds, one folder per seed inside it
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,

    /// Record every worker's run-times to a trace that --times trace:FILE reads (.csv); one seed only
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,

    #[command(flatten)]
    force: ForceOption,

    /// Print one JSON object per run instead of a table
    #[arg(long)]
    json: bool,

    /// With --json: also one object per iteration
    #[arg(long, requires = "json")]
    trace: bool,
}

fn after_help() -> String {
    let mut text = String::from("Schemes:\n");
    let mut describe = |entry: &SchemeEntry, combines: bool| {
        text += &format!("  {:<11} {}\n", entry.name, entry.summary);
        for setting in entry.settings {
            text += &format!("             {setting}\n");
        }
        if combines {
            text += &format!("             combines with {}\n", combinable(entry).join(", "));
        }
    };
    for entry in catalogue() {
        describe(entry, matches!(entry.part, Part::Sizing(_)));
    }
    parts().for_each(|part| describe(part, true));
    text + "
Combined schemes have + between them: lb-bsp:least=8+backup:k=6.

Examples:
  paceline simulate --scheme ssp:staleness=3 --slow 0=5
  paceline simulate --scheme lb-bsp+backup:k=6+late --times lognormal:0,0.5 --slow 0=3
  paceline simulate --scheme backup:k=6 --model cnn --lr 0.08 --until 'loss<0.3' --out RUN
  paceline simulate --model none --times pareto:1,1.5 --until iterations=1000 --seeds 1..20 --json
  paceline simulate --config RUN/config.toml --scheme bsp"
}

/// An iteration as a line of JSON.
#[derive(Serialize)]
struct IterationLine<'a> {
    seed: u64,
    #[serde(flatten)]
    iteration: &'a Iteration,
}

/// Collects a run's iterations as lines of JSON. They are printed in the order of the seeds.
struct IterationLines {
    seed: u64,
    text: String,
}

impl Observer for IterationLines {
    fn on_iteration(&mut self, iteration: &Iteration, _monitor: &Monitor) {
        let line = IterationLine { seed: self.seed, iteration };
        // An iteration is numbers and text, which always serialize.
        self.text += &serde_json::to_string(&line).unwrap_or_default();
        self.text.push('\n');
    }
}

/// The result of one seed.
struct SeedOutcome {
    /// The iterations as lines of JSON, with `--trace`.
    lines: String,
    summary: Summary,
    /// Whether its files could be written. The result is printed in any case.
    files: anyhow::Result<()>,
}

impl SimulateArgs {
    pub fn run(self, configuration: &Configuration) -> Result<(), Failure> {
        let prepared = self.prepare().map_err(Failure::Input)?;
        let threads = parallel::threads(self.threads);
        let at_once = threads.min(self.seeds.0.len());
        let bars = bars();
        interrupt::listen_for_result()?;
        let (mut summaries, mut written) = (Vec::new(), Ok(()));
        let outcome = parallel::run(
            &self.seeds.0,
            at_once,
            |&seed| self.run_seed(&prepared, configuration, seed, threads / at_once, &bars, &mut ()).map(Some),
            |SeedOutcome { lines, summary, files }| {
                if self.output.json {
                    say(lines + &serde_json::to_string(&summary).unwrap_or_default());
                }
                summaries.push(summary);
                written = std::mem::replace(&mut written, Ok(())).and(files);
            },
        );
        if !self.output.json && !summaries.is_empty() {
            say(table(&summaries));
        }
        outcome.and(written).map_err(Failure::Run)?;
        if is_interrupted()
            && let Some(out) = &self.output.out
        {
            let aside = set_aside(out).map_err(Failure::run)?;
            eprintln!("the results so far are in {}", aside.display());
        }
        let endings = summaries.iter().map(|summary| summary.ending);
        Failure::unless_reached(endings.max_by_key(|ending| ending.exit_code()).unwrap_or(RunEnding::Interrupted))
    }

    /// Simulates one seed, prints nothing, and returns the summary.
    pub fn run_observed(&self, configuration: &Configuration, observer: &mut dyn Observer) -> Result<Summary, Failure> {
        let [seed] = self.seeds.0[..] else {
            return Err(Failure::Input(anyhow!("--seeds gives {} runs; expected one seed", self.seeds.0.len())));
        };
        let prepared = self.prepare().map_err(Failure::Input)?;
        let bars = MultiProgress::with_draw_target(ProgressDrawTarget::hidden());
        let threads = parallel::threads(self.threads);
        let outcome = self.run_seed(&prepared, configuration, seed, threads, &bars, observer).map_err(Failure::Run)?;
        outcome.files.map_err(Failure::Run)?;
        Ok(outcome.summary)
    }

    /// The files that are read.
    fn inputs(&self) -> Vec<&Path> {
        let Cluster { times, script, .. } = &self.scenario.cluster;
        let trace = if let TimesSpec::Trace { path } = times { Some(path) } else { None };
        let named = trace.into_iter().chain(script).chain(self.output.config.path()).map(PathBuf::as_path);
        let data = self.scenario.training.data.file();
        named.chain(self.scheme.model().map(Path::new)).chain(data).collect()
    }

    /// Reads and checks all input before the first run.
    fn prepare(&self) -> anyhow::Result<PreparedScenario<'_>> {
        let prepared = self.scenario.prepare()?;
        Simulation::check(&self.scheme, prepared.setup())?;
        if let (Some(path), true) = (&self.output.record, self.seeds.0.len() > 1) {
            bail!(
                "--record {} takes one run, but --seeds gives {}; expected one seed",
                path.display(),
                self.seeds.0.len()
            );
        }
        if let Some(record) = &self.output.record {
            check_trace("--record", record, self.output.force, &self.inputs())?;
        }
        if let Some(out) = &self.output.out {
            check_free(out)?;
            make_folder(out)?;
        }
        Ok(prepared)
    }

    fn run_seed(
        &self,
        prepared: &PreparedScenario<'_>,
        configuration: &Configuration,
        seed: u64,
        threads: usize,
        bars: &MultiProgress,
        observer: &mut dyn Observer,
    ) -> anyhow::Result<SeedOutcome> {
        let simulation = prepared.simulation(&self.scheme, seed, threads)?;
        let workers = simulation.setup.workers;
        let mut folder = match &self.output.out {
            Some(out) => {
                let header = EventLogHeader::simulated(self.scheme.clone(), &simulation.setup);
                let configuration = configuration.clone().with("seeds", seed).with("workers", workers);
                let layout = simulation.training.as_ref().map(|training| training.workload.layout());
                Some(RunFolder::create(&self.folder(out, seed), &configuration.to_string(), &header, layout)?)
            }
            None => None,
        };
        let mut lines = self.output.trace.then(|| IterationLines { seed, text: String::new() });
        let mut recorder = self.output.record.is_some().then(Recorder::default);
        let mut progress = RunBar::new(bars, format!("{} seed {seed}", self.scheme), &simulation.goals);
        let mut log = NoticeLogger;
        let mut observers: Vec<&mut dyn Observer> = vec![&mut progress, &mut log, observer];
        observers.extend(folder.as_mut().map(|folder| folder as &mut dyn Observer));
        observers.extend(lines.as_mut().map(|lines| lines as &mut dyn Observer));
        observers.extend(recorder.as_mut().map(|recorder| recorder as &mut dyn Observer));
        let outcome = simulation.run(&mut observers)?;

        let finish = |folder| page::finish_run_folder(folder, &outcome.summary, outcome.parameters.as_deref());
        let finished = folder.map_or(Ok(()), finish).map_err(anyhow::Error::from);
        let recorded = match (&self.output.record, recorder) {
            (Some(path), Some(recorder)) => recorder.finish().write(path).context("--record"),
            _ => Ok(()),
        };
        let lines = lines.map_or(String::new(), |lines| lines.text);
        Ok(SeedOutcome { lines, summary: outcome.summary, files: finished.and(recorded) })
    }

    fn folder(&self, out: &Path, seed: u64) -> PathBuf {
        if self.seeds.0.len() == 1 { out.into() } else { out.join(format!("seed-{seed}")) }
    }
}
