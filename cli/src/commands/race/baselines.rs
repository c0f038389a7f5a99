//! The contestants of a race: the schemes, and what a practitioner would try first.

use paceline_config::{Contestant, LearningRate};
use paceline_core::SchemeSpec;
use paceline_sim::{FastWorkers, RankSet};

/// The scheme of the baselines.
pub fn baseline() -> SchemeSpec {
    "bsp".parse().expect("the catalogue has bsp")
}

/// The schemes on all workers.
pub fn contestants(schemes: Vec<SchemeSpec>, rate: LearningRate) -> Vec<Contestant> {
    schemes.into_iter().map(|scheme| Contestant { scheme, ranks: None, rate }).collect()
}

/// Adds the baselines: `bsp` on all workers, on the fast ones if that is faster, and on the fastest alone.
pub fn add(contestants: &mut Vec<Contestant>, fast: Option<FastWorkers>, rate: LearningRate) {
    let on = |ranks: Option<RankSet>| Contestant { scheme: baseline(), ranks, rate };
    let alone = fast.as_ref().and_then(|fast| RankSet::new(vec![fast.fastest]));
    let subset = fast.and_then(|fast| fast.subset);
    let baselines = [Some(on(None)), subset.map(|subset| on(Some(subset))), alone.map(|alone| on(Some(alone)))];
    for baseline in baselines.into_iter().flatten() {
        if !contestants.contains(&baseline) {
            contestants.push(baseline);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_core::WorkerId;

    fn names(schemes: &str, fastest: u32, subset: Option<&str>) -> Vec<String> {
        let rate = LearningRate(0.1);
        let schemes = schemes.split(',').map(|scheme| scheme.parse().unwrap()).collect();
        let mut found = contestants(schemes, rate);
        let subset = subset.map(|subset| subset.parse().unwrap());
        add(&mut found, Some(FastWorkers { fastest: WorkerId(fastest), subset }), rate);
        found.iter().map(Contestant::to_string).collect()
    }

    #[test]
    fn baselines_are_added_once() {
        assert_eq!(names("asp", 3, Some("1-7")), ["asp", "bsp", "bsp on workers 1-7", "bsp on worker 3 alone"]);
        assert_eq!(names("bsp,asp", 0, None), ["bsp", "asp", "bsp on worker 0 alone"]);
        assert_eq!(names("bsp", 4, Some("4")), ["bsp", "bsp on worker 4 alone"]);
    }
}
