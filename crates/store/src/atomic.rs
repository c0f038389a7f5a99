//! Atomic file writes: a file is complete or unchanged.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

/// The suffix of an unfinished file. Its name also starts with a dot.
pub(crate) const UNFINISHED: &str = ".unfinished";

/// Writes a file atomically: `write` fills a temporary file in the same folder, which is synced to disk and then
/// renamed to `path`.
///
/// A symbolic link is followed: its target is replaced, not the link. A pipe or a device is written in place. After an
/// error the existing file is unchanged.
///
/// # Errors
/// The error of `write`, or of the operating system if the file cannot be created, synced or renamed.
pub fn write_file<T, E: From<io::Error>>(path: &Path, write: impl FnOnce(&mut File) -> Result<T, E>) -> Result<T, E> {
    // Fails if the file does not exist yet.
    let path = &fs::canonicalize(path).unwrap_or_else(|_| path.into());
    if fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir()) {
        return write(&mut File::options().write(true).open(path)?);
    }
    let unfinished = unfinished(path)?;
    let written = File::create(&unfinished).map_err(E::from).and_then(|mut file| {
        let value = write(&mut file)?;
        file.sync_all()?;
        fs::rename(&unfinished, path)?;
        Ok(value)
    });
    if written.is_err() {
        // The first error matters more than a failure to remove the file, which may not exist.
        let _ = fs::remove_file(&unfinished);
    }
    written
}

/// Tries whether [`write_file`] could write a file, and leaves nothing behind. A pipe or a device is not tried.
///
/// # Errors
/// If it could not.
pub fn try_file(path: &Path) -> io::Result<()> {
    let path = &fs::canonicalize(path).unwrap_or_else(|_| path.into());
    if fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir()) {
        return Ok(());
    }
    let unfinished = unfinished(path)?;
    File::create(&unfinished)?;
    fs::remove_file(&unfinished)
}

/// The name of a file while it is being written.
pub(crate) fn unfinished(path: &Path) -> io::Result<PathBuf> {
    let name = path.file_name().ok_or_else(|| io::Error::from(io::ErrorKind::IsADirectory))?;
    Ok(path.with_file_name(format!(".{}{UNFINISHED}", name.display())))
}

/// Creates a folder and those above it, and syncs them to disk, so that they survive a power cut.
///
/// # Errors
/// If a folder can't be created or synced.
pub fn create_folder(path: &Path) -> io::Result<()> {
    let missing: Vec<&Path> = path.ancestors().take_while(|folder| !folder.exists()).collect();
    fs::create_dir_all(path)?;
    missing.into_iter().filter_map(Path::parent).try_for_each(sync_folder)
}

/// The folder of a file.
pub(crate) fn folder_of(file: &Path) -> &Path {
    file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Syncs a folder to disk, so that renamed files survive a power cut.
pub(crate) fn sync_folder(path: &Path) -> io::Result<()> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    // Other systems cannot open a folder as a file, and persist names without it.
    if cfg!(unix) { File::open(path)?.sync_all() } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::fs::{FileTypeExt, symlink};

    fn write(path: &Path, text: &str) -> io::Result<()> {
        write_file(path, |file| file.write_all(text.as_bytes()))
    }

    #[test]
    fn files_are_replaced_links_followed_and_devices_written_in_place() {
        let folder = tempfile::tempdir().unwrap();
        let [file, link] = ["file", "link"].map(|name| folder.path().join(name));
        symlink("file", &link).unwrap();
        write(&file, "old").unwrap();
        write(&link, "new").unwrap();
        assert!(link.is_symlink());
        assert_eq!(fs::read_to_string(&file).unwrap(), "new");

        let failed =
            write_file(&file, |file| file.write_all(b"half").and_then(|()| Err::<(), _>(io::Error::other("no"))));
        assert_eq!(failed.unwrap_err().to_string(), "no");
        assert_eq!(fs::read_to_string(&file).unwrap(), "new");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "no unfinished file is left");
        assert!(write(folder.path(), "").is_err());

        let device = folder.path().join("device");
        symlink("/dev/null", &device).unwrap();
        write(&device, "nowhere").unwrap();
        assert!(fs::metadata(&device).unwrap().file_type().is_char_device());
    }

    #[test]
    fn folders_are_created_with_those_above_them() {
        let folder = tempfile::tempdir().unwrap();
        let deep = folder.path().join("a/b/c");
        create_folder(&deep).unwrap();
        create_folder(&deep).unwrap();
        assert!(deep.is_dir());
        write(&deep.join("file"), "").unwrap();
        assert!(create_folder(&deep.join("file/d")).is_err());
    }
}
