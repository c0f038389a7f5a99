//! Estimates how long a worker's next iteration takes from its last ones.

use serde::{Deserialize, Serialize};

use crate::Span;

/// The share of the newest interval in the moving average.
const NEWEST: f64 = 0.3;

/// How many of the latest intervals the median is taken of.
const MEDIAN_OF: usize = 5;

/// How the next interval is estimated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum IntervalEstimator {
    /// The last interval, as in the papers.
    Last,
    /// The exponential moving average, in which the last interval has the weight [`NEWEST`].
    MovingAverage,
    /// The median of the last [`MEDIAN_OF`] intervals.
    Median,
}

/// A worker's expected interval.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Interval {
    expected: Span,
    /// The latest intervals, oldest first; empty if the estimator does not need them.
    recent: Vec<Span>,
}

impl Interval {
    /// The expected length of the next interval; zero before the first.
    pub(crate) fn expected(&self) -> Span {
        self.expected
    }

    /// Adds a measured interval.
    pub(crate) fn observe(&mut self, interval: Span, estimator: IntervalEstimator) {
        self.expected = match estimator {
            IntervalEstimator::MovingAverage if self.expected > Span::ZERO => {
                let old = self.expected.0 as f64;
                Span((old + NEWEST * (interval.0 as f64 - old)).round() as u64)
            }
            IntervalEstimator::Last | IntervalEstimator::MovingAverage => interval,
            IntervalEstimator::Median => {
                if self.recent.len() == MEDIAN_OF {
                    self.recent.remove(0);
                }
                self.recent.push(interval);
                median(&self.recent)
            }
        };
    }
}

/// The middle value, or the mean of the middle two.
fn median(intervals: &[Span]) -> Span {
    let mut sorted = [Span::ZERO; MEDIAN_OF];
    let sorted = &mut sorted[..intervals.len()];
    sorted.copy_from_slice(intervals);
    sorted.sort_unstable();
    let (low, high) = (sorted[(sorted.len() - 1) / 2].0, sorted[sorted.len() / 2].0);
    Span(low + (high - low) / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expected(estimator: IntervalEstimator, intervals: &[u64]) -> u64 {
        let mut interval = Interval::default();
        intervals.iter().for_each(|&length| interval.observe(Span(length), estimator));
        interval.expected().0
    }

    #[test]
    fn each_estimator_predicts_the_next_interval() {
        let intervals = [100, 200, 100, 900];
        assert_eq!(expected(IntervalEstimator::Last, &intervals), 900);
        // 100, 130, 121, then 0.7 × 121 + 0.3 × 900.
        assert_eq!(expected(IntervalEstimator::MovingAverage, &intervals), 355);
        assert_eq!(expected(IntervalEstimator::Median, &intervals), 150);
    }

    #[test]
    fn the_median_drops_old_intervals() {
        assert_eq!(expected(IntervalEstimator::Median, &[7]), 7);
        assert_eq!(expected(IntervalEstimator::Median, &[900, 900, 900, 1, 2, 3, 4, 5]), 3);
    }
}
