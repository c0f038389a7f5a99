//! The workers that are fastest without the others.

use paceline_core::WorkerId;

use crate::simulation::{Simulation, SimulationError};
use crate::subset::RankSet;

/// How much faster a subset must be to count as faster than all workers.
const MARGIN: f64 = 1.05;

/// At most this many sizes of a subset are tried.
const MAX_SIZES: usize = 64;

/// The seed that workers are ordered with, and those that the speed of a subset is measured with. They differ, and a race
/// hardly uses them, so that luck in one does not count in the other.
const ORDER_SEED: u64 = 3_000_001;
const SPEED_SEEDS: [u64; 2] = [3_000_002, 3_000_003];

/// The workers that someone might use instead of all of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FastWorkers {
    /// The fastest one.
    pub fastest: WorkerId,
    /// Those with which the scheme processes the most samples per second; `None` if all of them are about as fast.
    pub subset: Option<RankSet>,
}

impl Simulation {
    /// The fast ones among these workers: the m fastest, with the m that gives the most samples per second. Only times
    /// are simulated, whatever the model and the goals. `None` if there is only one worker.
    ///
    /// # Errors
    /// If the scheme does not support the setup, or breaks a law.
    pub fn fast_workers(&self, among: &[WorkerId]) -> Result<Option<FastWorkers>, SimulationError> {
        let mut by_speed = Vec::new();
        for &worker in among {
            by_speed.push((worker, self.samples_per_second(&[worker], ORDER_SEED)?));
        }
        by_speed.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        let by_speed: Vec<WorkerId> = by_speed.into_iter().map(|(worker, _)| worker).collect();
        let speed = |size: usize| {
            let speeds = SPEED_SEEDS.map(|seed| self.samples_per_second(&by_speed[..size], seed));
            speeds.into_iter().sum::<Result<f64, _>>()
        };
        let all = by_speed.len();
        if all < 2 {
            return Ok(None);
        }
        let mut best = (all, MARGIN * speed(all)?);
        for size in (1..all).step_by(all.div_ceil(MAX_SIZES)) {
            let found = speed(size)?;
            if found > best.1 {
                best = (size, found);
            }
        }
        let subset = RankSet::new(by_speed[..best.0].to_vec()).filter(|_| best.0 < all);
        Ok(Some(FastWorkers { fastest: by_speed[0], subset }))
    }

    fn samples_per_second(&self, workers: &[WorkerId], seed: u64) -> Result<f64, SimulationError> {
        let Some(ranks) = RankSet::new(workers.to_vec()) else { return Ok(0.0) };
        let iterations = (20_000 / workers.len()).clamp(20, 200);
        let goals = format!("iterations={iterations}").parse().expect("a valid goal");
        let simulation = Simulation { training: None, goals, seed, ..self.clone() }.restricted_to(&ranks);
        Ok(simulation.run(&mut ())?.summary.samples_per_second)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Script, Times};
    use paceline_core::Setup;

    fn fast(times: &str, slow: &str, workers: usize) -> Option<(u32, Option<String>)> {
        let simulation = Simulation {
            scheme: "bsp".parse().unwrap(),
            setup: Setup::new(workers, 16),
            times: Times::load(&times.parse().unwrap()).unwrap(),
            slowness: slow.parse().unwrap(),
            script: Script::default(),
            network: None,
            training: None,
            goals: "time=1".parse().unwrap(),
            seed: 1,
        };
        let ranks: Vec<WorkerId> = (0..workers as u32).map(WorkerId).collect();
        let found = simulation.fast_workers(&ranks).unwrap()?;
        Some((found.fastest.0, found.subset.map(|subset| subset.to_string())))
    }

    #[test]
    fn slow_workers_are_left_out_where_that_is_faster() {
        assert_eq!(fast("deterministic:1", "0=3", 8), Some((1, Some("1-7".into()))));
        assert_eq!(fast("deterministic:1", "1=2,3-4=50", 6), Some((0, Some("0,2,5".into()))));
        assert_eq!(fast("deterministic:1", "0-6=50", 8), Some((7, Some("7".into()))));
        assert_eq!(fast("shifted-exponential:0.3,0.7", "0=3", 8).unwrap().1, Some("1-7".into()));
    }

    #[test]
    fn even_workers_are_all_used() {
        assert_eq!(fast("deterministic:1", "", 8), Some((0, None)));
        assert_eq!(fast("shifted-exponential:0.3,0.7", "", 8).unwrap().1, None);
        assert_eq!(fast("deterministic:1", "0=1.1", 8), Some((1, None)));
        assert_eq!(fast("deterministic:1", "", 1), None);
    }
}
