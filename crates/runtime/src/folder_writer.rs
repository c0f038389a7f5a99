//! The thread that writes the files of a run folder, so that no run waits for the disk.
//!
//! What is to be written waits in memory, up to [`LIMIT`] bytes. If the disk is slower than the run for so long that the
//! queue is full, the run waits: nothing is lost, and the memory is bounded. A disk that is full is not slow: each file
//! keeps what it can't write, up to a limit of its own ([`RetryingFile`]).

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread::{self, JoinHandle};

use paceline_core::SavedLedger;
use paceline_store::{CheckpointFolder, CheckpointView, Layout, Optimizer};

use crate::byte_queue::ByteQueue;
use crate::checkpoint_upload::CheckpointUpload;
use crate::event_segments::{EVENTS, EventSegments, KeepEvents};
use crate::metrics::METRICS;
use crate::resume::SavedRun;
use crate::retrying_file::RetryingFile;
use crate::run_folder::{RunFolderError, SCALARS, at};
use crate::stored_run::compressed;
use crate::{Lease, Monitor, PartWriters, RateState};

/// The limit of what waits to be written, in bytes. A checkpoint does not count: only one waits at a time.
const LIMIT: usize = 64 * 1024 * 1024;

/// A file of the run folder that is appended to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FolderFile {
    Events,
    Metrics,
    Scalars,
}

/// The model of a checkpoint.
pub(crate) enum PendingValues {
    Here { parameters: Vec<f32>, optimizer: Optimizer },
    InShards(Arc<dyn PartWriters>),
}

/// Where a checkpoint goes.
pub(crate) enum PendingTarget {
    Folder(CheckpointFolder),
    Stored(Sender<CheckpointUpload>),
}

/// A copy of a run's state, to be written to disk.
pub(crate) struct PendingCheckpoint {
    pub(crate) target: PendingTarget,
    pub(crate) layout: Arc<Layout>,
    pub(crate) version: u64,
    pub(crate) values: PendingValues,
    pub(crate) rate: RateState,
    pub(crate) ledger: SavedLedger,
    pub(crate) monitor: Monitor,
    /// What allows to write it, if there is such a thing.
    pub(crate) lease: Option<Lease>,
    /// Gets the version when the checkpoint is on disk, or what went wrong.
    pub(crate) outcome: Sender<Result<u64, String>>,
}

enum WriteJob {
    Append(FolderFile, Vec<u8>),
    Checkpoint(Box<PendingCheckpoint>),
    KeepEvents(KeepEvents),
}

/// A file as the run writes it: the bytes are collected and passed to the thread.
pub(crate) struct QueuedFile {
    queue: Arc<ByteQueue<WriteJob>>,
    file: FolderFile,
    portion: usize,
    collected: Vec<u8>,
}

impl QueuedFile {
    fn pass_on(&mut self) {
        if !self.collected.is_empty() {
            let bytes = std::mem::take(&mut self.collected);
            let length = bytes.len();
            self.queue.push(WriteJob::Append(self.file, bytes), length);
        }
    }
}

impl Write for QueuedFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.collected.extend_from_slice(bytes);
        if self.collected.len() >= self.portion {
            self.pass_on();
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.pass_on();
        Ok(())
    }
}

