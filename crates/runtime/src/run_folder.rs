//! The run folder: everything that a run leaves behind.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

use paceline_core::{Decision, Event, Time};
use paceline_store::{CheckpointError, Layout, OptimizerSpec, export_model};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::retrying_file::RetryingFile;
use crate::tensorboard::ScalarLog;
use crate::{EventLog, EventLogHeader, Iteration, Monitor, Observer, ReplayError, Summary};

/// TensorBoard looks for files with `tfevents` in their names.
const SCALARS: &str = "events.out.tfevents.paceline";

/// The event log of a run folder.
pub const EVENTS: &str = "events.jsonl";

/// The report of a run folder.
pub const REPORT: &str = "report.html";

const METRICS: &str = "metrics.csv";

/// How much of the event log is written at a time, in bytes.
const PORTION: usize = 64 * 1024;

/// Why a run folder could not be written or read.
#[derive(Debug, Error)]
pub enum RunFolderError {
    /// A file can't be written or read.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// A folder is in use.
    #[error("{} exists and is not empty; choose another folder with --out", path.display())]
    NotEmpty {
        /// The folder.
        path: PathBuf,
    },
    /// A line of the metrics can't be written or read.
    #[error("{}: {error}", path.display())]
    Metrics {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        error: csv::Error,
    },
    /// A checkpoint, or the model, can't be written or read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// There are checkpoints, but none can be read.
    #[error("no checkpoint can be read: {problems}; delete them to start over")]
    NoGoodCheckpoint {
        /// What is wrong with each.
        problems: String,
    },
    /// A checkpoint does not say how many events led to it.
    #[error("the checkpoint's scheme state '{text}': {error}")]
    SchemeState {
        /// What it says.
        text: String,
        /// What is wrong with it.
        error: String,
    },
    /// The event log can't be replayed.
    #[error("{}: {error}", path.display())]
    Events {
        /// The event log.
        path: PathBuf,
        /// What is wrong.
        error: Box<ReplayError>,
    },
    /// The run was trained by another optimizer.
    #[error("the run's optimizer was {saved}, not {given}")]
    OtherOptimizer {
        /// The run's.
        saved: OptimizerSpec,
        /// The job's.
        given: OptimizerSpec,
    },
    /// The run was another one.
    #[error(
        "{}: the run has scheme {}, {} workers and batches of {}; resume with the same",
        path.display(), header.scheme, header.workers, header.batch
    )]
    OtherRun {
        /// The event log.
        path: PathBuf,
        /// What it is of.
        header: Box<EventLogHeader>,
    },
    /// Event log and checkpoint do not fit together.
    #[error("{}: the events lead to version {events}, but the checkpoint is of version {checkpoint}", path.display())]
    OtherVersion {
        /// The run folder.
        path: PathBuf,
        /// The version that the events lead to.
        events: u64,
        /// The version of the checkpoint.
        checkpoint: u64,
    },
}

/// Names the file that a system error is about.
pub(crate) fn at(path: &Path) -> impl Fn(io::Error) -> RunFolderError + '_ {
    move |error| RunFolderError::Io { path: path.into(), error }
}

/// A run folder during the run.
pub struct RunFolder {
    path: PathBuf,
    events: EventLog<RetryingFile>,
    /// The file of the events.
    stream: File,
    /// How many events there are.
    turns: u64,
    metrics: csv::Writer<RetryingFile>,
    scalars: ScalarLog<RetryingFile>,
    failed: Option<RunFolderError>,
}

/// Refuses a folder that is not empty: nothing is ever overwritten.
///
/// # Errors
/// If it is not empty, or can't be read.
pub fn check_free(path: &Path) -> Result<(), RunFolderError> {
    match fs::read_dir(path) {
        Ok(mut entries) => match entries.next() {
            Some(_) => Err(RunFolderError::NotEmpty { path: path.into() }),
            None => Ok(()),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(at(path)(error)),
    }
}

/// The first folder `runs/PREFIX1`, `runs/PREFIX2`, … that does not exist.
pub fn next_free(prefix: &str) -> PathBuf {
    let numbered = (1u64..).map(|number| Path::new("runs").join(format!("{prefix}{number}")));
    numbered.into_iter().find(|path| !path.exists()).unwrap_or_else(|| Path::new("runs").join(prefix))
}

/// A line of a run folder's `metrics.csv`: an iteration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MetricsRow {
    /// Counts from 1.
    pub iteration: u64,
    /// When it ended, in seconds.
    pub time: f64,
    /// How long it took, in seconds.
    pub duration: f64,
    /// How many updates it was made of.
    pub waited_for: u64,
    /// Their mean training loss.
    pub loss: Option<f64>,
    /// The held-out accuracy, where it was measured.
    pub accuracy: Option<f64>,
    /// Why it ended then.
    pub reason: String,
}

/// Reads a run folder's `metrics.csv`. A last line without an end is left out: the run was killed while writing it.
///
/// # Errors
/// If it can't be read.
pub fn read_metrics(folder: &Path) -> Result<Vec<MetricsRow>, RunFolderError> {
    let path = folder.join(METRICS);
    let text = fs::read(&path).map_err(at(&path))?;
    let end = text.iter().rposition(|&byte| byte == b'\n').map_or(0, |last| last + 1);
    let rows = csv::Reader::from_reader(&text[..end]).deserialize().collect::<Result<_, _>>();
    rows.map_err(|error| RunFolderError::Metrics { path, error })
}

