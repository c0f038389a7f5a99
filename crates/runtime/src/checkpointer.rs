//! Writes checkpoints in the background.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, channel, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use paceline_store::{CheckpointFolder, CheckpointView, Optimizer};
use paceline_workload::Workload;
use serde::{Deserialize, Serialize};

use crate::run_folder::{RunFolderError, at};
use crate::{ModelState, RateState};

/// How many checkpoints are kept.
const KEPT: usize = 3;

/// The folder of the checkpoints in a run folder.
pub(crate) const CHECKPOINTS: &str = "checkpoints";

/// What a checkpoint says about the scheme: its state follows from the first events of the event log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SchemeState {
    /// How many events.
    pub events: u64,
}

/// A copy of the model's state, to be written to disk.
struct PendingCheckpoint {
    version: u64,
    parameters: Vec<f32>,
    optimizer: Optimizer,
    rate: RateState,
    state: SchemeState,
    /// The event log, which must be on disk before the checkpoint that relies on it.
    events: File,
}

/// A warning for the user.
type Warning = Option<String>;

/// Writes the checkpoints of one run.
pub struct Checkpointer {
    interval: Duration,
    last: Instant,
    /// The version of the last checkpoint that was started.
    started: u64,
    to_save: Option<SyncSender<PendingCheckpoint>>,
    /// A checkpoint that was due while another was being written. A later one replaces it; the last one is written.
    waiting: Option<PendingCheckpoint>,
    outcomes: Receiver<Result<u64, String>>,
    writer: Option<JoinHandle<()>>,
    failing: bool,
    saved: Option<u64>,
}

impl Checkpointer {
    /// Writes a checkpoint of the run in the folder `path` at this interval; zero for at the end only.
    ///
    /// # Errors
    /// If the folder can't be written.
    pub fn new(path: &Path, workload: Arc<dyn Workload>, interval: Duration) -> Result<Self, RunFolderError> {
        let folder = CheckpointFolder::create(path.join(CHECKPOINTS), KEPT)?;
        let (to_save, copies) = sync_channel::<PendingCheckpoint>(0);
        let (report, outcomes) = channel();
        let write_all = move || {
            for copy in copies {
                if report.send(write(&folder, workload.as_ref(), &copy)).is_err() {
                    break;
                }
            }
        };
        let writer = thread::Builder::new().name("checkpoints".into()).spawn(write_all).map_err(at(path))?;
        Ok(Checkpointer {
            interval,
            last: Instant::now(),
            started: 0,
            to_save: Some(to_save),
            waiting: None,
            outcomes,
            writer: Some(writer),
            failing: false,
            saved: None,
        })
    }

    /// Tells that the run resumes from `version`, which a checkpoint holds unless it is 0.
    pub fn resumed(&mut self, version: u64) {
        self.started = version;
        self.saved = (version > 0).then_some(version);
    }

    /// The version of the last checkpoint on disk, if there is one.
    pub fn saved(&self) -> Option<u64> {
        self.saved
    }

    /// Whether a checkpoint is due.
    pub fn is_due(&self) -> bool {
        !self.interval.is_zero() && self.last.elapsed() >= self.interval
    }

    /// Starts a checkpoint of this state, to which `events` events led. If another one is being written, this one is
    /// written later. Returns a warning if something went wrong.
    pub fn save(&mut self, state: &ModelState<'_>, events: u64, log: io::Result<File>) -> Option<String> {
        if state.version == self.started || self.waiting.as_ref().is_some_and(|copy| copy.version == state.version) {
            return None;
        }
        let events_file = match log {
            Ok(file) => file,
            Err(error) => return self.failed(format!("the event log can't be written: {error}")),
        };
        let copy = PendingCheckpoint {
            version: state.version,
            parameters: state.parameters.to_vec(),
            optimizer: state.optimizer.clone(),
            rate: state.rate,
            state: SchemeState { events },
            events: events_file,
        };
        self.last = Instant::now();
        self.waiting = match self.to_save.as_ref()?.try_send(copy) {
            Ok(()) => {
                self.started = state.version;
                None
            }
            Err(TrySendError::Full(copy) | TrySendError::Disconnected(copy)) => Some(copy),
        };
        None
    }

