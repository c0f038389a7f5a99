//! Where an interrupted run resumes: its last good checkpoint.

use std::fs::File;
use std::io::Read;
use std::thread;

use paceline_core::{Event, Ledger, RestoreError, SavedLedger, WorkerId};
use paceline_store::{Checkpoint, CheckpointFolder, LatestCheckpoint, Optimizer};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::checkpointer::CHECKPOINTS;
use crate::event_log::{check_state, read_header};
use crate::event_segments::{EVENTS, LogPosition};
use crate::run_folder::{RunFolderError, at};
use crate::{EventLogHeader, FolderLock, Job, Monitor, RateState};

/// What a checkpoint says about the run beside the model and the learning rate.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SavedRun {
    pub(crate) ledger: SavedLedger,
    pub(crate) monitor: Monitor,
    /// Where in the event log the checkpoint was taken.
    pub(crate) position: LogPosition,
}

/// Where a run resumes.
pub struct ResumePoint {
    /// The ledger with its scheme.
    pub ledger: Ledger,
    /// The run's metrics.
    pub monitor: Monitor,
    /// The model and the optimizer in that state.
    pub checkpoint: Checkpoint,
    /// What the learning rate depends on.
    pub rate: RateState,
    /// The state that the ledger was restored from.
    pub saved: SavedLedger,
    /// Where the event log goes on; `None` if the run starts over.
    pub(crate) position: Option<LogPosition>,
    /// Why the scheme starts afresh, if it does.
    pub afresh: Option<RestoreError>,
    /// Newer checkpoints that could not be read, and why.
    pub skipped: Vec<String>,
}

impl ResumePoint {
    /// Reads what a locked run folder holds. Without a checkpoint the run starts over.
    ///
    /// # Errors
    /// If no checkpoint can be read although there are some, or if the folder is of another job.
    pub fn load(lock: &FolderLock, job: &Job) -> Result<Self, RunFolderError> {
        let checkpoints = CheckpointFolder::create(lock.folder().join(CHECKPOINTS), 1)?;
        ResumePoint::new(lock, job, checkpoints.latest(job.model.layout())?)
    }

    /// The same with the last checkpoint from elsewhere. The locked run folder has the event log.
    ///
    /// # Errors
    /// As [`load`](ResumePoint::load).
    pub fn new(lock: &FolderLock, job: &Job, latest: LatestCheckpoint) -> Result<Self, RunFolderError> {
        let path = lock.folder().join(EVENTS);
        let header = File::open(&path).map_err(at(&path)).and_then(|log| {
            read_header(log).map_err(|error| RunFolderError::Events { path: path.clone(), error: error.into() })
        })?;
        if header.of_run() != EventLogHeader::new(job.scheme.clone(), &job.setup) {
            return Err(RunFolderError::OtherRun { path, header: header.into() });
        }
        let LatestCheckpoint { checkpoint, skipped } = latest;
        let skipped: Vec<String> = skipped.iter().map(ToString::to_string).collect();
        if checkpoint.is_none() && !skipped.is_empty() {
            return Err(RunFolderError::NoGoodCheckpoint { problems: skipped.join("; ") });
        }
        let build = || job.scheme.build(&job.setup);
        let Some(checkpoint) = checkpoint else {
            let ledger = Ledger::new(build()?);
            return Ok(ResumePoint {
                saved: ledger.save(),
                ledger,
                monitor: Monitor::new(&job.setup),
                checkpoint: initial(job),
                rate: RateState::default(),
                position: None,
                afresh: None,
                skipped,
            });
        };
        let optimizer = job.server_optimizer();
        if *checkpoint.optimizer.spec() != optimizer {
            let (saved, given) = (checkpoint.optimizer.spec().to_string(), optimizer.to_string());
            return Err(RunFolderError::OtherOptimizer { saved, given });
        }
        let SavedRun { ledger: saved, monitor, position } = parse(&checkpoint.run_state)?;
        let rate = parse(&checkpoint.rate_state)?;
        let (ledger, saved, afresh) = match Ledger::restore(build()?, saved.clone()) {
            Ok(ledger) => {
                let unsaved = (!saved.has_scheme()).then(|| RestoreError::new("it can't be saved"));
                (ledger, saved, unsaved)
            }
            Err(error) => {
                let saved = saved.without_scheme();
                let ledger = Ledger::restore(build()?, saved.clone());
                (ledger.expect("a scheme that starts afresh reads no state"), saved, Some(error))
            }
        };
        let mut monitor = monitor;
        if afresh.is_some() {
            // The scheme is not told that they left.
            let workers: Vec<WorkerId> = monitor.members().collect();
            workers.into_iter().for_each(|worker| _ = monitor.observe(saved.latest(), &Event::Left { worker }, &[]));
        }
        Ok(ResumePoint { ledger, monitor, checkpoint, rate, saved, position: Some(position), afresh, skipped })
    }

    /// Replays the segment of the event log that led to this point, on a thread of its own, and calls `warn` if it does
    /// not lead to the state in the checkpoint. It changes nothing.
    pub fn check(&self, lock: &FolderLock, warn: impl FnOnce(String) + Send + 'static) {
        let (Some(position), None) = (self.position, &self.afresh) else { return };
        let path = lock.folder().join(EVENTS);
        // Segments that were cut since the checkpoint, or are gone, are not checked.
        let Ok(log) = File::open(&path) else { return };
        if !read_header(&log).is_ok_and(|header| header.segment == position.segment) {
            return;
        }
        let Ok(log) = File::open(&path) else { return };
        let saved = self.saved.clone();
        let check = move || {
            if let Err(error) = check_state(log.take(position.bytes), &saved) {
                warn(format!("{}: the events do not lead to the checkpoint's state: {error}", path.display()));
            }
        };
        // Without a thread there is no check.
        let _ = thread::Builder::new().name("check".into()).spawn(check);
    }
}

fn parse<T: DeserializeOwned>(text: &str) -> Result<T, RunFolderError> {
    serde_json::from_str(text).map_err(|error| RunFolderError::SavedState { error: error.to_string() })
}

fn initial(job: &Job) -> Checkpoint {
    Checkpoint {
        version: 0,
        parameters: job.initial(),
        optimizer: Optimizer::new(job.server_optimizer(), job.model.layout()),
        run_state: String::new(),
        rate_state: String::new(),
    }
}
