//! Writes checkpoints in the background, and a log of the commits that no checkpoint holds yet.

use std::collections::VecDeque;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, channel, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use paceline_core::{Action, Decision};
use paceline_store::{CheckpointFolder, CheckpointView, Optimizer};
use paceline_workload::Workload;
use serde::{Deserialize, Serialize};

use crate::ModelState;
use crate::run_folder::{RunFolderError, at};

/// How many checkpoints are kept.
const KEPT: usize = 3;

/// The folder of the checkpoints in a run folder.
pub(crate) const CHECKPOINTS: &str = "checkpoints";

/// The log of commits in a run folder.
const LOG: &str = "commits.jsonl";

/// What a checkpoint says about the scheme: its state follows from the first events of the event log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SchemeState {
    /// How many events.
    pub events: u64,
}

/// A line of the log. Commits are written before they are carried out, and removed once a checkpoint holds them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CommitLogEntry {
    /// This version consists of the updates of these tasks (worker, number).
    Commit(u64, Vec<(u32, u64)>),
    /// A checkpoint holds this version.
    Checkpoint(u64),
    /// The run resumed from this version. Later commits were lost and are repeated.
    Resumed {
        /// The version.
        from: u64,
        /// The last version that was lost, if any.
        lost: Option<u64>,
    },
}

impl fmt::Display for CommitLogEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CommitLogEntry::Commit(version, updates) => write!(f, "version {version} has {} updates", updates.len()),
            CommitLogEntry::Checkpoint(version) => write!(f, "a checkpoint holds version {version}"),
            CommitLogEntry::Resumed { from, lost: None } => write!(f, "resumed from version {from}; nothing was lost"),
            CommitLogEntry::Resumed { from, lost: Some(lost) } => {
                write!(f, "resumed from version {from}; versions {} to {lost} were lost and are repeated", from + 1)
            }
        }
    }
}

/// A copy of the model's state, to be written to disk.
struct PendingCheckpoint {
    version: u64,
    parameters: Vec<f32>,
    optimizer: Optimizer,
    state: SchemeState,
    /// The event log, which must be on disk before the checkpoint that relies on it.
    events: File,
}

/// A warning for the user.
type Warning = Option<String>;

/// Writes the checkpoints of one run.
pub struct Checkpointer {
    path: PathBuf,
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
    log: Option<File>,
    resumptions: Vec<CommitLogEntry>,
    /// Commits that no checkpoint holds.
    commits: VecDeque<(u64, String)>,
}

impl Checkpointer {
    /// Writes a checkpoint of the run in the folder `path` at this interval; zero for at the end only.
    ///
    /// # Errors
    /// If the folder can't be written.
    pub fn new(path: &Path, workload: Arc<dyn Workload>, interval: Duration) -> Result<Self, RunFolderError> {
        let folder = CheckpointFolder::create(path.join(CHECKPOINTS), KEPT)?;
        let log = path.join(LOG);
        let resumptions =
            read(&log)?.into_iter().filter(|entry| matches!(entry, CommitLogEntry::Resumed { .. })).collect();
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
        let log = File::options().create(true).append(true).open(&log).map_err(at(&log))?;
        Ok(Checkpointer {
            path: path.into(),
            interval,
            last: Instant::now(),
            started: 0,
            to_save: Some(to_save),
            waiting: None,
            outcomes,
            writer: Some(writer),
            failing: false,
            saved: None,
            log: Some(log),
            resumptions,
            commits: VecDeque::new(),
        })
    }

    /// Records that the run resumes from `version`.
    ///
    /// # Errors
    /// If the log can't be read or written.
    pub fn resumed(&mut self, version: u64) -> Result<CommitLogEntry, RunFolderError> {
        let lost = last_committed(&read(&self.path.join(LOG))?).filter(|&lost| lost > version);
        let entry = CommitLogEntry::Resumed { from: version, lost };
        self.started = version;
        self.saved = (version > 0).then_some(version);
        self.resumptions.push(entry.clone());
        self.trim_log(version)?;
        Ok(entry)
    }

