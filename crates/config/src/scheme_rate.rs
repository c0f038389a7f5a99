//! Learning rates of single contestants.

use std::fmt;
use std::str::FromStr;

use anyhow::Context;
use paceline_core::{SchemeSpec, catalogue};
use paceline_spec::one_of;

use crate::LearningRate;

/// The learning rate of a contestant, as text: `asp=0.05`, `backup:k=6=0.1`, `bsp on worker 0 alone=0.8`.
#[derive(Debug, Clone, PartialEq)]
pub struct SchemeRate {
    /// A scheme without settings stands for the scheme with any.
    contestant: String,
    rate: LearningRate,
}

impl SchemeRate {
    /// The rate of a contestant of this name and scheme: that of its own entry, or of the scheme's.
    pub(crate) fn find(rates: &[SchemeRate], name: &str, scheme: &SchemeSpec) -> Option<LearningRate> {
        let of = |text: &str| rates.iter().find(|entry| entry.contestant == text).map(|entry| entry.rate);
        of(name).or_else(|| of(&scheme.to_string())).or_else(|| of(scheme.name()))
    }
}

impl FromStr for SchemeRate {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let (contestant, rate) = text.rsplit_once('=').context("expected SCHEME=RATE")?;
        let rate: LearningRate = rate.parse().map_err(anyhow::Error::msg)?;
        let scheme = contestant.split(" on ").next().unwrap_or(contestant);
        let names: Vec<(&str, ())> = catalogue().into_iter().map(|entry| (entry.name, ())).collect();
        if !scheme.contains(':') {
            one_of("scheme", scheme, &names)?;
            return Ok(SchemeRate { contestant: contestant.into(), rate });
        }
        let spec: SchemeSpec = scheme.parse()?;
        Ok(SchemeRate { contestant: contestant.replacen(scheme, &spec.to_string(), 1), rate })
    }
}

impl fmt::Display for SchemeRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.contestant, self.rate.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_particular_rate_counts() {
        let texts = ["asp=0.05", "backup=0.1", "backup:k=6=0.2", "bsp on worker 0 alone=0.8", "bsp=0.4"];
        let rates: Vec<SchemeRate> = texts.map(|text| text.parse().unwrap()).into();
        assert_eq!(rates.iter().map(SchemeRate::to_string).collect::<Vec<_>>(), texts);
        let rate = |name: &str| {
            let scheme = name.split(" on ").next().unwrap().parse().unwrap();
            SchemeRate::find(&rates, name, &scheme).map(|rate| rate.0)
        };
        assert_eq!((rate("asp"), rate("dbw")), (Some(0.05), None));
        assert_eq!((rate("backup:k=6"), rate("backup:k=5")), (Some(0.2), Some(0.1)));
        assert_eq!((rate("bsp on worker 0 alone"), rate("bsp on workers 1-7")), (Some(0.8), Some(0.4)));
    }

    #[test]
    fn malformed_rates_are_refused() {
        for (text, expected) in [
            ("asp", "expected SCHEME=RATE"),
            ("asp=fast", "expected a number above 0"),
            ("aps=0.1", "unknown scheme 'aps'; expected"),
            ("backup:j=6=0.1", "'j'"),
        ] {
            let error = text.parse::<SchemeRate>().unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
