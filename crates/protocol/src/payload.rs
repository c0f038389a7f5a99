//! The payload format: values are sent exactly, or in half precision to halve the traffic.

use std::fmt;
use std::str::FromStr;

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use paceline_spec::{SpecError, one_of};
use serde::{Deserialize, Serialize};

/// The longest chunk of values on the wire, in bytes.
pub const CHUNK_LIMIT: usize = 256 * 1024;

/// The number format of parameters and gradients over TCP. In shared memory they are always `f32`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum PayloadFormat {
    /// Four bytes per value, exact.
    #[default]
    F32,
    /// Two bytes per value, 11 significant bits; values beyond ±65504 become infinite.
    F16,
    /// Two bytes per value, 8 significant bits, the range of `f32`.
    Bf16,
}

impl PayloadFormat {
    const NAMES: [(&'static str, PayloadFormat); 3] =
        [("f32", PayloadFormat::F32), ("f16", PayloadFormat::F16), ("bf16", PayloadFormat::Bf16)];

    /// Bytes per value.
    pub fn width(self) -> usize {
        match self {
            PayloadFormat::F32 => 4,
            PayloadFormat::F16 | PayloadFormat::Bf16 => 2,
        }
    }

    /// The number of values in a full chunk.
    pub fn values_per_chunk(self) -> usize {
        CHUNK_LIMIT / self.width()
    }

    /// Encodes `values`. `scratch` holds the result unless the format is `f32`.
    pub fn encode<'a>(self, values: &'a [f32], scratch: &'a mut Vec<u16>) -> &'a [u8] {
        if self == PayloadFormat::F32 {
            return bytemuck::cast_slice(values);
        }
        scratch.resize(values.len(), 0);
        match self {
            PayloadFormat::F16 => bytemuck::cast_slice_mut::<_, f16>(scratch).convert_from_f32_slice(values),
            _ => bytemuck::cast_slice_mut::<_, bf16>(scratch).convert_from_f32_slice(values),
        }
        bytemuck::cast_slice(scratch)
    }

    /// Decodes the bytes of `values`, which are given in pairs.
    pub fn decode(self, encoded: &[u16], values: &mut [f32]) {
        match self {
            PayloadFormat::F32 => bytemuck::cast_slice_mut(values).copy_from_slice(encoded),
            PayloadFormat::F16 => bytemuck::cast_slice::<_, f16>(encoded).convert_to_f32_slice(values),
            PayloadFormat::Bf16 => bytemuck::cast_slice::<_, bf16>(encoded).convert_to_f32_slice(values),
        }
    }
}

impl FromStr for PayloadFormat {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        one_of("payload", text, &PayloadFormat::NAMES)
    }
}

impl fmt::Display for PayloadFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = PayloadFormat::NAMES.into_iter().find(|(_, payload)| payload == self);
        f.write_str(found.map_or("", |(name, _)| name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_round_trip_within_the_precision_of_the_format() {
        let values: Vec<f32> = (-500..500).map(|index| (index as f32 * 0.37).sin() * 3.0).collect();
        for (payload, precision) in
            [(PayloadFormat::F32, 0.0), (PayloadFormat::F16, 1.0 / 2048.0), (PayloadFormat::Bf16, 1.0 / 256.0)]
        {
            let mut scratch = Vec::new();
            let bytes = payload.encode(&values, &mut scratch);
            assert_eq!(bytes.len(), values.len() * payload.width());
            let mut decoded = vec![0.0; values.len()];
            let mut encoded = vec![0; bytes.len() / 2];
            bytemuck::cast_slice_mut(&mut encoded).copy_from_slice(bytes);
            payload.decode(&encoded, &mut decoded);
            for (value, decoded) in values.iter().zip(&decoded) {
                assert!((value - decoded).abs() <= precision * value.abs(), "{payload}: {value} became {decoded}");
            }
        }
    }

    #[test]
    fn names_round_trip() {
        for (name, payload) in PayloadFormat::NAMES {
            assert_eq!(name.parse(), Ok(payload));
            assert_eq!(payload.to_string(), name);
        }
        assert_eq!(
            "f64".parse::<PayloadFormat>().unwrap_err().to_string(),
            "unknown payload 'f64'; expected f32, f16 or bf16"
        );
    }
}
