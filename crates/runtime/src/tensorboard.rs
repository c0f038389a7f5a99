//! TensorBoard event files: scalars by step.
//!
//! A file is a sequence of records: a length, the length's checksum, a protocol buffer and its checksum. Of the buffer
//! (`Event`) only the fields that scalars need are written.

use std::io::{self, Write};

/// Writes an event file.
pub struct ScalarLog<W: Write> {
    out: W,
}

impl<W: Write> ScalarLog<W> {
    /// Starts a file.
    ///
    /// # Errors
    /// If it can't be written.
    pub fn new(mut out: W) -> io::Result<Self> {
        let mut event = Vec::new();
        bytes(&mut event, 3, b"brain.Event:2");
        record(&mut out, &event)?;
        Ok(ScalarLog { out })
    }

    /// Writes the values of a step at `time`, in seconds.
    ///
    /// # Errors
    /// If they can't be written.
    pub fn write(&mut self, step: u64, time: f64, values: &[(&str, f64)]) -> io::Result<()> {
        let mut summary = Vec::new();
        for (name, value) in values {
            let mut scalar = Vec::new();
            bytes(&mut scalar, 1, name.as_bytes());
            key(&mut scalar, 2, 5);
            scalar.extend((*value as f32).to_le_bytes());
            bytes(&mut summary, 1, &scalar);
        }
        let mut event = Vec::new();
        double(&mut event, 1, time);
        key(&mut event, 2, 0);
        varint(&mut event, step);
        bytes(&mut event, 5, &summary);
        record(&mut self.out, &event)
    }

    /// Ends the file.
    ///
    /// # Errors
    /// If the rest can't be written.
    pub fn finish(mut self) -> io::Result<()> {
        self.out.flush()
    }
}

fn record(out: &mut impl Write, data: &[u8]) -> io::Result<()> {
    let length = (data.len() as u64).to_le_bytes();
    out.write_all(&length)?;
    out.write_all(&checksum(&length).to_le_bytes())?;
    out.write_all(data)?;
    out.write_all(&checksum(data).to_le_bytes())
}

/// The masked checksum of records, so that checksums of data that contain checksums differ.
fn checksum(data: &[u8]) -> u32 {
    crc32c::crc32c(data).rotate_right(15).wrapping_add(0xa282_ead8)
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// A field's number and wire type.
fn key(out: &mut Vec<u8>, field: u64, wire: u64) {
    varint(out, field << 3 | wire);
}

fn bytes(out: &mut Vec<u8>, field: u64, value: &[u8]) {
    key(out, field, 2);
    varint(out, value.len() as u64);
    out.extend(value);
}

fn double(out: &mut Vec<u8>, field: u64, value: f64) {
    key(out, field, 1);
    out.extend(value.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_equal_those_of_tensorboards_own_writer() {
        let mut file = Vec::new();
        let mut log = ScalarLog::new(&mut file).unwrap();
        log.write(300, 1.5, &[("loss", 0.25)]).unwrap();
        log.finish().unwrap();
        let text: String = file.iter().map(|byte| format!("{byte:02x}")).collect();
        let version = "0f000000000000006d532b091a0d627261696e2e4576656e743a32fc985129";
        let scalar = "1b000000000000001a0d9e1309000000000000f83f10ac022a0d0a0b0a046c6f7373150000803e9908deed";
        assert_eq!(text, format!("{version}{scalar}"));
    }
}