impl RunFolder {
    /// Creates the folder and its files. `config` is the text of its `config.toml`.
    ///
    /// # Errors
    /// If a file can't be written or exists.
    pub fn create(path: &Path, config: &str, header: &EventLogHeader) -> Result<Self, RunFolderError> {
        fs::create_dir_all(path).map_err(at(path))?;
        fs::write(path.join("config.toml"), config).map_err(at(path))?;
        let stream = File::create_new(path.join(EVENTS)).map_err(at(path))?;
        let events = stream.try_clone().and_then(|stream| RetryingFile::new(stream, PORTION)).map_err(at(path))?;
        let events = EventLog::new(events, header).map_err(at(path))?;
        let metrics = File::create_new(path.join(METRICS)).and_then(|file| RetryingFile::new(file, 1));
        let metrics = csv::Writer::from_writer(metrics.map_err(at(path))?);
        let scalars = scalars(&path.join(SCALARS)).map_err(at(path))?;
        Ok(RunFolder { path: path.into(), events, stream, turns: 0, metrics, scalars, failed: None })
    }

    /// Continues a folder after this number of `events` and iterations. Later lines are cut off.
    ///
    /// # Errors
    /// If a file can't be read or written.
    pub fn resume(path: &Path, events: u64, iterations: u64) -> Result<Self, RunFolderError> {
        let cut = |name: &str, lines: u64| {
            let path = path.join(name);
            cut_after(&path, lines).map_err(at(&path))
        };
        let retrying = |file: File, portion: usize| RetryingFile::new(file, portion).map_err(at(path));
        let stream = cut(EVENTS, events + 1)?;
        let log = EventLog::resumed(retrying(stream.try_clone().map_err(at(path))?, PORTION)?);
        // Before the first iteration there is not even a line of names.
        let metrics = retrying(cut(METRICS, if iterations == 0 { 0 } else { iterations + 1 })?, 1)?;
        let metrics = csv::WriterBuilder::new().has_headers(iterations == 0).from_writer(metrics);
        // TensorBoard puts the files of a folder together.
        let scalars = scalars(&path.join(format!("{SCALARS}.{iterations}"))).map_err(at(path))?;
        Ok(RunFolder { path: path.into(), events: log, stream, turns: events, metrics, scalars, failed: None })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How many events there are, and the file that holds them all. All metrics so far are written, too.
    pub fn stream(&mut self) -> (u64, io::Result<File>) {
        let flushed = self.metrics.flush().and_then(|()| self.events.flush());
        (self.turns, flushed.and_then(|()| self.stream.try_clone()))
    }

    /// Ends the files and adds the model and the summary.
    ///
    /// # Errors
    /// If anything could not be written.
    pub fn finish(mut self, summary: &Summary, model: Option<(&Layout, &[f32])>) -> Result<(), RunFolderError> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        self.events.finish().map_err(at(&self.path))?;
        self.metrics.flush().map_err(at(&self.path))?;
        self.scalars.finish().map_err(at(&self.path))?;
        if let Some((layout, parameters)) = model {
            export_model(&self.path.join("model.safetensors"), layout, parameters)?;
        }
        let path = self.path.join("summary.json");
        let text = serde_json::to_string_pretty(summary).map_err(|error| at(&path)(error.into()))?;
        fs::write(&path, text + "\n").map_err(at(&path))
    }
}

fn scalars(path: &Path) -> io::Result<ScalarLog<RetryingFile>> {
    ScalarLog::new(RetryingFile::new(File::create(path)?, PORTION)?)
}

/// Cuts a file off after this number of lines, and opens it to append.
fn cut_after(path: &Path, lines: u64) -> io::Result<File> {
    let file = File::options().read(true).write(true).open(path)?;
    let mut reader = BufReader::new(&file);
    let mut length = 0;
    for _ in 0..lines {
        length += reader.skip_until(b'\n')? as u64;
    }
    file.set_len(length)?;
    Ok(file)
}

impl Observer for RunFolder {
    fn on_turn(&mut self, now: Time, event: &Event, decisions: &[Decision]) {
        self.events.on_turn(now, event, decisions);
        self.turns += 1;
    }

    fn on_iteration(&mut self, iteration: &Iteration, monitor: &Monitor) {
        let accuracy = monitor.fresh_evaluation().map(|found| found.accuracy);
        let row = MetricsRow {
            iteration: iteration.iteration,
            time: iteration.time,
            duration: iteration.duration,
            waited_for: iteration.waited_for as u64,
            loss: iteration.loss,
            accuracy,
            reason: iteration.reason.to_string(),
        };
        let mut scalars = vec![("updates per step", row.waited_for as f64), ("seconds per step", row.duration)];
        scalars.extend(row.loss.map(|loss| ("loss", loss)));
        scalars.extend(accuracy.map(|accuracy| ("accuracy", accuracy)));
        if self.failed.is_none() {
            let written = self.scalars.write(row.iteration, row.time, &scalars).map_err(at(&self.path));
            let metrics = |error| RunFolderError::Metrics { path: self.path.join(METRICS), error };
            self.failed = written.and_then(|()| self.metrics.serialize(&row).map_err(metrics)).err();
        }
    }
}
