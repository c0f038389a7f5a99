//! The lock of a run folder: only one process writes a run.

use std::fs::{self, File, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::event_segments::EVENTS;
use crate::metrics::METRICS;
use crate::run_folder::{RunFolderError, at};

/// The file that is locked. It holds the number of the process that locked it last.
pub(crate) const LOCK: &str = "lock";

/// The right to write a run folder. It ends with the process, however that ends.
#[derive(Debug)]
pub struct FolderLock {
    folder: PathBuf,
    /// Locked as long as it is open.
    _file: File,
}

impl FolderLock {
    /// Locks a folder that exists.
    ///
    /// # Errors
    /// If another process writes it, or the lock file can't be written.
    pub fn acquire(folder: &Path) -> Result<Self, RunFolderError> {
        let path = folder.join(LOCK);
        let options = || File::options().read(true).write(true).create(true).truncate(false).open(&path);
        let mut file = options().map_err(at(&path))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let process = fs::read_to_string(&path).ok().and_then(|text| text.trim().parse().ok());
                return Err(RunFolderError::InUse { path: folder.into(), process });
            }
            Err(TryLockError::Error(error)) => return Err(at(&path)(error)),
        }
        let written = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
        // The number only makes an error clearer; a full disk must not stop a run from being resumed.
        let _ = written;
        Ok(FolderLock { folder: folder.into(), _file: file })
    }

    /// Takes a folder from a process that may still have its files open: what that process writes to them is lost from now
    /// on. To be called by the holder of the run's [`Lease`](crate::Lease).
    ///
    /// # Errors
    /// As [`acquire`](FolderLock::acquire), or if a file can't be copied.
    pub fn take_over(folder: &Path) -> Result<Self, RunFolderError> {
        for name in [LOCK, EVENTS, METRICS] {
            let (path, copy) = (folder.join(name), folder.join(format!("{name}.taken")));
            fs::copy(&path, &copy).and_then(|_| fs::rename(&copy, &path)).map_err(at(&path))?;
        }
        FolderLock::acquire(folder)
    }

    /// The locked folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_locked_once_until_the_lock_is_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let lock = FolderLock::acquire(folder.path()).unwrap();
        let error = FolderLock::acquire(folder.path()).unwrap_err().to_string();
        let process = format!("is in use: process {} writes it; wait until that ends", std::process::id());
        assert!(error.contains(&process), "{error}");
        drop(lock);
        FolderLock::acquire(folder.path()).unwrap();
    }

    #[test]
    fn a_folder_that_is_taken_over_has_files_that_its_last_process_does_not_write() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let mut last = [EVENTS, METRICS].map(|name| File::create(path(name)).unwrap());
        last.iter_mut().for_each(|file| file.write_all(b"before").unwrap());
        let _lock = FolderLock::acquire(folder.path()).unwrap();
        let _taken = FolderLock::take_over(folder.path()).unwrap();
        last.iter_mut().for_each(|file| file.write_all(b" and after").unwrap());
        for name in [EVENTS, METRICS] {
            assert_eq!(fs::read_to_string(path(name)).unwrap(), "before");
        }
        assert!(FolderLock::acquire(folder.path()).is_err(), "it is locked by the one that took it");
    }
}
