//! The exact min–max split of an iteration's samples.

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A worker's time for its samples: `fixed + per_sample · samples` seconds, for `least` to `most` samples.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// Seconds per sample (the paper's m), above 0.
    pub per_sample: f64,
    /// Further seconds per iteration (the paper's b and communication time tᵐ). May be negative, as long as the time of
    /// `least` samples is not.
    pub fixed: f64,
    /// The fewest samples allowed (the paper's xˢ).
    pub least: u32,
    /// The most samples allowed (the paper's xᵒ).
    pub most: u32,
}

impl Cost {
    /// The cost of a worker with a constant speed and no upper bound; it gets at least one sample.
    pub fn of_speed(samples_per_second: f64) -> Self {
        Cost { per_sample: 1.0 / samples_per_second, fixed: 0.0, least: 1, most: u32::MAX }
    }

    /// The time of `samples` samples, in seconds.
    pub fn seconds(&self, samples: u32) -> f64 {
        self.fixed + self.per_sample * f64::from(samples)
    }

    /// The number of samples done in `seconds`, clamped to the bounds.
    fn samples_by(&self, seconds: f64) -> u32 {
        // The conversion rounds down and saturates.
        (((seconds - self.fixed) / self.per_sample) as u32).clamp(self.least, self.most)
    }
}

/// Why samples can't be split.
#[derive(Debug, Clone, Copy, PartialEq, Error)]
pub enum BatchingError {
    /// The total is outside the sum of the bounds.
    #[error("{total} samples can't be split: expected {least} to {most}, the sums of the workers' bounds")]
    Infeasible {
        /// The number of samples.
        total: u64,
        /// The sum of the lower bounds (Σxˢ).
        least: u64,
        /// The sum of the upper bounds (Σxᵒ).
        most: u64,
    },
    /// A cost is invalid.
    #[error(
        "worker {worker} costs {fixed} s and {per_sample} s per sample: expected finite numbers, the second above 0, \
         and a time of its fewest samples that is not negative"
    )]
    NotACost {
        /// The worker, counted from 0.
        worker: usize,
        /// Its fixed cost in seconds.
        fixed: f64,
        /// Its cost per sample in seconds.
        per_sample: f64,
    },
    /// A lower bound is above the upper bound.
    #[error(
        "worker {worker} takes {least} to {most} samples: expected a lower bound that is not above the upper bound"
    )]
    NoRoom {
        /// The worker, counted from 0.
        worker: usize,
        /// Its fewest samples.
        least: u32,
        /// Its most samples.
        most: u32,
    },
}

/// Splits `total` samples so that the last worker finishes as early as possible: the exact optimum of (3) with (5) over
/// whole numbers. Among several optima the samples go to the workers that finish earliest with them.
///
/// With speeds alone this is `xᵢ ∝ vᵢ`, rounded so that the slowest ratio is least.
///
/// # Errors
/// If a worker's cost or bounds are invalid, or `total` is outside the sum of the bounds.
pub fn balance(costs: &[Cost], total: u64) -> Result<Vec<u32>, BatchingError> {
    check(costs, total)?;
    // Water-filling: raise the level, the common finish time, until the samples done by then reach the total. Levels
    // are not negative, so they are ordered as their bits are, and bisection of the bits ends at neighbouring numbers.
    // At twice the longest time of any worker all samples are done, whatever the rounding.
    let highest = costs.iter().map(|cost| cost.seconds(cost.most)).fold(0.0, f64::max);
    let samples_by = |level: u64| costs.iter().map(|cost| u64::from(cost.samples_by(f64::from_bits(level)))).sum();
    let (mut under, mut over) = (0, (2.0 * highest).to_bits());
    while over - under > 1 {
        let level = under + (over - under) / 2;
        let done: u64 = samples_by(level);
        if done > total {
            over = level;
            continue;
        }
        under = level;
        if done == total {
            break;
        }
    }
    let mut batches: Vec<u32> = costs.iter().map(|cost| cost.samples_by(f64::from_bits(under))).collect();
    // The missing samples are done at the next larger level.
    let mut missing = total - batches.iter().map(|&batch| u64::from(batch)).sum::<u64>();
    for (batch, cost) in batches.iter_mut().zip(costs) {
        let more = missing.min(u64::from(cost.samples_by(f64::from_bits(over)) - *batch));
        *batch += more as u32;
        missing -= more;
    }
    Ok(batches)
}

