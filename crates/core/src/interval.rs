//! How long a worker's next iteration will take, told from those before.

use crate::Span;

/// The share of the newest interval in the moving average.
const NEWEST: f64 = 0.3;

/// How many of the latest intervals the median is of.
const MEDIAN_OF: usize = 5;

/// The rule by which the next interval is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IntervalRule {
    /// It is the last one again, as in the papers.
    Last,
    /// It is the exponential moving average, [`NEWEST`] of it the last one.
    MovingAverage,
    /// It is the median of the last [`MEDIAN_OF`].
    Median,
}

/// A worker's expected interval.
#[derive(Debug, Clone, Default)]
pub(crate) struct Interval {
    expected: Span,
    /// The latest intervals, oldest first, where the rule needs them.
    recent: Vec<Span>,
}

impl Interval {
    /// What the next one is expected to be; zero before the first.
    pub(crate) fn expected(&self) -> Span {
        self.expected
    }

    /// Takes note of an interval.
    pub(crate) fn observe(&mut self, interval: Span, rule: IntervalRule) {
        self.expected = match rule {
            IntervalRule::MovingAverage if self.expected > Span::ZERO => {
                let old = self.expected.0 as f64;
                Span((old + NEWEST * (interval.0 as f64 - old)).round() as u64)
            }
            IntervalRule::Last | IntervalRule::MovingAverage => interval,
            IntervalRule::Median => {
                if self.recent.len() == MEDIAN_OF {
                    self.recent.remove(0);
                }
                self.recent.push(interval);
                median(&self.recent)
            }
        };
    }
}

/// The middle one, or the mean of the middle two.
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

    fn expected(rule: IntervalRule, intervals: &[u64]) -> u64 {
        let mut interval = Interval::default();
        intervals.iter().for_each(|&length| interval.observe(Span(length), rule));
        interval.expected().0
    }

    #[test]
    fn each_rule_tells_the_next_interval() {
        let intervals = [100, 200, 100, 900];
        assert_eq!(expected(IntervalRule::Last, &intervals), 900);
        // 100, 130, 121, then 0.7 × 121 + 0.3 × 900.
        assert_eq!(expected(IntervalRule::MovingAverage, &intervals), 355);
        assert_eq!(expected(IntervalRule::Median, &intervals), 150);
    }

    #[test]
    fn the_median_forgets_what_is_old() {
        assert_eq!(expected(IntervalRule::Median, &[7]), 7);
        assert_eq!(expected(IntervalRule::Median, &[900, 900, 900, 1, 2, 3, 4, 5]), 3);
    }
}
