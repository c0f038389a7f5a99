//! A data file's content, decompressed if need be, with errors that say where.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use flate2::bufread::MultiGzDecoder;

use super::FormatError;

const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// A file read whole.
pub(super) struct DataFile {
    path: PathBuf,
    pub(super) bytes: Vec<u8>,
}

impl DataFile {
    /// Reads a file; gzip is told by its first bytes.
    pub(super) fn read(path: &Path) -> Result<Self, FormatError> {
        let raw = fs::read(path).map_err(|source| FormatError::Read { path: path.to_owned(), source })?;
        let mut file = DataFile { path: path.to_owned(), bytes: Vec::new() };
        if !raw.starts_with(&GZIP_MAGIC) {
            file.bytes = raw;
        } else if let Err(error) = MultiGzDecoder::new(&raw[..]).read_to_end(&mut file.bytes) {
            let found = match error.kind() {
                io::ErrorKind::UnexpectedEof => "the end of a truncated gzip file".to_owned(),
                _ => format!("a corrupt gzip file ({error})"),
            };
            return Err(file.wrong(file.bytes.len(), found, "more compressed data"));
        }
        Ok(file)
    }

    /// Reads `name` or `name.gz` in a folder; the plain one first.
    pub(super) fn find(folder: &Path, name: &str) -> Result<Self, FormatError> {
        let candidates = [folder.join(name), folder.join(format!("{name}.gz"))];
        match candidates.iter().find(|path| path.exists()) {
            Some(path) => DataFile::read(path),
            None => Err(FormatError::Missing { folder: folder.to_owned(), name: name.to_owned() }),
        }
    }

    /// The error that something else is at `offset` than belongs there.
    pub(super) fn wrong(&self, offset: usize, found: impl Into<String>, expected: impl Into<String>) -> FormatError {
        FormatError::Content { path: self.path.clone(), offset, found: found.into(), expected: expected.into() }
    }
}
