//! Training: maximizes the ELBO over the windows of a run.

use std::ops::Range;
use std::sync::Arc;

use paceline_core::Pretrained;
use paceline_core::run_times::{Amortized, DeepMarkov, Draws, SAMPLES, Size, scale};
use paceline_store::{Moments, Optimizer, OptimizerKind};

use crate::assess::{assess, spread};
use crate::graph::{Graph, WindowBatch};
use crate::initial;
use crate::run_times::{RunTimes, RunTimesError};

/// How a predictor is trained.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TrainingConfig {
    /// Length of a window: the number of iterations that a prediction looks back on; default 20.
    pub lag: usize,
    /// Number of units of the latent state of the cluster; default 16.
    pub latent: usize,
    /// Number of units of hidden layers; default 32.
    pub hidden: usize,
    /// Maximum number of passes over all windows; default 200.
    pub epochs: usize,
    /// Training stops after this number of epochs without a better validation ELBO; default 20.
    pub patience: usize,
    /// Seed of the initial parameters, the noise and the order of windows; default 1.
    pub seed: u64,
}

impl Default for TrainingConfig {
    fn default() -> Self {
        TrainingConfig { lag: 20, latent: 16, hidden: 32, epochs: 200, patience: 20, seed: 1 }
    }
}

/// Windows per optimizer step.
const BATCH: usize = 32;

/// Parts of a batch, computed in parallel. The number is the same on every machine, because it changes the rounding of
/// sums.
const PARTS: usize = 2;

/// The initial rate of Adam. It is halved after every [`RATE_PATIENCE`] epochs without a better validation ELBO.
const INITIAL_RATE: f64 = 3e-3;

/// See [`INITIAL_RATE`].
const RATE_PATIENCE: usize = 5;

/// The maximum norm of a gradient. Longer gradients are scaled down to it.
const MAX_NORM: f64 = 1.0;

/// Epochs over which the weight of the divergence rises to 1. With full weight from the start, the model would ignore
/// its states.
const WARM_UP: usize = 10;

/// The minimum increase of the validation ELBO, in nats per observed time, that counts as better.
const MIN_IMPROVEMENT: f64 = 1e-4;

/// The result of one epoch. ELBO values are in nats per observed time; higher is better.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EpochReport {
    /// Number of the epoch, from 1.
    pub number: usize,
    /// Mean ELBO of the training windows, each computed before its step.
    pub training: f64,
    /// Mean ELBO of the validation windows.
    pub validation: f64,
    /// The best validation ELBO so far.
    pub best: f64,
}

/// The result of training.
#[derive(Debug, Clone)]
pub struct TrainedPredictor {
    /// The model after the best epoch.
    pub pretrained: Pretrained,
    /// The epoch with the best validation ELBO.
    pub best: EpochReport,
    /// Number of epochs that were run.
    pub epochs: usize,
    /// The iterations used for validation, not for training.
    pub validation: Range<usize>,
}

/// The first iteration of a window, and the first iteration of the window that normalizes it. At prediction time the
/// start of the run normalizes all windows; in training any window may take its place.
type WindowStart = (usize, usize);

