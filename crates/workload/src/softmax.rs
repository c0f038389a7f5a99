//! Softmax regression: the smallest real workload, with a hand-written gradient.

use std::sync::Arc;

use paceline_store::Layout;

use crate::dataset::{Dataset, Splits};
use crate::sampler::Sampler;
use crate::workload::{Draw, Evaluation, Replica, Workload};

/// Multinomial logistic regression on images: `weight [classes, features]`, `bias [classes]`, cross-entropy loss.
///
/// The loss is convex, so every scheme that converges reaches the same minimum.
#[derive(Debug, Clone)]
pub struct SoftmaxRegression {
    splits: Splits,
    sampler: Arc<Sampler>,
    decay: f32,
    layout: Layout,
}

impl SoftmaxRegression {
    /// A model of `splits`. Workers draw training samples by `sampler`, which must be created from the labels of the
    /// training part. `decay` ≥ 0 adds decay / 2 × ‖weight‖² to the training loss, but not to evaluations; 0 is plain
    /// regression.
    pub fn new(splits: Splits, sampler: Sampler, decay: f32) -> Self {
        let train = splits.train();
        let (classes, features) = (train.classes(), train.features());
        let trainable = [("weight", vec![classes, features]), ("bias", vec![classes])];
        SoftmaxRegression { layout: Layout::new(trainable, []), sampler: Arc::new(sampler), splits, decay }
    }
}

impl Workload for SoftmaxRegression {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Zeros for every seed: the loss is convex, so no symmetry has to be broken.
    fn initial(&self, _seed: u64) -> Vec<f32> {
        vec![0.0; self.layout.len()]
    }

    fn replica(&self) -> Box<dyn Replica> {
        Box::new(SoftmaxReplica { model: self.clone(), indices: Vec::new(), batch: SoftmaxBatch::default() })
    }
}

struct SoftmaxReplica {
    model: SoftmaxRegression,
    indices: Vec<usize>,
    batch: SoftmaxBatch,
}

#[derive(Default)]
struct SoftmaxBatch {
    features: Vec<f32>,
    labels: Vec<u8>,
}

impl SoftmaxBatch {
    /// Fills the batch, then calls `visitor` for each sample with its features, label and scores (logits).
    fn visit(
        &mut self,
        dataset: &Dataset,
        indices: &[usize],
        parameters: &[f32],
        mut visitor: impl FnMut(&[f32], usize, &mut [f64]),
    ) {
        dataset.gather(indices, &mut self.features, &mut self.labels);
        let features = dataset.features();
        let (weight, bias) = parameters.split_at(dataset.classes() * features);
        let mut scores = vec![0.0; dataset.classes()];
        for (sample, &label) in self.features.chunks_exact(features).zip(&self.labels) {
            for ((score, row), bias) in scores.iter_mut().zip(weight.chunks_exact(features)).zip(bias) {
                *score = f64::from(dot(row, sample) + bias);
            }
            visitor(sample, usize::from(label), &mut scores);
        }
    }
}

impl Replica for SoftmaxReplica {
    fn gradient(&mut self, parameters: &[f32], draw: Draw, gradient: &mut [f32]) -> f64 {
        let SoftmaxRegression { splits, sampler, decay, .. } = &self.model;
        let train = splits.train();
        let features = train.features();
        let weights = train.classes() * features;
        sampler.indices(draw, &mut self.indices);
        let share = 1.0 / f64::from(draw.samples);

        for (gradient, parameter) in gradient[..weights].iter_mut().zip(parameters) {
            *gradient = decay * parameter;
        }
        gradient[weights..].fill(0.0);
        let (weight_gradient, bias_gradient) = gradient.split_at_mut(weights);
        let mut loss = 0.0;
        self.batch.visit(train, &self.indices, parameters, |sample, label, scores| {
            loss += share * loss_to_probabilities(scores, label);
            scores[label] -= 1.0;
            let rows = weight_gradient.chunks_exact_mut(features).zip(bias_gradient.iter_mut());
            for (slope, (row, bias)) in scores.iter().zip(rows) {
                let slope = (slope * share) as f32;
                *bias += slope;
                for (gradient, feature) in row.iter_mut().zip(sample) {
                    *gradient += slope * feature;
                }
            }
        });
        if *decay != 0.0 {
            let weight = &parameters[..weights];
            loss += 0.5 * f64::from(*decay) * f64::from(dot(weight, weight));
        }
        loss
    }

