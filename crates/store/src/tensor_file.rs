//! Named tensors with notes about them, as a safetensors file.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use safetensors::SafeTensors;
use safetensors::tensor::Dtype;
use serde_json::{Map, Value, json};
use thiserror::Error;

use crate::atomic::write_file;

/// Notes by name.
pub type Notes = BTreeMap<String, String>;

/// Tensors by name, each with its shape, row by row.
pub type Tensors = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

/// The note that holds the checksum of all values.
const CHECKSUM: &str = "crc32";

/// What is wrong with a file of tensors.
#[derive(Debug, Error)]
#[error("{}: {kind}", path.display())]
pub struct TensorFileError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong.
    pub kind: TensorFileErrorKind,
}

/// What can be wrong with a file of tensors.
#[derive(Debug, Error)]
pub enum TensorFileErrorKind {
    /// It can't be read or written.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// It is no safetensors file, or cut short.
    #[error("not a whole safetensors file: {0}")]
    Malformed(#[from] safetensors::SafeTensorError),
    /// A tensor is of other numbers.
    #[error("tensor '{name}' is of {found:?} numbers: expected F32")]
    OtherNumbers {
        /// Its name.
        name: String,
        /// What it is of.
        found: Dtype,
    },
    /// The values are not those that were written.
    #[error("corrupt: the checksum of its values is {found}, but should be {expected}")]
    Corrupt {
        /// What they add up to.
        found: String,
        /// What was written.
        expected: String,
    },
}

/// Writes tensors with notes, the same bytes for the same tensors and notes; whole or not at all.
///
/// # Errors
/// If it can't be written.
pub fn write_tensors(path: &Path, notes: &Notes, tensors: &Tensors) -> Result<(), TensorFileError> {
    let values: Vec<&[u8]> = tensors.values().map(|(_, values)| bytemuck::cast_slice(values)).collect();
    let mut notes = notes.clone();
    notes.insert(CHECKSUM.into(), checksum(values.iter().copied()));
    // The library would write notes in an order that changes from run to run.
    let mut header = Map::from_iter([("__metadata__".to_string(), json!(notes))]);
    let mut end = 0;
    for (name, (shape, values)) in tensors {
        let start = end;
        end += size_of_val(values.as_slice());
        header.insert(name.clone(), json!({ "dtype": "F32", "shape": shape, "data_offsets": [start, end] }));
    }
    let mut header = Value::Object(header).to_string().into_bytes();
    header.resize(header.len().next_multiple_of(8), b' ');
    let written = write_file(path, |file| {
        file.write_all(&(header.len() as u64).to_le_bytes())?;
        file.write_all(&header)?;
        values.iter().try_for_each(|values| file.write_all(values))
    });
    written.map_err(|error| TensorFileError { path: path.into(), kind: error.into() })
}

/// Reads what [`write_tensors`] wrote.
///
/// # Errors
/// If it can't be read, is no such file, or was damaged.
pub fn read_tensors(path: &Path) -> Result<(Notes, Tensors), TensorFileError> {
    let read = || {
        let bytes = fs::read(path)?;
        let (_, metadata) = SafeTensors::read_metadata(&bytes)?;
        let mut notes: Notes = metadata.metadata().clone().unwrap_or_default().into_iter().collect();
        let file = SafeTensors::deserialize(&bytes)?;
        let mut tensors = Tensors::new();
        let views: BTreeMap<String, _> = file.tensors().into_iter().collect();
        let found = checksum(views.values().map(|view| view.data()));
        for (name, view) in views {
            if view.dtype() != Dtype::F32 {
                return Err(TensorFileErrorKind::OtherNumbers { name, found: view.dtype() });
            }
            let values =
                view.data().chunks_exact(4).map(|bytes| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
            tensors.insert(name, (view.shape().to_vec(), values.collect()));
        }
        match notes.remove(CHECKSUM) {
            Some(expected) if expected != found => Err(TensorFileErrorKind::Corrupt { found, expected }),
            // Files of others have none.
            _ => Ok((notes, tensors)),
        }
    };
    read().map_err(|kind| TensorFileError { path: path.into(), kind })
}

fn checksum<'a>(values: impl Iterator<Item = &'a [u8]>) -> String {
    let mut sum = crc32fast::Hasher::new();
    values.for_each(|values| sum.update(values));
    format!("{:08x}", sum.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> (Notes, Tensors) {
        let notes = ["kind", "lag", "workers", "a", "b"].map(|note| (note.to_string(), format!("the {note}")));
        let tensors = [
            ("b".to_string(), (vec![2, 2], vec![1.0, -2.5, 3.0, 0.1])),
            ("a".to_string(), (vec![3], vec![7.0, f32::MIN_POSITIVE, 9.0])),
        ];
        (notes.into(), tensors.into())
    }

    #[test]
    fn files_read_back_and_have_the_same_bytes_every_time() {
        let folder = tempfile::tempdir().unwrap();
        let (notes, tensors) = example();
        let [first, second] = ["first", "second"].map(|name| {
            let path = folder.path().join(name);
            write_tensors(&path, &notes, &tensors).unwrap();
            assert_eq!(read_tensors(&path).unwrap(), (notes.clone(), tensors.clone()));
            fs::read(&path).unwrap()
        });
        assert_eq!(first, second);
    }

    #[test]
    fn damage_is_noticed_wherever_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model");
        let (notes, tensors) = example();
        write_tensors(&path, &notes, &tensors).unwrap();
        let whole = fs::read(&path).unwrap();
        let refused = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            read_tensors(&path).unwrap_err().to_string()
        };
        let mut flipped = whole.clone();
        *flipped.last_mut().unwrap() ^= 1;
        assert!(refused(&flipped).contains("corrupt: the checksum"), "{}", refused(&flipped));
        for length in [0, 4, 20, whole.len() - 1] {
            let told = refused(&whole[..length]);
            assert!(told.contains("not a whole safetensors file"), "{length}: {told}");
        }
        assert!(refused(b"PK\x03\x04 something else altogether").contains("not a whole safetensors file"));
        let missing = read_tensors(&folder.path().join("none")).unwrap_err().to_string();
        assert!(missing.contains("none: "), "{missing}");
    }
}
