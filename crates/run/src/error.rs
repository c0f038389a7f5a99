//! Why a run could not be prepared, finished or saved.

use std::io;

use paceline_net::ServerError;
use paceline_report::ReportError;
use paceline_runtime::RunFolderError;
use paceline_trace::TraceError;
use thiserror::Error;

/// Why a run could not be prepared, finished or saved.
#[derive(Debug, Error)]
pub enum RunError {
    /// The server failed.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// The run folder can't be written or read.
    #[error(transparent)]
    Folder(#[from] RunFolderError),
    /// The report can't be written.
    #[error(transparent)]
    Report(#[from] ReportError),
    /// The recorded times can't be written.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The status can't be served.
    #[error("the status can't be served over HTTP: {0}")]
    Http(io::Error),
    /// A worker process can't be started.
    #[error(transparent)]
    Process(io::Error),
}
