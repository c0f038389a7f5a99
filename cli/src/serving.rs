//! Running a server: progress during the run, then a summary and the run folder.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};
use paceline_config::Failure;
use paceline_config::file::Configuration;
use paceline_core::{Decision, Event, Span, TaskId, Time};
use paceline_net::{Address, RunOutcome, Server};
use paceline_report::page;
use paceline_report::progress::{RunBar, bars};
use paceline_report::tables::{table, workers_table};
use paceline_runtime::{
    Checkpointer, EventLogHeader, Iteration, Job, ModelState, Monitor, Notice, Observer, ResumePoint, RunFolder,
    ServerObserver, SharedStatus, Summary, check_free, next_free, serve_status,
};
use paceline_trace::Recorder;
use serde::Serialize;
use serde_json::json;

use crate::destination::check_trace;
use crate::logs::{self, NoticeLogger};
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

    /// Serve /metrics (Prometheus), /healthz and /status (JSON) over HTTP at this address, e.g. 127.0.0.1:7078; port 0
    /// takes a free one
    #[arg(long, value_name = "HOST:PORT")]
    pub http: Option<Address>,

    /// Record every worker's run-times to a trace that `simulate --times trace:FILE` reads (.csv)
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,

    /// Print one JSON object instead of tables
    #[arg(long)]
    pub json: bool,
}

impl ServingOutput {
    /// The run folder: the one given, which must be new or empty, or the next in `runs/`. Checks also that `--record`
    /// can be written.
    pub fn folder(&self) -> anyhow::Result<PathBuf> {
        if let Some(record) = &self.record {
            check_trace("--record", record)?;
        }
        if let Some(folder) = &self.resume {
            return Ok(folder.clone());
        }
        match &self.out {
            Some(out) => Ok(check_free(out).map(|()| out.clone())?),
            None => Ok(next_free("")),
        }
    }

    /// Refuses an HTTP address that other machines can read, unless `--open` allows it.
    pub fn check_http(&self, open: bool) -> anyhow::Result<()> {
        match &self.http {
            Some(http) if !open && !http.is_loopback() => {
                bail!(
                    "--http {http} can be read from other machines: expected a loopback address, or paceline serve --open"
                )
            }
            _ => Ok(()),
        }
    }

    /// Where the run resumes, with `--resume`.
    pub fn resume_point(&self, job: &Job) -> anyhow::Result<Option<ResumePoint>> {
        Ok(self.resume.as_ref().map(|folder| ResumePoint::load(folder, job)).transpose()?)
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

/// Writes everything that a run leaves behind: progress, log, run folder, trace, checkpoints and status.
struct RunFollower {
    progress: RunBar,
    folder: RunFolder,
    recorder: Recorder,
    checkpointer: Checkpointer,
    status: SharedStatus,
    started: Arc<AtomicBool>,
}

impl Observer for RunFollower {
    fn on_turn(&mut self, now: Time, event: &Event, decisions: &[Decision]) {
        self.progress.on_turn(now, event, decisions);
        self.folder.on_turn(now, event, decisions);
        NoticeLogger.on_turn(now, event, decisions);
        for Decision { action, reason } in decisions {
            tracing::debug!("{now}: {action:?} ({reason})");
        }
        let warnings = self.checkpointer.on_decisions(decisions).into_iter().chain(self.checkpointer.poll());
        warnings.for_each(|warning| tracing::warn!("{warning}"));
        self.status.lock().checkpoint = self.checkpointer.saved();
    }

    fn on_task(&mut self, task: TaskId, compute: Span) {
        self.recorder.on_task(task, compute);
    }

    fn on_iteration(&mut self, iteration: &Iteration, monitor: &Monitor) {
        self.started.store(true, Ordering::Relaxed);
        self.progress.on_iteration(iteration, monitor);
        self.folder.on_iteration(iteration, monitor);
        self.status.lock().on_iteration(iteration, monitor);
    }

    fn on_notice(&mut self, notice: &Notice) {
        NoticeLogger.on_notice(notice);
        self.status.lock().on_notice(notice);
    }
}

impl ServerObserver for RunFollower {
    fn wants_checkpoint(&self) -> bool {
        self.checkpointer.is_due()
    }

    fn on_checkpoint(&mut self, state: &ModelState<'_>) {
        let (events, log) = self.folder.stream();
        if let Some(warning) = self.checkpointer.save(state, events, log) {
            tracing::warn!("{warning}");
        }
    }
}

/// A run's summary, with the emulated stragglers.
#[derive(Serialize)]
struct ServedSummary<'a> {
    #[serde(flatten)]
    summary: &'a Summary,
    emulated: serde_json::Map<String, serde_json::Value>,
    folder: &'a Path,
}

/// Runs or resumes a job on a server until it ends. Sets `started` after the first iteration.
pub fn run(
    server: Server,
    job: &Job,
    output: &ServingOutput,
    configuration: &Configuration,
    resume_point: Option<ResumePoint>,
    started: Arc<AtomicBool>,
) -> Result<(), Failure> {
    let path = output.folder().map_err(Failure::Input)?;
    let http = output.http.as_ref().map(listen).transpose().map_err(Failure::Input)?;
    let interval = Duration::from_secs_f64(output.checkpoint_every);
    let stopper = server.stopper();
    // Setting a second handler would fail; this is the program's only one.
    ctrlc::set_handler(move || stopper.stop("interrupted")).map_err(Failure::run)?;
    let header = EventLogHeader::new(job.scheme.clone(), &job.setup);
    let bars = bars();
    logs::install(&bars);
    let status = SharedStatus::default();
    (status.lock().scheme, status.lock().expected_workers) = (job.scheme.to_string(), job.setup.workers);
    if let Some(listener) = http {
        let address = serve_status(listener, status.clone()).map_err(Failure::run)?;
        tracing::info!("status at http://{address}/status");
    }
    let folder = match &resume_point {
        None => RunFolder::create(&path, &configuration.to_string(), &header),
        Some(point) => RunFolder::resume(&path, point.events, point.checkpoint.version),
    };
    let folder = folder.map_err(Failure::input)?;
    let mut follower = RunFollower {
        progress: RunBar::live(&bars, job.scheme.to_string(), &job.goals),
        folder,
        recorder: Recorder::default(),
        checkpointer: Checkpointer::new(&path, job.workload.clone(), interval).map_err(Failure::run)?,
        status,
        started,
    };
    let outcome = match resume_point {
        None => server.run(job, &mut follower),
        Some(point) => {
            point.skipped.iter().for_each(|problem| tracing::warn!("{problem}; using an older checkpoint"));
            let entry = follower.checkpointer.resumed(point.checkpoint.version).map_err(Failure::run)?;
            tracing::info!("{entry}");
            server.resume(job, point, &mut follower)
        }
    };
    let outcome = outcome.map_err(Failure::run)?;
    let RunFollower { folder, recorder, progress, checkpointer, .. } = follower;
    drop(progress);
    if let Some(warning) = checkpointer.finish() {
        tracing::warn!("{warning}");
    }
    let model = Some((job.workload.layout(), outcome.parameters.as_slice()));
    page::finish_run_folder(folder, &outcome.summary, model).map_err(Failure::run)?;
    if let Some(record) = &output.record {
        recorder.finish().write(record).map_err(|error| Failure::Run(anyhow::Error::new(error).context("--record")))?;
    }
    show(&outcome, &path, output.json).map_err(Failure::Run)
}

fn show(outcome: &RunOutcome, folder: &Path, as_json: bool) -> anyhow::Result<()> {
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
