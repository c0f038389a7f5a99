//! Running a server: progress during the run, then a summary and the run folder.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, bail};
use indicatif::MultiProgress;
use paceline_config::file::Configuration;
use paceline_config::{Failure, ForceOption};
use paceline_core::WorkerId;
use paceline_net::{Address, LocalWorkers, Server, ServerError, ShardCount, TransportOptions, WorkerOutput};
use paceline_objects::{Place, open_place};
use paceline_report::progress::{RunBar, bars};
use paceline_report::tables::{table, workers_table};
use paceline_run::{EndedRun, PreparedRun, RunBuilder, RunError};
use paceline_runtime::{
    CONFIGURATION, Job, KeepEvents, Lease, RunEnding, StopReason, Summary, WORKER_LOGS, check_free, next_free,
};
use paceline_store::ObjectStorage;
use serde::Serialize;
use serde_json::json;

use crate::commands::watch::has_screen;
use crate::destination::check_trace;
use crate::interrupt;
use crate::launched::{Announcement, EmptyRunWatch, LaunchOptions};
use crate::live_screen::LiveScreen;
use crate::logs;
use crate::options::ConfigFile;
use crate::output::say_before_saving;
use crate::script::ScriptOptions;

/// Where results go.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Output")]
pub struct ServingOutput {
    #[command(flatten)]
    pub config: ConfigFile,

    /// Run folder, for configuration, event log, metrics, checkpoints and model [default: a new one in runs/]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,

    /// Resume the run in this folder, or with its checkpoints at this place, from its last checkpoint; options not given
    /// keep their values
    #[arg(long, value_name = "DIR|PLACE")]
    pub resume: Option<PathBuf>,

    /// Write checkpoints to this place in place of the run folder, with all that another machine needs to resume the run:
    /// s3://BUCKET/PREFIX, or file:///FOLDER for a folder that the machines share. AWS_ENDPOINT_URL, AWS_REGION,
    /// AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are read from the environment. Shards write their parts themselves
    #[arg(long, value_name = "PLACE")]
    pub checkpoints: Option<Place>,

    /// Interval between checkpoints, in seconds; 0: only at the end
    #[arg(long, value_name = "SECONDS", default_value_t = 30.0, value_parser = not_negative)]
    pub checkpoint_every: f64,

    /// How many older segments of the event log are kept: all, or a number. One is cut at a checkpoint after 4 MiB
    #[arg(long, value_name = "SEGMENTS", default_value_t = KeepEvents::default())]
    pub keep_events: KeepEvents,

    /// Serve a page that follows the run, /metrics (Prometheus), /healthz and /status (JSON) over HTTP at this address;
    /// port 0 takes a free one [default: train takes 127.0.0.1:7078, or a free port; serve: off]
    #[arg(long, value_name = "HOST:PORT|off")]
    pub http: Option<HttpChoice>,

    /// Record every worker's run-times to a trace that `simulate --times trace:FILE` reads (.csv)
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,

    #[command(flatten)]
    pub force: ForceOption,

    /// Print one JSON object instead of tables
    #[arg(long)]
    pub json: bool,

    /// Show the run on the whole screen in place of the progress bar, as `paceline watch` does
    #[arg(long)]
    pub tui: bool,
}

impl ServingOutput {
    /// Refuses `--out` for a run that goes on in its own folder; `flag` names that.
    pub fn check_folder(&self, flag: &str, source: Option<&Path>) -> anyhow::Result<()> {
        match (&self.out, source.filter(|source| Place::of(source).is_none())) {
            (Some(out), Some(folder)) => {
                let (out, folder) = (out.display(), folder.display());
                bail!("--out {out} cannot be used with {flag} {folder}: the run goes on in its own folder")
            }
            _ => Ok(()),
        }
    }

