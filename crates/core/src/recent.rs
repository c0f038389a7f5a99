//! The mean and the median of the last few values of something.

use std::collections::VecDeque;

/// The last few values of something.
#[derive(Debug)]
pub(crate) struct Recent {
    values: VecDeque<f64>,
    most: usize,
}

impl Recent {
    /// Keeps up to `most` values.
    pub(crate) fn new(most: usize) -> Self {
        Recent { values: VecDeque::new(), most }
    }

    pub(crate) fn push(&mut self, value: f64) {
        if self.values.len() == self.most {
            self.values.pop_front();
        }
        self.values.push_back(value);
    }

    /// The latest value.
    pub(crate) fn last(&self) -> Option<f64> {
        self.values.back().copied()
    }

    /// The mean of all that are kept, however few.
    pub(crate) fn mean(&self) -> Option<f64> {
        let count = self.values.len();
        (count > 0).then(|| self.values.iter().sum::<f64>() / count as f64)
    }

    /// The middle one of all that are kept; of an even number the lower of the two.
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
    fn old_values_make_room() {
        let mut recent = Recent::new(2);
        assert_eq!((recent.last(), recent.mean()), (None, None));
        let means = [1.0, 3.0, 5.0].map(|value| {
            recent.push(value);
            recent.mean()
        });
        assert_eq!(means, [Some(1.0), Some(2.0), Some(4.0)]);
        assert_eq!(recent.last(), Some(5.0));
    }

    #[test]
    fn a_single_wild_value_does_not_move_the_median() {
        let mut recent = Recent::new(3);
        assert_eq!(recent.median(), None);
        let medians = [2.0, 3.0, 1e9, 1.0, 4.0].map(|value| {
            recent.push(value);
            recent.median()
        });
        assert_eq!(medians, [2.0, 2.0, 3.0, 3.0, 4.0].map(Some));
    }
}
