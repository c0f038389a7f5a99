//! The small file beside a checkpoint's tensors: what they are, and what else a run needs to go on.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::Layout;

/// The format that this version writes, and the only one it reads.
pub(crate) const FORMAT: u32 = 1;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Manifest {
    pub format: u32,
    pub version: u64,
    pub optimizer: String,
    pub optimizer_steps: u64,
    pub tensors_crc32: u32,
    pub trainable: usize,
    pub tensors: Vec<Tensor>,
    pub scheme_state: String,
    pub extra: String,
}

/// A name and a shape.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Tensor {
    name: String,
    shape: Vec<usize>,
}

impl Manifest {
    /// Where this layout and that of a model first differ: what is here, and what is there.
    pub fn difference(&self, model: &Layout) -> Option<(String, String)> {
        let model_tensors = tensors(model);
        let describe = |tensor: Option<&Tensor>| match tensor {
            Some(Tensor { name, shape }) => format!("`{name}` of shape {shape:?}"),
            None => "nothing".to_string(),
        };
        let count = self.tensors.len().max(model_tensors.len());
        let pairs = (0..count).map(|index| (self.tensors.get(index), model_tensors.get(index)));
        let different = pairs.into_iter().find(|(here, there)| here != there);
        if let Some((here, there)) = different {
            return Some((describe(here), describe(there)));
        }
        let trainable = |count: usize| format!("{count} trainable values");
        (self.trainable != model.trainable()).then(|| (trainable(self.trainable), trainable(model.trainable())))
    }

    /// The text of the file: the manifest and its own checksum.
    pub fn seal(&self) -> String {
        let manifest = serde_json::to_string(self).expect("strings and numbers are always JSON");
        let crc32 = crc32fast::hash(manifest.as_bytes());
        let manifest = &RawValue::from_string(manifest).expect("the serializer writes valid JSON");
        serde_json::to_string_pretty(&Sealed { crc32, manifest }).expect("a number and valid JSON")
    }

    /// Reads what [`Manifest::seal`] wrote, or says what is wrong with it.
    pub fn open(text: &[u8]) -> Result<Self, String> {
        let Sealed { crc32, manifest } = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        let found = crc32fast::hash(manifest.get().as_bytes());
        if found != crc32 {
            return Err(format!("its checksum is {found}, {crc32} is written in it"));
        }
        let Version { format } = serde_json::from_str(manifest.get()).map_err(|error| error.to_string())?;
        if format != FORMAT {
            return Err(format!("it has format {format}; this version reads format {FORMAT}"));
        }
        serde_json::from_str(manifest.get()).map_err(|error| error.to_string())
    }
}

/// The names and shapes of a layout.
pub(crate) fn tensors(layout: &Layout) -> Vec<Tensor> {
    let entries = layout.entries().iter();
    entries.map(|entry| Tensor { name: entry.name.clone(), shape: entry.shape.clone() }).collect()
}

#[derive(Serialize, Deserialize)]
struct Sealed<'a> {
    crc32: u32,
    #[serde(borrow)]
    manifest: &'a RawValue,
}

/// The one field that every format has.
#[derive(Deserialize)]
struct Version {
    format: u32,
}
