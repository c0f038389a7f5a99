//! Maximizing ELBO over the windows of a run.

use std::ops::Range;
use std::sync::Arc;

use paceline_core::Pretrained;
use paceline_core::run_times::{Amortized, DeepMarkov, Draws, SAMPLES, Size, scale};
use paceline_store::{Moments, Optimizer, OptimizerSpec};

use crate::assess::{assess, spread};
use crate::graph::{Batch, Graph};
use crate::initial;
use crate::run_times::{RunTimes, RunTimesError};

/// How a model is trained.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Options {
    /// How many iterations the guide looks back on.
    pub lag: usize,
    /// How many numbers the cluster's state is.
    pub latent: usize,
    /// How many units hidden layers have.
    pub hidden: usize,
    /// How often all windows are gone through, at most.
    pub epochs: usize,
    /// After how many epochs without a better validation it is over.
    pub patience: usize,
    /// The seed of everything random.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Self {
        Options { lag: 20, latent: 16, hidden: 32, epochs: 200, patience: 20, seed: 1 }
    }
}

/// Windows per step.
const BATCH: usize = 32;

/// A batch is computed in so many parts, side by side, whatever the machine: sums depend on how they are cut.
const PARTS: usize = 2;

/// Adam's rate at first. It is halved after every [`STALL`] epochs without a better validation.
const RATE: f32 = 3e-3;

/// See [`RATE`].
const STALL: usize = 5;

/// The longest gradient that is followed as it is; longer ones are made so short.
const CLIP: f64 = 1.0;

/// Over so many epochs the divergence comes to count in full. If it did from the start, states would never be used.
const WARM_UP: usize = 10;

/// By how much ELBO per time has to improve to count as better.
const BETTER: f64 = 1e-4;

/// How an epoch went. ELBO is in nats per observed time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Epoch {
    /// Counts from 1.
    pub number: usize,
    /// ELBO of the windows trained on, as they were met.
    pub training: f64,
    /// ELBO of the windows kept apart.
    pub validation: f64,
    /// The best of those so far.
    pub best: f64,
}

/// What training came to.
#[derive(Debug, Clone)]
pub struct Trained {
    /// The model, as it was when validation was best.
    pub pretrained: Pretrained,
    /// The epoch that was.
    pub best: Epoch,
    /// How many epochs there were.
    pub epochs: usize,
    /// The iterations that were kept apart.
    pub validation: Range<usize>,
}

/// Where a window begins, and where the one begins that it is normalized by: as if the run had begun there.
type Place = (usize, usize);

/// Trains a model of these run-times, and tells of each epoch.
///
/// # Errors
/// If there are too few iterations.
pub fn train(times: &RunTimes, options: &Options, mut tell: impl FnMut(&Epoch)) -> Result<Trained, RunTimesError> {
    let Options { lag, latent, hidden, seed, .. } = *options;
    let (training, validation) = times.split(lag)?;
    let size = Size { workers: times.workers(), lag, latent, hidden };
    let graph = Graph::new(size);
    let windows = Windows { rows: times.rows(), size };
    let mut parameters =
        initial::parameters(graph.layout(), &times.rows()[training.clone()], windows.scale(training.start), seed);
    let mut optimizer = Optimizer::new(OptimizerSpec::Adam(Moments::default()), parameters.len());

    let starts = |range: &Range<usize>| range.start..=range.end - lag;
    let anchors: Vec<usize> = starts(&training).collect();
    let held_out: Vec<Place> =
        starts(&validation).step_by(3).map(|start| (start, anchors[start % anchors.len()])).collect();
    let mut best = Epoch { number: 0, training: f64::NAN, validation: f64::NEG_INFINITY, best: f64::NEG_INFINITY };
    let mut kept = parameters.clone();
    let mut epochs = 0;
    let mut rate = RATE;
    while epochs < options.epochs && epochs < best.number.max(WARM_UP) + options.patience {
        let mut draws = Draws::at(&[seed, 1, epochs as u64]);
        let mut places: Vec<Place> =
            anchors.iter().map(|&start| (start, anchors[below(&mut draws, anchors.len())])).collect();
        for end in (1..places.len()).rev() {
            places.swap(end, below(&mut draws, end + 1));
        }
        let weight = ((epochs + 1) as f64 / WARM_UP as f64).min(1.0);
        let mut sum = 0.0;
        for batch in places.chunks(BATCH) {
            let (elbo, mut gradient) = step(&graph, &windows, &parameters, batch, weight, &mut draws);
            sum += elbo * batch.len() as f64;
            let norm = gradient.iter().map(|&value| f64::from(value).powi(2)).sum::<f64>().sqrt();
            // ELBO is to rise.
            let factor = -(CLIP / norm.max(CLIP)) as f32;
            gradient.iter_mut().for_each(|value| *value *= factor);
            if norm.is_finite() {
                optimizer.step(&mut parameters, &gradient, rate);
            }
        }
        epochs += 1;
        let found = windows.elbo(graph.layout(), &parameters, &held_out, seed);
        let epoch = Epoch {
            number: epochs,
            training: sum / places.len() as f64,
            validation: found,
            best: best.validation.max(found),
        };
        if found > best.validation + BETTER || best.number == 0 {
            best = epoch;
            kept.clone_from(&parameters);
        } else if (epochs - best.number).is_multiple_of(STALL) {
            rate /= 2.0;
        }
        tell(&epoch);
    }
    let tensors = tensors(graph.layout(), &kept);
    let spread = DeepMarkov::of(size, &tensors, 1.0).ok().and_then(|model| {
        let mut predictor = Amortized::new(Arc::new(model), SAMPLES, seed);
        spread(&assess(&mut predictor, times.rows(), validation.clone()).0)
    });
    let pretrained = Pretrained { notes: size.notes(spread.unwrap_or(1.0)).collect(), tensors };
    Ok(Trained { pretrained, best, epochs, validation })
}

