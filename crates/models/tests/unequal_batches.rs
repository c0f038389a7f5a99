//! The gradients of unequal batches, weighted by their samples, add up to the gradient of the whole batch (LB-BSP (8)).

mod common;

use common::{draw, gradient, workload};
use paceline_store::aggregate;

/// The shares of 64 samples for workers of speeds 1, 2, 3 and 10.
const SIZES: [u32; 4] = [4, 8, 12, 40];

#[test]
fn the_weighted_sum_is_the_gradient_of_one_batch() {
    for model in ["softmax", "cnn"] {
        let workload = workload(model);
        let mut replica = workload.replica();
        let initial = workload.initial(1);
        let total: u32 = SIZES.iter().sum();
        let (_, whole) = gradient(replica.as_mut(), &initial, draw(0, total));

        let mut offset = 0;
        let parts = SIZES.map(|size| {
            let (_, part) = gradient(replica.as_mut(), &initial, draw(offset, size));
            offset += u64::from(size);
            part
        });
        let weight = |size: u32| size as f32 / total as f32;
        let sources: Vec<(&[f32], f32)> = parts.iter().map(Vec::as_slice).zip(SIZES.map(weight)).collect();
        let mut sum = vec![f32::NAN; whole.len()];
        aggregate(&sources, whole.len(), &mut sum);
        let largest = whole.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
        for (found, expected) in sum.iter().zip(&whole) {
            assert!((found - expected).abs() <= 1e-5 * largest, "{model}: {found} and {expected}");
        }
    }
}
