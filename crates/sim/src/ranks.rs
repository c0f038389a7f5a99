//! Ranks of workers as text (`3`, `4-7`) and slowdown factors for them (`0=3.0,4-7=2`).

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use paceline_core::WorkerId;
use paceline_spec::SpecError;
use serde::{Deserialize, Serialize};

use crate::subset::RankSet;

/// One rank or a range of ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ranks(RangeInclusive<u32>);

impl Ranks {
    /// A single worker.
    pub(crate) fn one(worker: WorkerId) -> Self {
        Ranks(worker.0..=worker.0)
    }

    /// The workers of these ranks.
    pub fn workers(&self) -> impl Iterator<Item = WorkerId> + use<> {
        self.0.clone().map(WorkerId)
    }

    /// The highest rank.
    pub fn last(&self) -> WorkerId {
        WorkerId(*self.0.end())
    }

    /// The number of ranks.
    pub(crate) fn count(&self) -> u64 {
        u64::from(*self.0.end()) - u64::from(*self.0.start()) + 1
    }

    /// Those of these ranks that are in the subset, as ranks within it.
    pub(crate) fn restricted_to(&self, subset: &RankSet) -> Vec<Ranks> {
        let inside = subset.workers().iter().filter(|worker| self.0.contains(&worker.0));
        inside.filter_map(|&worker| subset.position(worker)).map(|worker| Ranks(worker.0..=worker.0)).collect()
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

/// Slowdown factors of some workers; all others have a factor of 1.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Slowness(Vec<(Ranks, f64)>);

impl Slowness {
    /// The factor of a worker. If several entries name the worker, the last one counts.
    pub fn factor(&self, worker: WorkerId) -> f64 {
        let given = self.0.iter().rev().find(|(ranks, _)| ranks.0.contains(&worker.0));
        given.map_or(1.0, |(_, factor)| *factor)
    }

    /// The factors of some of the workers, by their ranks among these.
    pub(crate) fn restricted_to(&self, subset: &RankSet) -> Self {
        let of_part =
            |&(ref ranks, factor): &(Ranks, f64)| ranks.restricted_to(subset).into_iter().map(move |own| (own, factor));
        Slowness(self.0.iter().flat_map(of_part).collect())
    }

    /// The highest rank that has a factor.
    pub fn last(&self) -> Option<WorkerId> {
        self.0.iter().map(|(ranks, _)| ranks.last()).max()
    }
}

/// Parses a slowdown factor: finite and above 0.
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
        let repeated = |index: usize| parts[..index].iter().any(|(ranks, _)| *ranks == parts[index].0);
        if (0..parts.len()).any(repeated) {
            return Err(SpecError::malformed("slowdown", text, "each RANKS at most once"));
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
    fn the_last_factor_of_a_rank_counts() {
        let slowness: Slowness = "0=3.5,4-7=2,5=1".parse().unwrap();
        let factors: Vec<f64> = (0..9).map(|rank| slowness.factor(WorkerId(rank))).collect();
        assert_eq!(factors, [3.5, 1.0, 1.0, 1.0, 2.0, 1.0, 2.0, 2.0, 1.0]);
        assert_eq!(slowness.to_string(), "0=3.5,4-7=2,5=1");
        assert_eq!(slowness.last(), Some(WorkerId(7)));
    }

    #[test]
    fn malformed_slowdowns_are_refused() {
        for text in ["0", "0=", "0=0", "0=-1", "0=NaN", "7-4=2", "x=2", "0=2,0=3"] {
            assert!(text.parse::<Slowness>().is_err(), "{text}");
        }
    }
}
