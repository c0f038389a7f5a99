//! Named objects that several processes and machines share: a folder here, a bucket elsewhere.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::atomic;

/// Named objects. An object is there whole or not at all; names have parts, with slashes between them.
///
/// Any thread may call it, and waits for the answer. Errors do not name the object.
pub trait ObjectStorage: fmt::Debug + Send + Sync {
    /// Where they are, as a user writes it.
    fn place(&self) -> &str;

    /// Writes an object, and replaces one of the same name.
    ///
    /// # Errors
    /// If it can't be written.
    fn put(&self, name: &str, bytes: Vec<u8>) -> io::Result<()>;

    /// Writes an object that does not exist. Of several that try at a time, one succeeds.
    ///
    /// # Errors
    /// [`io::ErrorKind::AlreadyExists`] if there is one of this name, or another if it can't be written.
    fn create(&self, name: &str, bytes: Vec<u8>) -> io::Result<()>;

    /// Reads an object.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] if there is none, or another if it can't be read.
    fn get(&self, name: &str) -> io::Result<Vec<u8>>;

    /// The names of all objects whose first part is `folder`, in order.
    ///
    /// # Errors
    /// If they can't be listed.
    fn list(&self, folder: &str) -> io::Result<Vec<String>>;

    /// Removes an object, if it is there.
    ///
    /// # Errors
    /// If it can't be removed.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// An object as errors name it.
    fn path(&self, name: &str) -> PathBuf {
        Path::new(self.place()).join(name)
    }
}

/// Objects as files of a folder.
#[derive(Debug)]
pub struct FolderObjects {
    folder: PathBuf,
    place: String,
    /// Whether an object survives a power cut as soon as it is written.
    is_durable: bool,
    /// Makes the names of unfinished files differ.
    written: AtomicU64,
}

impl FolderObjects {
    /// The objects of a folder, which is created with the first of them. What is written survives a power cut.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        let folder = folder.into();
        let place = folder.display().to_string();
        FolderObjects { folder, place, is_durable: true, written: AtomicU64::new(0) }
    }

    /// The same, with the name of the place as a user writes it.
    pub fn named(place: impl Into<String>, folder: impl Into<PathBuf>) -> Self {
        FolderObjects { place: place.into(), ..FolderObjects::new(folder) }
    }

    /// The same without waiting for the disk, for what a power cut may take.
    pub fn unsynced(folder: impl Into<PathBuf>) -> Self {
        FolderObjects { is_durable: false, ..FolderObjects::new(folder) }
    }

    /// Writes a file that no other process knows. `finish` gives it its name, the second one.
    fn write(&self, name: &str, bytes: &[u8], finish: impl FnOnce(&Path, &Path) -> io::Result<()>) -> io::Result<()> {
        let path = self.folder.join(name);
        let folder = atomic::folder_of(&path);
        let number = self.written.fetch_add(1, Ordering::Relaxed);
        let own = folder.join(format!(".{}-{}-{number}", host_name(), std::process::id()));
        let write = || {
            atomic::create_folder(folder)?;
            let mut file = File::create(&own)?;
            file.write_all(bytes)?;
            if self.is_durable {
                file.sync_all()?;
            }
            finish(&own, &path)?;
            if self.is_durable { atomic::sync_folder(folder) } else { Ok(()) }
        };
        let written = write();
        // It has the other name now, or is of no use.
        let _ = fs::remove_file(&own);
        written
    }
}

impl ObjectStorage for FolderObjects {
    fn place(&self) -> &str {
        &self.place
    }

    fn put(&self, name: &str, bytes: Vec<u8>) -> io::Result<()> {
        self.write(name, &bytes, |own, path| fs::rename(own, path))
    }

    fn create(&self, name: &str, bytes: Vec<u8>) -> io::Result<()> {
        self.write(name, &bytes, |own, path| fs::hard_link(own, path))
    }

    fn get(&self, name: &str) -> io::Result<Vec<u8>> {
        fs::read(self.folder.join(name))
    }

    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        let (mut names, mut folders) = (Vec::new(), vec![folder.to_string()]);
        while let Some(folder) = folders.pop() {
            let entries = match fs::read_dir(self.folder.join(&folder)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                entries => entries?,
            };
            for entry in entries {
                let entry = entry?;
                let name = entry.file_name().display().to_string();
                let is_folder = entry.file_type()?.is_dir();
                // The names of unfinished files begin with a dot.
                if !name.starts_with('.') {
                    (if is_folder { &mut folders } else { &mut names }).push(format!("{folder}/{name}"));
                }
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let path = self.folder.join(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => {
                // Only an empty folder can be removed.
                let _ = fs::remove_dir(atomic::folder_of(&path));
                Ok(())
            }
        }
    }
}

/// The name of this machine.
pub fn host_name() -> String {
    fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn objects_are_replaced_listed_and_removed() {
        let folder = tempfile::tempdir().unwrap();
        let objects = FolderObjects::new(folder.path().join("new"));
        assert_eq!(objects.list("a").unwrap(), [""; 0]);
        assert_eq!(objects.get("a/b").unwrap_err().kind(), io::ErrorKind::NotFound);
        for bytes in ["old", "new"] {
            objects.put("a/b/c", bytes.into()).unwrap();
        }
        objects.put("a/d", "other".into()).unwrap();
        objects.put("ab", "elsewhere".into()).unwrap();
        assert_eq!(objects.get("a/b/c").unwrap(), b"new");
        assert_eq!(objects.list("a").unwrap(), ["a/b/c", "a/d"]);
        for _ in 0..2 {
            objects.remove("a/b/c").unwrap();
        }
        assert_eq!(objects.list("a").unwrap(), ["a/d"]);
    }

    #[test]
    fn one_of_many_creates_an_object() {
        let folder = tempfile::tempdir().unwrap();
        let objects = FolderObjects::unsynced(folder.path());
        let created: Vec<bool> = thread::scope(|scope| {
            let create = |number: u8| objects.create("a", vec![number]).is_ok();
            let threads: Vec<_> = (0..8).map(|number| scope.spawn(move || create(number))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(created.iter().filter(|&&created| created).count(), 1);
        assert_eq!(objects.create("a", vec![]).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        let winner = created.iter().position(|&created| created).unwrap();
        assert_eq!(objects.get("a").unwrap(), [winner as u8]);
    }
}
