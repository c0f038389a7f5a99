//! The lock of a run folder: only one process writes a run.

use std::fs::{self, File, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};

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
}
