//! What a scheme starts from that was learnt beforehand: named tensors, with notes about them.

use std::collections::BTreeMap;

use thiserror::Error;

/// Named tensors of numbers, each with its shape, row by row.
pub type Tensors = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

/// What was learnt by training, as it is kept in a file.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Pretrained {
    /// What is to be known about it: its kind, what it was learnt for.
    pub notes: BTreeMap<String, String>,
    /// The weights.
    pub tensors: Tensors,
}

/// Why something learnt is of no use.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PretrainedError {
    /// It does not say something that has to be known.
    #[error("it does not say its {note}")]
    MissingNote {
        /// What.
        note: &'static str,
    },
    /// It says something that can't be.
    #[error("its {note} is '{found}': expected {allowed}")]
    BadNote {
        /// What.
        note: &'static str,
        /// What it says.
        found: String,
        /// What it may say.
        allowed: String,
    },
    /// A tensor is not there.
    #[error("it has no tensor '{name}'")]
    MissingTensor {
        /// Its name.
        name: String,
    },
    /// A tensor is there that is none of the model's.
    #[error("it has a tensor '{name}', which is none of this model's")]
    UnknownTensor {
        /// Its name.
        name: String,
    },
    /// A tensor is of another shape.
    #[error("its tensor '{name}' is of shape {found:?}: expected {expected:?}")]
    WrongShape {
        /// Its name.
        name: String,
        /// Its shape.
        found: Vec<usize>,
        /// The shape that it should have.
        expected: Vec<usize>,
    },
    /// A weight is infinite or undefined.
    #[error("its tensor '{name}' holds a number that is not finite")]
    NotFinite {
        /// Its name.
        name: String,
    },
    /// It was learnt for another number of workers.
    #[error("it was learnt for {found} workers, but there are {expected}")]
    OtherWorkers {
        /// How many it was learnt for.
        found: usize,
        /// How many there are.
        expected: usize,
    },
}

impl Pretrained {
    /// What it says about something.
    pub(crate) fn note(&self, note: &'static str) -> Result<&str, PretrainedError> {
        self.notes.get(note).map(String::as_str).ok_or(PretrainedError::MissingNote { note })
    }

    /// A count it says, from 1 to `most`.
    pub(crate) fn count(&self, note: &'static str, most: usize) -> Result<usize, PretrainedError> {
        let text = self.note(note)?;
        let found = text.parse().ok().filter(|count| (1..=most).contains(count));
        found.ok_or_else(|| PretrainedError::BadNote { note, found: text.into(), allowed: format!("1 to {most}") })
    }
}
