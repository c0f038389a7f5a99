//! Running a server: progress while it goes on, a summary and a run folder at its end.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use indicatif::MultiProgress;
use paceline_core::{Decision, Event, Span, TaskId, Time};
use paceline_net::{Job, Notice, Outcome, Server, Watcher};
use paceline_run::{Header, Iteration, Monitor, Observer, Recorder};
use serde::Serialize;
use serde_json::json;

use crate::config::Settings;
use crate::failure::Failure;
use crate::output::{Progress, bars, table};
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
        match &self.out {
            Some(out) => check_free(out).map(|()| out.clone()),
            None => next_free(""),
        }
    }
}

/// Everything that follows a run.
struct Following {
    bars: MultiProgress,
    progress: Progress,
    folder: RunFolder,
    recorder: Recorder,
    begun: Arc<AtomicBool>,
}

impl Observer for Following {
    fn on_turn(&mut self, now: Time, event: &Event, decisions: &[Decision]) {
        self.progress.on_turn(now, event, decisions);
        self.folder.on_turn(now, event, decisions);
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
        // Written as it happens, beside the bar; if standard error is gone, nobody reads it.
        self.bars.suspend(|| {
            let _ = writeln!(std::io::stderr(), "{notice}");
        });
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

/// Runs a job on a server that listens, until it is over. `begun` is set when the first iteration is done.
pub fn run(
    server: Server,
    job: &Job,
    output: &ServingOutput,
    settings: &Settings,
    begun: Arc<AtomicBool>,
) -> Result<(), Failure> {
    let path = output.folder().map_err(Failure::Input)?;
    let stopper = server.stopper();
    // A second handler can't be set, but this is the program's only one.
    ctrlc::set_handler(move || stopper.stop("interrupted")).map_err(Failure::run)?;
    let header = Header::new(job.scheme.clone(), &job.setup);
    let bars = bars();
    let mut following = Following {
        progress: Progress::live(&bars, job.scheme.to_string(), &job.goals),
        bars,
        folder: RunFolder::create(&path, settings, &header).map_err(Failure::Run)?,
        recorder: Recorder::default(),
        begun,
    };
    let outcome = server.run(job, &mut following).map_err(Failure::run)?;
    let Following { folder, recorder, progress, .. } = following;
    drop(progress);
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
    println!("{}", table(std::slice::from_ref(&outcome.summary)));
    for (worker, how) in &outcome.emulated {
        println!("{worker}'s straggling was emulated: {how}");
    }
    println!("run folder: {}", folder.display());
    Ok(())
}
