//! Files that are there whole or not at all.

use std::fs::{self, File};
use std::io;
use std::path::Path;

/// How the name of an unfinished file ends; it begins with a dot.
pub(crate) const UNFINISHED: &str = ".unfinished";

/// Writes `path` through `write`: into an unfinished file beside it, which takes its name once it is on the disk. What a
/// link points to is written, not the link; a pipe or a device is written as it is.
///
/// After an error a file is as it was.
///
/// # Errors
/// What `write` returns, and whatever keeps the file from being made.
pub fn write_file<T, E: From<io::Error>>(path: &Path, write: impl FnOnce(&mut File) -> Result<T, E>) -> Result<T, E> {
    // It fails where there is nothing yet.
    let path = &fs::canonicalize(path).unwrap_or_else(|_| path.into());
    if fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir()) {
        return write(&mut File::options().write(true).open(path)?);
    }
    let name = path.file_name().ok_or_else(|| io::Error::from(io::ErrorKind::IsADirectory))?;
    let unfinished = path.with_file_name(format!(".{}{UNFINISHED}", name.display()));
    let written = File::create(&unfinished).map_err(E::from).and_then(|mut file| {
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

/// Puts the names of a folder on the disk, so that they survive a power cut.
pub(crate) fn sync_folder(path: &Path) -> io::Result<()> {
    // Other systems cannot open a folder, and keep names safe by themselves.
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
    fn files_are_replaced_links_followed_and_devices_left_alone() {
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
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "nothing unfinished is left");
        assert!(write(folder.path(), "").is_err());

        let device = folder.path().join("device");
        symlink("/dev/null", &device).unwrap();
        write(&device, "nowhere").unwrap();
        assert!(fs::metadata(&device).unwrap().file_type().is_char_device());
    }
}
