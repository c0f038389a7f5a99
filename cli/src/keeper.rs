//! Keeping a run safe: snapshots now and then, written beside it, and a small log of what they do not hold yet.

use std::collections::VecDeque;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, channel, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::Context;
use paceline_core::{Action, Decision};
use paceline_net::Moment;
use paceline_store::{Optimizer, SnapshotFolder, SnapshotView};
use paceline_workload::Workload;
use serde::{Deserialize, Serialize};

/// How many snapshots are kept.
const KEPT: usize = 3;

/// The folder of the snapshots, and the log, in a run folder.
pub const SNAPSHOTS: &str = "snapshots";
const LOG: &str = "run.jsonl";

/// What a snapshot says of the scheme: the run's first events lead to its state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SchemeState {
    /// How many of them.
    pub events: u64,
}

/// A line of the log. Commits are written before they are carried out; those that a snapshot holds are struck out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Entry {
    /// This version is about to be made of these tasks' updates (worker, number).
    Commit(u64, Vec<(u32, u64)>),
    /// A snapshot holds this version.
    Snapshot(u64),
    /// The run went on from this version; what had been committed after it was lost, and is done again.
    Resumed {
        /// The version.
        from: u64,
        /// The last version that was lost, if any was.
        lost: Option<u64>,
    },
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Entry::Commit(version, updates) => write!(f, "version {version} is made of {} updates", updates.len()),
            Entry::Snapshot(version) => write!(f, "a snapshot holds version {version}"),
            Entry::Resumed { from, lost: None } => write!(f, "resumed at version {from}; nothing was lost"),
            Entry::Resumed { from, lost: Some(lost) } => {
                write!(f, "resumed at version {from}; versions {} to {lost} were lost and are made again", from + 1)
            }
        }
    }
}

/// What a snapshot is made of, on its way to the disk.
struct Copy {
    version: u64,
    parameters: Vec<f32>,
    optimizer: Optimizer,
    state: SchemeState,
    /// The event stream, which must be on the disk before the snapshot that counts on it.
    events: File,
}

/// Something that a person should know.
pub type Told = Option<String>;

/// Keeps one run safe.
pub struct Keeper {
    path: PathBuf,
    every: Duration,
    last: Instant,
    /// The version of the last snapshot that was begun.
    begun: u64,
    to_save: Option<SyncSender<Copy>>,
    /// A copy that was due while another was being written. A later one takes its place; the last is not lost.
    waiting: Option<Copy>,
    outcomes: Receiver<Result<u64, String>>,
    writer: Option<JoinHandle<()>>,
    failing: bool,
    saved: Option<u64>,
    log: Option<File>,
    resumptions: Vec<Entry>,
    /// Commits that no snapshot holds.
    commits: VecDeque<(u64, String)>,
}

