//! Sets of workers as written: `3`, `4-7`, and factors for them: `0=3.0,4-7=2`.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use paceline_core::WorkerId;
use paceline_spec::SpecError;
use serde::{Deserialize, Serialize};

/// One rank or a range of ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ranks(RangeInclusive<u32>);

impl Ranks {
    /// The workers meant.
    pub fn workers(&self) -> impl Iterator<Item = WorkerId> + use<> {
        self.0.clone().map(WorkerId)
    }

    /// The highest rank.
    pub fn last(&self) -> WorkerId {
        WorkerId(*self.0.end())
    }
}

impl FromStr for Ranks {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        match (first.parse(), last.parse()) {
            (Ok(first), Ok(last)) if first <= last => Ok(Ranks(first..=last)),
            _ => Err(SpecError::malformed("ranks", text, "a rank (3) or a range of ranks (4-7)")),
        }
    }
}

impl fmt::Display for Ranks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.start() == self.0.end() {
            write!(f, "{}", self.0.start())
        } else {
            write!(f, "{}-{}", self.0.start(), self.0.end())
        }
    }
}

/// How many times slower some workers are than the times say.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Slowness(Vec<(Ranks, f64)>);

impl Slowness {
    /// Each worker's factor; the last one given counts.
    pub fn factor(&self, worker: WorkerId) -> f64 {
        let given = self.0.iter().rev().find(|(ranks, _)| ranks.0.contains(&worker.0));
        given.map_or(1.0, |(_, factor)| *factor)
    }

    /// The highest rank that is named.
    pub fn last(&self) -> Option<WorkerId> {
        self.0.iter().map(|(ranks, _)| ranks.last()).max()
    }
}

/// A factor by which a worker can be slower: finite and above 0.
pub(crate) fn parse_factor(text: &str) -> Option<f64> {
    text.parse().ok().filter(|factor: &f64| factor.is_finite() && *factor > 0.0)
}

impl FromStr for Slowness {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let one = |part: &str| {
            let wrong =
                || SpecError::malformed("slowdown", part, "RANKS=FACTOR with a factor above 0 (0=3.0 or 4-7=2)");
            let (ranks, factor) = part.split_once('=').ok_or_else(wrong)?;
            Ok((ranks.parse()?, parse_factor(factor).ok_or_else(wrong)?))
        };
        let parts = text.split(',').filter(|part| !part.is_empty()).map(one);
        let parts: Vec<(Ranks, f64)> = parts.collect::<Result<_, _>>()?;
        let twice = |index: usize| parts[..index].iter().any(|(ranks, _)| *ranks == parts[index].0);
        if (0..parts.len()).any(twice) {
            return Err(SpecError::malformed("slowdown", text, "every RANKS once"));
        }
        Ok(Slowness(parts))
    }
}

impl fmt::Display for Slowness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<String> = self.0.iter().map(|(ranks, factor)| format!("{ranks}={factor}")).collect();
        f.write_str(&parts.join(","))
    }
}

impl TryFrom<String> for Slowness {
    type Error = SpecError;
    fn try_from(text: String) -> Result<Self, SpecError> {
        text.parse()
    }
}

impl From<Slowness> for String {
    fn from(slowness: Slowness) -> String {
        slowness.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_are_by_rank() {
        let slowness: Slowness = "0=3.5,4-7=2,5=1".parse().unwrap();
        let factors: Vec<f64> = (0..9).map(|rank| slowness.factor(WorkerId(rank))).collect();
        assert_eq!(factors, [3.5, 1.0, 1.0, 1.0, 2.0, 1.0, 2.0, 2.0, 1.0]);
        assert_eq!(slowness.to_string(), "0=3.5,4-7=2,5=1");
        assert_eq!(slowness.last(), Some(WorkerId(7)));
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["0", "0=", "0=0", "0=-1", "0=NaN", "7-4=2", "x=2", "0=2,0=3"] {
            assert!(text.parse::<Slowness>().is_err(), "{text}");
        }
    }
}
