//! Running a server: progress while it goes on, a summary and a run folder at its end.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};
use paceline_core::{Decision, Event, Span, TaskId, Time};
use paceline_net::{Address, Job, Moment, Notice, Outcome, Server, Watcher};
use paceline_run::{Header, Iteration, Monitor, Observer, Recorder};
use serde::Serialize;
use serde_json::json;

use crate::config::Settings;
use crate::destination::check_file;
use crate::failure::Failure;
use crate::http;
use crate::keeper::Keeper;
use crate::logs;
use crate::output::{Progress, bars, say, table, workers_table};
use crate::resumed::Resumed;
use crate::run_folder::{RunFolder, check_free, next_free};
use crate::status::SharedStatus;

/// Where results go.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Output")]
pub struct ServingOutput {
    /// Read options from a TOML file whose keys are these flags; flags count more
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// The run folder: configuration, events, metrics, model [default: a new one in runs/]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,

    /// Go on with the run in this folder, where its last snapshot is; what is not given is as it was
    #[arg(long, value_name = "DIR", conflicts_with = "out")]
    pub resume: Option<PathBuf>,

    /// How often to take a snapshot that --resume can go on from, in seconds; 0 for at the end only
    #[arg(long, value_name = "SECONDS", default_value_t = 30.0, value_parser = not_negative)]
    pub snapshot_every: f64,

    /// Where to answer /metrics (Prometheus), /healthz and /status (JSON) over HTTP, e.g. 127.0.0.1:7078; port 0 takes a
    /// free one
    #[arg(long, value_name = "HOST:PORT")]
    pub http: Option<Address>,

    /// Write every worker's run-times as a trace that `simulate --times trace:FILE` reads (CSV, or .parquet)
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,

    /// Print one JSON object per run on standard output
    #[arg(long)]
    pub json: bool,
}

impl ServingOutput {
    /// The run folder: the user's, which must be free, or the next in `runs/`. What else is to be written must have its
    /// place, too.
    pub fn folder(&self) -> anyhow::Result<PathBuf> {
        if let Some(record) = &self.record {
            check_file("--record", record)?;
        }
        if let Some(folder) = &self.resume {
            return Ok(folder.clone());
        }
        match &self.out {
            Some(out) => check_free(out).map(|()| out.clone()),
            None => next_free(""),
        }
    }
}

impl ServingOutput {
    /// Refuses to show other machines the status, unless that is allowed.
    pub fn check_http(&self, open: bool) -> anyhow::Result<()> {
        match &self.http {
            Some(http) if !open && !http.is_loopback() => {
                bail!("--http {http} could be read from other machines, which takes paceline serve --open")
            }
            _ => Ok(()),
        }
    }

    /// Where the run goes on, if it is to.
    pub fn resumed(&self, job: &Job) -> anyhow::Result<Option<Resumed>> {
        self.resume.as_ref().map(|folder| Resumed::load(folder, job)).transpose()
    }
}

/// Listens where the status is to be answered.
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
    seconds.ok_or_else(|| "expected seconds, 0 or more".into())
}

/// Everything that follows a run.
struct Following {
    progress: Progress,
    folder: RunFolder,
    recorder: Recorder,
    keeper: Keeper,
    status: SharedStatus,
    begun: Arc<AtomicBool>,
}

impl Observer for Following {
    fn on_turn(&mut self, now: Time, event: &Event, decisions: &[Decision]) {
        self.progress.on_turn(now, event, decisions);
        self.folder.on_turn(now, event, decisions);
        for Decision { action, reason } in decisions {
            tracing::debug!("{now}: {action:?} ({reason})");
        }
        let told = self.keeper.on_decisions(decisions);
        told.into_iter().chain(self.keeper.outcome()).for_each(|told| tracing::warn!("{told}"));
        self.status.lock().snapshot = self.keeper.saved();
    }

    fn on_task(&mut self, task: TaskId, compute: Span) {
        self.recorder.on_task(task, compute);
    }

    fn on_iteration(&mut self, iteration: &Iteration, monitor: &Monitor) {
        self.begun.store(true, Ordering::Relaxed);
        self.progress.on_iteration(iteration, monitor);
        self.folder.on_iteration(iteration, monitor);
        self.status.lock().on_iteration(iteration, monitor);
    }
}

