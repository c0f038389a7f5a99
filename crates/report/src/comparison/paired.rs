//! Two contestants compared seed by seed.

use paceline_runtime::Summary;
use serde::Serialize;

use super::RunResult;
use crate::numbers;
use crate::statistics::{mean, mean_interval};

/// With fewer seeds there is no interval.
pub const FEWEST_SEEDS: usize = 3;

/// Whether a contestant differs from another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Difference {
    /// It is faster.
    Faster,
    /// It is slower.
    Slower,
    /// The seeds show none.
    None,
    /// There are too few seeds to tell.
    Unknown,
}

/// How many times as fast a contestant is as another one, over the seeds with which both reached the target.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PairedRatio {
    /// Geometric mean of the ratios of times to target; above 1 if the first one is faster.
    pub ratio: f64,
    /// The ends of its 95 % confidence interval; `None` with too few seeds.
    pub interval: Option<(f64, f64)>,
}

impl PairedRatio {
    /// Compares two contestants' runs; `None` if no seed is common.
    pub fn new(own: &[RunResult], other: &[RunResult]) -> Option<Self> {
        PairedRatio::by(own, other, |own, other| Some(other.time_to_target? / own.time_to_target?))
    }

    /// How many times as many samples per second.
    pub(super) fn of_speeds(own: &[RunResult], other: &[RunResult]) -> Option<Self> {
        let speed = |run: &Summary| Some(run.samples_used as f64 / run.time_to_target?);
        PairedRatio::by(own, other, |own, other| Some(speed(own)? / speed(other)?))
    }

    fn by(own: &[RunResult], other: &[RunResult], ratio: impl Fn(&Summary, &Summary) -> Option<f64>) -> Option<Self> {
        let log_ratio = |run: &RunResult| {
            let other = other.iter().find(|other| other.summary.seed == run.summary.seed)?;
            Some(ratio(&run.summary, &other.summary)?.ln())
        };
        let logs: Vec<f64> = own.iter().filter_map(log_ratio).filter(|log| log.is_finite()).collect();
        let interval = mean_interval(&logs).filter(|_| logs.len() >= FEWEST_SEEDS);
        let interval = interval.map(|(low, high)| (low.exp(), high.exp()));
        (!logs.is_empty()).then(|| PairedRatio { ratio: mean(&logs).exp(), interval })
    }

    /// Whether the first one differs from the other.
    pub fn difference(&self) -> Difference {
        match self.interval {
            Some((low, _)) if low > 1.0 => Difference::Faster,
            Some((_, high)) if high < 1.0 => Difference::Slower,
            Some(_) => Difference::None,
            None => Difference::Unknown,
        }
    }

    /// The ratio and its interval, and what follows from them if that is not plain.
    pub(super) fn cell(&self) -> String {
        let ratio = numbers::ratio(self.ratio);
        match (self.interval, self.difference()) {
            (None, _) => format!("{ratio} (too few seeds)"),
            (Some(ends), Difference::None) => format!("{ratio} ({}), no difference", written(ends)),
            (Some(ends), _) => format!("{ratio} ({})", written(ends)),
        }
    }
}

/// An interval of ratios: `1.62 to 2.07`.
pub(super) fn written((low, high): (f64, f64)) -> String {
    format!("{} to {}", numbers::ratio(low), numbers::ratio(high))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comparison::result;

    /// Evenly distributed numbers between 0 and 1 (SplitMix64).
    fn random(state: &mut u64) -> f64 {
        *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = (*state ^ (*state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn normal(state: &mut u64) -> f64 {
        (-2.0 * (1.0 - random(state)).ln()).sqrt() * (std::f64::consts::TAU * random(state)).cos()
    }

    /// Log-normal times of a number of seeds. What a seed does to both contestants cancels.
    fn pair(state: &mut u64, seeds: u64, speedup: f64) -> PairedRatio {
        let (mut own, mut other) = (Vec::new(), Vec::new());
        for seed in 0..seeds {
            let common = 100.0 * normal(state).exp();
            own.push(result("own", seed, Some(common * (0.1 * normal(state)).exp())));
            other.push(result("other", seed, Some(speedup * common * (0.1 * normal(state)).exp())));
        }
        PairedRatio::new(&own, &other).unwrap()
    }

    #[test]
    fn the_interval_holds_the_true_ratio_in_95_of_100_cases() {
        let mut state = 1;
        for (seeds, speedup) in [(3, 1.3), (5, 1.0), (10, 0.5)] {
            let holds = |_: &u32| {
                let (low, high) = pair(&mut state, seeds, speedup).interval.unwrap();
                low < speedup && speedup < high
            };
            let share = (0..10_000).filter(holds).count() as f64 / 10_000.0;
            assert!((share - 0.95).abs() < 0.007, "{seeds} seeds: {share}");
        }
    }

    #[test]
    fn only_seeds_with_which_both_reached_the_target_count() {
        let own = [result("own", 1, Some(1.0)), result("own", 2, None), result("own", 3, Some(4.0))];
        let other = [result("other", 3, Some(8.0)), result("other", 2, Some(5.0)), result("other", 9, Some(5.0))];
        let pair = PairedRatio::new(&own, &other).unwrap();
        assert_eq!((pair.ratio, pair.interval, pair.difference()), (2.0, None, Difference::Unknown));
        assert_eq!(PairedRatio::new(&own[..1], &other), None);
    }
}
