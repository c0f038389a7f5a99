//! Why a report or a figure could not be made.

use std::io;
use std::path::{Path, PathBuf};

use paceline_runtime::{ReplayError, RunFolderError};
use thiserror::Error;

/// Why a report or a figure could not be made.
#[derive(Debug, Error)]
pub enum ReportError {
    /// A file can't be read or written.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// A folder is not a run folder.
    #[error("{} is not a run folder and holds none: it has no events.jsonl", path.display())]
    NoRun {
        /// The folder.
        path: PathBuf,
    },
    /// An event log can't be read.
    #[error("{}: {error}", path.display())]
    Events {
        /// The event log.
        path: PathBuf,
        /// What is wrong.
        error: Box<ReplayError>,
    },
    /// A run folder can't be read.
    #[error(transparent)]
    RunFolder(#[from] RunFolderError),
    /// A figure can't be drawn.
    #[error("{}: {problem}", path.display())]
    Figure {
        /// Its file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
}

/// Names the file that a system error is about.
pub(crate) fn at(path: &Path) -> impl Fn(io::Error) -> ReportError + '_ {
    move |error| ReportError::Io { path: path.into(), error }
}

/// Names the event log that an error is about.
pub(crate) fn in_log(path: &Path) -> impl Fn(ReplayError) -> ReportError + '_ {
    move |error| ReportError::Events { path: path.into(), error: error.into() }
}
