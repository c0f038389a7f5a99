//! When checkpoints are taken, and what became of them.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use paceline_store::{CheckpointFolder, Layout};

use crate::checkpoint_upload::UploadThread;
use crate::folder_writer::{PendingCheckpoint, PendingTarget, PendingValues};
use crate::{Lease, ModelValues, RunFolder, RunFolderError, RunState, StoredRun, Summary};

/// How many checkpoints are kept.
pub(crate) const KEPT: usize = 3;

/// The folder of the checkpoints in a run folder.
pub(crate) const CHECKPOINTS: &str = "checkpoints";

/// Where checkpoints go.
enum CheckpointTarget {
    Folder(CheckpointFolder),
    Stored(UploadThread),
}

/// Takes the checkpoints of one run. The thread of the run folder writes them, or one for object storage.
pub struct Checkpointer {
    target: CheckpointTarget,
    layout: Arc<Layout>,
    interval: Duration,
    last: Instant,
    /// The version of the last checkpoint that was taken.
    taken: u64,
    /// How many checkpoints are being written.
    under_way: usize,
    report: Sender<Result<u64, String>>,
    outcomes: Receiver<Result<u64, String>>,
    failing: bool,
    saved: Option<u64>,
    lease: Option<Lease>,
}

impl Checkpointer {
    /// Takes a checkpoint of the run in the folder `path` at this interval; zero for at the end only.
    ///
    /// # Errors
    /// If the folder can't be written.
    pub fn new(path: &Path, layout: Arc<Layout>, interval: Duration) -> Result<Self, RunFolderError> {
        let folder = CheckpointFolder::create(path.join(CHECKPOINTS), KEPT)?;
        Ok(Checkpointer::to(CheckpointTarget::Folder(folder), layout, interval))
    }

    /// The same in object storage, with the other files of the run.
    ///
    /// # Errors
    /// If the system has no thread.
    pub fn stored(run: StoredRun, layout: Arc<Layout>, interval: Duration) -> Result<Self, RunFolderError> {
        Ok(Checkpointer::to(CheckpointTarget::Stored(UploadThread::start(run)?), layout, interval))
    }

    fn to(target: CheckpointTarget, layout: Arc<Layout>, interval: Duration) -> Self {
        let (report, outcomes) = channel();
        Checkpointer {
            target,
            layout,
            interval,
            last: Instant::now(),
            taken: 0,
            under_way: 0,
            report,
            outcomes,
            failing: false,
            saved: None,
            lease: None,
        }
    }

    /// Whether shards can write their parts themselves.
    pub fn takes_parts(&self) -> bool {
        matches!(self.target, CheckpointTarget::Stored(_))
    }

    /// Writes checkpoints only while this lease is held, if there is one.
    pub fn hold(&mut self, lease: Option<Lease>) {
        self.lease = lease;
    }

    /// Tells that the run resumes from `version`, which a checkpoint holds unless it is 0.
    pub fn resumed(&mut self, version: u64) {
        self.taken = version;
        self.saved = (version > 0).then_some(version);
    }

    /// The version of the last checkpoint on disk, if there is one.
    pub fn saved(&self) -> Option<u64> {
        self.saved
    }

    /// Whether a checkpoint is due. None is as long as one is being written.
    pub fn is_due(&self) -> bool {
        !self.interval.is_zero() && self.under_way == 0 && self.last.elapsed() >= self.interval
    }

    /// Takes a checkpoint of this state. It is written after all that the folder was given so far.
    pub fn save(&mut self, state: &RunState<'_>, folder: &mut RunFolder) {
        if state.version == self.taken {
            return;
        }
        folder.checkpoint(PendingCheckpoint {
            target: match &self.target {
                CheckpointTarget::Folder(folder) => PendingTarget::Folder(folder.clone()),
                CheckpointTarget::Stored(uploads) => PendingTarget::Stored(uploads.queue()),
            },
            layout: self.layout.clone(),
            version: state.version,
            values: match state.values {
                ModelValues::Here { parameters, optimizer } => {
                    PendingValues::Here { parameters: parameters.to_vec(), optimizer: optimizer.clone() }
                }
                ModelValues::InShards(shards) => PendingValues::InShards(shards.clone()),
            },
            rate: state.rate,
            ledger: state.ledger.save(),
            monitor: state.monitor.clone(),
            lease: self.lease.clone(),
            outcome: self.report.clone(),
        });
        self.last = Instant::now();
        self.taken = state.version;
        self.under_way += 1;
    }

