//! The thread that writes checkpoints to object storage, so that neither the run nor its folder waits for a slow link.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

use paceline_store::{CheckpointFile, CheckpointObjects, Layout, ObjectStorage, PartedView, write_parts};

use crate::folder_writer::PendingValues;
use crate::run_folder::{RunFolderError, at};
use crate::{Lease, StoredRun};

/// A checkpoint with all that goes with it.
pub(crate) struct CheckpointUpload {
    pub(crate) layout: Arc<Layout>,
    pub(crate) version: u64,
    pub(crate) values: PendingValues,
    pub(crate) run_state: String,
    pub(crate) rate_state: String,
    /// Files of the run folder as they are now, compressed, by name.
    pub(crate) files: Vec<(&'static str, Vec<u8>)>,
    /// Files that do not change any more, by name.
    pub(crate) older: Vec<(String, PathBuf)>,
    pub(crate) lease: Option<Lease>,
    /// Gets the version when the checkpoint is stored, or what went wrong.
    pub(crate) outcome: Sender<Result<u64, String>>,
}

/// The thread and its queue.
pub(crate) struct UploadThread {
    objects: Arc<dyn ObjectStorage>,
    queue: Option<Sender<CheckpointUpload>>,
    thread: Option<JoinHandle<()>>,
}

impl UploadThread {
    pub(crate) fn start(run: StoredRun) -> Result<Self, RunFolderError> {
        let objects = run.objects().clone();
        let (queue, uploads) = channel();
        let older = run.older.into_iter().map(|file| (file.name.clone(), file)).collect();
        let uploader = Uploader { checkpoints: run.checkpoints, older };
        let thread = thread::Builder::new().name("checkpoints".into()).spawn(move || uploader.write_all(&uploads));
        let thread = Some(thread.map_err(at(&objects.path("")))?);
        Ok(UploadThread { objects, queue: Some(queue), thread })
    }

    /// Where the checkpoints are written.
    pub(crate) fn objects(&self) -> &dyn ObjectStorage {
        &*self.objects
    }

    pub(crate) fn queue(&self) -> Sender<CheckpointUpload> {
        self.queue.clone().expect("it is there until the thread ends")
    }
}

impl Drop for UploadThread {
    fn drop(&mut self) {
        self.queue = None;
        // A panic there is a bug; it has nothing to give back.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

struct Uploader {
    checkpoints: CheckpointObjects,
    /// The older segments of the event log that are stored, by name.
    older: BTreeMap<String, CheckpointFile>,
}

impl Uploader {
    fn write_all(mut self, uploads: &Receiver<CheckpointUpload>) {
        for upload in uploads {
            let outcome = self.write(&upload).map(|()| upload.version);
            // Nobody may be interested any more.
            let _ = upload.outcome.send(outcome);
        }
    }

    fn write(&mut self, upload: &CheckpointUpload) -> Result<(), String> {
        let hold = || upload.lease.as_ref().map_or(Ok(()), Lease::hold).map_err(|lost| lost.to_string());
        hold()?;
        let epoch = upload.lease.as_ref().map_or(0, Lease::epoch);
        let name = self.checkpoints.next_name(epoch).map_err(|error| error.to_string())?;
        let objects = self.checkpoints.objects();
        let written = match &upload.values {
            PendingValues::Here { parameters, optimizer } => {
                write_parts(&**objects, &name, 0, parameters, optimizer).map_err(|error| error.to_string())?
            }
            PendingValues::InShards(shards) => shards.write(objects.place(), &name)?,
        };
        let put = |file: &str, object: &str, bytes: Vec<u8>| {
            let (object, crc32) = self.checkpoints.put(&name, object, bytes).map_err(|error| error.to_string())?;
            Ok::<_, String>(CheckpointFile { name: file.into(), object, crc32 })
        };
        let mut older = BTreeMap::new();
        for (file, path) in &upload.older {
            let stored = match self.older.get(file) {
                Some(stored) => stored.clone(),
                None => match fs::read(path) {
                    Ok(bytes) => put(file, file, bytes)?,
                    // It is not kept any more.
                    Err(_) => continue,
                },
            };
            older.insert(file.clone(), stored);
        }
        let files = upload.files.iter().map(|(file, bytes)| put(file, &format!("{file}.gz"), bytes.clone()));
        let mut files = files.collect::<Result<Vec<_>, _>>()?;
        files.extend(older.values().cloned());
        let CheckpointUpload { layout, version, run_state, rate_state, .. } = upload;
        let view = PartedView { version: *version, layout, written: &written, files: &files, run_state, rate_state };
        hold()?;
        self.checkpoints.complete(&name, &view).map_err(|error| error.to_string())?;
        self.older = older;
        Ok(())
    }
}