fn check(costs: &[Cost], total: u64) -> Result<(), BatchingError> {
    for (worker, &Cost { per_sample, fixed, least, most }) in costs.iter().enumerate() {
        let is_finite = per_sample.is_finite() && fixed.is_finite();
        if !is_finite || per_sample <= 0.0 || fixed + per_sample * f64::from(least) < 0.0 {
            return Err(BatchingError::NotACost { worker, fixed, per_sample });
        }
        if least > most {
            return Err(BatchingError::NoRoom { worker, least, most });
        }
    }
    let least = costs.iter().map(|cost| u64::from(cost.least)).sum();
    let most = costs.iter().map(|cost| u64::from(cost.most)).sum();
    if total < least || total > most {
        return Err(BatchingError::Infeasible { total, least, most });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clarabel::algebra::CscMatrix;
    use clarabel::solver::{
        DefaultSettings, DefaultSolver, IPSolver, NonnegativeConeT, SolverStatus, SupportedConeT, ZeroConeT,
    };
    use proptest::prelude::*;

    use super::*;

    fn cost() -> impl Strategy<Value = Cost> {
        (1..40_u32, 0..30_u32, 0..4_u32, 0..5_u32).prop_map(|(per_sample, fixed, least, room)| Cost {
            per_sample: f64::from(per_sample) / 8.0,
            fixed: f64::from(fixed) / 4.0,
            least,
            most: least + room,
        })
    }

    fn longest(costs: &[Cost], batches: &[u32]) -> f64 {
        costs.iter().zip(batches).map(|(cost, &batch)| cost.seconds(batch)).fold(0.0, f64::max)
    }

    /// The shortest longest time, by trying every split.
    fn brute_force(costs: &[Cost], total: u64) -> Option<f64> {
        let Some((first, rest)) = costs.split_first() else { return (total == 0).then_some(0.0) };
        let choices = (first.least..=first.most).filter(|&batch| u64::from(batch) <= total);
        let longest = choices.filter_map(|batch| {
            brute_force(rest, total - u64::from(batch)).map(|longest| longest.max(first.seconds(batch)))
        });
        longest.min_by(f64::total_cmp)
    }

    /// Problem (3) with (5) over real numbers, by a general solver: variables x₁ … xₙ and the time T.
    fn relaxed(costs: &[Cost], total: u64) -> f64 {
        let n = costs.len();
        let (mut rows, mut columns, mut entries, mut right) = (Vec::new(), Vec::new(), Vec::new(), vec![total as f64]);
        let mut put = |row, column, entry| {
            rows.push(row);
            columns.push(column);
            entries.push(entry);
        };
        for (worker, cost) in costs.iter().enumerate() {
            put(0, worker, 1.0);
            put(1 + 3 * worker, worker, cost.per_sample);
            put(1 + 3 * worker, n, -1.0);
            put(2 + 3 * worker, worker, -1.0);
            put(3 + 3 * worker, worker, 1.0);
            right.extend([-cost.fixed, -f64::from(cost.least), f64::from(cost.most)]);
        }
        let constraints = CscMatrix::new_from_triplets(right.len(), n + 1, rows, columns, entries);
        let objective: Vec<f64> = (0..=n).map(|variable| if variable == n { 1.0 } else { 0.0 }).collect();
        let cones: [SupportedConeT<f64>; 2] = [ZeroConeT(1), NonnegativeConeT(3 * n)];
        let settings = DefaultSettings { verbose: false, ..Default::default() };
        let none = CscMatrix::zeros((n + 1, n + 1));
        let mut solver = DefaultSolver::new(&none, &objective, &constraints, &right, &cones, settings).unwrap();
        solver.solve();
        assert_eq!(solver.solution.status, SolverStatus::Solved);
        solver.solution.x[n]
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn no_other_split_is_faster(costs in prop::collection::vec(cost(), 1..6), share in 0.0..1.0_f64) {
            let least: u32 = costs.iter().map(|cost| cost.least).sum();
            let most: u32 = costs.iter().map(|cost| cost.most).sum();
            let total = u64::from(least + ((most - least) as f64 * share) as u32);
            let batches = balance(&costs, total).unwrap();
            prop_assert_eq!(batches.iter().map(|&batch| u64::from(batch)).sum::<u64>(), total);
            for (batch, cost) in batches.iter().zip(&costs) {
                prop_assert!((cost.least..=cost.most).contains(batch));
            }
            // All numbers are small fractions of powers of two, so the times are exact.
            prop_assert_eq!(Some(longest(&costs, &batches)), brute_force(&costs, total));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 20, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn the_continuous_optimum_is_hardly_faster(
            seeds in prop::collection::vec((0.001..0.05_f64, 0.0..2.0_f64, 1..100_u32, 0..2_000_u32), 100..400),
            share in 0.05..0.95_f64,
        ) {
            let cost = |&(per_sample, fixed, least, room): &(f64, f64, u32, u32)| {
                Cost { per_sample, fixed, least, most: least + room }
            };
            let costs: Vec<Cost> = seeds.iter().map(cost).collect();
            let least: u64 = costs.iter().map(|cost| u64::from(cost.least)).sum();
            let most: u64 = costs.iter().map(|cost| u64::from(cost.most)).sum();
            let total = least + ((most - least) as f64 * share) as u64;
            let found = longest(&costs, &balance(&costs, total).unwrap());
            let bound = relaxed(&costs, total);
            // Rounding costs less than the most expensive sample.
            prop_assert!(found > bound - 1e-5 * bound, "{found} beats the bound {bound}");
            prop_assert!(found < bound + 0.05 + 1e-5 * bound, "{found} is far above the bound {bound}");
        }
    }

    #[test]
    fn speeds_alone_give_proportional_batches() {
        let costs: Vec<Cost> = [10.0, 20.0, 30.0, 40.0].map(Cost::of_speed).to_vec();
        assert_eq!(balance(&costs, 1000).unwrap(), [100, 200, 300, 400]);
        // 3.33 each: one worker gets a fourth sample.
        let batches = balance(&[Cost::of_speed(1.0); 3], 10).unwrap();
        assert_eq!(batches.iter().sum::<u32>(), 10);
        assert!(batches.iter().all(|batch| (3..=4).contains(batch)));
        // Even a very slow worker gets a sample.
        assert_eq!(balance(&[Cost::of_speed(1e-300), Cost::of_speed(1e9)], 64).unwrap(), [1, 63]);
    }

    #[test]
    fn invalid_costs_and_totals_are_refused() {
        let cost = Cost { per_sample: 1.0, fixed: 0.0, least: 10, most: 20 };
        let error = |costs: &[Cost], total| balance(costs, total).unwrap_err().to_string();
        let infeasible = "19 samples can't be split: expected 20 to 40, the sums of the workers' bounds";
        assert_eq!(error(&[cost, cost], 19), infeasible);
        assert!(error(&[cost, cost], 41).contains("expected 20 to 40, the sums"));
        assert!(error(&[], 1).contains("expected 0 to 0, the sums"));
        for per_sample in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(error(&[Cost { per_sample, ..cost }], 10).starts_with("worker 0 costs 0 s and"));
        }
        assert!(error(&[cost, Cost { fixed: f64::NAN, ..cost }], 20).starts_with("worker 1 costs NaN s"));
        assert!(error(&[Cost { least: 21, ..cost }], 20).contains("worker 0 takes 21 to 20 samples"));
    }
}
