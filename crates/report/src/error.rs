//! Errors of reports and figures.

use std::io;
use std::path::{Path, PathBuf};

use paceline_runtime::{ReplayError, RunFolderError};
use thiserror::Error;

/// A report or a figure could not be made.
#[derive(Debug, Error)]
pub enum ReportError {
    /// A file can't be read or written.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// A folder is not a run folder.
    #[error("{} has no events.jsonl; expected a run folder, or a folder of run folders", path.display())]
    NoRun {
        /// The folder.
        path: PathBuf,
    },
    /// An event log can't be read.
    #[error("{}: {error}", path.display())]
    Events {
        /// The event log.
        path: PathBuf,
        /// The error.
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
        /// The problem.
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