/// Trains a model of these run-times, and calls `on_epoch` after each epoch, which returns whether to go on. Equal
/// arguments give equal bits.
///
/// # Errors
/// [`RunTimesError::TooFew`] if there are too few iterations for the lag.
pub fn train(
    times: &RunTimes,
    config: &TrainingConfig,
    mut on_epoch: impl FnMut(&EpochReport) -> bool,
) -> Result<TrainedPredictor, RunTimesError> {
    let TrainingConfig { lag, latent, hidden, seed, .. } = *config;
    let (training, validation) = times.split(lag)?;
    let size = Size { workers: times.workers(), lag, latent, hidden };
    let graph = Graph::new(size);
    let windows = Windows { rows: times.rows(), size };
    let mut parameters =
        initial::parameters(graph.layout(), &times.rows()[training.clone()], windows.scale(training.start), seed);
    let mut optimizer =
        Optimizer::plain(OptimizerKind::Adam { decay: 0.0, moments: Moments::default() }, parameters.len());

    let first_iterations = |range: &Range<usize>| range.start..=range.end - lag;
    let anchors: Vec<usize> = first_iterations(&training).collect();
    let held_out: Vec<WindowStart> =
        first_iterations(&validation).step_by(3).map(|start| (start, anchors[start % anchors.len()])).collect();
    let mut best =
        EpochReport { number: 0, training: f64::NAN, validation: f64::NEG_INFINITY, best: f64::NEG_INFINITY };
    let mut best_parameters = parameters.clone();
    let mut epochs = 0;
    let mut rate = INITIAL_RATE;
    while epochs < config.epochs && epochs < best.number.max(WARM_UP) + config.patience {
        let mut draws = Draws::at(&[seed, 1, epochs as u64]);
        let mut window_starts: Vec<WindowStart> =
            anchors.iter().map(|&start| (start, anchors[below(&mut draws, anchors.len())])).collect();
        for end in (1..window_starts.len()).rev() {
            window_starts.swap(end, below(&mut draws, end + 1));
        }
        let weight = ((epochs + 1) as f64 / WARM_UP as f64).min(1.0);
        let mut sum = 0.0;
        for batch in window_starts.chunks(BATCH) {
            let (elbo, mut gradient) = step(&graph, &windows, &parameters, batch, weight, &mut draws);
            sum += elbo * batch.len() as f64;
            let norm = gradient.iter().map(|&value| f64::from(value).powi(2)).sum::<f64>().sqrt();
            // The optimizer minimizes; the ELBO is maximized.
            let factor = -(MAX_NORM / norm.max(MAX_NORM)) as f32;
            gradient.iter_mut().for_each(|value| *value *= factor);
            if norm.is_finite() {
                optimizer.step(&mut parameters, &gradient, rate);
            }
        }
        epochs += 1;
        let found = windows.elbo(graph.layout(), &parameters, &held_out, seed);
        let epoch = EpochReport {
            number: epochs,
            training: sum / window_starts.len() as f64,
            validation: found,
            best: best.validation.max(found),
        };
        if found > best.validation + MIN_IMPROVEMENT || best.number == 0 {
            best = epoch;
            best_parameters.clone_from(&parameters);
        } else if (epochs - best.number).is_multiple_of(RATE_PATIENCE) {
            rate /= 2.0;
        }
        if !on_epoch(&epoch) {
            break;
        }
    }
    let tensors = tensors(graph.layout(), &best_parameters);
    let spread = DeepMarkov::of(size, &tensors, 1.0).ok().and_then(|model| {
        let mut predictor = Amortized::new(Arc::new(model), SAMPLES, seed);
        spread(&assess(&mut predictor, times.rows(), validation.clone()).0)
    });
    let pretrained = Pretrained { notes: size.notes(spread.unwrap_or(1.0)).collect(), tensors };
    Ok(TrainedPredictor { pretrained, best, epochs, validation })
}

/// The ELBO of a batch and its gradient: the weighted means over its parts.
fn step(
    graph: &Graph,
    windows: &Windows<'_>,
    parameters: &[f32],
    window_starts: &[WindowStart],
    weight: f64,
    draws: &mut Draws,
) -> (f64, Vec<f32>) {
    let parts: Vec<WindowBatch> = window_starts
        .chunks(window_starts.len().div_ceil(PARTS))
        .map(|window_starts| windows.batch(window_starts, draws))
        .collect();
    let computed: Vec<(f64, Vec<f32>)> = std::thread::scope(|scope| {
        let running: Vec<_> =
            parts.iter().map(|part| scope.spawn(move || graph.elbo(parameters, part, weight))).collect();
        running.into_iter().map(|part| part.join().expect("computing a gradient does not panic")).collect()
    });
    let mut gradient = vec![0.0; parameters.len()];
    let mut elbo = 0.0;
    for (part, (value, slope)) in parts.iter().zip(computed) {
        let share = part.windows as f64 / window_starts.len() as f64;
        elbo += share * value;
        gradient.iter_mut().zip(slope).for_each(|(sum, slope)| *sum += share as f32 * slope);
    }
    (elbo, gradient)
}