    /// Checks that `--record` can be written and is none of the `inputs`, and that `--http` is not readable from other
    /// machines unless `--open` allows it.
    fn check(&self, inputs: &[&Path], open: bool) -> anyhow::Result<()> {
        if let Some(record) = &self.record {
            check_trace("--record", record, self.force, inputs)?;
        }
        if self.tui && self.http == Some(HttpChoice::Off) {
            bail!("--tui cannot be used with --http off: the screen reads the page of the run");
        }
        if self.tui && !has_screen() {
            bail!("--tui needs a terminal: leave it out, and see the run with paceline watch from elsewhere");
        }
        match &self.http {
            Some(HttpChoice::At(http)) if !open && !http.is_loopback() => {
                bail!(
                    "--http {http} can be read from other machines: expected a loopback address, or paceline serve --open"
                )
            }
            _ => Ok(()),
        }
    }

    /// The run folder that the run goes on in, if it has one already.
    fn resumed_folder(&self) -> Option<&Path> {
        self.resume.as_deref().filter(|path| Place::of(path).is_none())
    }

    /// The storage of the checkpoints, if it is not the run folder.
    pub fn storage(&self) -> anyhow::Result<Option<Arc<dyn ObjectStorage>>> {
        self.checkpoints.as_ref().map(open_place).transpose().context("--checkpoints")
    }

    /// A run with all that these options ask for.
    fn parts<'a>(&self, run: RunBuilder<'a>, new_folder: PathBuf, http: Option<TcpListener>) -> RunBuilder<'a> {
        let mut run = match (&self.resume, self.resumed_folder()) {
            (None, _) => run.folder(new_folder),
            (Some(_), folder) => run.resume(folder.map_or(new_folder, Path::to_path_buf)),
        };
        run = run.checkpoint_every(Duration::from_secs_f64(self.checkpoint_every)).keep_events(self.keep_events);
        if let Some(listener) = http {
            run = run.http(listener);
        }
        match &self.record {
            Some(path) => run.record(path),
            None => run,
        }
    }

    /// The folder of a new run.
    fn new_folder(&self) -> PathBuf {
        self.out.clone().unwrap_or_else(|| next_free(""))
    }

    /// Listens for HTTP requests, if there should be any.
    fn listen(&self, unless_chosen: HttpDefault) -> anyhow::Result<Option<TcpListener>> {
        match (&self.http, unless_chosen) {
            (Some(HttpChoice::At(address)), _) => listen(address).map(Some),
            // Nobody asked for it, so a port that is taken is no reason to fail.
            (None, default) if self.tui || default == HttpDefault::Loopback => {
                let ports = [HTTP_PORT, 0].into_iter();
                Ok(ports.map(|port| TcpListener::bind(("127.0.0.1", port))).find_map(Result::ok))
            }
            (Some(HttpChoice::Off) | None, _) => Ok(None),
        }
    }

    /// The screen of the run whose page is at this address, if it is wanted.
    fn screen(&self, page: Option<SocketAddr>, bars: &MultiProgress) -> Result<Option<LiveScreen>, Failure> {
        let page = page.filter(|_| self.tui);
        page.map(|page| LiveScreen::start(page, bars)).transpose().map_err(Failure::run)
    }
}

/// The port of the page where it is on by default.
const HTTP_PORT: u16 = 7078;

/// Whether a run is served over HTTP, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HttpChoice {
    Off,
    At(Address),
}

impl FromStr for HttpChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || format!("'{text}' is neither HOST:PORT nor off");
        match (text, text.parse()) {
            ("off", _) => Ok(HttpChoice::Off),
            (_, Ok(address @ Address::Tcp { .. })) => Ok(HttpChoice::At(address)),
            _ => Err(expected()),
        }
    }
}

/// Whether a run is served over HTTP if `--http` does not say it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HttpDefault {
    Off,
    /// For this machine only.
    Loopback,
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

/// A run of a command: all of it but the model and how its workers are started.
pub struct ServedRun<'a> {
    pub addresses: &'a [Address],
    pub transport: TransportOptions,
    pub output: &'a ServingOutput,
    pub http: HttpDefault,
    pub configuration: &'a Configuration,
    /// The files that are read, beside the configuration.
    pub inputs: Vec<&'a Path>,
    /// `--open` of `serve`.
    pub open: bool,
    /// How long the run goes on after its lease was last renewed; `None` without a lease.
    pub lease: Option<Duration>,
    /// The folder of a run that is taken over, if it has one, and its next lease.
    pub taken: Option<(Option<&'a Path>, Lease)>,
    /// The storage of the checkpoints, if it is not the run folder.
    pub storage: Option<Arc<dyn ObjectStorage>>,
    /// What it does for the process that starts it.
    pub launch: &'a LaunchOptions,
}

