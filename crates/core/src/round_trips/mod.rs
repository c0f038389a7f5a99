//! Estimates the time until k gradients have arrived: DBW's table of round trips, problem (17).
//!
//! DBW measures, in every iteration, when the i-th gradient of the new version arrives, given that the server had
//! waited for h gradients in the iteration before: a sample of 𝒯[h, i]. The table fits all means E[𝒯[h, i]] together by
//! least squares, under the constraints on their order. T̂[k] = E[𝒯[k, k]] is on the diagonal. The fit is exact. After
//! new samples it is repaired rather than computed again.

mod bits;
mod fit;
mod grid;
#[cfg(test)]
mod oracle;
mod region;
mod saved_fit;

use std::collections::VecDeque;
use std::str::FromStr;

use fit::Fit;
use serde::{Deserialize, Serialize};

/// Cells have 32-bit indices.
const MAX_WORKERS: usize = u16::MAX as usize;

/// The longest duration that [`RoundTripTable::observe`] accepts, in seconds: about 30,000 years. It keeps sums finite.
const MAX_SECONDS: f64 = 1e12;

/// Under [`Memory::Discount`], a cell that weighs less than this share of a fresh sample counts as unsampled.
const FORGOTTEN: f64 = 1.0 / (1 << 20) as f64;

/// Under [`Memory::Discount`], how far the weight of a fresh sample may grow before all weights are scaled back.
const LARGEST_FRESH_WEIGHT: f64 = 1024.0;

/// How long a [`RoundTripTable`] keeps its samples. An iteration ends with [`RoundTripTable::advance`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub enum Memory {
    /// All samples are kept, as in the paper. After a lasting slowdown old samples dominate for a long time.
    #[default]
    All,
    /// Samples of the last iterations are kept, including the current one; at least 1.
    Window(usize),
    /// All samples are kept, but at the end of each iteration their weights are multiplied by this factor, above 0 and
    /// below 1. A cell that weighs less than a millionth (2⁻²⁰) of a fresh sample counts as unsampled, so that an
    /// unused k is eventually tried again. This is checked once per ten halvings of the weights.
    Discount(f64),
}

impl FromStr for Memory {
    type Err = &'static str;

    /// Parses `all`, `window-N` or `discount-FACTOR`. The error names what is allowed.
    fn from_str(text: &str) -> Result<Self, &'static str> {
        let window = || text.strip_prefix("window-")?.parse().ok().filter(|iterations| *iterations > 0);
        let discount = || text.strip_prefix("discount-")?.parse().ok().filter(|&factor| factor > 0.0 && factor < 1.0);
        let memory = if text == "all" { Some(Memory::All) } else { None };
        let memory = memory.or_else(|| window().map(Memory::Window)).or_else(|| discount().map(Memory::Discount));
        memory.ok_or("all, window-N (N iterations, at least 1) or discount-FACTOR (per iteration, between 0 and 1)")
    }
}

/// Why a [`RoundTripTable`] refuses a sample, a memory or a number of workers.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum RoundTripError {
    /// The cell is not in the table.
    #[error(
        "no cell for {waited_for} gradients waited for and arrival rank {rank}: expected 1 to {workers}, the number of \
         workers"
    )]
    NoSuchCell {
        /// The number of gradients that the iteration before waited for.
        waited_for: usize,
        /// The arrival rank.
        rank: usize,
        /// The number of workers.
        workers: usize,
    },
    /// The sample is negative, too long or NaN.
    #[error("{seconds} s is not a round trip: expected 0 to 1e12 s")]
    NotADuration {
        /// The sample.
        seconds: f64,
    },
    /// The number of workers is too large: the table has a cell for each pair of workers.
    #[error("a round-trip table for {workers} workers is too large: expected at most 65535 workers")]
    TooManyWorkers {
        /// The number of workers.
        workers: usize,
    },
    /// The window is zero.
    #[error("a window of 0 iterations keeps no samples: expected at least 1")]
    EmptyWindow,
    /// The discount is out of range.
    #[error("the discount per iteration is {factor}: expected a number above 0 and below 1")]
    Discount {
        /// The factor.
        factor: f64,
    },
}

/// A sample that a window will drop.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct RoundTripSample {
    iteration: u64,
    waited_for: usize,
    rank: usize,
    seconds: f64,
}

