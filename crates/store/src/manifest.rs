//! The manifest of a checkpoint: a JSON file that describes its tensors and holds the rest of the run's state.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::Layout;

/// The format that this version writes. It reads no other.
pub(crate) const FORMAT: u32 = 3;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Manifest {
    pub format: u32,
    pub version: u64,
    pub optimizer: String,
    pub optimizer_steps: u64,
    /// Of the tensors in a file of their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tensors_crc32: Option<u32>,
    /// The tensors as parts of flat vectors, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<CheckpointPart>,
    /// What the checkpoint has beside the tensors.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<CheckpointFile>,
    pub trainable: usize,
    pub tensors: Vec<TensorShape>,
    pub run_state: String,
    pub rate_state: String,
}

/// A part of a checkpoint's values: parameters, then the optimizer's state vectors of the trainable ones among them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckpointPart {
    /// The first parameter.
    pub start: u64,
    /// How many parameters.
    pub length: u64,
    /// The checksum of the object.
    pub crc32: u32,
}

/// A file of the run folder that belongs to a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckpointFile {
    /// Its path in the run folder.
    pub name: String,
    /// The object that holds it.
    pub object: String,
    /// The checksum of the object.
    pub crc32: u32,
}

/// Name and shape of one tensor.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TensorShape {
    name: String,
    shape: Vec<usize>,
}

impl Manifest {
    /// The first difference between this layout and that of a model, as described by each.
    pub fn difference(&self, model: &Layout) -> Option<(String, String)> {
        let model_tensors = tensors(model);
        let describe = |tensor: Option<&TensorShape>| match tensor {
            Some(TensorShape { name, shape }) => format!("'{name}' of shape {shape:?}"),
            None => "no tensor".to_string(),
        };
        let count = self.tensors.len().max(model_tensors.len());
        let pairs = (0..count).map(|index| (self.tensors.get(index), model_tensors.get(index)));
        let different = pairs.into_iter().find(|(own, other)| own != other);
        if let Some((own, other)) = different {
            return Some((describe(own), describe(other)));
        }
        let trainable = |count: usize| format!("{count} trainable values");
        (self.trainable != model.trainable()).then(|| (trainable(self.trainable), trainable(model.trainable())))
    }

    /// The content of the file: the manifest and its checksum.
    pub fn to_json(&self) -> String {
        let manifest = serde_json::to_string(self).expect("strings and numbers are always JSON");
        let crc32 = crc32fast::hash(manifest.as_bytes());
        let manifest = &RawValue::from_string(manifest).expect("the serializer writes valid JSON");
        serde_json::to_string_pretty(&ManifestFile { crc32, manifest }).expect("a number and valid JSON")
    }

    /// Reads the output of [`Manifest::to_json`]. The error describes what is wrong with the file.
    pub fn from_json(text: &[u8]) -> Result<Self, String> {
        let ManifestFile { crc32, manifest } = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        let found = crc32fast::hash(manifest.get().as_bytes());
        if found != crc32 {
            return Err(format!("checksum {found}; expected {crc32}"));
        }
        let FormatVersion { format } = serde_json::from_str(manifest.get()).map_err(|error| error.to_string())?;
        if format != FORMAT {
            return Err(format!("format {format}; expected format {FORMAT}"));
        }
        serde_json::from_str(manifest.get()).map_err(|error| error.to_string())
    }
}

/// The names and shapes of a layout.
pub(crate) fn tensors(layout: &Layout) -> Vec<TensorShape> {
    let entries = layout.entries().iter();
    entries.map(|entry| TensorShape { name: entry.name.clone(), shape: entry.shape.clone() }).collect()
}

/// The file: the manifest as raw JSON text, and the CRC-32 of that text.
#[derive(Serialize, Deserialize)]
struct ManifestFile<'a> {
    crc32: u32,
    #[serde(borrow)]
    manifest: &'a RawValue,
}

/// The one field that all formats have.
#[derive(Deserialize)]
struct FormatVersion {
    format: u32,
}
