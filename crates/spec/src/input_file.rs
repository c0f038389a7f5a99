//! Files that a user names, read with a limit: a device, a sparse file or a binary one may be a line without end, and a
//! pipe may have no writer.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

/// How long a named pipe may have no writer.
const WRITER_TIMEOUT: Duration = Duration::from_secs(10);

/// The limit of a line of a table or a log: the line of a run with half a million workers.
const MAX_LINE: u64 = 256 * MEBIBYTE;

/// The limit of a line that a person writes.
const MAX_WRITTEN_LINE: u64 = MEBIBYTE;

/// The limit of a file that a person writes.
const MAX_WRITTEN_FILE: u64 = 64 * MEBIBYTE;

const MEBIBYTE: u64 = 1 << 20;

/// Reads lines up to a limit. A longer line is an error that gives its number, before it has filled the memory.
#[derive(Debug)]
pub struct LineLimit<R> {
    inner: R,
    limit: u64,
    /// The number of the line, from 1.
    line: u64,
    /// Its bytes so far.
    length: u64,
}

impl<R: Read> LineLimit<R> {
    /// Lines of at most 256 MiB.
    pub fn new(inner: R) -> Self {
        Self::with_limit(inner, MAX_LINE)
    }

    /// Lines of at most `limit` bytes.
    pub fn with_limit(inner: R, limit: u64) -> Self {
        LineLimit { inner, limit, line: 1, length: 0 }
    }
}

impl<R: Read> Read for LineLimit<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        for part in buffer[..count].split_inclusive(|&byte| byte == b'\n') {
            self.length += part.len() as u64;
            if self.length > self.limit {
                let limit = self.limit / MEBIBYTE;
                let problem = format!("line {} is longer than {limit} MiB; is it a text file?", self.line);
                return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
            }
            if part.ends_with(b"\n") {
                (self.line, self.length) = (self.line + 1, 0);
            }
        }
        Ok(count)
    }
}

/// Opens a file that a user names: a regular file, or a stream such as `/dev/stdin`, `<(command)` or a named pipe. A
/// named pipe must have a writer within ten seconds.
///
/// # Errors
/// If it can't be opened, is a folder, or is a pipe without a writer.
pub fn open_input(path: &Path) -> io::Result<File> {
    open_within(path, WRITER_TIMEOUT)
}

fn open_within(path: &Path, timeout: Duration) -> io::Result<File> {
    let kind = fs::metadata(path)?.file_type();
    if kind.is_dir() {
        return Err(io::Error::new(io::ErrorKind::IsADirectory, "is a folder; expected a file"));
    }
    if !kind.is_fifo() {
        return File::open(path);
    }
    // To open a pipe takes until it has a writer.
    let (sender, opened) = channel();
    let pipe = path.to_path_buf();
    thread::spawn(move || sender.send(File::open(pipe)));
    opened.recv_timeout(timeout).unwrap_or_else(|_| {
        // Ends the thread. Opening for both never waits.
        let _ = File::options().read(true).write(true).open(path);
        let problem =
            format!("no process writes to this pipe (waited {} s); start its writer first", timeout.as_secs());
        Err(io::Error::new(io::ErrorKind::TimedOut, problem))
    })
}

/// Reads a whole file of at most `limit` bytes, opened as by [`open_input`].
///
/// # Errors
/// If it can't be read, or is larger.
pub fn read_input(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let file = open_input(path)?;
    let mut bytes = Vec::new();
    if file.metadata()?.len() <= limit {
        file.take(limit + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 <= limit {
            return Ok(bytes);
        }
    }
    Err(too_large(limit))
}

fn too_large(limit: u64) -> io::Error {
    let problem = format!("larger than {} MiB; is it the right file?", limit / MEBIBYTE);
    io::Error::new(io::ErrorKind::InvalidData, problem)
}

/// Reads a file that a person writes, such as a script or a configuration: lines of at most 1 MiB, 64 MiB in all.
///
/// # Errors
/// If it can't be read, is larger, or is not UTF-8.
pub fn read_text(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    let file = open_input(path)?.take(MAX_WRITTEN_FILE + 1);
    LineLimit::with_limit(file, MAX_WRITTEN_LINE).read_to_string(&mut text)?;
    if text.len() as u64 > MAX_WRITTEN_FILE { Err(too_large(MAX_WRITTEN_FILE)) } else { Ok(text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_without_end_is_refused_with_its_number() {
        let read = |bytes: &[u8], limit| {
            let mut text = Vec::new();
            LineLimit::with_limit(bytes, limit).read_to_end(&mut text).map(|_| text)
        };
        let lines = b"one\ntwo\n\nthree".repeat(1000);
        assert_eq!(read(&lines, 9).unwrap(), lines);
        let error = read(b"one\ntwo\nthree\n", 5).unwrap_err().to_string();
        assert_eq!(error, "line 3 is longer than 0 MiB; is it a text file?");
        let mut endless = LineLimit::new(io::repeat(0));
        let error = io::copy(&mut endless, &mut io::sink()).unwrap_err().to_string();
        assert_eq!(error, "line 1 is longer than 256 MiB; is it a text file?");
    }

    #[test]
    fn a_pipe_is_read_if_it_has_a_writer() {
        let folder = tempfile::tempdir().unwrap();
        let [pipe, unused] = ["pipe", "unused"].map(|name| folder.path().join(name));
        assert!(std::process::Command::new("mkfifo").args([&pipe, &unused]).status().unwrap().success());
        let error = open_within(&unused, Duration::from_millis(1)).unwrap_err().to_string();
        assert!(error.starts_with("no process writes to this pipe"), "{error}");
        thread::scope(|scope| {
            scope.spawn(|| fs::write(&pipe, "text"));
            assert_eq!(read_text(&pipe).unwrap(), "text");
        });
        let error = open_input(folder.path()).unwrap_err().to_string();
        assert_eq!(error, "is a folder; expected a file");
    }

    #[test]
    fn a_file_that_is_too_large_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "12345").unwrap();
        assert_eq!(read_input(&file, 5).unwrap(), b"12345");
        for endless in [file.as_path(), Path::new("/dev/zero")] {
            assert!(read_input(endless, 4).unwrap_err().to_string().starts_with("larger than "));
        }
    }

    #[test]
    fn a_device_is_not_a_text() {
        let error = read_text(Path::new("/dev/zero")).unwrap_err().to_string();
        assert_eq!(error, "line 1 is longer than 1 MiB; is it a text file?");
    }
}
