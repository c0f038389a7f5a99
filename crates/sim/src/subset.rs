//! A simulation on some of its workers.

use std::fmt;
use std::str::FromStr;

use paceline_core::WorkerId;
use paceline_spec::SpecError;

use crate::ranks::Ranks;
use crate::simulation::Simulation;

/// Limit on the ranks of a subset.
const MAX_RANKS: u64 = 1_000_000;

/// Some of the workers, by rank. As text: `3`, `1-7`, `0,3-5`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankSet(Vec<WorkerId>);

impl RankSet {
    /// These workers, in the order of their ranks; `None` if there are none.
    pub fn new(mut workers: Vec<WorkerId>) -> Option<Self> {
        workers.sort_unstable();
        workers.dedup();
        (!workers.is_empty()).then_some(RankSet(workers))
    }

    /// The workers, in the order of their ranks.
    pub fn workers(&self) -> &[WorkerId] {
        &self.0
    }

    /// The highest rank.
    pub fn last(&self) -> WorkerId {
        self.0[self.0.len() - 1]
    }

    /// The rank within the subset, from 0.
    pub fn position(&self, worker: WorkerId) -> Option<WorkerId> {
        self.0.binary_search(&worker).ok().map(|position| WorkerId(position as u32))
    }
}

impl FromStr for RankSet {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let wrong =
            || SpecError::malformed("ranks", text, "ranks and ranges of ranks, each rank once (3, 1-7 or 0,3-5)");
        let mut workers = Vec::new();
        for part in text.split(',') {
            let ranks: Ranks = part.parse()?;
            if workers.len() as u64 + ranks.count() > MAX_RANKS {
                return Err(SpecError::malformed("ranks", text, "at most a million ranks"));
            }
            workers.extend(ranks.workers());
        }
        let given = workers.len();
        RankSet::new(workers).filter(|set| set.0.len() == given).ok_or_else(wrong)
    }
}

impl fmt::Display for RankSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = self.0.chunk_by(|a, b| a.0 + 1 == b.0).map(|part| match part {
            [first, .., last] => format!("{}-{}", first.0, last.0),
            _ => part.iter().map(|worker| worker.0.to_string()).collect(),
        });
        f.write_str(&parts.collect::<Vec<_>>().join(","))
    }
}

impl Simulation {
    /// The same on some of the workers. They get ranks from 0 and keep times, slowness, changes and links. The learning
    /// rate remains meant for a step of all workers. A model must be one for so many workers.
    pub fn restricted_to(mut self, ranks: &RankSet) -> Self {
        self.setup = self.setup.restricted_to(ranks.workers().len());
        self.times = self.times.restricted_to(ranks);
        self.slowness = self.slowness.restricted_to(ranks);
        self.script = self.script.restricted_to(ranks);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Script, Times};
    use paceline_core::Setup;
    use std::path::Path;

    #[test]
    fn sets_are_read_and_written() {
        for text in ["3", "1-7", "0,3-5,9"] {
            assert_eq!(text.parse::<RankSet>().unwrap().to_string(), text);
        }
        assert_eq!("5,3,4".parse::<RankSet>().unwrap().to_string(), "3-5");
        for text in ["", "x", "3,3", "1-4,2", "7-4", "0-4294967295"] {
            assert!(text.parse::<RankSet>().is_err(), "{text}");
        }
    }

    fn simulation(script: &str) -> Simulation {
        Simulation {
            scheme: "bsp".parse().unwrap(),
            setup: Setup { rate_rule: "proportional".parse().unwrap(), ..Setup::new(4, 8) },
            times: Times::load(&"uniform:1,2".parse().unwrap()).unwrap(),
            slowness: "0=9,2-3=3".parse().unwrap(),
            script: Script::of(Path::new("script"), script, 4).unwrap(),
            network: Some("latency=0.1,link=100,bytes=10".parse().unwrap()),
            training: None,
            goals: "iterations=40".parse().unwrap(),
            seed: 5,
        }
    }

    #[test]
    fn workers_keep_their_times_slowness_and_changes() {
        let ranks: RankSet = "1,3".parse().unwrap();
        // Under asp workers don't wait, so that each one's tasks show its own times.
        let per_worker = |simulation: Simulation| {
            let simulation =
                Simulation { scheme: "asp".parse().unwrap(), goals: "time=60".parse().unwrap(), ..simulation };
            let summary = simulation.run(&mut ()).unwrap().summary;
            summary.worker_times.iter().map(|times| times.computing).collect::<Vec<f64>>()
        };
        let script = "20 slow 0-1 4\n30 link 3 7\n40 leave 2-3\n50 join 4-5";
        let (all, some) = (per_worker(simulation(script)), per_worker(simulation(script).restricted_to(&ranks)));
        assert_eq!(some.len(), 2);
        assert_eq!((all[1], all[3]), (some[0], some[1]));
    }

    #[test]
    fn the_rate_remains_meant_for_all_workers() {
        let ranks: RankSet = "2".parse().unwrap();
        let rule = |rule: &str| {
            let mut simulation = simulation("");
            simulation.setup.rate_rule = rule.parse().unwrap();
            simulation.restricted_to(&ranks).setup.rate_rule.to_string()
        };
        assert_eq!(["proportional", "sqrt:1", "fixed"].map(rule), ["proportional:4", "sqrt:1", "fixed"]);
    }
}
