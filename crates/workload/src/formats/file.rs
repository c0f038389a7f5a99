//! The content of a data file, decompressed if it is gzip, with errors that name the offset.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use flate2::bufread::MultiGzDecoder;
use paceline_spec::read_input;

use super::FormatError;

/// The limit of a file, compressed and not: it must fit into memory.
const MAX_FILE: u64 = 4 << 30;

const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// A file in memory.
pub(super) struct DataFile {
    path: PathBuf,
    pub(super) bytes: Vec<u8>,
}

impl DataFile {
    /// Reads a file. Gzip is recognized by its first bytes.
    pub(super) fn read(path: &Path) -> Result<Self, FormatError> {
        let raw = read_input(path, MAX_FILE).map_err(|source| FormatError::Read { path: path.to_owned(), source })?;
        let mut file = DataFile { path: path.to_owned(), bytes: Vec::new() };
        if !raw.starts_with(&GZIP_MAGIC) {
            file.bytes = raw;
        } else if let Err(error) = MultiGzDecoder::new(&raw[..]).take(MAX_FILE + 1).read_to_end(&mut file.bytes) {
            let found = match error.kind() {
                io::ErrorKind::UnexpectedEof => "the end of a truncated gzip file".to_owned(),
                _ => format!("a corrupt gzip file ({error})"),
            };
            return Err(file.invalid(file.bytes.len(), found, "more compressed data"));
        }
        if file.bytes.len() as u64 > MAX_FILE {
            return Err(file.invalid(file.bytes.len(), "more data", "at most 4 GiB"));
        }
        Ok(file)
    }

    /// Reads `name` in a folder, or `name.gz` if that does not exist.
    pub(super) fn find(folder: &Path, name: &str) -> Result<Self, FormatError> {
        let candidates = [folder.join(name), folder.join(format!("{name}.gz"))];
        match candidates.iter().find(|path| path.exists()) {
            Some(path) => DataFile::read(path),
            None => Err(FormatError::Missing { folder: folder.to_owned(), name: name.to_owned() }),
        }
    }

    /// The error for unexpected content at `offset`.
    pub(super) fn invalid(&self, offset: usize, found: impl Into<String>, expected: impl Into<String>) -> FormatError {
        FormatError::Content { path: self.path.clone(), offset, found: found.into(), expected: expected.into() }
    }
}
