//! Flat vectors as one safetensors file.
//!
//! The values of the file are the bytes of the vectors in memory, so no vector is copied. The header names each tensor
//! of the layout. The checksum is computed while the bytes are written or read.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, Write};
use std::ops::Range;

use safetensors::tensor::{Dtype, Metadata, TensorInfo};

use crate::Layout;

#[cfg(target_endian = "big")]
compile_error!("safetensors files are little-endian, and vectors are written without conversion");

const VALUE_BYTES: usize = size_of::<f32>();

/// The limit of the safetensors format. It prevents a huge allocation for a corrupt length.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// One vector of a file. Its tensors are those of the layout whose ranges fit into it, named `prefix` + name.
#[derive(Debug)]
pub(crate) struct FlatVector<V> {
    pub prefix: String,
    pub values: V,
}

/// A name that two tensors share, or that the format reserves.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct AmbiguousName(pub String);

/// Each tensor's name, shape, index of its vector and range in that vector.
fn locations<'a, V: AsRef<[f32]>>(
    layout: &'a Layout,
    vectors: &'a [FlatVector<V>],
) -> impl Iterator<Item = (String, &'a [usize], usize, Range<usize>)> {
    vectors.iter().enumerate().flat_map(|(index, vector)| {
        let inside = |range: &Range<usize>| range.end <= vector.values.as_ref().len();
        let entries = layout.entries().iter().filter(move |entry| inside(&entry.range));
        entries.map(move |entry| {
            let name = format!("{}{}", vector.prefix, entry.name);
            (name, entry.shape.as_slice(), index, entry.range.clone())
        })
    })
}

/// The bytes before the values: the length of the JSON header, then the JSON header.
pub(crate) fn header<V: AsRef<[f32]>>(layout: &Layout, vectors: &[FlatVector<V>]) -> Result<Vec<u8>, AmbiguousName> {
    let mut names = BTreeSet::from(["__metadata__".to_string()]);
    let mut tensors = Vec::new();
    let mut end = 0;
    for (name, shape, _, range) in locations(layout, vectors) {
        if !names.insert(name.clone()) {
            return Err(AmbiguousName(name));
        }
        let start = end;
        end += range.len() * VALUE_BYTES;
        let shape = shape.to_vec();
        tensors.push((name, TensorInfo { dtype: Dtype::F32, shape, data_offsets: (start, end) }));
    }
    let metadata = Metadata::new(None, tensors).expect("tensors are contiguous, and their lengths match their shapes");
    let mut header = serde_json::to_vec(&metadata).expect("names and numbers are always JSON");
    // The values start at a multiple of eight bytes, so that readers can map the file into memory.
    header.resize(header.len().next_multiple_of(8), b' ');
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.append(&mut header);
    Ok(bytes)
}

/// Writes `header` and the values of `vectors`. Returns the CRC-32 of all bytes.
pub(crate) fn write<V: AsRef<[f32]>>(file: impl Write, header: &[u8], vectors: &[FlatVector<V>]) -> io::Result<u32> {
    let mut file = CrcStream::new(file);
    file.write_all(header)?;
    for vector in vectors {
        file.write_all(bytemuck::cast_slice(vector.values.as_ref()))?;
    }
    Ok(file.crc.finalize())
}

/// Fills `vectors` from a file of `file_bytes` bytes, with its tensors in any order. Returns the CRC-32 of the file.
///
/// Invalid content is an error of kind `InvalidData` that describes the problem.
pub(crate) fn read(
    file: impl Read,
    file_bytes: u64,
    layout: &Layout,
    vectors: &mut [FlatVector<Vec<f32>>],
) -> io::Result<u32> {
    let mut file = CrcStream::new(file);
    let mut length = [0; 8];
    file.read_exact(&mut length)?;
    let length = u64::from_le_bytes(length);
    let max_length = MAX_HEADER_BYTES.min(file_bytes);
    if length > max_length {
        return Err(invalid(format!("header of {length} bytes; expected at most {max_length}")));
    }
    let mut header = vec![0; length as usize];
    file.read_exact(&mut header)?;
    let metadata: Metadata = serde_json::from_slice(&header)?;

    let mut locations: BTreeMap<_, _> =
        locations(layout, vectors).map(|(name, shape, vector, range)| (name, (shape, vector, range))).collect();
    let mut order = Vec::new();
    for name in metadata.offset_keys() {
        let (shape, vector, range) =
            locations.remove(&name).ok_or_else(|| invalid(format!("unexpected tensor '{name}'")))?;
        let found = metadata.info(&name).map(|info| (info.dtype, info.shape.as_slice()));
        if found != Some((Dtype::F32, shape)) {
            return Err(invalid(format!("tensor '{name}' is {found:?}; expected F32 {shape:?}")));
        }
        order.push((vector, range));
    }
    if let Some((name, _)) = locations.first_key_value() {
        return Err(invalid(format!("tensor '{name}' is missing")));
    }
    for (vector, range) in order {
        file.read_exact(bytemuck::cast_slice_mut(&mut vectors[vector].values[range]))?;
    }
    match file.read(&mut [0])? {
        0 => Ok(file.crc.finalize()),
        _ => Err(invalid("bytes after the last tensor".to_string())),
    }
}

fn invalid(reason: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

/// Computes the CRC-32 of all bytes that are written to or read from a file.
struct CrcStream<F> {
    file: F,
    crc: crc32fast::Hasher,
}

/// Bytes per call, few enough to be still in the cache when their checksum is computed.
const CHUNK_BYTES: usize = 256 * 1024;

impl<F> CrcStream<F> {
    fn new(file: F) -> Self {
        CrcStream { file, crc: crc32fast::Hasher::new() }
    }
}

impl<F: Write> Write for CrcStream<F> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.file.write(&bytes[..bytes.len().min(CHUNK_BYTES)])?;
        self.crc.update(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl<F: Read> Read for CrcStream<F> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let room = bytes.len().min(CHUNK_BYTES);
        let count = self.file.read(&mut bytes[..room])?;
        self.crc.update(&bytes[..count]);
        Ok(count)
    }
}
