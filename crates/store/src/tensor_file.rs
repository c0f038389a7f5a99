//! Named tensors with notes (the metadata of the format) as a safetensors file.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use paceline_spec::read_input;
use safetensors::SafeTensors;
use safetensors::tensor::Dtype;
use serde_json::{Map, Value, json};
use thiserror::Error;

use crate::atomic::write_file;

/// The metadata of a file: text values by name.
pub type Notes = BTreeMap<String, String>;

/// Tensors by name, each as its shape and its values in row-major order.
pub type Tensors = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

/// The limit of a file, which is read whole.
const MAX_FILE: u64 = 1 << 30;

/// The note that holds the checksum of all values.
const CHECKSUM: &str = "crc32";

/// Why a tensor file cannot be read or written.
#[derive(Debug, Error)]
#[error("{}: {kind}", path.display())]
pub struct TensorFileError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong.
    pub kind: TensorFileErrorKind,
}

/// The kinds of [`TensorFileError`].
#[derive(Debug, Error)]
pub enum TensorFileErrorKind {
    /// The file cannot be read or written.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The file is truncated, or not a safetensors file.
    #[error("not a whole safetensors file: {0}")]
    Malformed(#[from] safetensors::SafeTensorError),
    /// A tensor has another number type than `f32`.
    #[error("tensor '{name}' has type {found:?}; expected F32")]
    WrongType {
        /// Name of the tensor.
        name: String,
        /// Its number type.
        found: Dtype,
    },
    /// The values changed after they were written.
    #[error("corrupt: the checksum of its values is {found}; expected {expected}")]
    Corrupt {
        /// CRC-32 of the values, in hexadecimal.
        found: String,
        /// The CRC-32 in the file, in hexadecimal.
        expected: String,
    },
}

/// Writes tensors and notes atomically. Equal tensors and notes give equal bytes.
///
/// # Errors
/// [`TensorFileErrorKind::Io`] if the file cannot be written.
pub fn write_tensors(path: &Path, notes: &Notes, tensors: &Tensors) -> Result<(), TensorFileError> {
    let values: Vec<&[u8]> = tensors.values().map(|(_, values)| bytemuck::cast_slice(values)).collect();
    let mut notes = notes.clone();
    notes.insert(CHECKSUM.into(), checksum(values.iter().copied()));
    // The safetensors crate writes metadata in an order that changes from run to run.
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

/// Reads a file of [`write_tensors`], or another safetensors file of `f32` tensors, which has no checksum to verify.
///
/// # Errors
/// If the file cannot be read, is not a safetensors file of `f32` tensors, or is damaged.
pub fn read_tensors(path: &Path) -> Result<(Notes, Tensors), TensorFileError> {
    let read = || {
        let bytes = read_input(path, MAX_FILE)?;
        let (_, metadata) = SafeTensors::read_metadata(&bytes)?;
        let mut notes: Notes = metadata.metadata().clone().unwrap_or_default().into_iter().collect();
        let file = SafeTensors::deserialize(&bytes)?;
        let mut tensors = Tensors::new();
        let views: BTreeMap<String, _> = file.tensors().into_iter().collect();
        let found = checksum(views.values().map(|view| view.data()));
        for (name, view) in views {
            if view.dtype() != Dtype::F32 {
                return Err(TensorFileErrorKind::WrongType { name, found: view.dtype() });
            }
            let values =
                view.data().chunks_exact(4).map(|bytes| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
            tensors.insert(name, (view.shape().to_vec(), values.collect()));
        }
        match notes.remove(CHECKSUM) {
            Some(expected) if expected != found => Err(TensorFileErrorKind::Corrupt { found, expected }),
            // Files of other programs have no checksum.
            _ => Ok((notes, tensors)),
        }
    };
    read().map_err(|kind| TensorFileError { path: path.into(), kind })
}

fn checksum<'a>(values: impl Iterator<Item = &'a [u8]>) -> String {
    let mut crc = crc32fast::Hasher::new();
    values.for_each(|values| crc.update(values));
    format!("{:08x}", crc.finalize())
}

#[cfg(test)]
mod tests {
    use std::fs;

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
    fn a_file_reads_back_and_has_the_same_bytes_every_time() {
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
    fn any_damage_is_detected() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model");
        let (notes, tensors) = example();
        write_tensors(&path, &notes, &tensors).unwrap();
        let whole = fs::read(&path).unwrap();
        let rejection = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            read_tensors(&path).unwrap_err().to_string()
        };
        let mut flipped = whole.clone();
        *flipped.last_mut().unwrap() ^= 1;
        assert!(rejection(&flipped).contains("corrupt: the checksum"), "{}", rejection(&flipped));
        for length in [0, 4, 20, whole.len() - 1] {
            let error = rejection(&whole[..length]);
            assert!(error.contains("not a whole safetensors file"), "{length}: {error}");
        }
        assert!(rejection(b"PK\x03\x04 something else altogether").contains("not a whole safetensors file"));
        let missing = read_tensors(&folder.path().join("none")).unwrap_err().to_string();
        assert!(missing.contains("none: "), "{missing}");
    }
}