    fn evaluate(&mut self, parameters: &[f32]) -> Evaluation {
        const CHUNK: usize = 256;
        let held_out = self.model.splits.held_out();
        let (mut loss, mut correct) = (0.0, 0usize);
        for start in (0..held_out.len()).step_by(CHUNK) {
            self.indices.clear();
            self.indices.extend(start..held_out.len().min(start + CHUNK));
            self.batch.visit(held_out, &self.indices, parameters, |_, label, scores| {
                // The first of equal scores wins, so that zeros predict class 0 for every sample.
                let predicted =
                    (1..scores.len()).fold(0, |best, class| if scores[class] > scores[best] { class } else { best });
                correct += usize::from(predicted == label);
                loss += loss_to_probabilities(scores, label);
            });
        }
        let samples = held_out.len() as f64;
        Evaluation { loss: loss / samples, accuracy: Some(correct as f64 / samples) }
    }
}

/// Turns scores into probabilities in place and returns the cross-entropy of `label`.
fn loss_to_probabilities(scores: &mut [f64], label: usize) -> f64 {
    // Scores are shifted by their maximum, so that exp cannot overflow.
    let maximum = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let shifted = scores[label] - maximum;
    let mut total = 0.0;
    for score in scores.iter_mut() {
        *score = (*score - maximum).exp();
        total += *score;
    }
    for score in scores.iter_mut() {
        *score /= total;
    }
    total.ln() - shifted
}

/// Σ aᵢ·bᵢ in 16 lanes: a fixed order of additions that compiles to vector instructions.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    const LANES: usize = 16;
    let (a_chunks, a_rest) = a.as_chunks::<LANES>();
    let (b_chunks, b_rest) = b.as_chunks::<LANES>();
    let mut lanes = [0.0f32; LANES];
    for (a, b) in a_chunks.iter().zip(b_chunks) {
        for ((lane, a), b) in lanes.iter_mut().zip(a).zip(b) {
            *lane += a * b;
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    lanes.iter().sum::<f32>() + rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Order, Partition, synthetic_digits};

    fn regression(decay: f32) -> SoftmaxRegression {
        let splits = synthetic_digits(5, 2000, 500).unwrap();
        let sampler = Sampler::new(splits.train().labels(), Partition::Iid, Order::WithReplacement, 4, 5).unwrap();
        SoftmaxRegression::new(splits, sampler, decay)
    }

    #[test]
    fn gradient_agrees_with_central_differences() {
        let workload = regression(0.1);
        let mut replica = workload.replica();
        let draw = Draw { worker: 1, offset: 12, samples: 5 };
        let mut parameters: Vec<f32> =
            (0..workload.layout().len()).map(|index| (index as f32 * 0.7).sin() * 0.05).collect();
        let mut gradient = vec![f32::NAN; parameters.len()];
        replica.gradient(&parameters, draw, &mut gradient);
        let mut ignored = gradient.clone();
        for index in (0..parameters.len()).step_by(97).chain(7840..7850) {
            const STEP: f32 = 1.0 / 256.0;
            let kept = parameters[index];
            parameters[index] = kept + STEP;
            let above = replica.gradient(&parameters, draw, &mut ignored);
            parameters[index] = kept - STEP;
            let below = replica.gradient(&parameters, draw, &mut ignored);
            parameters[index] = kept;
            let slope = (above - below) / (2.0 * f64::from(STEP));
            let error = (slope - f64::from(gradient[index])).abs();
            assert!(error < 1e-3, "at {index}: {slope} and {}", gradient[index]);
        }
    }

    #[test]
    fn gradient_descent_improves_on_zeros() {
        let workload = regression(0.0);
        let mut replica = workload.replica();
        let mut parameters = workload.initial(0);
        let initial = replica.evaluate(&parameters);
        assert!((initial.loss - 10f64.ln()).abs() < 1e-6 && initial.accuracy == Some(0.1), "{initial:?}");
        let mut gradient = vec![0.0; parameters.len()];
        for step in 0..300 {
            let draw = Draw { worker: 0, offset: step * 64, samples: 64 };
            replica.gradient(&parameters, draw, &mut gradient);
            for (parameter, gradient) in parameters.iter_mut().zip(&gradient) {
                *parameter -= 0.02 * gradient;
            }
        }
        let trained = replica.evaluate(&parameters);
        assert!(trained.accuracy > Some(0.6) && trained.loss < 1.3, "{trained:?}");
    }

    #[test]
    fn replicas_give_the_same_bits() {
        let workload = regression(0.01);
        let parameters: Vec<f32> = (0..workload.layout().len()).map(|index| (index as f32).cos() * 0.1).collect();
        let draw = Draw { worker: 3, offset: 99, samples: 32 };
        let run = |mut replica: Box<dyn Replica>| {
            let mut gradient = vec![0.0; parameters.len()];
            let loss = replica.gradient(&parameters, draw, &mut gradient);
            (loss.to_bits(), gradient)
        };
        assert_eq!(run(workload.replica()), run(workload.replica()));
    }
}
