//! Seeds as text: `7`, `1..20`, `1,5,9`.

use std::collections::BTreeSet;
use std::str::FromStr;

/// Limit on the seeds of a range.
const MAX_SEEDS: u64 = 100_000;

/// The seeds to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seeds(pub Vec<u64>);

impl FromStr for Seeds {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "expected a seed (7), a range with both ends (1..20) or a list (1,5,9)".to_string();
        let seed = |text: &str| text.trim().parse::<u64>().map_err(|_| wrong());
        let seeds = match text.split_once("..") {
            Some((first, last)) => {
                let (first, last) = (seed(first)?, seed(last)?);
                if last < first {
                    return Err(wrong());
                }
                if last - first >= MAX_SEEDS {
                    return Err(format!("expected at most {MAX_SEEDS} seeds"));
                }
                (first..=last).collect()
            }
            None => text.split(',').map(seed).collect::<Result<Vec<u64>, _>>()?,
        };
        let mut seen = BTreeSet::new();
        if let Some(twice) = seeds.iter().find(|seed| !seen.insert(**seed)) {
            return Err(format!("seed {twice} is given twice"));
        }
        Ok(Seeds(seeds))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_a_list_and_a_range_are_read() {
        assert_eq!("7".parse(), Ok(Seeds(vec![7])));
        assert_eq!("1..4".parse(), Ok(Seeds(vec![1, 2, 3, 4])));
        assert_eq!("9,2".parse(), Ok(Seeds(vec![9, 2])));
        for text in ["", "x", "4..1", "1..", "-1", "0..99999999999", "1,2,1"] {
            assert!(text.parse::<Seeds>().is_err(), "{text}");
        }
    }
}
