//! Schemes that start from what was learnt beforehand: their files.

use std::path::Path;
use std::sync::Arc;

use paceline_core::{Learnt, SchemeSpec};
use paceline_store::{TensorFileError, read_tensors, write_tensors};

/// Reads what was learnt from a file.
///
/// # Errors
/// If it can't be read, or is corrupt.
pub fn read_learnt(path: &Path) -> Result<Learnt, TensorFileError> {
    let (notes, tensors) = read_tensors(path)?;
    Ok(Learnt { notes, tensors })
}

/// Writes what was learnt to a file, whole or not at all.
///
/// # Errors
/// If it can't be written.
pub fn write_learnt(path: &Path, learnt: &Learnt) -> Result<(), TensorFileError> {
    write_tensors(path, &learnt.notes, &learnt.tensors)
}

/// Gives a scheme what its settings name: the file of `model=FILE`, read.
///
/// # Errors
/// If it can't be read, or is corrupt.
pub fn equip(mut scheme: SchemeSpec) -> Result<SchemeSpec, TensorFileError> {
    if let Some(path) = scheme.model() {
        scheme.aids.learnt = Some(Arc::new(read_learnt(Path::new(path))?));
    }
    Ok(scheme)
}
