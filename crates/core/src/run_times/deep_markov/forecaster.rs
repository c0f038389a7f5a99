//! Forecasts run-times with a deep Markov model from the last observations.

use std::collections::VecDeque;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::model::{EncodedTimes, scale};
use super::{DeepMarkov, Size};
use crate::run_times::gaussian::moments;
use crate::run_times::{Draws, Forecast, Normal, RunTimePredictor};
use crate::{Restorable, RestoreError, WorkerId};

/// The default number of drawn states. With it the error of order statistics is about a sixth of their deviation.
pub const SAMPLES: usize = 32;

/// Predicts by amortized inference in a [`DeepMarkov`] model (Cutoff SGD, (5)).
///
/// Until the guide's window is full, the observed iterations are repeated to fill it.
#[derive(Debug)]
pub struct Amortized {
    model: Arc<DeepMarkov>,
    /// How many states are drawn (the paper's K).
    samples: usize,
    seed: u64,
    observed: ObservedTimes,
}

/// What is known of the observed iterations.
#[derive(Debug, Serialize, Deserialize)]
struct ObservedTimes {
    /// Their number.
    count: u64,
    /// The first iterations, up to the length of the window, which set the scale.
    first: Vec<Vec<f64>>,
    scale: f64,
    /// The last iterations, encoded for the guide, each with its shortest run-time.
    window: VecDeque<(EncodedTimes, f64)>,
}

/// The model is kept, and what was observed is restored.
impl Restorable for Amortized {
    fn save(&self) -> Option<Box<RawValue>> {
        self.observed.save()
    }

    fn restore(&mut self, saved: &RawValue) -> Result<(), RestoreError> {
        self.observed.restore(saved)
    }
}

impl Amortized {
    /// A predictor with this number of draws, which `seed` determines.
    pub fn new(model: Arc<DeepMarkov>, samples: usize, seed: u64) -> Self {
        let observed = ObservedTimes { count: 0, first: Vec::new(), scale: 1.0, window: VecDeque::new() };
        Amortized { model, samples, seed, observed }
    }

    fn push(&mut self, times: &[f64]) {
        let normalized: Vec<f32> = times.iter().map(|time| (time / self.observed.scale) as f32).collect();
        if self.observed.window.len() == self.model.size().lag {
            self.observed.window.pop_front();
        }
        let shortest = times.iter().copied().fold(f64::INFINITY, f64::min);
        self.observed.window.push_back((self.model.encode(&normalized), shortest));
    }

    /// z_T from the guide, once per lane.
    fn last_state(&self, draws: &mut Draws) -> Vec<f32> {
        let context = self.model.context(self.observed.window.iter().map(|(seen, _)| seen));
        let step = |state: Vec<f32>, context: &Vec<f32>| {
            self.model.guide(&state, context, self.samples).draw(|| draws.normal() as f32)
        };
        context.iter().fold(self.model.start(self.samples), step)
    }
}

impl RunTimePredictor for Amortized {
    fn observe(&mut self, times: &[f64]) {
        let Size { workers, lag, .. } = self.model.size();
        let times = &times[..workers.min(times.len())];
        self.observed.count += 1;
        if self.observed.first.len() == lag {
            self.push(times);
            return;
        }
        self.observed.first.push(times.to_vec());
        self.observed.scale = scale(&self.observed.first);
        let first = std::mem::take(&mut self.observed.first);
        // Skip iterations so that the newest comes last.
        let over = (first.len() - lag % first.len()) % first.len();
        first.iter().cycle().skip(over).take(lag).for_each(|times| self.push(times));
        self.observed.first = first;
    }

