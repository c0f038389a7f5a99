//! `--tune lr`: every contestant at the best of the same learning rates.

use clap::ValueEnum;
use paceline_config::{Contestant, LearningRate};
use paceline_core::{GradientNoise, RateRule};
use paceline_report::comparison::ContestantRuns;
use paceline_report::statistics::mean;

/// What is tuned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Tuned {
    /// The learning rate.
    Lr,
}

/// The rates that are tried, as multiples of the middle one.
const FACTORS: [f32; 7] = [0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0];

/// The index of the middle one.
const UNTUNED: usize = 3;

/// Tuning uses this many seeds, the first that are not below this one and not in the race.
const SEEDS: usize = 2;
const FIRST_SEED: u64 = 1001;

/// The seeds to tune with, which are none of the race.
pub fn seeds(race: &[u64]) -> Vec<u64> {
    (FIRST_SEED..).filter(|seed| !race.contains(seed)).take(SEEDS).collect()
}

/// Every contestant at every rate. The rates of a subset are around the one at which its steps move the model as far as
/// those of all `workers` do at `--lr`.
pub fn grid(contestants: &[Contestant], workers: usize, rule: RateRule) -> Vec<Contestant> {
    let step = |count: usize| rule.factor(count, workers, &GradientNoise::default());
    let at_rates = |contestant: &Contestant| {
        let used = contestant.ranks.as_ref().map_or(workers, |ranks| ranks.workers().len());
        // A power of two, as the factors are.
        let middle = contestant.rate.0 * (step(workers) / step(used)).log2().round().exp2() as f32;
        FACTORS.map(|factor| Contestant { rate: LearningRate(middle * factor), ..contestant.clone() })
    };
    contestants.iter().flat_map(at_rates).collect()
}

/// Each contestant at the best of its rates, and whether that is at the edge, from the results of its [`grid`].
pub fn best(grid: &[Contestant], results: &[ContestantRuns]) -> Vec<(Contestant, bool)> {
    let rates = grid.chunks_exact(FACTORS.len()).zip(results.chunks_exact(FACTORS.len()));
    let best = |(contestants, results): (&[Contestant], &[ContestantRuns])| {
        let index = best_index(results);
        (contestants[index].clone(), index == 0 || index + 1 == FACTORS.len())
    };
    rates.map(best).collect()
}

/// The rate that misses the target least often, and then the one with the least mean time. If none reaches it, the middle one.
fn best_index(results: &[ContestantRuns]) -> usize {
    let order = |result: &ContestantRuns| {
        let times: Vec<f64> = result.runs.iter().filter_map(|run| run.summary.time_to_target).collect();
        (result.runs.len() - times.len(), if times.is_empty() { f64::INFINITY } else { mean(&times) })
    };
    let orders = results.iter().map(order).enumerate().filter(|(_, (_, time))| time.is_finite());
    let best = orders.min_by(|(_, a), (_, b)| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
    best.map_or(UNTUNED, |(index, _)| index)
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_core::StepKind;
    use paceline_report::comparison::RunResult;
    use serde_json::json;

    fn result(times: [Option<f64>; 2]) -> ContestantRuns {
        let run = |time: Option<f64>| {
            let summary = json!({
                "scheme": "bsp", "seed": 1, "workers": 1, "iterations": 1, "time": 9.0, "reached": time.is_some(),
                "time_to_target": time, "stopped_by": "", "updates_committed": 1, "updates_discarded": 0,
                "updates_broken": 0, "tasks_interrupted": 0, "samples_used": 1, "samples_lost": 0, "idle_share": 0.0,
                "bytes": 1, "samples_per_second": 1.0, "bytes_per_second": 1.0, "worker_times": [],
                "ending": "reached", "loss": null, "accuracy": null,
            });
            RunResult { summary: serde_json::from_value(summary).unwrap(), curve: Vec::new() }
        };
        let runs = times.map(run).into();
        ContestantRuns { name: "bsp".into(), step_kind: StepKind::Fresh, rate: 0.1, at_edge: None, runs }
    }

    fn best_of(times: [[Option<f64>; 2]; 7]) -> (f32, bool) {
        let contestant = Contestant { scheme: "bsp".parse().unwrap(), ranks: None, rate: LearningRate(0.5) };
        let (best, at_edge) = best(&grid(&[contestant], 4, RateRule::FIXED), &times.map(result)).remove(0);
        (best.rate.0, at_edge)
    }

    #[test]
    fn the_rate_that_reaches_the_target_first_is_best_if_it_always_does() {
        let both = |time: f64| [Some(time), Some(time + 1.0)];
        let misses = [Some(1.0), None];
        let never = [None, None];
        assert_eq!(best_of([never, never, both(9.0), both(7.0), both(5.0), misses, never]), (1.0, false));
        assert_eq!(best_of([both(9.0), both(8.0), both(7.0), both(6.0), both(5.0), both(4.0), both(3.0)]), (4.0, true));
        assert_eq!(best_of([never, misses, never, never, never, never, never]), (0.125, false));
        assert_eq!(best_of([never; 7]), (0.5, false), "nothing is known, so the middle one stays");
    }

    #[test]
    fn a_subset_is_tuned_around_the_rate_of_its_own_full_step() {
        let rates = |ranks: Option<&str>, rule: &str| {
            let ranks = ranks.map(|ranks| ranks.parse().unwrap());
            let contestant = Contestant { scheme: "bsp".parse().unwrap(), ranks, rate: LearningRate(0.5) };
            let grid = grid(&[contestant], 8, rule.parse().unwrap());
            (grid[0].rate.0, grid[6].rate.0)
        };
        assert_eq!(rates(None, "proportional"), (0.0625, 4.0));
        assert_eq!(rates(Some("1-7"), "proportional"), (0.0625, 4.0));
        assert_eq!(rates(Some("3"), "proportional"), (0.5, 32.0));
        assert_eq!(rates(Some("3"), "fixed"), (0.0625, 4.0));
    }

    #[test]
    fn no_seed_of_the_race_is_tuned_with() {
        assert_eq!(seeds(&[1, 2]), [1001, 1002]);
        assert_eq!(seeds(&[1001, 1003]), [1002, 1004]);
    }
}
