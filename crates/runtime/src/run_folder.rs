//! The run folder: everything that a run leaves behind.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use paceline_core::{Decision, Event, SchemeError, Time};
use paceline_store::{CheckpointError, Layout, ReservedModel, create_folder, write_file};
use thiserror::Error;

use crate::event_segments::{EVENTS, EventSegments};
use crate::folder_lock::{FolderLock, LOCK};
use crate::folder_writer::{FolderFile, FolderFiles, FolderWriter, PendingCheckpoint, QueuedFile};
use crate::metrics::{METRICS, MetricsLog, cut_metrics};
use crate::retrying_file::RetryingFile;
use crate::{
    EventLog, EventLogHeader, Goal, Iteration, KeepEvents, Monitor, Observer, ReplayError, ResumePoint, Summary,
};

/// TensorBoard looks for files with `tfevents` in their names.
pub(crate) const SCALARS: &str = "events.out.tfevents.paceline";

/// The report of a run folder.
pub const REPORT: &str = "report.html";

/// The summary of a run folder. A run that has not ended has none.
pub(crate) const SUMMARY: &str = "summary.json";

/// The options of a run, in its folder.
pub const CONFIGURATION: &str = "config.toml";
pub(crate) const MODEL: &str = "model.safetensors";

/// The logs of the workers in a run folder.
pub const WORKER_LOGS: &str = "workers";

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
    /// A place has a run.
    #[error("{place} has a run already; choose another place with --checkpoints, or continue that run with --resume")]
    Stored {
        /// The place.
        place: String,
    },
    /// A place has no run.
    #[error("{place} has no run; expected the place that was given to --checkpoints")]
    NotStored {
        /// The place.
        place: String,
    },
    /// Another process writes the folder.
    #[error("{} is in use: {} writes it; wait until that ends", path.display(), named(*process))]
    InUse {
        /// The folder.
        path: PathBuf,
        /// The process, if it is known.
        process: Option<u32>,
    },
    /// The run ended by a goal, and is not continued by accident.
    #[error(
        "the run in {} is over: {ended_by} ended it after {iterations} iterations, and {goal} would end it again at \
         once; to train on, give another goal with --until",
        path.display()
    )]
    Finished {
        /// The folder.
        path: PathBuf,
        /// The goal that ended it.
        ended_by: Goal,
        /// The iterations done.
        iterations: u64,
        /// The new goal that is met already.
        goal: Goal,
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
    /// The folder holds neither a model nor a checkpoint.
    #[error("{} holds no model: expected model.safetensors or a checkpoint", path.display())]
    NoModel {
        /// The folder.
        path: PathBuf,
    },
    /// There are checkpoints, but none can be read.
    #[error("no checkpoint can be read: {problems}; delete them to start over")]
    NoGoodCheckpoint {
        /// What is wrong with each.
        problems: String,
    },
    /// A checkpoint's state of the run or of the learning rate can't be read.
    #[error("the state of the run in the checkpoint can't be read: {error}; was it written by another version?")]
    SavedState {
        /// What is wrong with it.
        error: String,
    },
    /// The scheme can't be built.
    #[error(transparent)]
    Scheme(#[from] SchemeError),
    /// The event log can't be read.
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
        saved: String,
        /// The job's.
        given: String,
    },
    /// The run was another one.
    #[error(
        "{}: the run has scheme {}, {} workers, batches of {}, dispatch {} and rate rule {}; resume with the same",
        path.display(), header.scheme, header.workers, header.batch,
        header.dispatch.map_or("by the scheme".into(), |dispatch| dispatch.to_string()), header.rate_rule
    )]
    OtherRun {
        /// The event log.
        path: PathBuf,
        /// What it is of.
        header: Box<EventLogHeader>,
    },
}

/// Names the file that a system error is about.
pub(crate) fn at(path: &Path) -> impl Fn(io::Error) -> RunFolderError + '_ {
    move |error| RunFolderError::Io { path: path.into(), error }
}

fn named(process: Option<u32>) -> String {
    process.map_or("another process".into(), |number| format!("process {number}"))
}

/// A run folder during the run.
pub struct RunFolder {
    lock: FolderLock,
    /// The space of the final model; `None` without a model.
    model: Option<ReservedModel>,
    events: EventLog<QueuedFile>,
    metrics: MetricsLog,
    failed: Option<RunFolderError>,
    /// Writes all of these.
    writer: FolderWriter,
}

