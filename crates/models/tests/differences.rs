//! The gradient of every model agrees with central differences of its loss.

mod common;

use common::{draw, gradient, workload};
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

/// The allowed difference between measured and computed slope, relative to the latter …
const TOLERANCE: f64 = 0.05;
/// … and in addition, per unit of length, for the rounding of an `f32` loss.
const FLOOR: f64 = 1e-3;
/// A smaller step avoids a kink of ReLU or max-pooling between the two points; a larger one avoids rounding errors. A
/// wrong gradient disagrees at all steps.
const STEPS: [f64; 3] = [1e-3, 3e-3, 3e-4];

/// For every trainable tensor, compares slopes along a random half of its gradient and along its largest coordinate.
///
/// Along its own gradient a slope is large compared with the rounding of the loss. With a random half of the
/// coordinates, errors cannot cancel each other.
fn check_gradient(model: &str, samples: u32) {
    let workload = workload(model);
    let layout = workload.layout();
    let mut replica = workload.replica();
    let parameters = workload.initial(1);
    let draw = draw(0, samples);
    let (_, exact) = gradient(replica.as_mut(), &parameters, draw);
    let mut generator = Xoshiro256PlusPlus::seed_from_u64(5);
    let mut steepest = 0f64;
    for entry in layout.entries().iter().filter(|entry| entry.range.end <= layout.trainable()) {
        let mut half = vec![0.0; parameters.len()];
        let mut largest = entry.range.start;
        for index in entry.range.clone() {
            half[index] = if generator.random() { f64::from(exact[index]) } else { 0.0 };
            if exact[index].abs() > exact[largest].abs() {
                largest = index;
            }
        }
        let mut single = vec![0.0; parameters.len()];
        single[largest] = 1.0;
        for direction in [half, single] {
            let length = direction.iter().map(|x| x * x).sum::<f64>().sqrt().max(f64::MIN_POSITIVE);
            let computed = exact.iter().zip(&direction).map(|(g, d)| f64::from(*g) * d / length).sum::<f64>();
            let mut measure = |step: f64| {
                let mut loss_at = |distance: f64| {
                    let moved = parameters.iter().zip(&direction);
                    let moved: Vec<f32> = moved.map(|(p, d)| (f64::from(*p) + distance * d / length) as f32).collect();
                    gradient(replica.as_mut(), &moved, draw).0
                };
                (loss_at(step) - loss_at(-step)) / (2.0 * step)
            };
            let close = |step: f64| (measure(step) - computed).abs() < TOLERANCE * computed.abs() + FLOOR;
            assert!(
                STEPS.into_iter().any(close),
                "{model}, {}: computed {computed}, measured {:?} at steps {STEPS:?}",
                entry.name,
                STEPS.map(measure),
            );
            steepest = steepest.max(computed.abs());
        }
    }
    assert!(steepest > 0.1, "{model}: the steepest slope is {steepest}, too flat to measure");
}

#[test]
fn mlp_gradient_agrees() {
    check_gradient("mlp", 8);
}

#[test]
fn cnn_gradient_agrees() {
    check_gradient("cnn", 8);
}

#[test]
fn resnet8_gradient_agrees() {
    check_gradient("resnet8", 8);
}

#[test]
fn resnet20_gradient_agrees() {
    check_gradient("resnet20", 4);
}

#[test]
fn character_model_gradient_agrees() {
    check_gradient("charlm", 4);
}
