//! Running a server: progress during the run, then a summary and the run folder.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use paceline_config::file::Configuration;
use paceline_config::{Failure, ForceOption};
use paceline_core::{Decision, Event, Span, TaskId, Time};
use paceline_net::{Address, RunOutcome, Server, ServerError, Stopper};
use paceline_report::page;
use paceline_report::progress::{RunBar, bars};
use paceline_report::tables::{table, workers_table};
use paceline_runtime::{
    CONFIGURATION, Checkpointer, EventLogHeader, FolderLock, Iteration, Job, KeepEvents, Monitor, Notice, Observer,
    ResumePoint, RunFolder, RunState, ServerObserver, SharedStatus, StatusServer, StopReason, Summary,
    check_unfinished, next_free,
};
use paceline_trace::Recorder;
use serde::Serialize;
use serde_json::json;

use crate::destination::check_trace;
use crate::interrupt;
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
    /// Only with `--record`: it keeps every time in memory.
    recorder: Option<Recorder>,
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
        if let Some(warning) = self.checkpointer.poll() {
            tracing::warn!("{warning}");
        }
        let mut status = self.status.lock();
        status.checkpoint = self.checkpointer.saved();
        status.on_turn(Instant::now(), now, event, decisions);
    }

    fn on_task(&mut self, task: TaskId, compute: Span) {
        if let Some(recorder) = &mut self.recorder {
            recorder.on_task(task, compute);
        }
    }

    fn on_iteration(&mut self, iteration: &Iteration, monitor: &Monitor) {
        self.started.store(true, Ordering::Relaxed);
        self.progress.on_iteration(iteration, monitor);
        self.folder.on_iteration(iteration, monitor);
        self.status.lock().on_iteration(Instant::now(), iteration, monitor);
    }

    fn on_notice(&mut self, notice: &Notice) {
        NoticeLogger.on_notice(notice);
        self.status.lock().on_notice(Instant::now(), notice);
    }
}

impl ServerObserver for RunFollower {
    fn wants_checkpoint(&self) -> bool {
        self.checkpointer.is_due()
    }

    fn on_checkpoint(&mut self, state: &RunState<'_>) {
        self.checkpointer.save(state, &mut self.folder);
    }