    /// A warning about the last checkpoint, if writing it failed, or works again.
    pub fn poll(&mut self) -> Option<String> {
        let outcome = self.outcomes.try_recv().ok()?;
        self.on_written(outcome)
    }

    fn on_written(&mut self, outcome: Result<u64, String>) -> Warning {
        match outcome {
            Ok(version) => {
                self.saved = Some(version);
                let recovered = std::mem::take(&mut self.failing);
                recovered.then(|| format!("checkpoints are written again; the last is of version {version}"))
            }
            Err(error) => self.failed(error),
        }
    }

    fn failed(&mut self, error: String) -> Warning {
        self.last = Instant::now();
        // Only the first failure in a row is reported.
        let known = std::mem::replace(&mut self.failing, true);
        (!known).then(|| format!("checkpoint failed: {error}; training continues, the last good checkpoint is kept"))
    }

    /// Waits for the last checkpoint to be written. Returns a warning if that failed.
    pub fn finish(mut self) -> Option<String> {
        if let (Some(sender), Some(last)) = (self.to_save.take(), self.waiting.take()) {
            // This fails only if the writer has ended, which has reported why.
            let _ = sender.send(last);
        }
        let mut warning = None;
        while let Ok(outcome) = self.outcomes.recv() {
            warning = self.on_written(outcome).or(warning);
        }
        if let Some(writer) = self.writer.take() {
            // All of its outcomes have been received.
            let _ = writer.join();
        }
        warning
    }
}

fn write(folder: &CheckpointFolder, workload: &dyn Workload, copy: &PendingCheckpoint) -> Result<u64, String> {
    let PendingCheckpoint { version, parameters, optimizer, rate, state, events } = copy;
    events.sync_data().map_err(|error| format!("the event log can't be synced to disk: {error}"))?;
    let state = serde_json::to_string(state).map_err(|error| error.to_string())?;
    let rate = serde_json::to_string(rate).map_err(|error| error.to_string())?;
    let view = CheckpointView {
        version: *version,
        layout: workload.layout(),
        parameters,
        optimizer,
        scheme_state: &state,
        rate_state: &rate,
    };
    folder.save(&view).map(|_| *version).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_workload::{Order, Partition, Sampler, SoftmaxRegression, synthetic_digits};

    #[test]
    fn the_last_state_is_written_however_quickly_they_follow() {
        let folder = tempfile::tempdir().unwrap();
        let splits = synthetic_digits(1, 100, 10).unwrap();
        let sampler = Sampler::new(splits.train().labels(), Partition::Iid, Order::Epochs, 1, 1).unwrap();
        let workload: Arc<dyn Workload> = Arc::new(SoftmaxRegression::new(splits, sampler, 0.0));
        let (parameters, layout) = (workload.initial(1), workload.layout().clone());
        let optimizer = Optimizer::new("sgd".parse().unwrap(), workload.layout());
        let mut checkpointer = Checkpointer::new(folder.path(), workload, Duration::ZERO).unwrap();
        let stream = folder.path().join("events.jsonl");
        for version in 1..=20 {
            let state =
                ModelState { version, parameters: &parameters, optimizer: &optimizer, rate: RateState::default() };
            assert_eq!(checkpointer.save(&state, version, File::create(&stream)), None);
        }
        assert_eq!(checkpointer.finish(), None);
        let latest = CheckpointFolder::create(folder.path().join(CHECKPOINTS), 1).unwrap().latest(&layout).unwrap();
        assert_eq!(latest.checkpoint.map(|checkpoint| checkpoint.version), Some(20));
    }
}