/// Files with their contents, and files with their paths, each by name.
type CheckpointFiles = (Vec<(&'static str, Vec<u8>)>, Vec<(String, PathBuf)>);

/// The files of a run folder, as the thread has them.
pub(crate) struct FolderFiles {
    /// The run folder.
    pub(crate) path: PathBuf,
    pub(crate) events: EventSegments,
    pub(crate) metrics: RetryingFile,
    pub(crate) scalars: RetryingFile,
}

impl FolderFiles {
    /// Does everything in the queue. The error is the first one that lost something.
    fn write_all(mut self, queue: &ByteQueue<WriteJob>) -> Result<(), RunFolderError> {
        let mut lost = [const { None }; 3];
        while let Some(job) = queue.pop() {
            match job {
                WriteJob::Append(file, bytes) => {
                    let lost = &mut lost[file as usize];
                    if lost.is_none() {
                        *lost = self.append(file, &bytes).err();
                    }
                }
                WriteJob::Checkpoint(copy) => {
                    let report = copy.outcome.clone();
                    let outcome = if lost[FolderFile::Events as usize].is_none() {
                        self.checkpoint(*copy)
                    } else {
                        Err("the event log can't be written".into())
                    };
                    if let Some(outcome) = outcome.transpose() {
                        // Nobody may be interested any more.
                        let _ = report.send(outcome);
                    }
                }
                WriteJob::KeepEvents(keep) => self.events.keep(keep),
            }
        }
        let ended = [self.events.flush().map(|_| ()), self.metrics.flush(), self.scalars.flush()];
        let mut errors = lost.into_iter().zip(ended).map(|(lost, ended)| lost.or(ended.err()));
        let names = [EVENTS, METRICS, SCALARS];
        let first = names.into_iter().find_map(|name| errors.next().flatten().map(|error| (name, error)));
        first.map_or(Ok(()), |(name, error)| Err(at(&self.path.join(name))(error)))
    }

    fn append(&mut self, file: FolderFile, bytes: &[u8]) -> io::Result<()> {
        match file {
            FolderFile::Events => self.events.append(bytes),
            FolderFile::Metrics => self.metrics.write_all(bytes),
            FolderFile::Scalars => self.scalars.write_all(bytes),
        }
    }

    /// Writes a checkpoint, and returns its version; `None` if another thread goes on with it, and reports.
    fn checkpoint(&mut self, copy: PendingCheckpoint) -> Result<Option<u64>, String> {
        let PendingCheckpoint { target, layout, version, values, rate, ledger, monitor, lease, outcome } = copy;
        lease.as_ref().map_or(Ok(()), Lease::hold).map_err(|lost| lost.to_string())?;
        let position = self.events.sync().map_err(|error| format!("the event log can't be written: {error}"))?;
        let run = SavedRun { ledger: ledger.clone(), monitor, position };
        let run_state = serde_json::to_string(&run).map_err(|error| error.to_string())?;
        let rate_state = serde_json::to_string(&rate).map_err(|error| error.to_string())?;
        let written = match (target, values) {
            (PendingTarget::Folder(folder), PendingValues::Here { parameters, optimizer }) => {
                let (parameters, optimizer) = (&parameters[..], &optimizer);
                let (layout, run_state, rate_state) = (&layout, &run_state, &rate_state);
                let view = CheckpointView { version, layout, parameters, optimizer, run_state, rate_state };
                let epoch = lease.as_ref().map_or(0, Lease::epoch);
                folder.save_in_epoch(epoch, &view).map_err(|error| error.to_string())?;
                Some(version)
            }
            (PendingTarget::Folder(_), PendingValues::InShards(_)) => {
                return Err("shards do not write to a run folder".into());
            }
            (PendingTarget::Stored(uploads), values) => {
                let (files, older) = self.files(position.bytes).map_err(|error| error.to_string())?;
                let upload =
                    CheckpointUpload { layout, version, values, run_state, rate_state, files, older, lease, outcome };
                // It ends after this thread.
                let _ = uploads.send(upload);
                None
            }
        };
        // If the segment can't be cut now, it is at a later checkpoint.
        let _ = self.events.cut_if_large(&ledger);
        Ok(written)
    }

    /// What goes with a checkpoint: the event log, up to this many bytes, and the metrics as they are now; and older
    /// segments.
    fn files(&mut self, events: u64) -> io::Result<CheckpointFiles> {
        self.metrics.flush()?;
        let events = compressed(&self.path.join(EVENTS), events)?;
        let metrics = compressed(&self.path.join(METRICS), self.metrics.written())?;
        Ok((vec![(EVENTS, events), (METRICS, metrics)], self.events.older()?))
    }
}

/// The thread and its queue.
pub(crate) struct FolderWriter {
    queue: Arc<ByteQueue<WriteJob>>,
    thread: Option<JoinHandle<Result<(), RunFolderError>>>,
}

impl FolderWriter {
    /// Starts the thread.
    ///
    /// # Errors
    /// If the system has no thread.
    pub(crate) fn start(files: FolderFiles) -> Result<Self, RunFolderError> {
        let queue = Arc::new(ByteQueue::new(LIMIT));
        let own = queue.clone();
        let path = files.path.clone();
        let write_all = move || {
            let written = files.write_all(&own);
            own.close();
            written
        };
        let thread = thread::Builder::new().name("run folder".into()).spawn(write_all).map_err(at(&path))?;
        Ok(FolderWriter { queue, thread: Some(thread) })
    }

    /// A file that passes `portion` bytes on at a time.
    pub(crate) fn file(&self, file: FolderFile, portion: usize) -> QueuedFile {
        QueuedFile { queue: self.queue.clone(), file, portion, collected: Vec::new() }
    }

    /// Writes a checkpoint after all that was passed on before.
    pub(crate) fn checkpoint(&self, copy: PendingCheckpoint) {
        self.queue.push(WriteJob::Checkpoint(Box::new(copy)), 0);
    }

    /// Sets how many older segments of the event log are kept.
    pub(crate) fn keep_events(&self, keep: KeepEvents) {
        self.queue.push(WriteJob::KeepEvents(keep), 0);
    }

    /// Waits until everything is written.
    ///
    /// # Errors
    /// The first one that lost something.
    pub(crate) fn finish(mut self) -> Result<(), RunFolderError> {
        self.join()
    }

    fn join(&mut self) -> Result<(), RunFolderError> {
        self.queue.close();
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(written)) => written,
            Some(Err(panic)) => std::panic::resume_unwind(panic),
            None => Ok(()),
        }
    }
}

impl Drop for FolderWriter {
    fn drop(&mut self) {
        if !thread::panicking() {
            // Whoever wants to know the error calls `finish`.
            let _ = self.join();
        }
    }
}
