//! The named layout of one flat parameter vector.

use std::ops::Range;

/// One named tensor inside the flat vector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorEntry {
    /// Name as it appears in checkpoints, e.g. `conv1.weight`.
    pub name: String,
    /// Dimensions, outermost first; the values are stored row by row.
    pub shape: Vec<usize>,
    /// Range of the values in the flat vector.
    pub range: Range<usize>,
}

/// Names, shapes and ranges of the tensors in a flat `f32` parameter vector.
///
/// Trainable tensors come first. *Statistics* (running means and variances of batch normalization) follow: they have
/// no gradient. A worker reports `old − new` instead, and an optimizer subtracts that difference with rate 1, so that
/// averaging updates averages the statistics.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Layout {
    entries: Vec<TensorEntry>,
    trainable: usize,
}

impl Layout {
    /// A layout of the `trainable` tensors followed by the `statistics`, each given as name and shape.
    pub fn new<N: Into<String>>(
        trainable: impl IntoIterator<Item = (N, Vec<usize>)>,
        statistics: impl IntoIterator<Item = (N, Vec<usize>)>,
    ) -> Self {
        let mut layout = Layout::default();
        for (name, shape) in trainable {
            layout.push(name.into(), shape);
        }
        layout.trainable = layout.len();
        for (name, shape) in statistics {
            layout.push(name.into(), shape);
        }
        layout
    }

    /// The same, or `None` if it would have more values than memory has bytes.
    pub fn checked(trainable: Vec<(String, Vec<usize>)>, statistics: Vec<(String, Vec<usize>)>) -> Option<Self> {
        let length = |shape: &[usize]| shape.iter().try_fold(1_usize, |length, &side| length.checked_mul(side));
        let mut shapes = trainable.iter().chain(&statistics).map(|(_, shape)| shape);
        shapes
            .try_fold(0_usize, |sum, shape| sum.checked_add(length(shape)?))
            .filter(|&sum| sum <= isize::MAX as usize / 4)?;
        Some(Layout::new(trainable, statistics))
    }

    fn push(&mut self, name: String, shape: Vec<usize>) {
        let start = self.len();
        let range = start..start + shape.iter().product::<usize>();
        self.entries.push(TensorEntry { name, shape, range });
    }

    /// All tensors in the order of the vector.
    pub fn entries(&self) -> &[TensorEntry] {
        &self.entries
    }

    /// The trainable tensors in the order of the vector.
    pub fn trainable_entries(&self) -> impl Iterator<Item = &TensorEntry> {
        self.entries.iter().filter(|entry| entry.range.end <= self.trainable)
    }

    /// Length of the flat vector in values, statistics included.
    pub fn len(&self) -> usize {
        self.entries.last().map_or(0, |entry| entry.range.end)
    }

    /// Whether the vector has no values.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of leading values that are trainable; the rest are statistics.
    pub fn trainable(&self) -> usize {
        self.trainable
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_follow_each_other_and_statistics_come_last() {
        let layout = Layout::new([("weight", vec![3, 2]), ("bias", vec![3])], [("mean", vec![3])]);
        let ranges: Vec<_> = layout.entries().iter().map(|entry| entry.range.clone()).collect();
        assert_eq!(ranges, [0..6, 6..9, 9..12]);
        assert_eq!((layout.len(), layout.trainable()), (12, 9));
    }
}