/// DBW's estimator of iteration times: the solution of problem (17).
///
/// In every iteration: [`observe`](Self::observe) each arrival, also late ones; read
/// [`expected_all`](Self::expected_all); call [`advance`](Self::advance) when the iteration ends.
///
/// A cell (h, i) without samples does not influence the fit; (17) only bounds it. If the diagonal cell (k, k) has no
/// samples, the estimate is its *lower* bound: the largest fitted value among the sampled cells that may not exceed it,
/// or 0 without such a cell. This is optimistic, so an untried k looks attractive until it has been tried. Estimates
/// never decrease as k grows.
///
/// Takes about 40 bytes for each of the `workers`² cells. Scratch space is kept between calls.
///
/// ```
/// use paceline_core::{Memory, RoundTripTable};
///
/// let mut table = RoundTripTable::new(2, Memory::All)?;
/// // The server had waited for both: the first gradient arrived after 1 s, the second after 3 s.
/// table.observe(2, 1, 1.0)?;
/// table.observe(2, 2, 3.0)?;
/// assert_eq!(table.expected_all(), [1.0, 3.0]);
/// # Ok::<(), paceline_core::RoundTripError>(())
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RoundTripTable {
    memory: Memory,
    fit: Fit,
    expected: Vec<f64>,
    iteration: u64,
    /// The samples that [`Memory::Window`] will drop, oldest first; empty with other memories.
    samples: VecDeque<RoundTripSample>,
    /// The weight of a sample observed now. Under [`Memory::Discount`] it grows instead of all others shrinking: the
    /// fit depends on the ratio only, so discounting costs nothing and leaves the blocks unchanged.
    fresh_weight: f64,
}

impl RoundTripTable {
    /// An empty table for up to 65,535 workers. Fails if there are more or if `memory` is out of range.
    pub fn new(workers: usize, memory: Memory) -> Result<Self, RoundTripError> {
        Self::check_workers(workers)?;
        match memory {
            Memory::Window(0) => return Err(RoundTripError::EmptyWindow),
            Memory::Discount(factor) if !(factor > 0.0 && factor < 1.0) => {
                return Err(RoundTripError::Discount { factor });
            }
            _ => {}
        }
        Ok(Self {
            memory,
            fit: Fit::new(workers),
            expected: vec![0.0; workers],
            iteration: 0,
            samples: VecDeque::new(),
            fresh_weight: 1.0,
        })
    }

    /// The number of workers.
    pub fn workers(&self) -> usize {
        self.expected.len()
    }

    /// Adds one arrival: the `rank`-th gradient (from 1) of a version arrived `seconds` after the commit that made the
    /// version, and that commit had waited for `waited_for` gradients. Arrivals may be late and in any order. A refused
    /// sample leaves the table unchanged.
    pub fn observe(&mut self, waited_for: usize, rank: usize, seconds: f64) -> Result<(), RoundTripError> {
        let workers = self.expected.len();
        if !(1..=workers).contains(&waited_for) || !(1..=workers).contains(&rank) {
            return Err(RoundTripError::NoSuchCell { waited_for, rank, workers });
        }
        if !(0.0..=MAX_SECONDS).contains(&seconds) {
            return Err(RoundTripError::NotADuration { seconds });
        }
        if let Memory::Window(_) = self.memory {
            self.samples.push_back(RoundTripSample { iteration: self.iteration, waited_for, rank, seconds });
        }
        self.fit.add(waited_for, rank, seconds * self.fresh_weight, self.fresh_weight);
        Ok(())
    }

    /// Ends the iteration: drops or discounts samples according to [`Memory`].
    pub fn advance(&mut self) {
        self.iteration += 1;
        match self.memory {
            Memory::All => {}
            Memory::Window(iterations) => {
                while let Some(oldest) =
                    self.samples.pop_front_if(|oldest| self.iteration - oldest.iteration >= iterations as u64)
                {
                    self.fit.add(oldest.waited_for, oldest.rank, -oldest.seconds, -1.0);
                }
            }
            Memory::Discount(factor) => {
                self.fresh_weight = (self.fresh_weight / factor).min(f64::MAX);
                if self.fresh_weight > LARGEST_FRESH_WEIGHT {
                    // A power of two, so that the scaled sums are exact.
                    let scale = libm::scalbn(1.0, -libm::ilogb(self.fresh_weight));
                    self.fresh_weight *= scale;
                    self.fit.scale(scale, FORGOTTEN * self.fresh_weight);
                }
            }
        }
    }

