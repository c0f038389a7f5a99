//! Running a server: progress during the run, then a summary and the run folder.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use indicatif::MultiProgress;
use paceline_config::file::Configuration;
use paceline_config::{Failure, ForceOption};
use paceline_net::{Address, TransportOptions};
use paceline_report::progress::{RunBar, bars};
use paceline_report::tables::{table, workers_table};
use paceline_run::{EndedRun, PreparedRun, RunBuilder, RunError};
use paceline_runtime::{CONFIGURATION, Job, KeepEvents, StopReason, Summary, next_free};
use serde::Serialize;
use serde_json::json;

use crate::destination::check_trace;
use crate::interrupt;
use crate::logs;
use crate::options::ConfigFile;
use crate::output::say;

/// Where results go.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Output")]
pub struct ServingOutput {
    #[command(flatten)]
    pub config: ConfigFile,

    /// Run folder, for configuration, event log, metrics, checkpoints and model [default: a new one in runs/]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,

    /// Resume the run in this folder from its last checkpoint; options not given keep their values
    #[arg(long, value_name = "DIR", conflicts_with = "out")]
    pub resume: Option<PathBuf>,

    /// Interval between checkpoints, in seconds; 0: only at the end
    #[arg(long, value_name = "SECONDS", default_value_t = 30.0, value_parser = not_negative)]
    pub checkpoint_every: f64,

    /// How many older segments of the event log are kept: all, or a number. One is cut at a checkpoint after 4 MiB
    #[arg(long, value_name = "SEGMENTS", default_value_t = KeepEvents::default())]
    pub keep_events: KeepEvents,

    /// Serve /metrics (Prometheus), /healthz and /status (JSON) over HTTP at this address, e.g. 127.0.0.1:7078; port 0
    /// takes a free one
    #[arg(long, value_name = "HOST:PORT")]
    pub http: Option<Address>,

    /// Record every worker's run-times to a trace that `simulate --times trace:FILE` reads (.csv)
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,

    #[command(flatten)]
    pub force: ForceOption,

    /// Print one JSON object instead of tables
    #[arg(long)]
    pub json: bool,
}

impl ServingOutput {
    /// Checks that `--record` can be written and is none of the `inputs`, and that `--http` is not readable from other
    /// machines unless `--open` allows it.
    fn check(&self, inputs: &[&Path], open: bool) -> anyhow::Result<()> {
        if let Some(record) = &self.record {
            check_trace("--record", record, self.force, inputs)?;
        }
        match &self.http {
            Some(http) if !open && !http.is_loopback() => {
                bail!(
                    "--http {http} can be read from other machines: expected a loopback address, or paceline serve --open"
                )
            }
            _ => Ok(()),
        }
    }

    /// A run with all that these options ask for.
    fn parts<'a>(&self, run: RunBuilder<'a>) -> anyhow::Result<RunBuilder<'a>> {
        let mut run = match &self.resume {
            None => run.folder(self.out.clone().unwrap_or_else(|| next_free(""))),
            Some(folder) => run.resume(folder),
        };
        run = run.checkpoint_every(Duration::from_secs_f64(self.checkpoint_every)).keep_events(self.keep_events);
        if let Some(http) = &self.http {
            run = run.http(listen(http)?);
        }
        Ok(match &self.record {
            Some(path) => run.record(path),
            None => run,
        })
    }
}

/// Listens for HTTP requests.
fn listen(address: &Address) -> anyhow::Result<TcpListener> {
    match address {
        Address::Tcp { host, port } => {
            TcpListener::bind((host.as_str(), *port)).with_context(|| format!("--http {address}"))
        }
        Address::Local { .. } => bail!("--http {address}: expected HOST:PORT"),
    }
}

fn not_negative(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds: &f64| (0.0..1e9).contains(seconds));
    seconds.ok_or_else(|| "expected seconds, at least 0".into())
}

/// A run's summary, with the emulated stragglers.
#[derive(Serialize)]
struct ServedSummary<'a> {
    #[serde(flatten)]
    summary: &'a Summary,
    emulated: serde_json::Map<String, serde_json::Value>,
    folder: &'a Path,
}

/// A run of a command: all of it but how its workers are started.
pub struct ServedRun<'a> {
    pub job: &'a Job,
    pub addresses: &'a [Address],
    pub transport: TransportOptions,
    pub output: &'a ServingOutput,
    pub configuration: &'a Configuration,
    /// The files that are read, beside the configuration.
    pub inputs: Vec<&'a Path>,
    /// `--open` of `serve`.
    pub open: bool,
}

impl ServedRun<'_> {
    /// Prepares the run, which `start` then starts below its progress bars. Its result is printed before it is saved.
    pub fn run(
        self,
        start: impl FnOnce(PreparedRun<'_>, &MultiProgress) -> Result<EndedRun, RunError>,
    ) -> Result<(), Failure> {
        let ServedRun { job, output, .. } = self;
        let resumed_config = output.resume.as_ref().map(|folder| folder.join(CONFIGURATION));
        let config = output.config.path().or(resumed_config.as_ref()).map(PathBuf::as_path);
        let inputs: Vec<&Path> = self.inputs.into_iter().chain(config).collect();
        output.check(&inputs, self.open).map_err(Failure::Input)?;
        let bars = bars();
        logs::install(&bars);
        let mut progress = RunBar::live(&bars, job.scheme.to_string(), &job.goals);
        let run = RunBuilder::new(job, self.addresses).transport(self.transport);
        let run = output.parts(run).map_err(Failure::Input)?;
        let run = run.configuration(self.configuration.to_string()).observer(&mut progress);
        let run = run.prepare().map_err(Failure::input)?;
        let stopper = run.stopper();
        interrupt::listen(move || stopper.stop(StopReason::Interrupted))?;
        let ended = start(run, &bars).map_err(Failure::run)?;
        drop(progress);
        show(&ended, output.json).map_err(Failure::Run)?;
        let outcome = ended.save().map_err(Failure::run)?;
        Failure::unless_reached(outcome.summary.ending)
    }
}

fn show(ended: &EndedRun, as_json: bool) -> anyhow::Result<()> {
    let (outcome, folder) = (ended.outcome(), ended.folder().unwrap_or(Path::new("")));
    if as_json {
        let emulated = outcome.emulated.iter().map(|(worker, how)| (worker.0.to_string(), json!(how))).collect();
        say(serde_json::to_string(&ServedSummary { summary: &outcome.summary, emulated, folder })?);
        return Ok(());
    }
    say(format_args!("{}\n", table(std::slice::from_ref(&outcome.summary))));
    say(format_args!("{}\n", workers_table(&outcome.summary.worker_times)));
    for (worker, how) in &outcome.emulated {
        say(format_args!("Straggling was emulated: {worker}, {how}"));
    }
    say(format_args!("run folder: {}", folder.display()));
    Ok(())
}
