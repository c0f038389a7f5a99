//! Saved state: what lets a scheme go on where another process left it.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::{RawValue, to_raw_value};
use thiserror::Error;

/// Why a saved state can't be restored.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct RestoreError(String);

impl RestoreError {
    /// An error with this description.
    pub fn new(problem: impl ToString) -> Self {
        RestoreError(problem.to_string())
    }
}

impl From<serde_json::Error> for RestoreError {
    fn from(error: serde_json::Error) -> Self {
        RestoreError::new(error)
    }
}

/// A part of a scheme whose state can be saved as JSON and restored by another process.
///
/// Every type that serde can write and read is restorable as a whole. A type with parts that come from elsewhere, such
/// as a pretrained model, implements this itself: it saves the rest, and keeps those parts of the freshly built one.
pub trait Restorable {
    /// The state; `None` if it can't be saved.
    fn save(&self) -> Option<Box<RawValue>>;

    /// Takes on a saved state. After an error the state is undefined.
    ///
    /// # Errors
    /// If the state can't be read, or does not fit.
    fn restore(&mut self, saved: &RawValue) -> Result<(), RestoreError>;
}

impl<T: Serialize + DeserializeOwned> Restorable for T {
    fn save(&self) -> Option<Box<RawValue>> {
        to_raw_value(self).ok()
    }

    fn restore(&mut self, saved: &RawValue) -> Result<(), RestoreError> {
        *self = serde_json::from_str(saved.get())?;
        Ok(())
    }
}
