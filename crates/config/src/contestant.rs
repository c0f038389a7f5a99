//! A contestant of a comparison.

use std::fmt;

use paceline_core::SchemeSpec;
use paceline_sim::RankSet;

use crate::LearningRate;

/// A name with longer ranks has their number instead.
const LONGEST_RANKS: usize = 20;

/// A scheme, the workers that it runs on, and its learning rate.
#[derive(Debug, Clone, PartialEq)]
pub struct Contestant {
    /// The scheme.
    pub scheme: SchemeSpec,
    /// Its workers; `None` for all.
    pub ranks: Option<RankSet>,
    /// Its learning rate.
    pub rate: LearningRate,
}

impl fmt::Display for Contestant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Contestant { scheme, ranks, .. } = self;
        match ranks {
            None => write!(f, "{scheme}"),
            Some(ranks) if ranks.workers().len() == 1 => write!(f, "{scheme} on worker {ranks} alone"),
            Some(ranks) if ranks.to_string().len() > LONGEST_RANKS => {
                write!(f, "{scheme} on {} workers", ranks.workers().len())
            }
            Some(ranks) => write!(f, "{scheme} on workers {ranks}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_tells_scheme_and_workers() {
        let name = |ranks: Option<&str>| {
            let ranks = ranks.map(|ranks| ranks.parse().unwrap());
            Contestant { scheme: "bsp".parse().unwrap(), ranks, rate: LearningRate(0.1) }.to_string()
        };
        let names = [None, Some("1-7"), Some("3"), Some("0,2,4,6,8,10,12,14-99")].map(name);
        assert_eq!(names, ["bsp", "bsp on workers 1-7", "bsp on worker 3 alone", "bsp on 93 workers"]);
    }
}
