//! Pretrained weights that a scheme starts from: named tensors with notes about them.

use std::collections::BTreeMap;

use thiserror::Error;

/// Tensors by name, each with its shape and its values in row-major order.
pub type Tensors = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

/// A pretrained model as read from a file.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Pretrained {
    /// The file's metadata: the kind of model and what it was trained for.
    pub notes: BTreeMap<String, String>,
    /// The weights.
    pub tensors: Tensors,
}

/// Why a pretrained model can't be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PretrainedError {
    /// A required note is missing.
    #[error("the note '{note}' is missing")]
    MissingNote {
        /// The name of the note.
        note: &'static str,
    },
    /// A note has a value that is not allowed.
    #[error("the note '{note}' is '{found}': expected {allowed}")]
    BadNote {
        /// The name of the note.
        note: &'static str,
        /// Its value.
        found: String,
        /// The allowed values.
        allowed: String,
    },
    /// A tensor is missing.
    #[error("the tensor '{name}' is missing")]
    MissingTensor {
        /// The name of the tensor.
        name: String,
    },
    /// The model has no tensor of this name.
    #[error("the tensor '{name}' is not part of this kind of model")]
    UnknownTensor {
        /// The name of the tensor.
        name: String,
    },
    /// A tensor has the wrong shape.
    #[error("the tensor '{name}' has shape {found:?}: expected {expected:?}")]
    WrongShape {
        /// The name of the tensor.
        name: String,
        /// Its shape.
        found: Vec<usize>,
        /// The expected shape.
        expected: Vec<usize>,
    },
    /// A weight is infinite or NaN.
    #[error("the tensor '{name}' has a value that is not finite")]
    NotFinite {
        /// The name of the tensor.
        name: String,
    },
    /// The model was trained for another number of workers.
    #[error("the model was trained for {found} workers: expected {expected}")]
    OtherWorkers {
        /// The number of workers of the model.
        found: usize,
        /// The number of workers of the run or trace.
        expected: usize,
    },
}

impl Pretrained {
    /// The value of a required note.
    pub(crate) fn note(&self, note: &'static str) -> Result<&str, PretrainedError> {
        self.notes.get(note).map(String::as_str).ok_or(PretrainedError::MissingNote { note })
    }

    /// The value of a required note that is a count from 1 to `limit`.
    pub(crate) fn count(&self, note: &'static str, limit: usize) -> Result<usize, PretrainedError> {
        let text = self.note(note)?;
        let found = text.parse().ok().filter(|count| (1..=limit).contains(count));
        found.ok_or_else(|| PretrainedError::BadNote { note, found: text.into(), allowed: format!("1 to {limit}") })
    }
}
