//! Why a model and its data do not make a workload.

use paceline_workload::PartitionError;
use thiserror::Error;

use crate::kind::ModelKind;

/// Why a model and its data do not make a workload.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum ModelError {
    /// The model reads another kind of data.
    #[error("{model} reads {reads}, but the data are {found}")]
    Data {
        /// The model asked for.
        model: ModelKind,
        /// What it reads.
        reads: &'static str,
        /// What the data are.
        found: &'static str,
    },
    /// Nothing would be left of the images.
    #[error("{model} needs images of at least {least} × {least} pixels, got {height} × {width}")]
    SmallImages {
        /// The model asked for.
        model: ModelKind,
        /// The shortest side it takes, in pixels.
        least: usize,
        /// Height of the images.
        height: usize,
        /// Width of the images.
        width: usize,
    },
    /// A part of the text has not even one window with its targets.
    #[error("windows of {context} characters need more than {context} to train on and as many held out, got {found}")]
    ShortText {
        /// Length of the shorter part.
        found: usize,
        /// Length of a window.
        context: usize,
    },
    /// The samples cannot be spread over the workers.
    #[error(transparent)]
    Partition(#[from] PartitionError),
}
