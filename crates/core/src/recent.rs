//! The mean and the median of recent values.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

/// A bounded queue of recent values.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct RecentValues {
    #[serde(with = "crate::number")]
    values: VecDeque<f64>,
    capacity: usize,
}

impl RecentValues {
    /// Keeps up to `capacity` values.
    pub(crate) fn new(capacity: usize) -> Self {
        RecentValues { values: VecDeque::new(), capacity }
    }

    pub(crate) fn push(&mut self, value: f64) {
        if self.values.len() == self.capacity {
            self.values.pop_front();
        }
        self.values.push_back(value);
    }

    /// The latest value.
    pub(crate) fn last(&self) -> Option<f64> {
        self.values.back().copied()
    }

    /// The mean of the kept values.
    pub(crate) fn mean(&self) -> Option<f64> {
        let count = self.values.len();
        (count > 0).then(|| self.values.iter().sum::<f64>() / count as f64)
    }

    /// The median of the kept values; of an even number, the lower of the middle two.
    pub(crate) fn median(&self) -> Option<f64> {
        let mut values: Vec<f64> = self.values.iter().copied().collect();
        let middle = values.len().checked_sub(1)? / 2;
        Some(*values.select_nth_unstable_by(middle, f64::total_cmp).1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_values_are_dropped() {
        let mut recent = RecentValues::new(2);
        assert_eq!((recent.last(), recent.mean()), (None, None));
        let means = [1.0, 3.0, 5.0].map(|value| {
            recent.push(value);
            recent.mean()
        });
        assert_eq!(means, [Some(1.0), Some(2.0), Some(4.0)]);
        assert_eq!(recent.last(), Some(5.0));
    }

    #[test]
    fn a_single_outlier_does_not_move_the_median() {
        let mut recent = RecentValues::new(3);
        assert_eq!(recent.median(), None);
        let medians = [2.0, 3.0, 1e9, 1.0, 4.0].map(|value| {
            recent.push(value);
            recent.median()
        });
        assert_eq!(medians, [2.0, 2.0, 3.0, 3.0, 4.0].map(Some));
    }
}
