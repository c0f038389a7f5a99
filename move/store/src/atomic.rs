//! Files that are there whole or not at all.

use std::fs::{self, File};
use std::io;
use std::path::Path;

/// How the name of an unfinished file ends; it begins with a dot.
pub(crate) const UNFINISHED: &str = ".unfinished";

/// Writes `path` through `write`: into an unfinished file beside it, which takes its name once it is on the disk.
///
/// After an error `path` is as it was. [`sync_folder`] makes the new name survive a power cut.
pub(crate) fn write_file<T>(path: &Path, write: impl FnOnce(&mut File) -> io::Result<T>) -> io::Result<T> {
    let name = path.file_name().ok_or_else(|| io::Error::from(io::ErrorKind::IsADirectory))?;
    let unfinished = path.with_file_name(format!(".{}{UNFINISHED}", name.display()));
    let written = File::create(&unfinished).and_then(|mut file| {
        let value = write(&mut file)?;
        file.sync_all()?;
        fs::rename(&unfinished, path)?;
        Ok(value)
    });
    if written.is_err() {
        // The error that led here says more than that of a file that cannot be removed, or was never made.
        let _ = fs::remove_file(&unfinished);
    }
    written
}

/// Puts the names of a folder on the disk.
pub(crate) fn sync_folder(path: &Path) -> io::Result<()> {
    // Other systems cannot open a folder, and keep names safe by themselves.
    if cfg!(unix) { File::open(path)?.sync_all() } else { Ok(()) }
}