/// Refuses a folder that is not empty: nothing is ever overwritten. A lock does not count, nor do the logs of workers, which
/// are started before a run that gets its model from them.
///
/// # Errors
/// If it is not empty, or can't be read.
pub fn check_free(path: &Path) -> Result<(), RunFolderError> {
    match fs::read_dir(path) {
        Ok(mut entries) => match entries.find(|entry| entry.as_ref().is_ok_and(is_result)) {
            Some(_) => Err(RunFolderError::NotEmpty { path: path.into() }),
            None => Ok(()),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(at(path)(error)),
    }
}

fn is_result(entry: &fs::DirEntry) -> bool {
    entry.file_name() != LOCK && entry.file_name() != WORKER_LOGS
}

/// The first folder `runs/PREFIX1`, `runs/PREFIX2`, … that does not exist.
pub fn next_free(prefix: &str) -> PathBuf {
    let numbered = (1u64..).map(|number| Path::new("runs").join(format!("{prefix}{number}")));
    numbered.into_iter().find(|path| !path.exists()).unwrap_or_else(|| Path::new("runs").join(prefix))
}

/// Renames the folder of an interrupted command to NAME-interrupted, so that its results stay and the same command can
/// be run again. Returns the new name.
///
/// # Errors
/// If it can't be renamed.
pub fn set_aside(folder: &Path) -> Result<PathBuf, RunFolderError> {
    let name = folder.file_name().unwrap_or_default().display().to_string();
    let number = |number: u64| if number == 1 { String::new() } else { format!("-{number}") };
    let aside = (1u64..).map(|count| folder.with_file_name(format!("{name}-interrupted{}", number(count))));
    let aside = aside.into_iter().find(|path| !path.exists()).unwrap_or_else(|| folder.into());
    fs::rename(folder, &aside).map_err(at(folder))?;
    Ok(aside)
}

impl RunFolder {
    /// Creates the folder and its files, and locks it. `config` is the text of its `config.toml`. Space for a model with
    /// this layout is reserved.
    ///
    /// # Errors
    /// If the folder is in use or not empty, if a file can't be written, or if there is no space for the model.
    pub fn create(
        path: &Path,
        config: &str,
        header: &EventLogHeader,
        layout: Option<&Layout>,
    ) -> Result<Self, RunFolderError> {
        create_folder(path).map_err(at(path))?;
        let lock = FolderLock::acquire(path)?;
        check_free(path)?;
        write_configuration(path, config)?;
        let model = layout.map(|layout| ReservedModel::new(&path.join(MODEL), layout)).transpose()?;
        let events = EventSegments::create(path, header).map_err(at(&path.join(EVENTS)))?;
        let file = |name: &str| {
            let path = path.join(name);
            File::create_new(&path).and_then(|file| RetryingFile::new(file, 1)).map_err(at(&path))
        };
        let (metrics, scalars) = (file(METRICS)?, file(SCALARS)?);
        let files = FolderFiles { path: path.into(), events, metrics, scalars };
        RunFolder::start(lock, model, files, 0)
    }

    fn start(
        lock: FolderLock,
        model: Option<ReservedModel>,
        files: FolderFiles,
        iterations: u64,
    ) -> Result<Self, RunFolderError> {
        let writer = FolderWriter::start(files)?;
        let events = EventLog::resumed(writer.file(FolderFile::Events, PORTION));
        let metrics = MetricsLog::new(&writer, iterations).map_err(at(lock.folder()))?;
        Ok(RunFolder { lock, model, events, metrics, failed: None, writer })
    }

    /// Continues a folder where its run resumes. Later lines are cut off, the summary is removed. Returns also the last
    /// version that was lost, if any.
    ///
    /// # Errors
    /// If a file can't be read or written, or if there is no space for the model.
    pub fn resume(
        lock: FolderLock,
        config: &str,
        header: &EventLogHeader,
        point: &ResumePoint,
        layout: &Layout,
    ) -> Result<(Self, Option<u64>), RunFolderError> {
        let path = lock.folder().to_path_buf();
        let iterations = point.checkpoint.version;
        let model = Some(ReservedModel::new(&path.join(MODEL), layout)?);
        let (log, metrics) = (path.join(EVENTS), path.join(METRICS));
        let events = match point.position {
            Some(position) => EventSegments::resume(&path, header, position, &point.saved),
            None => EventSegments::start_over(&path, header),
        };
        let mut events = events.map_err(at(&log))?;
        if point.afresh.is_some() {
            events.cut(&point.saved).map_err(at(&log))?;
        }
        let cut = cut_metrics(&metrics, iterations);
        let cut = cut.and_then(|(file, lost)| Ok((RetryingFile::new(file, 1)?, lost)));
        let (metrics, lost) = cut.map_err(at(&metrics))?;
        // TensorBoard puts the files of a folder together.
        let scalars = path.join(format!("{SCALARS}.{iterations}"));
        let scalars = File::create(&scalars).and_then(|file| RetryingFile::new(file, 1)).map_err(at(&scalars))?;
        write_configuration(&path, config)?;
        match fs::remove_file(path.join(SUMMARY)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(at(&path.join(SUMMARY))(error)),
            _ => {}
        }
        let files = FolderFiles { path, events, metrics, scalars };
        Ok((RunFolder::start(lock, model, files, iterations)?, lost))
    }

    /// Sets how many older segments of the event log are kept, and whether every iteration has a row in the metrics.
    pub fn keep_events(&mut self, keep: KeepEvents) {
        self.metrics.keep(keep);
        self.writer.keep_events(keep);
    }

    /// Writes a checkpoint, after all events and metrics so far.
    pub(crate) fn checkpoint(&mut self, copy: PendingCheckpoint) {
        // It only passes on what it has collected.
        let _ = self.events.flush();
        self.writer.checkpoint(copy);
    }

    /// Removes the folder with all its files: its run was interrupted, and counts for nothing.
    ///
    /// # Errors
    /// If it can't be removed.
    pub fn discard(self) -> Result<(), RunFolderError> {
        let RunFolder { lock, writer, .. } = self;
        // What could not be written is removed anyway.
        let _ = writer.finish();
        fs::remove_dir_all(lock.folder()).map_err(at(lock.folder()))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.lock.folder()
    }

    /// The lock of the folder.
    pub fn lock(&self) -> &FolderLock {
        &self.lock
    }

    /// Writes the model, then the summary, then ends the other files. A file that can't be written does not keep the
    /// later ones from being written. The folder stays locked.
    ///
    /// # Errors
    /// The first one.
    pub fn finish(self, summary: &Summary, parameters: Option<&[f32]>) -> Result<FolderLock, RunFolderError> {
        let RunFolder { lock, model, events, metrics, failed, writer } = self;
        let path = lock.folder();
        let mut outcome = Ok(());
        if let Some((model, parameters)) = model.zip(parameters) {
            outcome = model.write(parameters).map_err(RunFolderError::from);
        }
        let file = path.join(SUMMARY);
        let text = serde_json::to_string_pretty(summary).map_err(|error| at(&file)(error.into()));
        let written = text.and_then(|text| write_file(&file, |file| writeln!(file, "{text}")).map_err(at(&file)));
        outcome = outcome.and(written);
        outcome = outcome.and(failed.map_or(Ok(()), Err));
        outcome = outcome.and(events.finish().map_err(at(&path.join(EVENTS))));
        outcome = outcome.and(metrics.finish().map_err(at(&path.join(METRICS))));
        outcome.and(writer.finish()).map(|()| lock)
    }
}

/// Writes `config.toml`: complete, or unchanged.
fn write_configuration(folder: &Path, text: &str) -> Result<(), RunFolderError> {
    let path = folder.join(CONFIGURATION);
    write_file(&path, |file| file.write_all(text.as_bytes())).map_err(at(&path))
}

impl Observer for RunFolder {
    fn on_turn(&mut self, now: Time, event: &Event, decisions: &[Decision]) {
        self.events.on_turn(now, event, decisions);
    }

    fn on_iteration(&mut self, iteration: &Iteration, monitor: &Monitor) {
        if self.failed.is_none() {
            let failed = |error| RunFolderError::Metrics { path: self.lock.folder().join(METRICS), error };
            self.failed = self.metrics.on_iteration(iteration, monitor).map_err(failed).err();
        }
    }
}