impl Watcher for Following {
    fn on_notice(&mut self, notice: &Notice) {
        match notice {
            Notice::Joined { .. } => tracing::info!("{notice}"),
            Notice::Left { .. } | Notice::Refused { .. } => tracing::warn!("{notice}"),
        }
        self.status.lock().on_notice(notice);
    }

    fn wants_moment(&self) -> bool {
        self.keeper.is_due()
    }

    fn on_moment(&mut self, moment: &Moment<'_>) {
        let (events, stream) = self.folder.stream();
        if let Some(told) = self.keeper.begin(moment, events, stream) {
            tracing::warn!("{told}");
        }
    }
}

/// A run in numbers, with what was emulated.
#[derive(Serialize)]
struct Line<'a> {
    #[serde(flatten)]
    summary: &'a paceline_run::Summary,
    emulated: serde_json::Map<String, serde_json::Value>,
    folder: &'a Path,
}

/// Runs a job on a server that listens, or goes on with it where it was, until it is over. `begun` is set when the first
/// iteration is done.
pub fn run(
    server: Server,
    job: &Job,
    output: &ServingOutput,
    settings: &Settings,
    resumed: Option<Resumed>,
    begun: Arc<AtomicBool>,
) -> Result<(), Failure> {
    let path = output.folder().map_err(Failure::Input)?;
    let http = output.http.as_ref().map(listen).transpose().map_err(Failure::Input)?;
    let every = Duration::from_secs_f64(output.snapshot_every);
    let stopper = server.stopper();
    // A second handler can't be set, but this is the program's only one.
    ctrlc::set_handler(move || stopper.stop("interrupted")).map_err(Failure::run)?;
    let header = Header::new(job.scheme.clone(), &job.setup);
    let bars = bars();
    logs::install(&bars);
    let status = SharedStatus::default();
    (status.lock().scheme, status.lock().expected_workers) = (job.scheme.to_string(), job.setup.workers);
    if let Some(listener) = http {
        let address = http::answer(listener, status.clone()).map_err(Failure::run)?;
        tracing::info!("the status is at http://{address}/status");
    }
    let folder = match &resumed {
        None => RunFolder::create(&path, settings, &header),
        Some(resumed) => RunFolder::resume(&path, resumed.state.events, resumed.from.snapshot.version),
    };
    let folder = folder.map_err(Failure::Input)?;
    let mut following = Following {
        progress: Progress::live(&bars, job.scheme.to_string(), &job.goals),
        folder,
        recorder: Recorder::default(),
        keeper: Keeper::new(&path, job.workload.clone(), every).map_err(Failure::Run)?,
        status,
        begun,
    };
    let outcome = match resumed {
        None => server.run(job, &mut following),
        Some(Resumed { from, skipped, .. }) => {
            skipped.iter().for_each(|skipped| tracing::warn!("{skipped}; an older one is taken"));
            let entry = following.keeper.resumed(from.snapshot.version).map_err(Failure::Run)?;
            tracing::info!("{entry}");
            server.resume(job, from, &mut following)
        }
    };
    let outcome = outcome.map_err(Failure::run)?;
    let Following { folder, recorder, progress, keeper, .. } = following;
    drop(progress);
    if let Some(told) = keeper.finish() {
        tracing::warn!("{told}");
    }
    folder.finish(&outcome.summary, Some((job.workload.layout(), &outcome.parameters))).map_err(Failure::Run)?;
    if let Some(record) = &output.record {
        recorder.finish().write(record).map_err(|error| Failure::Run(anyhow::Error::new(error).context("--record")))?;
    }
    show(&outcome, &path, output.json).map_err(Failure::Run)
}

fn show(outcome: &Outcome, folder: &Path, as_json: bool) -> anyhow::Result<()> {
    if as_json {
        let emulated = outcome.emulated.iter().map(|(worker, how)| (worker.0.to_string(), json!(how))).collect();
        say(serde_json::to_string(&Line { summary: &outcome.summary, emulated, folder })?);
        return Ok(());
    }
    say(format_args!("{}\n", table(std::slice::from_ref(&outcome.summary))));
    say(format_args!("{}\n", workers_table(&outcome.summary.worker_times)));
    for (worker, how) in &outcome.emulated {
        say(format_args!("{worker}'s straggling was emulated: {how}"));
    }
    say(format_args!("run folder: {}", folder.display()));
    Ok(())
}
