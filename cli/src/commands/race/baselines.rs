//! The contestants of a race: the schemes, and what a practitioner would try first.

use paceline_config::{Contestant, Scenario};
use paceline_core::SchemeSpec;
use paceline_sim::{FastWorkers, RankSet};

/// The scheme of the baselines.
pub fn baseline() -> SchemeSpec {
    "bsp".parse().expect("the catalogue has bsp")
}

/// Adds the baselines: `bsp` on all workers, on the fast ones if that is faster, and on the fastest alone. Returns the
/// index of the one on the fast workers, which may be all.
pub fn add(contestants: &mut Vec<Contestant>, fast: Option<FastWorkers>, scenario: &Scenario) -> usize {
    let on = |ranks: Option<RankSet>| scenario.contestant(&baseline(), ranks);
    let mut add = |baseline: Contestant| {
        let known = contestants.iter().position(|contestant| *contestant == baseline);
        known.unwrap_or_else(|| {
            contestants.push(baseline);
            contestants.len() - 1
        })
    };
    let all = add(on(None));
    let alone = fast.as_ref().and_then(|fast| RankSet::new(vec![fast.fastest]));
    let subset = fast.and_then(|fast| fast.subset).map(|subset| add(on(Some(subset))));
    if let Some(alone) = alone {
        add(on(Some(alone)));
    }
    subset.unwrap_or(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_core::WorkerId;

    /// The contestants, the one on the fast workers in capitals.
    fn names(schemes: &str, fastest: u32, subset: Option<&str>) -> Vec<String> {
        let scenario = Scenario::from_toml("test", "lr = 0.1").unwrap();
        let schemes = schemes.split(',').map(|scheme| scheme.parse().unwrap());
        let mut found: Vec<Contestant> = schemes.map(|scheme| scenario.contestant(&scheme, None)).collect();
        let subset = subset.map(|subset| subset.parse().unwrap());
        let fast = add(&mut found, Some(FastWorkers { fastest: WorkerId(fastest), subset }), &scenario);
        let mut names: Vec<String> = found.iter().map(Contestant::to_string).collect();
        names[fast].make_ascii_uppercase();
        names
    }

    #[test]
    fn baselines_are_added_once() {
        assert_eq!(names("asp", 3, Some("1-7")), ["asp", "bsp", "BSP ON WORKERS 1-7", "bsp on worker 3 alone"]);
        assert_eq!(names("bsp,asp", 0, None), ["BSP", "asp", "bsp on worker 0 alone"]);
        assert_eq!(names("bsp", 4, Some("4")), ["bsp", "BSP ON WORKER 4 ALONE"]);
    }
}
