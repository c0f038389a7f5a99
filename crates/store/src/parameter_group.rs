//! Groups of parameters that an optimizer treats differently: no weight decay on biases, a higher rate for the head.

use std::fmt;
use std::str::FromStr;

use paceline_spec::{Spec, SpecError, pair};
use serde::{Deserialize, Serialize};

/// Settings of the tensors whose names match a pattern.
///
/// As text: `*bias:decay=0`, `head.*:rate=10,decay=0.1`, `a.weight|b.weight:rate=2`. In a pattern, `*` stands for any
/// text and `|` separates alternatives.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ParameterGroup {
    /// Which tensors belong to it.
    pub pattern: String,
    /// The learning rate is multiplied by it; default 1.
    pub rate: f64,
    /// Weight decay, if it is not the optimizer's.
    pub decay: Option<f64>,
}

impl ParameterGroup {
    /// Whether a tensor of this name belongs to the group.
    pub fn contains(&self, name: &str) -> bool {
        self.pattern.split('|').any(|alternative| matches(alternative, name))
    }
}

/// Whether a name matches a pattern without alternatives.
fn matches(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| name.strip_prefix(first)) else { return false };
    let Some(last) = parts.next_back() else { return rest.is_empty() };
    for part in parts {
        let Some(found) = rest.find(part) else { return false };
        rest = &rest[found + part.len()..];
    }
    rest.ends_with(last)
}

impl FromStr for ParameterGroup {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        const KIND: &str = "parameter group";
        const FORM: &str = "PATTERN:rate=X,decay=X, such as *bias:decay=0";
        let (pattern, settings) = text.rsplit_once(':').ok_or_else(|| SpecError::malformed(KIND, text, FORM))?;
        let spec = Spec::parse_unnamed(KIND, settings, &["rate", "decay"])?;
        let rate =
            spec.optional("rate", "a finite number, at least 0", |&rate: &f64| rate.is_finite() && rate >= 0.0)?;
        let decay =
            spec.optional("decay", "a finite number, at least 0", |&decay: &f64| decay.is_finite() && decay >= 0.0)?;
        if pattern.split('|').any(str::is_empty) || (rate.is_none() && decay.is_none()) {
            return Err(SpecError::malformed(KIND, text, FORM));
        }
        Ok(ParameterGroup { pattern: pattern.into(), rate: rate.unwrap_or(1.0), decay })
    }
}

impl fmt::Display for ParameterGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let decay = self.decay.map(|decay| format!("decay={decay}"));
        paceline_spec::write(f, &self.pattern, [pair("rate", self.rate, 1.0), decay])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_text() {
        let matches = |pattern: &str, name: &str| {
            ParameterGroup { pattern: pattern.into(), rate: 1.0, decay: None }.contains(name)
        };
        for (pattern, name) in [
            ("bias", "bias"),
            ("*bias", "conv1.bias"),
            ("*bias", "bias"),
            ("conv*", "conv1.bias"),
            ("*norm*", "block.norm1.gamma"),
            ("a*b*a", "aba"),
            ("*", ""),
            ("block*.norm*.gamma", "block2.norm.gamma"),
            ("a.weight|b.*|c", "a.weight"),
            ("a.weight|b.*|c", "b.bias"),
            ("a.weight|b.*|c", "c"),
        ] {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [
            ("bias", "conv1.bias"),
            ("*bias", "bias2"),
            ("a*b*a", "ab"),
            ("aa*a", "aa"),
            ("*norm*x", "norm"),
            ("a|b", "ab"),
            ("a|b", "a|b"),
        ] {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
    }

    #[test]
    fn groups_round_trip_through_text() {
        for text in ["*bias:decay=0", "head.*:rate=10", "*:rate=0.5,decay=0.01", "a.weight|b.weight:rate=10,decay=0"] {
            assert_eq!(text.parse::<ParameterGroup>().unwrap().to_string(), text);
        }
        for text in [
            "*bias",
            ":decay=0",
            "*bias:",
            "*bias:decay=-1",
            "*bias:rate=inf",
            "*bias:momentum=0",
            "a||b:rate=2",
            "a|:rate=2",
        ] {
            assert!(text.parse::<ParameterGroup>().is_err(), "{text}");
        }
    }
}
