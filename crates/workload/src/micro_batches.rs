//! Gradient accumulation: a batch that is too large for the memory, in portions.

use std::sync::Arc;

use paceline_store::Layout;

use crate::progress::Progress;
use crate::workload::{Draw, Evaluation, Replica, Workload};

/// A workload that computes every gradient in portions of at most `size` samples, and adds them up.
///
/// The result is the gradient of the whole batch, up to rounding, if the model treats its samples independently. Batch
/// normalization does not: it normalizes each portion by itself.
pub struct MicroBatches {
    workload: Arc<dyn Workload>,
    size: u32,
}

impl MicroBatches {
    /// `workload` in portions of at most `size` samples, at least 1.
    pub fn new(workload: Arc<dyn Workload>, size: u32) -> Self {
        MicroBatches { workload, size: size.max(1) }
    }
}

impl Workload for MicroBatches {
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
        Box::new(AccumulatingReplica { replica: self.workload.replica(), size: self.size, portion: Vec::new() })
    }
}

struct AccumulatingReplica {
    replica: Box<dyn Replica>,
    size: u32,
    /// The gradient of one portion.
    portion: Vec<f32>,
}

impl Replica for AccumulatingReplica {
    fn gradient(&mut self, parameters: &[f32], draw: Draw, gradient: &mut [f32]) -> f64 {
        if draw.samples <= self.size {
            return self.replica.gradient(parameters, draw, gradient);
        }
        self.portion.resize(gradient.len(), 0.0);
        gradient.fill(0.0);
        let mut loss = 0.0;
        let mut done = 0;
        while done < draw.samples {
            let samples = self.size.min(draw.samples - done);
            let part = Draw { offset: draw.offset + u64::from(done), samples, ..draw };
            let share = f64::from(samples) / f64::from(draw.samples);
            loss += share * self.replica.gradient(parameters, part, &mut self.portion);
            gradient.iter_mut().zip(&self.portion).for_each(|(sum, value)| *sum += share as f32 * value);
            done += samples;
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
            let mut replica = MicroBatches::new(whole.clone(), size).replica();
            let found = replica.gradient(&parameters, draw, &mut gradient);
            assert!((found - loss).abs() < 1e-6, "{size}: {found}; expected {loss}");
            let close = |(found, expected): (&f32, &f32)| (found - expected).abs() < 1e-6;
            assert!(gradient.iter().zip(&expected).all(close), "{size}");
        }
    }
}
