//! A file that survives a full disk: what can't be written now is buffered and written later.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;

/// The limit of the buffer while the disk is full, in bytes.
const LIMIT: usize = 256 * 1024 * 1024;

/// A file that is appended to. A write that fails is retried with the next one; only [`flush`](Write::flush) reports
/// the error.
#[derive(Debug)]
pub struct RetryingFile {
    file: File,
    /// The bytes that are safely in the file. After them there may be part of a write that failed.
    written: u64,
    pending: Vec<u8>,
    portion: usize,
}

impl RetryingFile {
    /// Appends to `file`, `portion` bytes at a time.
    pub fn new(file: File, portion: usize) -> io::Result<Self> {
        let written = file.metadata()?.len();
        Ok(RetryingFile { file, written, pending: Vec::new(), portion })
    }

    /// How many bytes are safely in the file.
    pub(crate) fn written(&self) -> u64 {
        self.written
    }

    /// Writes everything and syncs it to disk.
    pub(crate) fn sync(&mut self) -> io::Result<()> {
        self.write_pending()?;
        self.file.sync_data()
    }

    fn write_pending(&mut self) -> io::Result<()> {
        self.file.write_all_at(&self.pending, self.written)?;
        self.written += self.pending.len() as u64;
        self.pending.clear();
        Ok(())
    }
}

impl Write for RetryingFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.pending.len() + bytes.len() > LIMIT {
            self.write_pending()?;
        }
        let before = self.pending.len() / self.portion;
        self.pending.extend_from_slice(bytes);
        if self.pending.len() / self.portion > before {
            // Kept, and retried with the next portion.
            let _ = self.write_pending();
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.write_pending()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const PORTION: usize = 1024;

    #[test]
    fn a_failed_write_is_retried_later() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        fs::write(&path, "old\n").unwrap();
        // A file that can't be written to stands for a full disk.
        let mut file = RetryingFile::new(File::open(&path).unwrap(), PORTION).unwrap();
        file.write_all(b"one\n").unwrap();
        file.write_all(&vec![b'x'; PORTION]).unwrap();
        assert!(file.flush().is_err());
        file.file = File::options().write(true).open(&path).unwrap();
        file.write_all(b"\ntwo\n").unwrap();
        file.flush().unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.starts_with("old\none\nxxx") && text.ends_with("x\ntwo\n"));
        assert_eq!(text.len(), 4 + 4 + PORTION + 5);
    }
}
