//! Floating-point numbers in JSON, which has no infinity and no NaN: these are written as strings.

use serde::{Deserialize, Deserializer, Serializer, de};

#[derive(Deserialize)]
#[serde(untagged)]
enum JsonNumber {
    Number(f64),
    Text(String),
}

pub(crate) fn serialize<S: Serializer>(number: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    if number.is_finite() { serializer.serialize_f64(*number) } else { serializer.collect_str(number) }
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    match JsonNumber::deserialize(deserializer)? {
        JsonNumber::Number(number) => Ok(number),
        JsonNumber::Text(text) => text.parse().map_err(|_| de::Error::custom(format!("'{text}': expected a number"))),
    }
}