    /// Logs the commits that are about to be carried out.
    pub fn on_decisions(&mut self, decisions: &[Decision]) -> Option<String> {
        let mut warning = None;
        for decision in decisions {
            if let Action::Commit { version, updates, .. } = &decision.action {
                let tasks = updates.iter().map(|share| (share.task.worker.0, share.task.number)).collect();
                let line = line(&CommitLogEntry::Commit(version.0, tasks));
                let written = self.log.as_mut().map_or(Ok(()), |log| log.write_all(line.as_bytes()));
                self.commits.push_back((version.0, line));
                if let Err(error) = written {
                    // The next checkpoint rewrites the log.
                    self.log = None;
                    let path = self.path.join(LOG);
                    warning = Some(format!("{}: {error}; training continues without this log", path.display()));
                }
            }
        }
        warning
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
                if let Err(error) = self.trim_log(version) {
                    return Some(format!("{error}; training continues"));
                }
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

    /// Removes the commits up to `version` from the log: a checkpoint holds them.
    fn trim_log(&mut self, version: u64) -> Result<(), RunFolderError> {
        while self.commits.front().is_some_and(|&(commit, _)| commit <= version) {
            self.commits.pop_front();
        }
        let path = self.path.join(LOG);
        let new = path.with_extension("jsonl.new");
        let mut text: String = self.resumptions.iter().map(line).collect();
        text += &line(&CommitLogEntry::Checkpoint(version));
        text.extend(self.commits.iter().map(|(_, line)| line.as_str()));
        fs::write(&new, text).and_then(|()| fs::rename(&new, &path)).map_err(at(&path))?;
        self.log = Some(File::options().append(true).open(&path).map_err(at(&path))?);
        Ok(())
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
    let PendingCheckpoint { version, parameters, optimizer, state, events } = copy;
    events.sync_data().map_err(|error| format!("the event log can't be synced to disk: {error}"))?;
    let state = serde_json::to_string(state).map_err(|error| error.to_string())?;
    let view = CheckpointView {
        version: *version,
        layout: workload.layout(),
        parameters,
        optimizer,
        scheme_state: &state,
        extra: "",
    };
    folder.save(&view).map(|_| *version).map_err(|error| error.to_string())
}

fn line(entry: &CommitLogEntry) -> String {
    serde_json::to_string(entry).unwrap_or_default() + "\n"
}

/// The complete lines of a log. A last line without an end is about a commit that never happened.
fn read(path: &Path) -> Result<Vec<CommitLogEntry>, RunFolderError> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(at(path)(error)),
    };
    Ok(text.lines().map_while(|line| serde_json::from_str(line).ok()).collect())
}

fn last_committed(entries: &[CommitLogEntry]) -> Option<u64> {
    let version = |entry: &CommitLogEntry| match entry {
        CommitLogEntry::Commit(version, _) | CommitLogEntry::Checkpoint(version) => Some(*version),
        CommitLogEntry::Resumed { .. } => None,
    };
    entries.iter().rev().find_map(version)
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
        let parameters = workload.initial(1);
        let optimizer = Optimizer::new("sgd".parse().unwrap(), workload.layout().trainable());
        let mut checkpointer = Checkpointer::new(folder.path(), workload, Duration::ZERO).unwrap();
        let stream = folder.path().join("events.jsonl");
        for version in 1..=20 {
            let state = ModelState { version, parameters: &parameters, optimizer: &optimizer };
            assert_eq!(checkpointer.save(&state, version, File::create(&stream)), None);
        }
        assert_eq!(checkpointer.finish(), None);
        assert_eq!(read(&folder.path().join(LOG)).unwrap(), [CommitLogEntry::Checkpoint(20)]);
    }

    #[test]
    fn a_log_with_an_incomplete_last_line_is_read_up_to_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(LOG);
        assert_eq!(read(&path).unwrap(), []);
        let entries = [
            CommitLogEntry::Checkpoint(7),
            CommitLogEntry::Commit(8, vec![(0, 3), (1, 4)]),
            CommitLogEntry::Commit(9, vec![(0, 4)]),
        ];
        let text: String = entries.iter().map(line).collect();
        fs::write(&path, &text[..text.len() - 4]).unwrap();
        assert_eq!(read(&path).unwrap(), entries[..2]);
        assert_eq!(last_committed(&entries), Some(9));
        assert_eq!(last_committed(&entries[..1]), Some(7));
    }
}
