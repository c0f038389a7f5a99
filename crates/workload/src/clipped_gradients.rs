//! Gradients whose norm has a limit.

use std::sync::Arc;

use paceline_store::Layout;

use crate::progress::Progress;
use crate::workload::{Draw, Evaluation, Replica, Workload};

/// A workload whose gradients are scaled down to a largest norm. Statistics do not count and are not scaled.
pub struct ClippedGradients {
    workload: Arc<dyn Workload>,
    norm: f32,
}

impl ClippedGradients {
    /// `workload` with gradients of this norm at most.
    pub fn new(workload: Arc<dyn Workload>, norm: f32) -> Self {
        ClippedGradients { workload, norm }
    }
}

impl Workload for ClippedGradients {
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
        let trainable = self.layout().trainable();
        Box::new(ClippingReplica { replica: self.workload.replica(), trainable, norm: self.norm })
    }
}

struct ClippingReplica {
    replica: Box<dyn Replica>,
    trainable: usize,
    norm: f32,
}

impl Replica for ClippingReplica {
    fn gradient(&mut self, parameters: &[f32], draw: Draw, gradient: &mut [f32]) -> f64 {
        let loss = self.replica.gradient(parameters, draw, gradient);
        clip(&mut gradient[..self.trainable], self.norm);
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
        let (same_loss, clipped) = gradient(&ClippedGradients::new(workload, norm / 4.0));
        assert_eq!(loss, same_loss);
        assert!(whole.iter().zip(&clipped).all(|(whole, clipped)| (whole / 4.0 - clipped).abs() < 1e-6));
    }
}
