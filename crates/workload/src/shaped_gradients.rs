//! Gradients computed in portions, or limited in their norm.

use std::sync::Arc;

use paceline_store::Layout;

use crate::progress::Progress;
use crate::workload::{Draw, Evaluation, Replica, Workload};

/// A workload with gradients computed in another way.
pub struct ShapedGradients {
    workload: Arc<dyn Workload>,
    portion: u32,
    limit: Option<f32>,
}

impl ShapedGradients {
    /// `workload` with gradients that are computed in portions and scaled down.
    ///
    /// `portion` is the most samples that are computed at a time (gradient accumulation), at least 1. The sum is the
    /// gradient of the whole batch, up to rounding, if the model treats its samples independently. Batch normalization
    /// does not: it normalizes each portion by itself.
    ///
    /// `limit` is the largest norm of the gradient. Statistics do not count and are not scaled.
    pub fn new(workload: Arc<dyn Workload>, portion: Option<u32>, limit: Option<f32>) -> Self {
        ShapedGradients { workload, portion: portion.unwrap_or(u32::MAX).max(1), limit }
    }
}

impl Workload for ShapedGradients {
    fn layout(&self) -> &Layout {
        self.workload.layout()
    }

    fn initial(&self, seed: u64) -> Vec<f32> {
        self.workload.initial(seed)
    }

    fn has_accuracy(&self) -> bool {
        self.workload.has_accuracy()
    }

    fn replica(&self) -> Box<dyn Replica> {
        let (replica, trainable) = (self.workload.replica(), self.layout().trainable());
        Box::new(ShapingReplica { replica, trainable, portion: self.portion, limit: self.limit, part: Vec::new() })
    }
}

struct ShapingReplica {
    replica: Box<dyn Replica>,
    trainable: usize,
    portion: u32,
    limit: Option<f32>,
    /// The gradient of one portion.
    part: Vec<f32>,
}

impl ShapingReplica {
    /// Adds up the gradients of the portions.
    fn accumulate(&mut self, parameters: &[f32], draw: Draw, gradient: &mut [f32]) -> f64 {
        if draw.samples <= self.portion {
            return self.replica.gradient(parameters, draw, gradient);
        }
        self.part.resize(gradient.len(), 0.0);
        gradient.fill(0.0);
        let mut loss = 0.0;
        let mut done = 0;
        while done < draw.samples {
            let samples = self.portion.min(draw.samples - done);
            let part = Draw { offset: draw.offset + u64::from(done), samples, ..draw };
            let share = f64::from(samples) / f64::from(draw.samples);
            loss += share * self.replica.gradient(parameters, part, &mut self.part);
            gradient.iter_mut().zip(&self.part).for_each(|(sum, value)| *sum += share as f32 * value);
            done += samples;
        }
        loss
    }
}

impl Replica for ShapingReplica {
    fn gradient(&mut self, parameters: &[f32], draw: Draw, gradient: &mut [f32]) -> f64 {
        let loss = self.accumulate(parameters, draw, gradient);
        if let Some(limit) = self.limit {
            clip(&mut gradient[..self.trainable], limit);
        }
        loss
    }

    fn evaluate(&mut self, parameters: &[f32]) -> Evaluation {
        self.replica.evaluate(parameters)
    }

    fn track(&mut self, progress: Progress) {
        self.replica.track(progress);
    }
}

/// Scales `gradient` down to the norm `limit`. One that is not finite stays as it is.
fn clip(gradient: &mut [f32], limit: f32) {
    let squares: f64 = gradient.iter().map(|&value| f64::from(value) * f64::from(value)).sum();
    let factor = f64::from(limit) / squares.sqrt();
    if squares.is_finite() && factor < 1.0 {
        gradient.iter_mut().for_each(|value| *value *= factor as f32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Order, Partition, Sampler, SoftmaxRegression, synthetic_digits};

    #[test]
    fn portions_add_up_to_the_gradient_of_the_batch() {
        let splits = synthetic_digits(3, 100, 10).unwrap();
        let sampler = Sampler::new(splits.train().labels(), Partition::Iid, Order::Epochs, 2, 1).unwrap();
        let whole: Arc<dyn Workload> = Arc::new(SoftmaxRegression::new(splits, sampler, 0.01));
        let parameters: Vec<f32> = (0..whole.layout().len()).map(|index| (index as f32).sin() * 0.1).collect();
        let draw = Draw { worker: 1, offset: 7, samples: 22 };
        let mut expected = vec![0.0; parameters.len()];
        let loss = whole.replica().gradient(&parameters, draw, &mut expected);
        for size in [1, 5, 11, 21, 22, 50] {
            // What is in the buffer before does not count.
            let mut gradient = vec![f32::NAN; parameters.len()];
            let mut replica = ShapedGradients::new(whole.clone(), Some(size), None).replica();
            let found = replica.gradient(&parameters, draw, &mut gradient);
            assert!((found - loss).abs() < 1e-6, "{size}: {found}; expected {loss}");
            let close = |(found, expected): (&f32, &f32)| (found - expected).abs() < 1e-6;
            assert!(gradient.iter().zip(&expected).all(close), "{size}");
        }
    }

    #[test]
    fn a_long_gradient_is_scaled_and_a_short_one_is_not() {
        let clipped = |mut gradient: [f32; 2], limit| {
            clip(&mut gradient, limit);
            gradient
        };
        assert_eq!(clipped([3.0, 4.0], 2.5), [1.5, 2.0]);
        assert_eq!(clipped([3.0, 4.0], 5.0), [3.0, 4.0]);
        assert_eq!(clipped([0.0, 0.0], 1.0), [0.0, 0.0]);
        assert!(clipped([f32::INFINITY, 1.0], 1.0)[0].is_infinite(), "a broken gradient stays broken");
    }

    #[test]
    fn the_direction_of_a_gradient_stays() {
        let splits = synthetic_digits(3, 100, 10).unwrap();
        let sampler = Sampler::new(splits.train().labels(), Partition::Iid, Order::Epochs, 1, 1).unwrap();
        let workload: Arc<dyn Workload> = Arc::new(SoftmaxRegression::new(splits, sampler, 0.0));
        let (parameters, draw) = (workload.initial(1), Draw { worker: 0, offset: 0, samples: 8 });
        let gradient = |workload: &dyn Workload| {
            let mut gradient = vec![0.0; parameters.len()];
            let loss = workload.replica().gradient(&parameters, draw, &mut gradient);
            (loss, gradient)
        };
        let (loss, whole) = gradient(workload.as_ref());
        let norm = whole.iter().map(|value| value * value).sum::<f32>().sqrt();
        let (same_loss, clipped) = gradient(&ShapedGradients::new(workload, None, Some(norm / 4.0)));
        assert_eq!(loss, same_loss);
        assert!(whole.iter().zip(&clipped).all(|(whole, clipped)| (whole / 4.0 - clipped).abs() < 1e-6));
    }
}
