//! Text files that a user names, read with a limit: a device, a sparse file or a binary one may be a line without end.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

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

/// Reads a file that a person writes, such as a script or a configuration: lines of at most 1 MiB, 64 MiB in all.
///
/// # Errors
/// If it can't be read, is larger, or is not UTF-8.
pub fn read_text(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    LineLimit::with_limit(File::open(path)?.take(MAX_WRITTEN_FILE + 1), MAX_WRITTEN_LINE).read_to_string(&mut text)?;
    if text.len() as u64 > MAX_WRITTEN_FILE {
        let problem = format!("larger than {} MiB; is it the right file?", MAX_WRITTEN_FILE / MEBIBYTE);
        return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
    }
    Ok(text)
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
    fn a_device_is_not_a_text() {
        let error = read_text(Path::new("/dev/zero")).unwrap_err().to_string();
        assert_eq!(error, "line 1 is longer than 1 MiB; is it a text file?");
    }
}