impl Keeper {
    /// Keeps the run in the folder `path` safe by a snapshot `every` so often.
    pub fn new(path: &Path, workload: Arc<dyn Workload>, every: Duration) -> anyhow::Result<Self> {
        let folder = SnapshotFolder::create(path.join(SNAPSHOTS), KEPT)?;
        let log = path.join(LOG);
        let resumptions = read(&log)?.into_iter().filter(|entry| matches!(entry, Entry::Resumed { .. })).collect();
        let (to_save, copies) = sync_channel::<Copy>(0);
        let (tell, outcomes) = channel();
        let write = move || {
            for copy in copies {
                if tell.send(save(&folder, workload.as_ref(), &copy)).is_err() {
                    break;
                }
            }
        };
        let writer = thread::Builder::new().name("snapshots".into()).spawn(write)?;
        let log = File::options().create(true).append(true).open(&log).with_context(|| log.display().to_string())?;
        Ok(Keeper {
            path: path.into(),
            every,
            last: Instant::now(),
            begun: 0,
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

    /// Notes that the run goes on from `version`.
    pub fn resumed(&mut self, version: u64) -> anyhow::Result<Entry> {
        let lost = last_committed(&read(&self.path.join(LOG))?).filter(|&lost| lost > version);
        let entry = Entry::Resumed { from: version, lost };
        self.begun = version;
        self.saved = (version > 0).then_some(version);
        self.resumptions.push(entry.clone());
        self.strike_out(version)?;
        Ok(entry)
    }

    /// Writes down the commits that are about to be carried out.
    pub fn on_decisions(&mut self, decisions: &[Decision]) -> Told {
        let mut told = None;
        for decision in decisions {
            if let Action::Commit { version, updates, .. } = &decision.action {
                let tasks = updates.iter().map(|share| (share.task.worker.0, share.task.number)).collect();
                let line = line(&Entry::Commit(version.0, tasks));
                let written = self.log.as_mut().map_or(Ok(()), |log| log.write_all(line.as_bytes()));
                self.commits.push_back((version.0, line));
                if let Err(error) = written {
                    // Whole again with the next snapshot, which writes it anew.
                    self.log = None;
                    told =
                        Some(format!("{}: {error}; the run goes on without this log", self.path.join(LOG).display()));
                }
            }
        }
        told
    }

    /// The version of the last snapshot on the disk, if there is one.
    pub fn saved(&self) -> Option<u64> {
        self.saved
    }

    /// Whether a snapshot is due.
    pub fn is_due(&self) -> bool {
        !self.every.is_zero() && self.last.elapsed() >= self.every
    }

    /// Begins a snapshot of this moment; `events` events led to it. If another is being written, it comes with the next, or
    /// in the end.
    pub fn begin(&mut self, moment: &Moment<'_>, events: u64, stream: io::Result<File>) -> Told {
        if moment.version == self.begun || self.waiting.as_ref().is_some_and(|copy| copy.version == moment.version) {
            return None;
        }
        let events_file = match stream {
            Ok(file) => file,
            Err(error) => return self.failed(format!("the event stream can't be written: {error}")),
        };
        let copy = Copy {
            version: moment.version,
            parameters: moment.parameters.to_vec(),
            optimizer: moment.optimizer.clone(),
            state: SchemeState { events },
            events: events_file,
        };
        self.last = Instant::now();
        self.waiting = match self.to_save.as_ref()?.try_send(copy) {
            Ok(()) => {
                self.begun = moment.version;
                None
            }
            Err(TrySendError::Full(copy) | TrySendError::Disconnected(copy)) => Some(copy),
        };
        None
    }

    /// What came of the snapshot that was being written, once that is known.
    pub fn outcome(&mut self) -> Told {
        let outcome = self.outcomes.try_recv().ok()?;
        self.hear(outcome)
    }

    fn hear(&mut self, outcome: Result<u64, String>) -> Told {
        match outcome {
            Ok(version) => {
                self.saved = Some(version);
                let recovered = std::mem::take(&mut self.failing);
                if let Err(error) = self.strike_out(version) {
                    return Some(format!("{error:#}; the run goes on"));
                }
                recovered.then(|| format!("snapshots are written again, the last of version {version}"))
            }
            Err(error) => self.failed(error),
        }
    }

    fn failed(&mut self, error: String) -> Told {
        self.last = Instant::now();
        // Said once, not every time.
        let known = std::mem::replace(&mut self.failing, true);
        (!known).then(|| format!("no snapshot could be written: {error}; the run goes on, the last good one is kept"))
    }

    /// Strikes out the commits up to `version`, which a snapshot holds.
    fn strike_out(&mut self, version: u64) -> anyhow::Result<()> {
        while self.commits.front().is_some_and(|&(commit, _)| commit <= version) {
            self.commits.pop_front();
        }
        let path = self.path.join(LOG);
        let new = path.with_extension("jsonl.new");
        let mut text: String = self.resumptions.iter().map(line).collect();
        text += &line(&Entry::Snapshot(version));
        text.extend(self.commits.iter().map(|(_, line)| line.as_str()));
        let told = || path.display().to_string();
        fs::write(&new, text).and_then(|()| fs::rename(&new, &path)).with_context(told)?;
        self.log = Some(File::options().append(true).open(&path).with_context(told)?);
        Ok(())
    }

    /// Waits for the last snapshot to be written.
    pub fn finish(mut self) -> Told {
        if let (Some(sender), Some(last)) = (self.to_save.take(), self.waiting.take()) {
            // It fails only where the writer is gone, which has said why.
            let _ = sender.send(last);
        }
        let mut told = None;
        while let Ok(outcome) = self.outcomes.recv() {
            told = self.hear(outcome).or(told);
        }
        if let Some(writer) = self.writer.take() {
            // It has nothing left to say.
            let _ = writer.join();
        }
        told
    }
}

fn save(folder: &SnapshotFolder, workload: &dyn Workload, copy: &Copy) -> Result<u64, String> {
    let Copy { version, parameters, optimizer, state, events } = copy;
    events.sync_data().map_err(|error| format!("the event stream can't be put on the disk: {error}"))?;
    let state = serde_json::to_string(state).map_err(|error| error.to_string())?;
    let view = SnapshotView {
        version: *version,
        layout: workload.layout(),
        parameters,
        optimizer,
        scheme_state: &state,
        extra: "",
    };
    folder.save(&view).map(|_| *version).map_err(|error| error.to_string())
}

fn line(entry: &Entry) -> String {
    serde_json::to_string(entry).unwrap_or_default() + "\n"
}

/// The whole lines of a log; a last one that was cut short was about something that never happened.
fn read(path: &Path) -> anyhow::Result<Vec<Entry>> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).with_context(|| path.display().to_string()),
    };
    Ok(text.lines().map_while(|line| serde_json::from_str(line).ok()).collect())
}