    fn on_end(&mut self) {
        self.status.lock().on_end();
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

/// A run that can start: all input is read, all output is tried, the run folder is locked.
pub struct PreparedRun<'a> {
    job: &'a Job,
    output: &'a ServingOutput,
    server: Server,
    resume_point: Option<ResumePoint>,
    follower: RunFollower,
    status_server: Option<StatusServer>,
}

impl<'a> PreparedRun<'a> {
    /// Prepares a run, or resumes one, on the server that `bind` gives. Nothing is changed by an error. `inputs` are the
    /// files that are read, beside the configuration. `open` is `--open` of `serve`.
    pub fn new(
        bind: impl FnOnce() -> Result<Server, ServerError>,
        job: &'a Job,
        output: &'a ServingOutput,
        configuration: &Configuration,
        inputs: Vec<&Path>,
        open: bool,
    ) -> Result<Self, Failure> {
        let resumed_config = output.resume.as_ref().map(|folder| folder.join(CONFIGURATION));
        let config = output.config.path().or(resumed_config.as_ref()).map(PathBuf::as_path);
        let inputs: Vec<&Path> = inputs.into_iter().chain(config).collect();
        output.check(&inputs, open).map_err(Failure::Input)?;
        let resumed = output.resume.as_ref().map(|folder| {
            check_unfinished(folder, &job.goals)?;
            let lock = FolderLock::acquire(folder)?;
            ResumePoint::load(&lock, job).map(|point| (lock, point))
        });
        let resumed = resumed.transpose().map_err(Failure::input)?;
        let server = bind().map_err(Failure::input)?;
        let http = output.http.as_ref().map(listen).transpose().map_err(Failure::Input)?;
        let bars = bars();
        logs::install(&bars);
        let (config, layout) = (configuration.to_string(), job.workload.layout());
        let header = EventLogHeader::new(job.scheme.clone(), &job.setup);
        let (mut folder, resume_point) = match resumed {
            None => {
                let path = output.out.clone().unwrap_or_else(|| next_free(""));
                (RunFolder::create(&path, &config, &header, Some(layout)).map_err(Failure::input)?, None)
            }
            Some((lock, point)) => {
                let (folder, lost) =
                    RunFolder::resume(lock, &config, &header, &point, layout).map_err(Failure::input)?;
                point.skipped.iter().for_each(|problem| tracing::warn!("{problem}; using an older checkpoint"));
                if let Some(problem) = &point.afresh {
                    tracing::warn!("scheme {} starts afresh, without its state: {problem}", job.scheme);
                }
                point.check(folder.lock(), |warning| tracing::warn!("{warning}"));
                tracing::info!("{}", resumption(point.checkpoint.version, lost));
                (folder, Some(point))
            }
        };
        folder.keep_events(output.keep_events);
        let interval = Duration::from_secs_f64(output.checkpoint_every);
        let checkpointer = Checkpointer::new(folder.path(), job.workload.clone(), interval);
        let mut checkpointer = checkpointer.map_err(Failure::run)?;
        if let Some(point) = &resume_point {
            checkpointer.resumed(point.checkpoint.version);
        }
        let status = SharedStatus::default();
        (status.lock().scheme, status.lock().expected_workers) = (job.scheme.to_string(), job.setup.workers);
        let start = |listener| StatusServer::start(listener, status.clone(), |warning| tracing::warn!("{warning}"));
        let status_server = http.map(start).transpose().map_err(Failure::run)?;
        if let Some(server) = &status_server {
            tracing::info!("status at http://{}/status", server.address());
        }
        let follower = RunFollower {
            progress: RunBar::live(&bars, job.scheme.to_string(), &job.goals),
            folder,
            recorder: output.record.as_ref().map(|_| Recorder::default()),
            checkpointer,
            status,
            started: Arc::new(AtomicBool::new(false)),
        };
        Ok(PreparedRun { job, output, server, resume_point, follower, status_server })
    }

    /// The addresses that the server listens on.
    pub fn addresses(&self) -> &[Address] {
        self.server.addresses()
    }

    /// A handle that stops the run.
    pub fn stopper(&self) -> Stopper {
        self.server.stopper()
    }

    /// Becomes true after the first iteration.
    pub fn started(&self) -> Arc<AtomicBool> {
        self.follower.started.clone()
    }

    /// Runs the job until it ends. The result is printed first, then the model is written, then everything else.
    pub fn run(self) -> Result<(), Failure> {
        // The status is served to the end of this function.
        let PreparedRun { job, output, server, resume_point, mut follower, status_server: _status_server } = self;
        let stopper = server.stopper();
        interrupt::listen(move || stopper.stop(StopReason::Interrupted))?;
        let outcome = match resume_point {
            None => server.run(job, &mut follower),
            Some(point) => server.resume(job, point, &mut follower),
        };
        let outcome = outcome.map_err(Failure::run)?;
        let RunFollower { folder, recorder, progress, checkpointer, .. } = follower;
        drop(progress);
        show(&outcome, folder.path(), output.json).map_err(Failure::Run)?;
        if let Some(warning) = checkpointer.finish() {
            tracing::warn!("{warning}");
        }
        let finished = page::finish_run_folder(folder, &outcome.summary, Some(&outcome.parameters));
        let recorded = output.record.as_ref().zip(recorder);
        let recorded = recorded.map(|(record, recorder)| recorder.finish().write(record).context("--record"));
        finished.map_err(Failure::run)?;
        recorded.transpose().map_err(Failure::Run)?;
        Failure::unless_reached(outcome.summary.ending)
    }
}

fn resumption(version: u64, lost: Option<u64>) -> String {
    match lost {
        None => format!("resumed from version {version}; nothing was lost"),
        Some(last) => {
            format!("resumed from version {version}; versions {} to {last} were lost and are repeated", version + 1)
        }
    }
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