    fn predict_multiples(&mut self, workers: &[WorkerId], multiples: &[f64]) -> Option<Forecast> {
        let columns = self.model.size().workers;
        if self.observed.window.is_empty() {
            return None;
        }
        let lanes = self.samples;
        let mut draws = Draws::at(&[self.seed, self.observed.count]);
        let last = self.last_state(&mut draws);
        let next = self.model.transition(&last, lanes).draw(|| draws.normal() as f32);
        let emission = self.model.emission(&next, lanes);
        let times = emission.draw(|| draws.normal() as f32);

        let mut sums = vec![(0.0, 0.0); workers.len()];
        let mut ordered = Vec::with_capacity(workers.len());
        for lane in 0..lanes {
            ordered.clear();
            let usual = workers.iter().map(|worker| f64::from(times[worker.index() % columns * lanes + lane]));
            ordered.extend(usual.zip(multiples).map(|(time, multiple)| time * multiple));
            ordered.sort_unstable_by(f64::total_cmp);
            for ((sum, squares), &time) in sums.iter_mut().zip(&ordered) {
                *sum += time;
                *squares += time * time;
            }
        }
        // A normal distribution includes shorter times than any observed.
        let shortest = self.observed.window.iter().map(|&(_, shortest)| shortest).fold(f64::INFINITY, f64::min);
        let shortest = shortest * multiples.iter().copied().fold(f64::INFINITY, f64::min);
        let lanes = lanes as f64;
        let rank = |(sum, squares): (f64, f64)| {
            let mean = sum / lanes;
            let variance = (squares / lanes - mean * mean).max(0.0) * lanes / (lanes - 1.0);
            Normal {
                mean: (self.observed.scale * mean).max(shortest),
                deviation: self.model.spread() * self.observed.scale * variance.sqrt(),
            }
        };
        let lanes = self.samples;
        let square = |value: f64| value * value;
        let worker = |(means, deviations): (&[f32], &[f32])| {
            // The mixture of all draws' distributions as one normal distribution.
            let between = moments(means.iter().map(|&mean| f64::from(mean)));
            let within = deviations.iter().map(|&deviation| square(f64::from(deviation))).sum::<f64>() / lanes as f64;
            let deviation = (square(between.deviation) + within).sqrt();
            Normal { mean: self.observed.scale * between.mean, deviation: self.observed.scale * deviation }
        };
        let each = emission.means.chunks_exact(lanes).zip(emission.deviations.chunks_exact(lanes));
        let mut each: Vec<Normal> = each.map(worker).collect();
        for (worker, &multiple) in workers.iter().zip(multiples).filter(|(worker, _)| worker.index() < columns) {
            let Normal { mean, deviation } = &mut each[worker.index()];
            (*mean, *deviation) = (*mean * multiple, *deviation * multiple);
        }
        Some(Forecast { workers: each, ranks: sums.into_iter().map(rank).collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_times::elfving;
    use crate::{Pretrained, PretrainedError};

    const SIZE: Size = Size { workers: 50, lag: 4, latent: 2, hidden: 3 };

    /// A model whose state has no influence: with a mean of 1, all run-times are 1 ± 0.1.
    fn constant() -> Pretrained {
        let tensor = |(name, shape): (String, Vec<usize>)| {
            let value: f32 = match name.as_str() {
                "mean2.bias" => 0.5,
                // softplus of this plus the least deviation is 0.05.
                "noise2.bias" => (0.05_f32 - super::super::LEAST_DEVIATION).exp_m1().ln(),
                _ => 0.0,
            };
            let values = vec![value; shape.iter().product()];
            (name, (shape, values))
        };
        Pretrained { notes: SIZE.notes(1.0).collect(), tensors: SIZE.shapes().into_iter().map(tensor).collect() }
    }

    fn forecast(samples: usize, seed: u64, time: f64) -> Forecast {
        let model = Arc::new(DeepMarkov::new(&constant()).unwrap());
        let mut predictor = Amortized::new(model, samples, seed);
        let workers: Vec<WorkerId> = (0..50).map(WorkerId).collect();
        assert_eq!(predictor.predict(&workers), None);
        // One time is far below the others, since no prediction is shorter than the shortest observed time.
        let mut times = vec![time; 50];
        (times[0], times[1]) = (0.2 * time, 1.8 * time);
        (0..6).for_each(|_| predictor.observe(&times));
        predictor.predict(&workers).unwrap()
    }

    #[test]
    fn times_are_predicted_for_the_sizes_of_the_next_tasks() {
        let mut predictor = Amortized::new(Arc::new(DeepMarkov::new(&constant()).unwrap()), 500, 1);
        let workers: Vec<WorkerId> = (0..50).map(WorkerId).collect();
        let times: Vec<f64> = (0..50).map(|rank| if rank == 0 { 0.2 } else { 1.0 }).collect();
        (0..6).for_each(|_| predictor.observe(&times));
        let mut multiples = vec![1.0; 50];
        multiples[7] = 3.0;
        let once = predictor.predict(&workers).unwrap();
        let sized = predictor.predict_multiples(&workers, &multiples).unwrap();
        assert_eq!(sized.worker(WorkerId(7)).mean, 3.0 * once.worker(WorkerId(7)).mean);
        assert_eq!(sized.worker(WorkerId(8)), once.worker(WorkerId(8)));
        // Three times as long as the others: always the last.
        let (last, expected) = (sized.ranks[49], sized.worker(WorkerId(7)));
        assert!((last.mean / expected.mean - 1.0).abs() < 0.02, "{last:?} {expected:?}");
    }

    #[test]
    fn independent_times_have_elfvings_order_statistics() {
        let found = forecast(2_000, 1, 1.0);
        for (standard, rank) in elfving(50).zip(&found.ranks) {
            assert!((rank.mean - (1.0 + 0.1 * standard)).abs() < 0.006, "{standard}: {rank:?}");
        }
        let worker = found.worker(WorkerId(7));
        assert!((worker.mean - 1.0).abs() < 1e-6 && (worker.deviation - 0.1).abs() < 1e-5, "{worker:?}");
    }

    #[test]
    fn forecasts_depend_on_the_seed_and_scale_with_the_times() {
        assert_eq!(forecast(8, 1, 1.0), forecast(8, 1, 1.0));
        assert_ne!(forecast(8, 1, 1.0), forecast(8, 2, 1.0));
        let (short, long) = (forecast(8, 1, 1.0), forecast(8, 1, 7.0));
        for (short, long) in short.ranks.iter().zip(&long.ranks) {
            assert!((long.mean / short.mean - 7.0).abs() < 1e-6);
        }
    }

    #[test]
    fn a_slow_start_does_not_change_the_scale() {
        let (usual, other) = (vec![1.0, 3.0], vec![2.0, 4.0]);
        assert_eq!(scale(&[vec![200.0, 400.0], usual.clone(), other.clone()]), 5.0);
        assert_eq!(scale(&[other, usual]), 5.0);
    }

    #[test]
    fn invalid_models_are_refused() {
        let refused = |change: &dyn Fn(&mut Pretrained)| {
            let mut pretrained = constant();
            change(&mut pretrained);
            DeepMarkov::new(&pretrained).unwrap_err().to_string()
        };
        let noted = |note: &'static str, text: &'static str| {
            refused(&|pretrained: &mut Pretrained| drop(pretrained.notes.insert(note.into(), text.into())))
        };
        assert_eq!(noted("kind", "narx"), "the note 'kind' is 'narx': expected deep-markov");
        assert_eq!(noted("spread", "-1"), "the note 'spread' is '-1': expected a number above 0");
        assert_eq!(noted("lag", "0"), "the note 'lag' is '0': expected 1 to 1048576");
        let other = noted("hidden", "4");
        assert!(other.contains("has shape [2, 3]: expected [2, 4]"), "{other}");
        assert_eq!(refused(&|pretrained| drop(pretrained.notes.remove("workers"))), "the note 'workers' is missing");
        assert_eq!(refused(&|pretrained| drop(pretrained.tensors.remove("start"))), "the tensor 'start' is missing");
        let unknown = refused(&|pretrained| drop(pretrained.tensors.insert("more".into(), (vec![1], vec![0.0]))));
        assert_eq!(unknown, "the tensor 'more' is not part of this kind of model");
        let infinite =
            refused(&|pretrained| drop(pretrained.tensors.insert("start".into(), (vec![2], vec![0.0, f32::NAN]))));
        assert_eq!(infinite, "the tensor 'start' has a value that is not finite");
        let others = DeepMarkov::new(&constant()).unwrap().for_workers(8);
        assert_eq!(others, Err(PretrainedError::OtherWorkers { found: 50, expected: 8 }));
    }
}
