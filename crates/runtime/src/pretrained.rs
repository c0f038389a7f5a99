//! Files of what was trained beforehand for a scheme.

use std::path::Path;
use std::sync::Arc;

use paceline_core::{Pretrained, SchemeSpec};
use paceline_store::{TensorFileError, read_tensors, write_tensors};

/// Reads a pretrained model from a file.
///
/// # Errors
/// If it can't be read, or is corrupt.
pub fn read_pretrained(path: &Path) -> Result<Pretrained, TensorFileError> {
    let (notes, tensors) = read_tensors(path)?;
    Ok(Pretrained { notes, tensors })
}

/// Writes a pretrained model to a file, whole or not at all.
///
/// # Errors
/// If it can't be written.
pub fn write_pretrained(path: &Path, pretrained: &Pretrained) -> Result<(), TensorFileError> {
    write_tensors(path, &pretrained.notes, &pretrained.tensors)
}

/// Reads the file that a scheme's setting `model=FILE` names, if it has one.
///
/// # Errors
/// If it can't be read, or is corrupt.
pub fn load_pretrained(mut scheme: SchemeSpec) -> Result<SchemeSpec, TensorFileError> {
    if let Some(path) = scheme.model() {
        scheme.context.pretrained = Some(Arc::new(read_pretrained(Path::new(path))?));
    }
    Ok(scheme)
}
