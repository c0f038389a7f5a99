//! Floating-point numbers in JSON, which has no infinity and no NaN: these are written as strings. For fields with
//! `#[serde(with = "paceline_core::number")]`.

use std::collections::VecDeque;
use std::fmt;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A number, or a collection of numbers.
pub trait JsonNumber: Sized {
    /// Writes it.
    ///
    /// # Errors
    /// The serializer's.
    fn write<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error>;

    /// Reads it.
    ///
    /// # Errors
    /// If it is not a number.
    fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error>;
}

/// Writes a number, or several.
///
/// # Errors
/// The serializer's.
pub fn serialize<T: JsonNumber, S: Serializer>(number: &T, serializer: S) -> Result<S::Ok, S::Error> {
    number.write(serializer)
}

/// Reads a number, or several.
///
/// # Errors
/// If they are not numbers.
pub fn deserialize<'de, T: JsonNumber, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    T::read(deserializer)
}

struct WrittenNumber<'a, T>(&'a T);

impl<T: JsonNumber> Serialize for WrittenNumber<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.write(serializer)
    }
}

struct ReadNumber<T>(T);

impl<'de, T: JsonNumber> Deserialize<'de> for ReadNumber<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        T::read(deserializer).map(ReadNumber)
    }
}

struct NumberVisitor;

impl Visitor<'_> for NumberVisitor {
    type Value = f64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number")
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<f64, E> {
        Ok(number)
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<f64, E> {
        Ok(number as f64)
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<f64, E> {
        Ok(number as f64)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<f64, E> {
        text.parse().map_err(|_| E::custom(format!("'{text}': expected a number")))
    }
}

impl JsonNumber for f64 {
    fn write<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.is_finite() { serializer.serialize_f64(*self) } else { serializer.collect_str(self) }
    }

    fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NumberVisitor)
    }
}

impl JsonNumber for f32 {
    fn write<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        f64::from(*self).write(serializer)
    }

    fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        f64::read(deserializer).map(|number| number as f32)
    }
}

impl<T: JsonNumber> JsonNumber for Option<T> {
    fn write<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.as_ref().map(WrittenNumber).serialize(serializer)
    }

    fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Option::<ReadNumber<T>>::deserialize(deserializer)?.map(|read| read.0))
    }
}

impl<T: JsonNumber> JsonNumber for Vec<T> {
    fn write<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter().map(WrittenNumber))
    }

    fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Vec::<ReadNumber<T>>::deserialize(deserializer)?.into_iter().map(|read| read.0).collect())
    }
}

impl<T: JsonNumber> JsonNumber for VecDeque<T> {
    fn write<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter().map(WrittenNumber))
    }

    fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Vec::read(deserializer).map(VecDeque::from)
    }
}

impl<T: JsonNumber, const N: usize> JsonNumber for [T; N] {
    fn write<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter().map(WrittenNumber))
    }

    fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let values: Vec<T> = Vec::read(deserializer)?;
        let found = values.len();
        values.try_into().map_err(|_| de::Error::invalid_length(found, &format!("{N} numbers").as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Serialize, Deserialize)]
    struct Numbers {
        #[serde(with = "super")]
        one: f64,
        #[serde(with = "super")]
        many: Vec<Option<f32>>,
        #[serde(with = "super")]
        fixed: [f64; 2],
    }

    #[test]
    fn every_number_comes_back_bit_for_bit() {
        for one in [0.0, -0.0, 0.1, 3.0, f64::MAX, f64::MIN_POSITIVE, f64::INFINITY, f64::NEG_INFINITY, f64::NAN] {
            let numbers = Numbers { one, many: vec![None, Some(one as f32), Some(0.1)], fixed: [one, 1e300] };
            let text = serde_json::to_string(&numbers).unwrap();
            let back: Numbers = serde_json::from_str(&text).unwrap();
            assert_eq!(back.one.to_bits(), one.to_bits(), "{text}");
            let bits = |many: &[Option<f32>]| many.iter().map(|value| value.map(f32::to_bits)).collect::<Vec<_>>();
            assert_eq!(bits(&back.many), bits(&numbers.many), "{text}");
            assert_eq!(back.fixed.map(f64::to_bits), numbers.fixed.map(f64::to_bits), "{text}");
        }
        let error = serde_json::from_str::<Numbers>(r#"{"one":1,"many":[],"fixed":[1]}"#).unwrap_err().to_string();
        assert!(error.starts_with("invalid length 1, expected 2 numbers"), "{error}");
        let error = serde_json::from_str::<Numbers>(r#"{"one":"x","many":[],"fixed":[]}"#).unwrap_err().to_string();
        assert!(error.starts_with("'x': expected a number"), "{error}");
    }
}
