//! Running a server: progress while it goes on, a summary and a run folder at its end.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use indicatif::MultiProgress;
use paceline_core::{Decision, Event, Span, TaskId, Time};
use paceline_net::{Job, Moment, Notice, Outcome, Server, Watcher};
use paceline_run::{Header, Iteration, Monitor, Observer, Recorder};
use serde::Serialize;
use serde_json::json;

use crate::config::Settings;
use crate::failure::Failure;
use crate::keeper::Keeper;
use crate::output::{Progress, bars, table, workers_table};
use crate::resumed::Resumed;
use crate::run_folder::{RunFolder, check_free, next_free};

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

    /// Write every worker's run-times as a trace that `simulate --times trace:FILE` reads (CSV, or .parquet)
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,

    /// Print one JSON object per run on standard output
    #[arg(long)]
    pub json: bool,
}

impl ServingOutput {
    /// The run folder: the user's, which must be free, or the next in `runs/`.
    pub fn folder(&self) -> anyhow::Result<PathBuf> {
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
    /// Where the run goes on, if it is to.
    pub fn resumed(&self, job: &Job) -> anyhow::Result<Option<Resumed>> {
        self.resume.as_ref().map(|folder| Resumed::load(folder, job)).transpose()
    }
}

fn not_negative(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds: &f64| (0.0..1e9).contains(seconds));
    seconds.ok_or_else(|| "expected seconds, 0 or more".into())
}

/// Everything that follows a run.
struct Following {
    bars: MultiProgress,
    progress: Progress,
    folder: RunFolder,
    recorder: Recorder,
    keeper: Keeper,
    begun: Arc<AtomicBool>,
}

impl Following {
    /// Tells a person something as it happens, beside the bar. If standard error is gone, nobody reads it.
    fn tell(&self, text: impl std::fmt::Display) {
        self.bars.suspend(|| {
            let _ = writeln!(std::io::stderr(), "{text}");
        });
    }
}

impl Observer for Following {
    fn on_turn(&mut self, now: Time, event: &Event, decisions: &[Decision]) {
        self.progress.on_turn(now, event, decisions);
        self.folder.on_turn(now, event, decisions);
        let told = self.keeper.on_decisions(decisions);
        told.into_iter().chain(self.keeper.outcome()).for_each(|told| self.tell(told));
    }

    fn on_task(&mut self, task: TaskId, compute: Span) {
        self.recorder.on_task(task, compute);
    }

    fn on_iteration(&mut self, iteration: &Iteration, monitor: &Monitor) {
        self.begun.store(true, Ordering::Relaxed);
        self.progress.on_iteration(iteration, monitor);
        self.folder.on_iteration(iteration, monitor);
    }
}

impl Watcher for Following {
    fn on_notice(&mut self, notice: &Notice) {
        self.tell(notice);
    }

    fn wants_moment(&self) -> bool {
        self.keeper.is_due()
    }

    fn on_moment(&mut self, moment: &Moment<'_>) {
        let (events, stream) = self.folder.stream();
        if let Some(told) = self.keeper.begin(moment, events, stream) {
            self.tell(told);
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

/// Runs a job on a server that listens, or goes on with it where it was, until it is over. `begun` is set when the first iteration is done.
pub fn run(
    server: Server,
    job: &Job,
    output: &ServingOutput,
    settings: &Settings,
    resumed: Option<Resumed>,
    begun: Arc<AtomicBool>,
) -> Result<(), Failure> {
    let path = output.folder().map_err(Failure::Input)?;
    let every = Duration::from_secs_f64(output.snapshot_every);
    let stopper = server.stopper();
    // A second handler can't be set, but this is the program's only one.
    ctrlc::set_handler(move || stopper.stop("interrupted")).map_err(Failure::run)?;
    let header = Header::new(job.scheme.clone(), &job.setup);
    let bars = bars();
    let folder = match &resumed {
        None => RunFolder::create(&path, settings, &header),
        Some(resumed) => RunFolder::resume(&path, resumed.state.events, resumed.from.snapshot.version),
    };
    let folder = folder.map_err(Failure::Run)?;
    let mut following = Following {
        progress: Progress::live(&bars, job.scheme.to_string(), &job.goals),
        bars,
        folder,
        recorder: Recorder::default(),
        keeper: Keeper::new(&path, job.workload.clone(), every).map_err(Failure::Run)?,
        begun,
    };
    let outcome = match resumed {
        None => server.run(job, &mut following),
        Some(Resumed { from, skipped, .. }) => {
            skipped.iter().for_each(|skipped| following.tell(skipped));
            let entry = following.keeper.resumed(from.snapshot.version).map_err(Failure::Run)?;
            following.tell(entry);
            server.resume(job, from, &mut following)
        }
    };
    let outcome = outcome.map_err(Failure::run)?;
    let Following { folder, recorder, progress, keeper, bars, .. } = following;
    drop(progress);
    if let Some(told) = keeper.finish() {
        bars.suspend(|| eprintln!("{told}"));
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
        println!("{}", serde_json::to_string(&Line { summary: &outcome.summary, emulated, folder })?);
        return Ok(());
    }
    println!("{}\n", table(std::slice::from_ref(&outcome.summary)));
    println!("{}\n", workers_table(&outcome.summary.worker_times));
    for (worker, how) in &outcome.emulated {
        println!("{worker}'s straggling was emulated: {how}");
    }
    println!("run folder: {}", folder.display());
    Ok(())
}
