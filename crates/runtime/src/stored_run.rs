//! A run in object storage: all that another machine needs to go on with it.
//!
//! `config.toml` is there from the start, `summary.json` from the end, and every checkpoint brings the files of the run folder
//! that go with it: the event log and the metrics up to that moment. The run folder itself is a copy, on the machine that
//! serves the run.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::Arc;

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use paceline_store::{
    CheckpointFile, CheckpointObjects, LatestCheckpoint, LatestParts, Layout, ObjectStorage, create_folder, write_file,
};

use crate::checkpointer::KEPT;
use crate::ending::check_summary;
use crate::event_segments::{COMPRESSED, EVENTS, remove_from};
use crate::metrics::METRICS;
use crate::run_folder::{SUMMARY, at};
use crate::{CONFIGURATION, EventLogHeader, Goals, RunFolderError, Summary, check_free};

/// A run in object storage.
#[derive(Debug)]
pub struct StoredRun {
    pub(crate) checkpoints: CheckpointObjects,
    /// The older segments of the event log that are stored.
    pub(crate) older: Vec<CheckpointFile>,
}

impl StoredRun {
    /// The run in this storage.
    pub fn new(objects: Arc<dyn ObjectStorage>) -> Self {
        StoredRun { checkpoints: CheckpointObjects::new(objects, KEPT), older: Vec::new() }
    }

    /// Where it is.
    pub fn objects(&self) -> &Arc<dyn ObjectStorage> {
        self.checkpoints.objects()
    }

    /// Begins a run with this configuration.
    ///
    /// # Errors
    /// If the storage has a run already, or can't be written.
    pub fn begin(&self, configuration: &str) -> Result<(), RunFolderError> {
        let path = self.objects().path(CONFIGURATION);
        self.objects().create(CONFIGURATION, configuration.into()).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => RunFolderError::Stored { place: self.objects().place().into() },
            _ => at(&path)(error),
        })
    }

    /// The configuration of the run.
    ///
    /// # Errors
    /// If there is no run, or it can't be read.
    pub fn configuration(&self) -> Result<String, RunFolderError> {
        let path = self.objects().path(CONFIGURATION);
        let text = self.objects().get(CONFIGURATION).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => RunFolderError::NotStored { place: self.objects().place().into() },
            _ => at(&path)(error),
        })?;
        String::from_utf8(text).map_err(|error| at(&path)(io::Error::other(error)))
    }

    /// Whether the run has ended, by whatever.
    ///
    /// # Errors
    /// If the storage can't be read.
    pub fn has_ended(&self) -> Result<bool, RunFolderError> {
        Ok(self.summary()?.is_some())
    }

    /// Refuses to resume a run that ended by a goal, if the new `goals` would end it again at once.
    ///
    /// # Errors
    /// If the run is over, or the storage can't be read.
    pub fn check_unfinished(&self, goals: &Goals) -> Result<(), RunFolderError> {
        let summary = self.summary()?;
        summary.map_or(Ok(()), |text| check_summary(Path::new(self.objects().place()), &text, goals))
    }

    fn summary(&self) -> Result<Option<Vec<u8>>, RunFolderError> {
        match self.objects().get(SUMMARY) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            found => found.map(Some).map_err(at(&self.objects().path(SUMMARY))),
        }
    }

    /// Writes the files that go with the last checkpoint to a run folder, in place of those that it has. Without a
    /// checkpoint they are those of a run that begins. Returns the checkpoint.
    ///
    /// # Errors
    /// If the folder holds something else than a run, or something can't be read or written.
    pub fn restore(
        &mut self,
        folder: &Path,
        layout: &Layout,
        header: &EventLogHeader,
    ) -> Result<LatestCheckpoint, RunFolderError> {
        self.configuration()?;
        if !folder.join(CONFIGURATION).exists() {
            check_free(folder)?;
        }
        let LatestParts { latest, files } = self.checkpoints.latest(layout)?;
        remove_from(folder, 0).map_err(at(folder))?;
        for file in &files {
            let (path, bytes) = (folder.join(&file.name), self.checkpoints.file(file)?);
            path.parent().map_or(Ok(()), create_folder).map_err(at(&path))?;
            let write = |target: &mut File| match file.name.ends_with(COMPRESSED) {
                true => target.write_all(&bytes),
                false => io::copy(&mut GzDecoder::new(&bytes[..]), target).map(drop),
            };
            write_file(&path, write).map_err(at(&path))?;
        }
        if files.is_empty() {
            let begun = header.line().and_then(|line| fs::write(folder.join(EVENTS), line));
            begun.and_then(|()| fs::write(folder.join(METRICS), "")).map_err(at(folder))?;
        }
        self.older = files.into_iter().filter(|file| file.name.ends_with(COMPRESSED)).collect();
        Ok(latest)
    }

    /// The run goes on, with this configuration.
    ///
    /// # Errors
    /// If the storage can't be written.
    pub fn resume(&self, configuration: &str) -> Result<(), RunFolderError> {
        let objects = self.objects();
        objects.put(CONFIGURATION, configuration.into()).map_err(at(&objects.path(CONFIGURATION)))?;
        objects.remove(SUMMARY).map_err(at(&objects.path(SUMMARY)))
    }

    /// The run has ended.
    ///
    /// # Errors
    /// If the storage can't be written.
    pub(crate) fn end(objects: &dyn ObjectStorage, summary: &Summary) -> Result<(), RunFolderError> {
        let text = serde_json::to_vec_pretty(summary).map_err(io::Error::from);
        text.and_then(|text| objects.put(SUMMARY, text)).map_err(at(&objects.path(SUMMARY)))
    }
}

/// The first bytes of a file, compressed.
pub(crate) fn compressed(path: &Path, length: u64) -> io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    io::copy(&mut File::open(path)?.take(length), &mut encoder)?;
    encoder.finish()
}
