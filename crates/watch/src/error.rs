//! Why a run can't be watched.

use std::io;

use paceline_report::ReportError;
use thiserror::Error;

/// A run can't be watched.
#[derive(Debug, Error)]
pub enum WatchError {
    /// What was named is no run.
    #[error(
        "'{0}' is neither a run folder nor an address: expected a folder with events.jsonl, HOST:PORT or http://HOST:PORT"
    )]
    NoSource(String),
    /// Nobody answers at an address.
    #[error(
        "no answer from {address}: {problem}; a run prints the address of its page when it starts: watch the run at http://…"
    )]
    Unreachable {
        /// The address.
        address: String,
        /// What went wrong.
        problem: String,
    },
    /// Something else answers at an address.
    #[error(
        "{address} answers, but not as a run's page does: {problem}; a run prints the address of its page when it starts"
    )]
    NoPage {
        /// The address.
        address: String,
        /// What it answers.
        problem: String,
    },
    /// A run folder can't be read.
    #[error(transparent)]
    Folder(#[from] ReportError),
    /// The terminal can't be used.
    #[error("the terminal can't be used: {0}; --once prints the run as text")]
    Terminal(io::Error),
}
