//! Flat vectors as one safetensors file.
//!
//! The file holds the vectors as they lie in memory, so nothing is copied on the way; its header names each tensor of
//! the layout. The checksum is taken while the bytes pass.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, Write};
use std::ops::Range;

use safetensors::tensor::{Dtype, Metadata, TensorInfo};

use crate::Layout;

#[cfg(target_endian = "big")]
compile_error!("safetensors are little-endian and vectors are written as they lie in memory");

const VALUE_BYTES: usize = size_of::<f32>();

/// The format's own limit, which keeps a corrupt length from taking all memory.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// One vector of a file. Its tensors are those of the layout that lie within it, named `prefix` + name.
#[derive(Debug)]
pub(crate) struct Part<V> {
    pub prefix: String,
    pub values: V,
}

/// The name that two tensors share, or that the format keeps for itself.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct AmbiguousName(pub String);

/// Where each tensor lies: its name, the index of its part, and its range there.
fn places<'a, V: AsRef<[f32]>>(
    layout: &'a Layout,
    parts: &'a [Part<V>],
) -> impl Iterator<Item = (String, &'a [usize], usize, Range<usize>)> {
    parts.iter().enumerate().flat_map(|(index, part)| {
        let inside = |range: &Range<usize>| range.end <= part.values.as_ref().len();
        let entries = layout.entries().iter().filter(move |entry| inside(&entry.range));
        entries.map(move |entry| {
            let name = format!("{}{}", part.prefix, entry.name);
            (name, entry.shape.as_slice(), index, entry.range.clone())
        })
    })
}

/// What stands before the values: the length of the header and the header itself.
pub(crate) fn preamble<V: AsRef<[f32]>>(layout: &Layout, parts: &[Part<V>]) -> Result<Vec<u8>, AmbiguousName> {
    let mut names = BTreeSet::from(["__metadata__".to_string()]);
    let mut tensors = Vec::new();
    let mut end = 0;
    for (name, shape, _, range) in places(layout, parts) {
        if !names.insert(name.clone()) {
            return Err(AmbiguousName(name));
        }
        let start = end;
        end += range.len() * VALUE_BYTES;
        let shape = shape.to_vec();
        tensors.push((name, TensorInfo { dtype: Dtype::F32, shape, data_offsets: (start, end) }));
    }
    let metadata = Metadata::new(None, tensors).expect("tensors follow each other, each as long as its shape");
    let mut header = serde_json::to_vec(&metadata).expect("names and numbers are always JSON");
    // The values behind the header begin at a multiple of eight bytes, as readers that map the file like it.
    header.resize(header.len().next_multiple_of(8), b' ');
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.append(&mut header);
    Ok(bytes)
}

/// Writes `preamble` and the values of `parts`; returns the checksum of it all.
pub(crate) fn write<V: AsRef<[f32]>>(file: impl Write, preamble: &[u8], parts: &[Part<V>]) -> io::Result<u32> {
    let mut file = Checked::new(file);
    file.write_all(preamble)?;
    for part in parts {
        file.write_all(bytemuck::cast_slice(part.values.as_ref()))?;
    }
    Ok(file.sum.finalize())
}

/// Fills `parts` from a file of `file_bytes` bytes, whatever the order of its tensors; returns its checksum.
///
/// What is wrong with the file is said in words: it is an error of kind `InvalidData`.
pub(crate) fn read(file: impl Read, file_bytes: u64, layout: &Layout, parts: &mut [Part<Vec<f32>>]) -> io::Result<u32> {
    let mut file = Checked::new(file);
    let mut length = [0; 8];
    file.read_exact(&mut length)?;
    let length = u64::from_le_bytes(length);
    if length > MAX_HEADER_BYTES.min(file_bytes) {
        return Err(invalid(format!("a header of {length} bytes in a file of {file_bytes}")));
    }
    let mut header = vec![0; length as usize];
    file.read_exact(&mut header)?;
    let metadata: Metadata = serde_json::from_slice(&header)?;

    let mut places: BTreeMap<_, _> =
        places(layout, parts).map(|(name, shape, part, range)| (name, (shape, part, range))).collect();
    let mut order = Vec::new();
    for name in metadata.offset_keys() {
        let (shape, part, range) =
            places.remove(&name).ok_or_else(|| invalid(format!("unexpected tensor `{name}`")))?;
        let found = metadata.info(&name).map(|info| (info.dtype, info.shape.as_slice()));
        if found != Some((Dtype::F32, shape)) {
            return Err(invalid(format!("`{name}` is {found:?} instead of F32 {shape:?}")));
        }
        order.push((part, range));
    }
    if let Some((name, _)) = places.first_key_value() {
        return Err(invalid(format!("no tensor `{name}`")));
    }
    for (part, range) in order {
        file.read_exact(bytemuck::cast_slice_mut(&mut parts[part].values[range]))?;
    }
    match file.read(&mut [0])? {
        0 => Ok(file.sum.finalize()),
        _ => Err(invalid("bytes behind the last tensor".to_string())),
    }
}

fn invalid(reason: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

/// Takes the CRC-32 of all that passes.
struct Checked<F> {
    file: F,
    sum: crc32fast::Hasher,
}

/// Bytes that pass at a time: few enough to be still in the cache when they are summed.
const STRIDE: usize = 256 * 1024;

impl<F> Checked<F> {
    fn new(file: F) -> Self {
        Checked { file, sum: crc32fast::Hasher::new() }
    }
}

impl<F: Write> Write for Checked<F> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.file.write(&bytes[..bytes.len().min(STRIDE)])?;
        self.sum.update(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl<F: Read> Read for Checked<F> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let room = bytes.len().min(STRIDE);
        let count = self.file.read(&mut bytes[..room])?;
        self.sum.update(&bytes[..count]);
        Ok(count)
    }
}
