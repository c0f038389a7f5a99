//! A file that outlasts a full disk: what can't be written now is kept and written later.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;

/// What is kept at most while the disk is full, in bytes.
const MOST: usize = 256 * 1024 * 1024;

/// A file that is written from its end on. A write that fails is tried again with the next; only [`flush`](Write::flush)
/// tells.
#[derive(Debug)]
pub struct RetryingFile {
    file: File,
    /// What is safely in the file, in bytes. Beyond it there may be the beginning of a write that failed.
    written: u64,
    pending: Vec<u8>,
    portion: usize,
}

impl RetryingFile {
    /// Goes on at the end of `file`, `portion` bytes at a time.
    pub fn new(file: File, portion: usize) -> io::Result<Self> {
        let written = file.metadata()?.len();
        Ok(RetryingFile { file, written, pending: Vec::new(), portion })
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
        if self.pending.len() + bytes.len() > MOST {
            self.write_pending()?;
        }
        let before = self.pending.len() / self.portion;
        self.pending.extend_from_slice(bytes);
        if self.pending.len() / self.portion > before {
            // Kept, and tried again with the next portion.
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
    fn what_could_not_be_written_is_written_later() {
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
