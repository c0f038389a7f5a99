//! Where an interrupted run resumes: its last good checkpoint, and the events that led to it.

use std::fs::File;

use paceline_store::{Checkpoint, CheckpointFolder, LatestCheckpoint, Optimizer};
use serde::de::DeserializeOwned;

use crate::checkpointer::{CHECKPOINTS, SchemeState};
use crate::run_folder::{EVENTS, RunFolderError, at};
use crate::{EventLogHeader, FolderLock, Job, RateState, ReplayState};

/// Where a run resumes.
pub struct ResumePoint {
    /// The state of the scheme, replayed from the event log.
    pub replayed: ReplayState,
    /// The model and the optimizer in that state.
    pub checkpoint: Checkpoint,
    /// What the learning rate depends on.
    pub rate: RateState,
    /// How many events led to it.
    pub events: u64,
    /// Newer checkpoints that could not be read, and why.
    pub skipped: Vec<String>,
}

impl ResumePoint {
    /// Reads what a locked run folder holds. Without a checkpoint the run starts over.
    ///
    /// # Errors
    /// If no checkpoint can be read although there are some, or if the folder is of another job.
    pub fn load(lock: &FolderLock, job: &Job) -> Result<Self, RunFolderError> {
        let folder = lock.folder();
        let path = folder.join(EVENTS);
        let log = File::open(&path).map_err(at(&path))?;
        let layout = job.workload.layout();
        let LatestCheckpoint { checkpoint, skipped } =
            CheckpointFolder::create(folder.join(CHECKPOINTS), 1)?.latest(layout)?;
        let skipped: Vec<String> = skipped.iter().map(ToString::to_string).collect();
        let (checkpoint, SchemeState { events }, rate) = match checkpoint {
            Some(checkpoint) => {
                let (state, rate) = (parse(&checkpoint.scheme_state)?, parse(&checkpoint.rate_state)?);
                (checkpoint, state, rate)
            }
            None if skipped.is_empty() => (initial(job), SchemeState { events: 0 }, RateState::default()),
            None => return Err(RunFolderError::NoGoodCheckpoint { problems: skipped.join("; ") }),
        };
        if *checkpoint.optimizer.spec() != job.optimizer {
            let (saved, given) = (checkpoint.optimizer.spec().to_string(), job.optimizer.to_string());
            return Err(RunFolderError::OtherOptimizer { saved, given });
        }
        let replayed = ReplayState::read(log, events)
            .map_err(|error| RunFolderError::Events { path: path.clone(), error: error.into() })?;
        if replayed.header != EventLogHeader::new(job.scheme.clone(), &job.setup) {
            return Err(RunFolderError::OtherRun { path, header: replayed.header.into() });
        }
        if replayed.ledger.version().0 != checkpoint.version {
            return Err(RunFolderError::OtherVersion {
                path: folder.into(),
                events: replayed.ledger.version().0,
                checkpoint: checkpoint.version,
            });
        }
        Ok(ResumePoint { replayed, checkpoint, rate, events, skipped })
    }
}

fn parse<T: DeserializeOwned>(text: &str) -> Result<T, RunFolderError> {
    let invalid = |error: serde_json::Error| RunFolderError::SavedState { text: text.into(), error: error.to_string() };
    serde_json::from_str(text).map_err(invalid)
}

fn initial(job: &Job) -> Checkpoint {
    Checkpoint {
        version: 0,
        parameters: job.initial(),
        optimizer: Optimizer::new(job.optimizer.clone(), job.workload.layout()),
        scheme_state: String::new(),
        rate_state: String::new(),
    }
}