/// Worker processes of a script on this machine.
pub struct ScriptWorkers<'a> {
    pub count: u32,
    /// The command that starts a worker of the server at an address, with this run folder.
    pub command: &'a (dyn Fn(&Address, &Path, WorkerId) -> Command + Sync),
}

impl ServedRun<'_> {
    /// Prepares the run, which `start` then starts below its progress bars. Its result is printed before it is saved.
    pub fn run(
        self,
        job: &Job,
        start: impl FnOnce(PreparedRun<'_>, &MultiProgress) -> Result<EndedRun, RunError>,
    ) -> Result<(), Failure> {
        self.transport.check(&job.scheme, &job.setup, job.model.workload().is_none()).map_err(Failure::input)?;
        let bars = self.begin()?;
        let mut progress = RunBar::live(&bars, job.scheme.to_string(), &job.goals);
        let http = self.output.listen(self.http).map_err(Failure::Input)?;
        let page = http.as_ref().and_then(|listener| listener.local_addr().ok());
        let (output, folder, timeout) = (self.output, self.output.new_folder(), self.empty_timeout());
        let (watch, mut count) = EmptyRunWatch::new();
        let run = RunBuilder::new(job, self.addresses).transport(self.transport.clone());
        let run = self.parts(run, folder, http).observer(&mut progress).observer(&mut count);
        let run = run.prepare().map_err(Failure::input)?;
        let stopper = run.stopper();
        if let Some(timeout) = timeout {
            watch.start(timeout, stopper.clone()).map_err(Failure::run)?;
        }
        interrupt::listen(move || stopper.stop(StopReason::Interrupted))?;
        let screen = output.screen(page, &bars)?;
        let ended = start(run, &bars);
        drop((screen, progress));
        let ended = ended.map_err(Failure::run)?;
        conclude(ended, output.json)
    }

    /// A run with all that was asked for, in a new folder or in its own.
    fn parts<'a>(self, run: RunBuilder<'a>, new_folder: PathBuf, http: Option<TcpListener>) -> RunBuilder<'a> {
        let mut run = self.output.parts(run, new_folder.clone(), http);
        if let Some(length) = self.lease {
            run = run.lease(length);
        }
        if self.launch.keep_workers {
            run = run.keeping_workers();
        }
        if let Some((folder, lease)) = self.taken {
            run = run.take_over(folder.map_or(new_folder, Path::to_path_buf), lease);
        }
        if let Some(objects) = self.storage {
            run = run.checkpoints(objects);
        }
        run.configuration(self.configuration.to_string())
    }

    /// The same for workers that bring the model. Those on this machine, if there are any, start first.
    pub fn run_script(self, script: &ScriptOptions<'_>, workers: Option<&ScriptWorkers<'_>>) -> Result<(), Failure> {
        script.check(&self.transport)?;
        let bars = self.begin()?;
        let (output, own) = (self.output, self.taken.as_ref().and_then(|(folder, _)| *folder));
        let own = own.or(output.resume.as_deref()).map(Path::to_path_buf);
        let is_resumed = own.is_some();
        let folder = own.unwrap_or_else(|| output.new_folder());
        if !is_resumed {
            check_free(&folder).map_err(Failure::input)?;
        }
        let http = output.listen(self.http).map_err(Failure::Input)?;
        let page = http.as_ref().and_then(|listener| listener.local_addr().ok());
        let server = Server::bind(self.addresses, self.transport.clone()).map_err(Failure::input)?;
        // The processes on this machine tell by their exit that they are done.
        let mut server = if workers.is_none() { server.ending_with_workers() } else { server };
        let (address, stopper) = (server.addresses()[0].clone(), server.stopper());
        let all: Vec<String> = server.addresses().iter().map(Address::to_string).collect();
        // A script may change its working directory.
        let absolute = std::path::absolute(&folder).map_err(Failure::run)?;
        // The script of a run that resumes may have nothing left to do.
        let started = Arc::new(AtomicBool::new(is_resumed));
        let (is_started, logs) = (started.clone(), folder.join(WORKER_LOGS));
        if let Some(file) = &self.launch.announce {
            let announcement = Announcement {
                addresses: server.addresses(),
                folder: &absolute,
                seed: script.seed(),
                takes_evaluator: script.has_evaluator(),
                has_shards: self.transport.shards != ShardCount::default(),
            };
            announcement.write(file).map_err(Failure::Input)?;
        }
        let (watch, mut count) = EmptyRunWatch::new();
        if let Some(timeout) = self.empty_timeout() {
            watch.start(timeout, stopper.clone()).map_err(Failure::run)?;
        }
        let on_interrupt = stopper.clone();
        interrupt::listen(move || on_interrupt.stop(StopReason::Interrupted))?;
        let show = logs::worker_output(&bars, output.json);
        let run = || {
            let model = server.receive_model().map_err(without_model)?;
            let job = script.job(model).map_err(Failure::Input)?;
            let mut progress = RunBar::live(&bars, job.scheme.to_string(), &job.goals);
            let run = RunBuilder::new(&job, []).server(server).started(started);
            let run = self.parts(run, folder, http).observer(&mut progress).observer(&mut count);
            let run = run.prepare().map_err(Failure::input)?;
            let _screen = output.screen(page, &bars)?;
            run.run().map_err(Failure::run)
        };
        let ended = match workers {
            None => {
                eprintln!("waiting for workers with a model on {}", all.join(" and "));
                run()?
            }
            Some(workers) => {
                let processes = LocalWorkers {
                    command: &|worker| (workers.command)(&address, &absolute, worker),
                    has_evaluator: script.has_evaluator(),
                    stopper,
                    started: is_started,
                    announce: &|line| tracing::warn!("{line}"),
                    output: WorkerOutput::new(Some(logs), show).map_err(Failure::run)?,
                    exit_timeout: None,
                };
                processes.run(workers.count, run).map_err(Failure::run)??
            }
        };
        conclude(ended, output.json)
    }

    fn empty_timeout(&self) -> Option<Duration> {
        self.launch.empty_timeout.map(Duration::from_secs_f64)
    }

    /// Checks the output, and begins to show what happens.
    fn begin(&self) -> Result<MultiProgress, Failure> {
        let resumed_config = self.output.resumed_folder().map(|folder| folder.join(CONFIGURATION));
        let config = self.output.config.path().or(resumed_config.as_ref()).map(PathBuf::as_path);
        let inputs: Vec<&Path> = self.inputs.iter().copied().chain(config).collect();
        self.output.check_folder("--resume", self.output.resume.as_deref()).map_err(Failure::Input)?;
        self.output.check(&inputs, self.open).map_err(Failure::Input)?;
        let bars = bars();
        logs::install(&bars);
        Ok(bars)
    }
}

