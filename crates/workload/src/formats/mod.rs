//! Readers of the files that data sets are published in. Each may be plain or gzip, whatever its name says.

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
    /// A file is not where it should be.
    #[error("{}: found no {name} or {name}.gz", folder.display())]
    Missing {
        /// Where it was looked for.
        folder: PathBuf,
        /// Its usual name.
        name: String,
    },
    /// The system did not let us read a file.
    #[error("{}: {source}", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file holds something else than it should: truncated, corrupt or another file under this name.
    #[error("{}, byte {offset}: found {found}, expected {expected}", path.display())]
    Content {
        /// Which file.
        path: PathBuf,
        /// Where in its content, after decompression.
        offset: usize,
        /// What is there.
        found: String,
        /// What belongs there.
        expected: String,
    },
    /// The files are sound, but do not make a data set.
    #[error(transparent)]
    Dataset(#[from] DatasetError),
}