/// A batch's ELBO and its gradient: the parts' means.
fn step(
    graph: &Graph,
    windows: &Windows<'_>,
    parameters: &[f32],
    places: &[Place],
    weight: f64,
    draws: &mut Draws,
) -> (f64, Vec<f32>) {
    let parts: Vec<Batch> =
        places.chunks(places.len().div_ceil(PARTS)).map(|places| windows.batch(places, draws)).collect();
    let computed: Vec<(f64, Vec<f32>)> = std::thread::scope(|scope| {
        let running: Vec<_> =
            parts.iter().map(|part| scope.spawn(move || graph.elbo(parameters, part, weight))).collect();
        running.into_iter().map(|part| part.join().expect("computing a gradient does not panic")).collect()
    });
    let mut gradient = vec![0.0; parameters.len()];
    let mut elbo = 0.0;
    for (part, (value, slope)) in parts.iter().zip(computed) {
        let share = part.windows as f64 / places.len() as f64;
        elbo += share * value;
        gradient.iter_mut().zip(slope).for_each(|(sum, slope)| *sum += share as f32 * slope);
    }
    (elbo, gradient)
}

fn below(draws: &mut Draws, bound: usize) -> usize {
    ((draws.unit() * bound as f64) as usize).min(bound - 1)
}

/// A flat vector's tensors by name.
fn tensors(layout: &paceline_store::Layout, parameters: &[f32]) -> paceline_core::Tensors {
    let tensor = |entry: &paceline_store::TensorEntry| {
        (entry.name.clone(), (entry.shape.clone(), parameters[entry.range.clone()].to_vec()))
    };
    layout.entries().iter().map(tensor).collect()
}

/// A run's windows.
struct Windows<'a> {
    rows: &'a [Vec<f64>],
    size: Size,
}