/// Why there is no model, as a failure of the command.
fn without_model(error: ServerError) -> Failure {
    match error {
        ServerError::NoModel(StopReason::Interrupted) => Failure::Ended(RunEnding::Interrupted),
        error => Failure::run(error),
    }
}

/// Prints the result, then saves it.
fn conclude(ended: EndedRun, as_json: bool) -> Result<(), Failure> {
    show(&ended, as_json).map_err(Failure::Run)?;
    let outcome = ended.save().map_err(Failure::run)?;
    Failure::unless_reached(outcome.summary.ending)
}

fn show(ended: &EndedRun, as_json: bool) -> anyhow::Result<()> {
    let (outcome, folder) = (ended.outcome(), ended.folder().unwrap_or(Path::new("")));
    if as_json {
        let emulated = outcome.emulated.iter().map(|(worker, how)| (worker.0.to_string(), json!(how))).collect();
        say_before_saving(serde_json::to_string(&ServedSummary { summary: &outcome.summary, emulated, folder })?);
        return Ok(());
    }
    say_before_saving(format_args!("{}\n", table(std::slice::from_ref(&outcome.summary))));
    say_before_saving(format_args!("{}\n", workers_table(&outcome.summary.worker_times)));
    for (worker, how) in &outcome.emulated {
        say_before_saving(format_args!("Straggling was emulated: {worker}, {how}"));
    }
    say_before_saving(format_args!("run folder: {}", folder.display()));
    Ok(())
}
