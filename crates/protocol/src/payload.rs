//! The payload format: values are sent exactly, in half precision to halve the traffic, or in a quarter of it.

use std::fmt;
use std::str::FromStr;

use paceline_spec::{SpecError, one_of};
use serde::{Deserialize, Serialize};

/// The longest chunk of values on the wire, in bytes.
pub const CHUNK_LIMIT: usize = 256 * 1024;

/// The values that share a scale in `int8`. The scales are 1.6 % of the bytes then; with shorter blocks, a large value would
/// coarsen fewer others, but with error feedback that matters little.
pub const INT8_BLOCK: usize = 256;

/// The bytes of a scale.
pub(crate) const SCALE_BYTES: usize = 4;

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
    /// A byte per value and a scale per block. What is lost in rounding is made up for later: see
    /// [`Codec`](crate::Codec).
    Int8,
}

impl PayloadFormat {
    /// The formats by name.
    pub const NAMES: [(&'static str, PayloadFormat); 4] = [
        ("f32", PayloadFormat::F32),
        ("f16", PayloadFormat::F16),
        ("bf16", PayloadFormat::Bf16),
        ("int8", PayloadFormat::Int8),
    ];

    /// The bytes of this many values.
    pub fn bytes(self, values: usize) -> usize {
        match self {
            PayloadFormat::F32 => 4 * values,
            PayloadFormat::F16 | PayloadFormat::Bf16 => 2 * values,
            PayloadFormat::Int8 => values + SCALE_BYTES * values.div_ceil(INT8_BLOCK),
        }
    }

    /// The number of values in this many bytes; `None` if they are not whole values.
    pub fn values(self, bytes: usize) -> Option<usize> {
        let values = match self {
            PayloadFormat::F32 => bytes / 4,
            PayloadFormat::F16 | PayloadFormat::Bf16 => bytes / 2,
            PayloadFormat::Int8 => bytes.saturating_sub(SCALE_BYTES * bytes.div_ceil(SCALE_BYTES + INT8_BLOCK)),
        };
        (self.bytes(values) == bytes).then_some(values)
    }

    /// The number of values in a full chunk: a power of two.
    pub fn values_per_chunk(self) -> usize {
        INT8_BLOCK << (CHUNK_LIMIT / self.bytes(INT8_BLOCK)).ilog2()
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

/// Which formats a run uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum PayloadRule {
    /// This one.
    Always(PayloadFormat),
    /// Every worker chooses the one that suits its link.
    Auto,
}

impl PayloadRule {
    /// The format that is used at first.
    pub fn first(self) -> PayloadFormat {
        match self {
            PayloadRule::Always(format) => format,
            PayloadRule::Auto => PayloadFormat::F32,
        }
    }
}

impl Default for PayloadRule {
    fn default() -> Self {
        PayloadFormat::default().into()
    }
}

impl From<PayloadFormat> for PayloadRule {
    fn from(format: PayloadFormat) -> Self {
        PayloadRule::Always(format)
    }
}

impl FromStr for PayloadRule {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let formats = PayloadFormat::NAMES.map(|(name, format)| (name, PayloadRule::Always(format)));
        let [f32, f16, bf16, int8] = formats;
        one_of("payload", text, &[f32, f16, bf16, int8, ("auto", PayloadRule::Auto)])
    }
}

impl fmt::Display for PayloadRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PayloadRule::Always(format) => format.fmt(f),
            PayloadRule::Auto => f.write_str("auto"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_in_bytes_says_how_many_values_there_are() {
        for (_, format) in PayloadFormat::NAMES {
            for values in [0, 1, 2, 255, 256, 257, 1_000, format.values_per_chunk()] {
                assert_eq!(format.values(format.bytes(values)), Some(values), "{format}");
            }
            assert!(format.bytes(format.values_per_chunk()) <= CHUNK_LIMIT);
            assert!(format.values_per_chunk().is_power_of_two());
        }
        assert_eq!(PayloadFormat::F32.values(7), None);
        assert_eq!(PayloadFormat::Int8.values(4), None, "a scale alone");
        assert_eq!(PayloadFormat::Int8.values(260 + 2), None, "a part of a scale");
    }

    #[test]
    fn names_round_trip() {
        for (name, payload) in PayloadFormat::NAMES {
            assert_eq!(name.parse(), Ok(payload));
            assert_eq!(payload.to_string(), name);
            assert_eq!(name.parse(), Ok(PayloadRule::Always(payload)));
        }
        assert_eq!(PayloadRule::Auto.to_string().parse(), Ok(PayloadRule::Auto));
        assert_eq!(
            "f64".parse::<PayloadFormat>().unwrap_err().to_string(),
            "unknown payload 'f64'; expected f32, f16, bf16 or int8"
        );
    }
}
