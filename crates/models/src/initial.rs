//! Initial parameters as a function of the seed.

use paceline_store::{Layout, TensorEntry};
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

/// Keeps every tensor that is equal in `first` and `second`, and draws the others from `seed`.
pub(crate) fn merge(layout: &Layout, first: Vec<f32>, second: Vec<f32>, seed: u64) -> Vec<f32> {
    let mut generator = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut values = first;
    for entry in layout.entries() {
        let values = &mut values[entry.range.clone()];
        if values == &second[entry.range.clone()] {
            continue;
        }
        match fan_in(entry) {
            Some(fan_in) => {
                let bound = (fan_in as f32).sqrt().recip();
                values.fill_with(|| generator.random_range(-bound..bound));
            }
            None => values.fill(0.0),
        }
    }
    values
}

/// The number of inputs per output of a weight; `None` for a vector, which is a bias.
fn fan_in(entry: &TensorEntry) -> Option<usize> {
    match entry.shape.as_slice() {
        [] | [_] => None,
        // Burn stores a dense layer's weight as inputs × outputs, …
        [inputs, _] => Some(*inputs),
        // … and a convolution's as outputs × inputs × kernel.
        [_, inputs @ ..] => Some(inputs.iter().product()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_that_differ_are_drawn_and_others_kept() {
        let shapes = [
            ("conv.weight", vec![8, 3, 5, 5]),
            ("conv.bias", vec![8]),
            ("norm.gamma", vec![4]),
            ("dense.weight", vec![100, 10]),
        ];
        let layout = Layout::new(shapes, []);
        let (first, mut second) = (vec![1.0; layout.len()], vec![2.0; layout.len()]);
        let ranges: Vec<_> = layout.entries().iter().map(|entry| entry.range.clone()).collect();
        second[ranges[2].clone()].fill(1.0);

        let merged = merge(&layout, first.clone(), second.clone(), 7);
        for (range, bound) in [(&ranges[0], 75f32.sqrt().recip()), (&ranges[3], 0.1)] {
            let values = &merged[range.clone()];
            let largest = values.iter().fold(0f32, |largest, value| largest.max(value.abs()));
            assert!(largest <= bound && largest > 0.9 * bound, "{largest} of {bound}");
        }
        assert_eq!(merged[ranges[1].clone()], [0.0; 8]);
        assert_eq!(merged[ranges[2].clone()], [1.0; 4]);
        assert_eq!(merged, merge(&layout, first.clone(), second.clone(), 7));
        assert_ne!(merged, merge(&layout, first, second, 8));
    }
}
