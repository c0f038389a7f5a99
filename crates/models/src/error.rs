//! Errors of combining a model with data.

use paceline_workload::PartitionError;
use thiserror::Error;

/// Why a model and its data cannot form a workload.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum ModelError {
    /// The model reads another kind of data.
    #[error("model '{model}': the data are {found}; expected {reads}")]
    Data {
        /// The requested model.
        model: &'static str,
        /// The kind of data that the model reads.
        reads: &'static str,
        /// The kind of the given data.
        found: &'static str,
    },
    /// The images are too small for the convolutions of the model.
    #[error("model '{model}': images of {height} × {width} pixels; expected at least {min_side} × {min_side}")]
    SmallImages {
        /// The requested model.
        model: &'static str,
        /// The minimum height and width, in pixels.
        min_side: usize,
        /// Height of the images in pixels.
        height: usize,
        /// Width of the images in pixels.
        width: usize,
    },
    /// The training part or the held-out part of the text is shorter than one window with its targets.
    #[error(
        "text with {found} characters in its shorter part (training or held-out); expected more than {context}, the \
         length of a window"
    )]
    ShortText {
        /// Length of the shorter part in characters.
        found: usize,
        /// Length of a window in characters.
        context: usize,
    },
    /// Another model has this name.
    #[error("there is a model '{name}' already")]
    NameTaken {
        /// The name.
        name: &'static str,
    },
    /// The samples cannot be split among the workers.
    #[error(transparent)]
    Partition(#[from] PartitionError),
}
