//! The exact min–max split of an iteration's samples.

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// What samples cost a worker: `fixed + per_sample · samples` seconds, for `least` to `most` of them.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// Seconds per sample (the paper's m), above 0.
    pub per_sample: f64,
    /// Seconds that each iteration takes beside (the paper's b and communication time tᵐ). May be negative, as long as
    /// `least` samples don't take less than no time.
    pub fixed: f64,
    /// The fewest samples worth giving (the paper's xˢ).
    pub least: u32,
    /// The most samples that fit (the paper's xᵒ).
    pub most: u32,
}

impl Cost {
    /// The cost of a worker that does so many samples per second and can do any number of them, but at least one.
    pub fn of_speed(samples_per_second: f64) -> Self {
        Cost { per_sample: 1.0 / samples_per_second, fixed: 0.0, least: 1, most: u32::MAX }
    }

    /// Seconds that so many samples take.
    pub fn seconds(&self, samples: u32) -> f64 {
        self.fixed + self.per_sample * f64::from(samples)
    }

    /// How many samples are done by then, within the bounds.
    fn samples_by(&self, seconds: f64) -> u32 {
        // The conversion rounds down, and to the nearest possible number what has none.
        (((seconds - self.fixed) / self.per_sample) as u32).clamp(self.least, self.most)
    }
}

/// Why samples can't be split.
#[derive(Debug, Clone, Copy, PartialEq, Error)]
pub enum BatchingError {
    /// The bounds leave no room.
    #[error("{total} samples can't be split: the workers take {least} at the least and {most} at the most")]
    Infeasible {
        /// How many samples there are.
        total: u64,
        /// The sum of the fewest samples of each (Σxˢ).
        least: u64,
        /// The sum of the most samples of each (Σxᵒ).
        most: u64,
    },
    /// A cost is not one.
    #[error(
        "worker {worker} can't cost {fixed} s and {per_sample} s per sample: both must be finite, the second above 0, \
         and its fewest samples must not take less than no time"
    )]
    NotACost {
        /// The worker, counted from 0.
        worker: usize,
        /// What it costs per iteration.
        fixed: f64,
        /// What it costs per sample.
        per_sample: f64,
    },
    /// Bounds are the wrong way round.
    #[error("worker {worker} can't take {least} samples at the least and {most} at the most")]
    NoRoom {
        /// The worker, counted from 0.
        worker: usize,
        /// Its fewest samples.
        least: u32,
        /// Its most samples.
        most: u32,
    },
}

/// Splits `total` samples so that the last worker is done as early as can be: the exact optimum of (3) with (5) over
/// whole numbers. What can still be chosen goes to the workers that finish earliest with it.
///
/// With speeds alone this is `xᵢ ∝ vᵢ`, rounded so that the slowest ratio is least.
///
/// # Errors
/// If a worker's cost or bounds make no sense, or the bounds of all leave no room for `total`.
pub fn balance(costs: &[Cost], total: u64) -> Result<Vec<u32>, BatchingError> {
    check(costs, total)?;
    // Water-filling: raise the level, the time by which all are to be done, until the samples done by then are all
    // there are. Levels are not negative, so the order of their bits is their own, and halving the bits ends at
    // neighbouring numbers. At twice the time that anyone can take, all are done whatever the rounding.
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
    // What is missing is done by the very next number.
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

    /// The least of the longest times, by trying everything.
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
        fn nothing_is_faster(costs in prop::collection::vec(cost(), 1..6), share in 0.0..1.0_f64) {
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
        fn real_numbers_are_no_faster(
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
            // Rounding costs less than the dearest sample.
            prop_assert!(found > bound - 1e-5 * bound, "{found} beats the bound {bound}");
            prop_assert!(found < bound + 0.05 + 1e-5 * bound, "{found} is far above the bound {bound}");
        }
    }

    #[test]
    fn speeds_alone_give_proportional_batches() {
        let costs: Vec<Cost> = [10.0, 20.0, 30.0, 40.0].map(Cost::of_speed).to_vec();
        assert_eq!(balance(&costs, 1000).unwrap(), [100, 200, 300, 400]);
        // 3.33 each: one of them gets the fourth.
        let batches = balance(&[Cost::of_speed(1.0); 3], 10).unwrap();
        assert_eq!(batches.iter().sum::<u32>(), 10);
        assert!(batches.iter().all(|batch| (3..=4).contains(batch)));
        // However slow, everyone gets a sample.
        assert_eq!(balance(&[Cost::of_speed(1e-300), Cost::of_speed(1e9)], 64).unwrap(), [1, 63]);
    }

    #[test]
    fn what_cannot_be_is_refused_with_both_sums() {
        let cost = Cost { per_sample: 1.0, fixed: 0.0, least: 10, most: 20 };
        let error = |costs: &[Cost], total| balance(costs, total).unwrap_err().to_string();
        let infeasible = "19 samples can't be split: the workers take 20 at the least and 40 at the most";
        assert_eq!(error(&[cost, cost], 19), infeasible);
        assert!(error(&[cost, cost], 41).contains("20 at the least and 40 at the most"));
        assert!(error(&[], 1).contains("0 at the least and 0 at the most"));
        for per_sample in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(error(&[Cost { per_sample, ..cost }], 10).starts_with("worker 0 can't cost 0 s and"));
        }
        assert!(error(&[cost, Cost { fixed: f64::NAN, ..cost }], 20).starts_with("worker 1 can't cost NaN s"));
        assert!(error(&[Cost { least: 21, ..cost }], 20).contains("21 samples at the least and 20 at the most"));
    }
}