fn below(draws: &mut Draws, bound: usize) -> usize {
    ((draws.unit() * bound as f64) as usize).min(bound - 1)
}

/// The tensors of a flat vector by name.
fn tensors(layout: &paceline_store::Layout, parameters: &[f32]) -> paceline_core::Tensors {
    let tensor = |entry: &paceline_store::TensorEntry| {
        (entry.name.clone(), (entry.shape.clone(), parameters[entry.range.clone()].to_vec()))
    };
    layout.entries().iter().map(tensor).collect()
}

/// The windows of a run.
struct Windows<'a> {
    rows: &'a [Vec<f64>],
    size: Size,
}

impl Windows<'_> {
    fn scale(&self, start: usize) -> f64 {
        scale(&self.rows[start..start + self.size.lag])
    }

    /// The normalized times of a window, by iteration.
    fn times(&self, (start, anchor): WindowStart) -> Vec<Vec<f32>> {
        let scale = self.scale(anchor);
        let row = |row: &Vec<f64>| row.iter().map(|time| (time / scale) as f32).collect();
        self.rows[start..start + self.size.lag].iter().map(row).collect()
    }

    fn batch(&self, window_starts: &[WindowStart], draws: &mut Draws) -> WindowBatch {
        let mut times = vec![Vec::with_capacity(window_starts.len() * self.size.workers); self.size.lag];
        for &window_start in window_starts {
            for (all, window) in times.iter_mut().zip(self.times(window_start)) {
                all.extend(window);
            }
        }
        let noise = (0..self.size.lag)
            .map(|_| (0..window_starts.len() * self.size.latent).map(|_| draws.normal() as f32).collect())
            .collect();
        WindowBatch { times, noise, windows: window_starts.len() }
    }

    /// The mean ELBO per observed time. The noise of a window is the same at every call.
    fn elbo(
        &self,
        layout: &paceline_store::Layout,
        parameters: &[f32],
        window_starts: &[WindowStart],
        seed: u64,
    ) -> f64 {
        let Ok(model) = DeepMarkov::of(self.size, &tensors(layout, parameters), 1.0) else {
            return f64::NEG_INFINITY;
        };
        let of_one = |&window_start: &WindowStart| {
            let mut draws = Draws::at(&[seed, 2, window_start.0 as u64]);
            let noise: Vec<f32> = (0..self.size.lag * self.size.latent).map(|_| draws.normal() as f32).collect();
            model.elbo(&self.times(window_start), &noise).value()
        };
        let sum: f64 = window_starts.iter().map(of_one).sum();
        sum / (window_starts.len() * self.size.lag * self.size.workers) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Four workers on two hosts. One host is slow for a time, then the other.
    fn times() -> RunTimes {
        let mut draws = Draws::at(&[3]);
        let column = |worker: usize| {
            let mut column = Vec::new();
            for iteration in 0..300 {
                let slow = iteration / 25 % 3 == 1 + worker % 2;
                column.push((1.0 + 0.05 * draws.normal()) * if slow { 2.0 } else { 1.0 });
            }
            column
        };
        RunTimes::of_columns(&(0..4).map(column).collect::<Vec<_>>()).unwrap()
    }

    const CONFIG: TrainingConfig = TrainingConfig { lag: 5, latent: 2, hidden: 6, epochs: 6, patience: 20, seed: 1 };

    /// An untrained model and the windows of a batch.
    fn example(size: Size, times: &RunTimes) -> (Graph, Vec<f32>, Vec<WindowStart>) {
        let graph = Graph::new(size);
        let mut parameters = initial::parameters(graph.layout(), times.rows(), 2.0, 1);
        // Zeros would hide errors.
        let mut draws = Draws::at(&[8]);
        parameters.iter_mut().for_each(|value| *value += 0.1 * draws.normal() as f32);
        (graph, parameters, vec![(3, 0), (40, 30), (77, 3)])
    }

    fn size() -> Size {
        Size { workers: 4, lag: CONFIG.lag, latent: CONFIG.latent, hidden: CONFIG.hidden }
    }

    #[test]
    fn the_graph_computes_the_same_elbo_as_the_core() {
        let times = times();
        let (graph, parameters, window_starts) = example(size(), &times);
        let windows = Windows { rows: times.rows(), size: size() };
        let batch = windows.batch(&window_starts, &mut Draws::at(&[9]));
        let model = DeepMarkov::of(size(), &tensors(graph.layout(), &parameters), 1.0).unwrap();
        for weight in [0.0, 1.0] {
            let (elbo, _) = graph.elbo(&parameters, &batch, weight);
            let of_one = |(index, &window_start): (usize, &WindowStart)| {
                let latent = CONFIG.latent;
                let noise: Vec<f32> =
                    batch.noise.iter().flat_map(|noise| noise[index * latent..][..latent].to_vec()).collect();
                let found = model.elbo(&windows.times(window_start), &noise);
                found.likelihood - weight * found.divergence
            };
            let expected = window_starts.iter().enumerate().map(of_one).sum::<f64>() / 60.0;
            assert!((elbo - expected).abs() < 1e-4 * expected.abs().max(1.0), "{elbo}, {expected}");
        }
    }

    #[test]
    fn the_gradient_agrees_with_central_differences() {
        let times = times();
        let (graph, parameters, window_starts) = example(size(), &times);
        let windows = Windows { rows: times.rows(), size: size() };
        let batch = windows.batch(&window_starts, &mut Draws::at(&[9]));
        let (_, gradient) = graph.elbo(&parameters, &batch, 1.0);
        let latent = CONFIG.latent;
        // The core computes the ELBO independently, and sums in double precision.
        let elbo = |parameters: &[f32]| {
            let model = DeepMarkov::of(size(), &tensors(graph.layout(), parameters), 1.0).unwrap();
            let of_one = |(index, &window_start): (usize, &WindowStart)| {
                let noise: Vec<f32> =
                    batch.noise.iter().flat_map(|noise| noise[index * latent..][..latent].to_vec()).collect();
                model.elbo(&windows.times(window_start), &noise).value()
            };
            window_starts.iter().enumerate().map(of_one).sum::<f64>() / 60.0
        };
        for entry in graph.layout().entries() {
            let largest = gradient[entry.range.clone()].iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
            assert!(largest > 0.0, "{} has no influence", entry.name);
            for index in [entry.range.start, (entry.range.start + entry.range.end) / 2, entry.range.end - 1] {
                let moved = |by: f32| {
                    let mut moved = parameters.clone();
                    moved[index] += by;
                    elbo(&moved)
                };
                // A step may cross a kink of a ReLU; at least one of the steps does not.
                let slopes = [2e-3, 1e-3, 3e-4].map(|step| (moved(step) - moved(-step)) / (2.0 * f64::from(step)));
                let found = f64::from(gradient[index]);
                let tolerance = 2e-2 * f64::from(largest).max(1e-2);
                let agrees = slopes.iter().any(|slope| (slope - found).abs() < tolerance);
                assert!(agrees, "{} {index}: {found}, but {slopes:?}", entry.name);
            }
        }
    }

    #[test]
    fn training_improves_elbo_and_gives_the_same_bits_again() {
        let times = times();
        let mut reports = Vec::new();
        let first = train(&times, &CONFIG, |epoch| {
            reports.push(*epoch);
            true
        })
        .unwrap();
        assert_eq!((reports.len(), first.epochs), (6, 6));
        assert!(
            reports[5].training > reports[0].training && reports[5].validation > reports[0].validation,
            "{reports:?}"
        );
        assert_eq!(first.best.validation, reports.iter().map(|epoch| epoch.validation).fold(f64::MIN, f64::max));
        let second = train(&times, &CONFIG, |_| true).unwrap();
        assert_eq!(first.pretrained, second.pretrained);
        let other = train(&times, &TrainingConfig { seed: 2, ..CONFIG }, |_| true).unwrap();
        assert_ne!(first.pretrained, other.pretrained);
        let model = DeepMarkov::new(&first.pretrained).unwrap();
        assert_eq!(model.size(), size());
    }
}