    /// A warning about the last checkpoint, if writing it failed, or works again.
    pub fn poll(&mut self) -> Option<String> {
        let outcome = self.outcomes.try_recv().ok()?;
        self.on_written(outcome)
    }

    fn on_written(&mut self, outcome: Result<u64, String>) -> Option<String> {
        self.under_way -= 1;
        match outcome {
            Ok(version) => {
                self.saved = Some(version);
                let recovered = std::mem::take(&mut self.failing);
                recovered.then(|| format!("checkpoints are written again; the last is of version {version}"))
            }
            Err(error) => {
                self.last = Instant::now();
                self.taken = self.saved.unwrap_or(0);
                // Only the first failure in a row is reported.
                let known = std::mem::replace(&mut self.failing, true);
                (!known).then(|| {
                    format!("checkpoint failed: {error}; training continues, the last good checkpoint is kept")
                })
            }
        }
    }

    /// Waits until all checkpoints are written. Returns a warning if one failed.
    pub fn finish(&mut self) -> Option<String> {
        let mut warning = None;
        while self.under_way > 0
            && let Ok(outcome) = self.outcomes.recv()
        {
            warning = self.on_written(outcome).or(warning);
        }
        warning
    }

    /// Tells others who have the checkpoints only that the run has ended.
    ///
    /// # Errors
    /// If that can't be written.
    pub fn end(&self, summary: &Summary) -> Result<(), RunFolderError> {
        match &self.target {
            CheckpointTarget::Folder(_) => Ok(()),
            CheckpointTarget::Stored(uploads) => StoredRun::end(uploads.objects(), summary),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{EventLogHeader, Monitor, RateState};
    use paceline_core::{Ledger, Setup};
    use paceline_store::Optimizer;
    use paceline_workload::{Order, Partition, Sampler, SoftmaxRegression, Workload, synthetic_digits};

    #[test]
    fn the_last_state_is_written_however_quickly_they_follow() {
        let folder = tempfile::tempdir().unwrap();
        let splits = synthetic_digits(1, 100, 10).unwrap();
        let sampler = Sampler::new(splits.train().labels(), Partition::Iid, Order::Epochs, 1, 1).unwrap();
        let workload = SoftmaxRegression::new(splits, sampler, 0.0);
        let (parameters, layout) = (workload.initial(1), Arc::new(workload.layout().clone()));
        let optimizer = Optimizer::new("sgd".parse().unwrap(), workload.layout());
        let setup = Setup::new(2, 4);
        let header = EventLogHeader::new("bsp".parse().unwrap(), &setup);
        let mut run_folder = RunFolder::create(folder.path(), "", &header, None).unwrap();
        let mut checkpointer = Checkpointer::new(folder.path(), layout.clone(), Duration::ZERO).unwrap();
        let ledger = Ledger::new(header.scheme.build(&setup).unwrap());
        for version in 1..=20 {
            let state = RunState {
                version,
                values: ModelValues::Here { parameters: &parameters, optimizer: &optimizer },
                rate: RateState::default(),
                ledger: &ledger,
                monitor: &Monitor::default(),
            };
            checkpointer.save(&state, &mut run_folder);
        }
        assert_eq!(checkpointer.finish(), None);
        let latest = CheckpointFolder::create(folder.path().join(CHECKPOINTS), 1).unwrap().latest(&layout).unwrap();
        assert_eq!(latest.checkpoint.map(|checkpoint| checkpoint.version), Some(20));
    }
}