    /// Changes the number of workers. Samples of cells (h, i) with h and i up to the new number are kept, others are
    /// dropped. Samples measured with another number of workers are only approximate, but better than none, and
    /// [`Memory`] sets how fast they lose weight. Visits the whole table once. Fails above 65,535 workers and then
    /// changes nothing.
    pub fn resize(&mut self, workers: usize) -> Result<(), RoundTripError> {
        Self::check_workers(workers)?;
        self.fit.resize(workers);
        self.samples.retain(|sample| sample.waited_for <= workers && sample.rank <= workers);
        self.expected.clear();
        self.expected.resize(workers, 0.0);
        self.fit.diagonal(&mut self.expected);
        Ok(())
    }

    /// Drops all samples.
    pub fn clear(&mut self) {
        let workers = self.expected.len();
        self.fit = Fit::new(workers);
        self.expected.fill(0.0);
        self.samples.clear();
        self.fresh_weight = 1.0;
    }

    fn check_workers(workers: usize) -> Result<(), RoundTripError> {
        if workers <= MAX_WORKERS { Ok(()) } else { Err(RoundTripError::TooManyWorkers { workers }) }
    }

    /// T̂ for every k, in seconds; entry 0 is k = 1. Repairs the fit if samples were added since the last call.
    pub fn expected_all(&mut self) -> &[f64] {
        if self.fit.repair() {
            self.fit.diagonal(&mut self.expected);
        }
        &self.expected
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(workers: usize, memory: Memory) -> RoundTripTable {
        RoundTripTable::new(workers, memory).expect("the memory is in range")
    }

    /// One iteration after a commit that waited for `waited_for` gradients, with its arrivals in order.
    fn iterate(table: &mut RoundTripTable, waited_for: usize, arrivals: &[f64]) {
        for (rank, &seconds) in (1..).zip(arrivals) {
            table.observe(waited_for, rank, seconds).expect("the arrival is in the table");
        }
        table.advance();
    }

    #[test]
    fn estimates_without_samples_are_zero() {
        assert_eq!(table(3, Memory::All).expected_all(), [0.0; 3]);
        assert_eq!(table(0, Memory::All).expected_all(), [0.0; 0]);
    }

    #[test]
    fn the_estimate_of_an_untried_k_is_its_lower_bound() {
        let mut table = table(4, Memory::All);
        iterate(&mut table, 4, &[1.0, 2.0]);
        assert_eq!(table.expected_all(), [1.0, 2.0, 2.0, 2.0]);
        // Above the diagonal there are only upper bounds.
        iterate(&mut table, 1, &[1.5, 4.0, 5.0, 6.0]);
        assert_eq!(table.expected_all(), [1.5, 2.0, 2.0, 2.0]);
    }

    #[test]
    fn cells_out_of_order_are_pooled() {
        let mut table = table(2, Memory::All);
        iterate(&mut table, 1, &[4.0]);
        iterate(&mut table, 2, &[1.0, 2.0]);
        // x[1][1] ≤ x[2][2] is violated by the means 4 and 2; x[2][1] is free of both.
        assert_eq!(table.expected_all(), [3.0, 3.0]);
        iterate(&mut table, 2, &[1.0, 5.0]);
        // (4 + 2 + 5) / 3
        assert_eq!(table.expected_all(), [11.0 / 3.0; 2]);
    }

    #[test]
    fn a_window_keeps_only_the_last_iterations() {
        let mut windowed = table(3, Memory::Window(2));
        for seconds in [9.0, 9.0, 1.0] {
            iterate(&mut windowed, 2, &[seconds]);
        }
        windowed.observe(2, 1, 2.0).unwrap();
        assert_eq!(windowed.expected_all(), [1.5; 3]);
        windowed.advance();
        assert_eq!(windowed.expected_all(), [2.0; 3]);
        windowed.advance();
        assert_eq!(windowed.expected_all(), [0.0; 3]);
        iterate(&mut windowed, 1, &[7.0]);
        assert_eq!(windowed.expected_all(), [7.0; 3]);
    }

    #[test]
    fn a_discount_weighs_samples_by_age_and_drops_old_ones() {
        let mut discounted = table(2, Memory::Discount(0.5));
        iterate(&mut discounted, 1, &[4.0]);
        iterate(&mut discounted, 1, &[1.0]);
        // (4 / 2 + 1) / (1 / 2 + 1)
        assert_eq!(discounted.expected_all(), [2.0; 2]);
        // k = 1 is not tried for long: its weight falls below 2⁻²⁰, and its estimate is its lower bound again.
        for _ in 0..40 {
            iterate(&mut discounted, 2, &[0.25, 3.0]);
        }
        assert_eq!(discounted.expected_all(), [0.25, 3.0]);
        // The smallest factor keeps one iteration.
        let mut memoryless = table(1, Memory::Discount(f64::MIN_POSITIVE));
        iterate(&mut memoryless, 1, &[4.0]);
        iterate(&mut memoryless, 1, &[1.0]);
        assert_eq!(memoryless.expected_all(), [0.0]);
        memoryless.observe(1, 1, 2.0).unwrap();
        assert_eq!(memoryless.expected_all(), [2.0]);
    }

    #[test]
    fn resizing_keeps_the_cells_that_remain() {
        for memory in [Memory::All, Memory::Window(2), Memory::Discount(0.5)] {
            let mut resized = table(3, memory);
            iterate(&mut resized, 3, &[1.0, 2.0, 3.0]);
            iterate(&mut resized, 2, &[2.0, 3.0, 4.0]);
            resized.resize(2).unwrap();
            assert_eq!(resized.expected_all(), [2.0, 3.0], "{memory:?}");
            assert_eq!(
                resized.observe(3, 1, 1.0),
                Err(RoundTripError::NoSuchCell { waited_for: 3, rank: 1, workers: 2 })
            );
            resized.resize(4).unwrap();
            iterate(&mut resized, 4, &[1.0, 2.0, 3.0, 8.0]);
            assert_eq!(resized.expected_all()[3], 8.0, "{memory:?}");
            resized.resize(0).unwrap();
            assert_eq!(resized.expected_all(), [0.0; 0]);
        }
    }

    #[test]
    fn invalid_samples_are_refused() {
        let mut table = table(2, Memory::All);
        for (waited_for, rank) in [(0, 1), (1, 0), (3, 1), (1, 3)] {
            let refused = table.observe(waited_for, rank, 1.0);
            assert_eq!(refused, Err(RoundTripError::NoSuchCell { waited_for, rank, workers: 2 }));
        }
        for seconds in [-1e-9, f64::INFINITY, 1.1e12] {
            assert_eq!(table.observe(1, 1, seconds), Err(RoundTripError::NotADuration { seconds }));
        }
        assert!(table.observe(1, 1, f64::NAN).unwrap_err().to_string().starts_with("NaN s is not a round trip"));
        assert_eq!(table.expected_all(), [0.0; 2]);
    }

    #[test]
    fn too_many_workers_are_refused() {
        let refused = RoundTripError::TooManyWorkers { workers: 1 << 16 };
        assert_eq!(RoundTripTable::new(1 << 16, Memory::All).unwrap_err(), refused);
        let mut kept = table(1, Memory::All);
        iterate(&mut kept, 1, &[2.0]);
        assert_eq!(kept.resize(1 << 16), Err(refused));
        assert_eq!(kept.expected_all(), [2.0]);
    }

    #[test]
    fn a_memory_is_parsed() {
        assert_eq!("all".parse(), Ok(Memory::All));
        assert_eq!("window-20".parse(), Ok(Memory::Window(20)));
        assert_eq!("discount-0.9".parse(), Ok(Memory::Discount(0.9)));
        for text in ["", "none", "window-0", "window-x", "discount-1", "discount-0", "discount-NaN"] {
            assert!(text.parse::<Memory>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_memory_out_of_range_is_refused() {
        assert_eq!(RoundTripTable::new(2, Memory::Window(0)).unwrap_err(), RoundTripError::EmptyWindow);
        for factor in [0.0, 1.0, -0.5, 1.5] {
            let refused = RoundTripTable::new(2, Memory::Discount(factor)).unwrap_err();
            assert_eq!(refused, RoundTripError::Discount { factor });
        }
        assert!(RoundTripTable::new(2, Memory::Discount(f64::NAN)).is_err());
    }
}