fn last_committed(entries: &[Entry]) -> Option<u64> {
    let version = |entry: &Entry| match entry {
        Entry::Commit(version, _) | Entry::Snapshot(version) => Some(*version),
        Entry::Resumed { .. } => None,
    };
    entries.iter().rev().find_map(version)
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_workload::{Order, Partition, Sampler, SoftmaxRegression, synthetic_digits};

    #[test]
    fn the_last_moment_is_kept_however_quickly_they_come() {
        let folder = tempfile::tempdir().unwrap();
        let splits = synthetic_digits(1, 100, 10).unwrap();
        let sampler = Sampler::new(splits.train().labels(), Partition::Iid, Order::Epochs, 1, 1).unwrap();
        let workload: Arc<dyn Workload> = Arc::new(SoftmaxRegression::new(splits, sampler, 0.0));
        let parameters = workload.initial(1);
        let optimizer = Optimizer::new("sgd".parse().unwrap(), workload.layout().trainable());
        let mut keeper = Keeper::new(folder.path(), workload, Duration::ZERO).unwrap();
        let stream = folder.path().join("events.jsonl");
        for version in 1..=20 {
            let moment = Moment { version, parameters: &parameters, optimizer: &optimizer };
            assert_eq!(keeper.begin(&moment, version, File::create(&stream)), None);
        }
        assert_eq!(keeper.finish(), None);
        assert_eq!(read(&folder.path().join(LOG)).unwrap(), [Entry::Snapshot(20)]);
    }

    #[test]
    fn a_log_that_was_cut_short_is_read_up_to_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(LOG);
        assert_eq!(read(&path).unwrap(), []);
        let entries = [Entry::Snapshot(7), Entry::Commit(8, vec![(0, 3), (1, 4)]), Entry::Commit(9, vec![(0, 4)])];
        let text: String = entries.iter().map(line).collect();
        fs::write(&path, &text[..text.len() - 4]).unwrap();
        assert_eq!(read(&path).unwrap(), entries[..2]);
        assert_eq!(last_committed(&entries), Some(9));
        assert_eq!(last_committed(&entries[..1]), Some(7));
    }
}