impl Windows<'_> {
    fn scale(&self, start: usize) -> f64 {
        scale(&self.rows[start..start + self.size.lag])
    }

    /// The normalized times of a window, iteration by iteration.
    fn times(&self, (start, anchor): Place) -> Vec<Vec<f32>> {
        let scale = self.scale(anchor);
        let row = |row: &Vec<f64>| row.iter().map(|time| (time / scale) as f32).collect();
        self.rows[start..start + self.size.lag].iter().map(row).collect()
    }

    fn batch(&self, places: &[Place], draws: &mut Draws) -> Batch {
        let mut times = vec![Vec::with_capacity(places.len() * self.size.workers); self.size.lag];
        for &place in places {
            for (all, window) in times.iter_mut().zip(self.times(place)) {
                all.extend(window);
            }
        }
        let noise = (0..self.size.lag)
            .map(|_| (0..places.len() * self.size.latent).map(|_| draws.normal() as f32).collect())
            .collect();
        Batch { times, noise, windows: places.len() }
    }

    /// The mean ELBO per observed time, with the same noise for a window every time.
    fn elbo(&self, layout: &paceline_store::Layout, parameters: &[f32], places: &[Place], seed: u64) -> f64 {
        let Ok(model) = DeepMarkov::of(self.size, &tensors(layout, parameters), 1.0) else {
            return f64::NEG_INFINITY;
        };
        let of_one = |&place: &Place| {
            let mut draws = Draws::at(&[seed, 2, place.0 as u64]);
            let noise: Vec<f32> = (0..self.size.lag * self.size.latent).map(|_| draws.normal() as f32).collect();
            model.elbo(&self.times(place), &noise).value()
        };
        let sum: f64 = places.iter().map(of_one).sum();
        sum / (places.len() * self.size.lag * self.size.workers) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Four workers on two hosts, of which one is slow for a while, then the other.
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

    const OPTIONS: Options = Options { lag: 5, latent: 2, hidden: 6, epochs: 6, patience: 20, seed: 1 };

    /// A model with nothing learnt and a batch for it.
    fn example(size: Size, times: &RunTimes) -> (Graph, Vec<f32>, Vec<Place>) {
        let graph = Graph::new(size);
        let mut parameters = initial::parameters(graph.layout(), times.rows(), 2.0, 1);
        // Zeros would hide mistakes.
        let mut draws = Draws::at(&[8]);
        parameters.iter_mut().for_each(|value| *value += 0.1 * draws.normal() as f32);
        (graph, parameters, vec![(3, 0), (40, 30), (77, 3)])
    }

    fn size() -> Size {
        Size { workers: 4, lag: OPTIONS.lag, latent: OPTIONS.latent, hidden: OPTIONS.hidden }
    }

    #[test]
    fn the_graph_computes_what_the_core_does() {
        let times = times();
        let (graph, parameters, places) = example(size(), &times);
        let windows = Windows { rows: times.rows(), size: size() };
        let batch = windows.batch(&places, &mut Draws::at(&[9]));
        let model = DeepMarkov::of(size(), &tensors(graph.layout(), &parameters), 1.0).unwrap();
        for weight in [0.0, 1.0] {
            let (elbo, _) = graph.elbo(&parameters, &batch, weight);
            let of_one = |(index, &place): (usize, &Place)| {
                let latent = OPTIONS.latent;
                let noise: Vec<f32> =
                    batch.noise.iter().flat_map(|noise| noise[index * latent..][..latent].to_vec()).collect();
                let found = model.elbo(&windows.times(place), &noise);
                found.likelihood - weight * found.divergence
            };
            let expected = places.iter().enumerate().map(of_one).sum::<f64>() / 60.0;
            assert!((elbo - expected).abs() < 1e-4 * expected.abs().max(1.0), "{elbo}, {expected}");
        }
    }

    #[test]
    fn the_gradient_is_that_of_elbo() {
        let times = times();
        let (graph, parameters, places) = example(size(), &times);
        let windows = Windows { rows: times.rows(), size: size() };
        let batch = windows.batch(&places, &mut Draws::at(&[9]));
        let (_, gradient) = graph.elbo(&parameters, &batch, 1.0);
        let latent = OPTIONS.latent;
        // The core computes ELBO on its own, and sums in double precision.
        let elbo = |parameters: &[f32]| {
            let model = DeepMarkov::of(size(), &tensors(graph.layout(), parameters), 1.0).unwrap();
            let of_one = |(index, &place): (usize, &Place)| {
                let noise: Vec<f32> =
                    batch.noise.iter().flat_map(|noise| noise[index * latent..][..latent].to_vec()).collect();
                model.elbo(&windows.times(place), &noise).value()
            };
            places.iter().enumerate().map(of_one).sum::<f64>() / 60.0
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
                // A step may lead across the kink of a ReLU, but not each of them.
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
        let mut told = Vec::new();
        let first = train(&times, &OPTIONS, |epoch| told.push(*epoch)).unwrap();
        assert_eq!((told.len(), first.epochs), (6, 6));
        assert!(told[5].training > told[0].training && told[5].validation > told[0].validation, "{told:?}");
        assert_eq!(first.best.validation, told.iter().map(|epoch| epoch.validation).fold(f64::MIN, f64::max));
        let second = train(&times, &OPTIONS, |_| ()).unwrap();
        assert_eq!(first.pretrained, second.pretrained);
        let other = train(&times, &Options { seed: 2, ..OPTIONS }, |_| ()).unwrap();
        assert_ne!(first.pretrained, other.pretrained);
        let model = DeepMarkov::new(&first.pretrained).unwrap();
        assert_eq!(model.size(), size());
    }
}
