//! Readers of the file formats of published data sets. Each file may be plain or gzip; its content decides, not its
//! name.

pub(crate) mod cifar;
mod file;
pub(crate) mod idx;
pub(crate) mod text;

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use crate::dataset::DatasetError;

/// Why a data file cannot be used.
#[derive(Debug, Error)]
pub enum FormatError {
    /// A file is missing.
    #[error("{}: file not found; expected {name} or {name}.gz", folder.display())]
    Missing {
        /// The folder that was searched.
        folder: PathBuf,
        /// Name of the file.
        name: String,
    },
    /// A file cannot be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A file has unexpected content: it is truncated, corrupt or another file under this name.
    #[error("{}, byte {offset}: found {found}; expected {expected}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// Offset in bytes, after decompression.
        offset: usize,
        /// The content at that offset.
        found: String,
        /// The expected content.
        expected: String,
    },
    /// The files are valid, but do not form a data set.
    #[error(transparent)]
    Dataset(#[from] DatasetError),
}
