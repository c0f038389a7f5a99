//! Run-times as independent draws from one normal distribution (Cutoff SGD, section 3.1.1).

use std::collections::VecDeque;
use std::f64::consts::PI;

use serde::{Deserialize, Serialize};

use super::gaussian::{density, moments, quantile};
use super::{Forecast, Normal, RunTimePredictor};
use crate::WorkerId;

/// The expected j-th smallest, j = 1…n, of n independent standard normal variables (Elfving, 1947).
///
/// Cutoff SGD's (3) prints the fraction upside down.
pub fn elfving(n: usize) -> impl Iterator<Item = f64> {
    (1..=n).map(move |j| quantile((j as f64 - PI / 8.0) / (n as f64 - PI / 4.0 + 1.0)))
}

/// Predicts by the mean and the deviation of the run-times of all workers in the last iterations.
#[derive(Debug, Serialize, Deserialize)]
pub struct IndependentNormal {
    /// The last iterations' run-times.
    window: VecDeque<Vec<f64>>,
    /// The length of the window in iterations.
    lag: usize,
    /// Elfving's values for the last number of workers.
    #[serde(with = "crate::number")]
    standard: Vec<f64>,
}

impl IndependentNormal {
    /// A predictor that uses the last `lag` iterations.
    pub fn new(lag: usize) -> Self {
        IndependentNormal { window: VecDeque::new(), lag, standard: Vec::new() }
    }
}

impl RunTimePredictor for IndependentNormal {
    fn observe(&mut self, times: &[f64]) {
        if self.window.len() == self.lag {
            self.window.pop_front();
        }
        self.window.push_back(times.to_vec());
    }

    fn predict_multiples(&mut self, workers: &[WorkerId], multiples: &[f64]) -> Option<Forecast> {
        let mut by_rank = vec![1.0; self.window.iter().map(Vec::len).max()?];
        for (worker, &multiple) in workers.iter().zip(multiples) {
            if let Some(slot) = by_rank.get_mut(worker.index()) {
                *slot = multiple;
            }
        }
        let times = || self.window.iter().flat_map(|times| times.iter().zip(&by_rank)).map(|(time, by)| time * by);
        let least = times().reduce(f64::min)?;
        let one = moments(times());
        if self.standard.len() != workers.len() {
            self.standard = elfving(workers.len()).collect();
        }
        let n = workers.len() as f64;
        let rank = |&standard: &f64| {
            // The deviation of a sample quantile (David and Johnson, 1954).
            let below = 1.0 - super::gaussian::upper_tail(standard);
            let spread = (below * (1.0 - below) / (n + 2.0)).sqrt() / density(standard);
            // A wide normal distribution includes negative times. No worker was faster than `least`.
            Normal { mean: (one.mean + one.deviation * standard).max(least), deviation: one.deviation * spread }
        };
        Some(Forecast { workers: vec![one], ranks: self.standard.iter().map(rank).collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_times::Draws;

    #[test]
    fn the_slowest_worker_matches_the_paper() {
        // Cutoff SGD, section 4.1.
        let slowest = 1.057 + 0.393 * elfving(158).last().unwrap();
        assert!((slowest - 2.106).abs() < 0.002, "{slowest}");
    }

    #[test]
    fn order_statistics_match_sorted_draws() {
        for n in [10, 40, 158, 600, 2175] {
            let repeats = 400;
            let mut sums = vec![(0.0, 0.0); n];
            for repeat in 0..repeats {
                let mut draws = Draws::at(&[n as u64, repeat]);
                let mut sample: Vec<f64> = (0..n).map(|_| draws.normal()).collect();
                sample.sort_by(f64::total_cmp);
                for ((sum, squares), value) in sums.iter_mut().zip(sample) {
                    *sum += value;
                    *squares += value * value;
                }
            }
            let repeats = repeats as f64;
            for (rank, (expected, (sum, squares))) in elfving(n).zip(sums).enumerate() {
                let mean = sum / repeats;
                let error = ((squares / repeats - mean * mean) / repeats).sqrt();
                // Elfving's formula itself is off by up to 0.02 at the ends.
                assert!((expected - mean).abs() < 5.0 * error + 0.02, "{rank} of {n}: {expected}, {mean} ± {error}");
            }
        }
    }

    #[test]
    fn deviations_match_sorted_draws() {
        let n = 158;
        let mut predictor = IndependentNormal::new(20);
        let sample = |repeat: u64| {
            let mut draws = Draws::at(&[repeat]);
            (0..n).map(|_| 1.0 + 0.2 * draws.normal()).collect::<Vec<f64>>()
        };
        for repeat in 0..20 {
            predictor.observe(&sample(repeat));
        }
        let workers: Vec<WorkerId> = (0..n).map(WorkerId).collect();
        let forecast = predictor.predict(&workers).unwrap();
        let sorted: Vec<Vec<f64>> = (100..600)
            .map(|repeat| {
                let mut sample = sample(repeat);
                sample.sort_by(f64::total_cmp);
                sample
            })
            .collect();
        for rank in [10, 40, 79, 120, 148] {
            let found = moments(sorted.iter().map(|sample| sample[rank]));
            let expected = forecast.ranks[rank];
            assert!((found.deviation / expected.deviation - 1.0).abs() < 0.15, "{rank}: {found:?} {expected:?}");
        }
    }

    #[test]
    fn times_are_predicted_for_the_sizes_of_the_next_tasks() {
        let workers: Vec<WorkerId> = (0..4).map(WorkerId).collect();
        let mut predictor = IndependentNormal::new(20);
        predictor.observe(&[1.0, 1.0, 1.0, 3.0]);
        assert!(predictor.predict(&workers).unwrap().cutoff() < 4);
        // The slow worker has a third of the samples.
        let balanced = predictor.predict_multiples(&workers, &[1.0, 1.0, 1.0, 1.0 / 3.0]).unwrap();
        assert!(balanced.ranks.iter().all(|rank| rank.mean == 1.0), "{balanced:?}");
        assert_eq!(balanced.cutoff(), 4);
        let twice = predictor.predict_multiples(&workers, &[2.0; 4]).unwrap();
        for (twice, once) in twice.ranks.iter().zip(predictor.predict(&workers).unwrap().ranks) {
            assert!((twice.mean - 2.0 * once.mean).abs() < 1e-12, "{twice:?}");
        }
    }

    #[test]
    fn old_iterations_are_dropped_and_no_prediction_is_below_all_observed_times() {
        let workers: Vec<WorkerId> = (0..4).map(WorkerId).collect();
        let mut predictor = IndependentNormal::new(2);
        assert_eq!(predictor.predict(&workers), None);
        predictor.observe(&[100.0; 4]);
        for _ in 0..2 {
            predictor.observe(&[1.0, 1.0, 1.0, 9.0]);
        }
        let Forecast { workers: one, ranks } = predictor.predict(&workers).unwrap();
        assert_eq!(one[0].mean, 3.0);
        assert_eq!(ranks.len(), 4);
        assert_eq!(ranks[0].mean, 1.0);
        assert!(ranks[3].mean > 6.0);
    }
}
