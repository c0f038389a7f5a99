//! Networks that are trained online to predict a worker's speed (LB-BSP, section 4.2).

use std::collections::VecDeque;
use std::marker::PhantomData;

use serde::{Deserialize, Serialize};

use super::networks::{SpeedHistory, SpeedNetwork};
use super::{Ema, Resources, SpeedPredictor};

/// A network is trained on this number of the latest iterations.
const WINDOW: usize = 1000;

/// Training stops when the loss decreases by less than this, [`PATIENCE`] times in a row …
const LEAST_GAIN: f64 = 1e-4;
const PATIENCE: u32 = 4;

/// … and resumes after this number of further iterations.
const RESUME_AFTER: u32 = 50;

/// With pretrained weights, the warm-up lasts at most this number of iterations. It sets the scale of the worker's
/// speed.
const SETTLED_AFTER: usize = 20;

/// A network that is trained on its worker's latest iterations. Until it is trained, it predicts the moving average.
#[derive(Debug, Serialize, Deserialize)]
#[serde(bound = "")]
pub(super) struct Learner<const N: usize, M> {
    average: Ema,
    warm_up: usize,
    /// The scale that all speeds are divided by; set at the end of the warm-up.
    scale: Option<f64>,
    #[serde(with = "crate::number")]
    weights: [f64; N],
    /// Whether the weights are trained, here or in an earlier run.
    trained: bool,
    /// The latest iterations: the inputs before each and its speed.
    window: VecDeque<(SpeedHistory, f64)>,
    history: SpeedHistory,
    seen: usize,
    /// Levenberg and Marquardt's λ: small where the network is nearly linear in its weights.
    damping: f64,
    small_gains: u32,
    since_stopped: u32,
    #[serde(skip)]
    network: PhantomData<M>,
}

impl<const N: usize, M: SpeedNetwork<N>> Learner<N, M> {
    /// A network with a warm-up of `warm_up` iterations, or of at most [`SETTLED_AFTER`] with pretrained weights.
    pub(super) fn new(warm_up: usize, weights: Option<&[f64]>) -> Self {
        let given: Option<[f64; N]> = weights.and_then(|weights| weights.try_into().ok());
        Learner {
            average: Ema::default(),
            warm_up: if given.is_some() { warm_up.min(SETTLED_AFTER) } else { warm_up },
            scale: None,
            weights: given.unwrap_or(M::START),
            trained: given.is_some(),
            window: VecDeque::new(),
            history: SpeedHistory::default(),
            seen: 0,
            damping: 1e-2,
            small_gains: 0,
            since_stopped: 0,
            network: PhantomData,
        }
    }

    /// The window's samples with speeds divided by the scale.
    fn samples(&self, scale: f64) -> impl Iterator<Item = (SpeedHistory, f64)> + '_ {
        self.window.iter().map(move |(history, speed)| (divided(history, scale), speed / scale))
    }

    fn loss(&self, weights: &[f64; N], scale: f64) -> f64 {
        let square = |(history, speed): (SpeedHistory, f64)| {
            let error = M::output(weights, &history) - speed;
            error * error
        };
        self.samples(scale).map(square).sum::<f64>() / self.window.len() as f64
    }

    /// One step of Levenberg–Marquardt over the window. Returns the decrease of the loss.
    fn step(&mut self, scale: f64) -> f64 {
        let mut normal = [[0.0; N]; N];
        let mut slope = [0.0; N];
        let mut before = 0.0;
        for (history, speed) in self.samples(scale) {
            let (output, slopes) = M::gradient(&self.weights, &history);
            let error = output - speed;
            before += error * error;
            for (row, by_row) in slopes.into_iter().enumerate() {
                slope[row] += by_row * error;
                // The upper half is not used, but computing whole rows is faster.
                for column in 0..N {
                    normal[row][column] += by_row * slopes[column];
                }
            }
        }
        before /= self.window.len() as f64;
        for (index, row) in normal.iter_mut().enumerate() {
            row[index] += self.damping * self.window.len() as f64;
        }
        let Some(change) = solve(normal, slope) else {
            self.damping = (self.damping * 10.0).min(1e6);
            return 0.0;
        };
        let mut tried = self.weights;
        tried.iter_mut().zip(change).for_each(|(weight, change)| *weight -= change);
        let after = self.loss(&tried, scale);
        if after < before {
            self.weights = tried;
            self.damping = (self.damping / 10.0).max(1e-9);
            before - after
        } else {
            self.damping = (self.damping * 10.0).min(1e6);
            0.0
        }
    }
}

fn divided(history: &SpeedHistory, scale: f64) -> SpeedHistory {
    SpeedHistory { speeds: history.speeds.map(|speed| speed / scale), ..*history }
}

/// Solves `matrix · x = right` for a positive definite matrix, given its lower half (Cholesky).
fn solve<const N: usize>(mut matrix: [[f64; N]; N], mut right: [f64; N]) -> Option<[f64; N]> {
    for row in 0..N {
        for column in 0..=row {
            let rest = (0..column).map(|k| matrix[row][k] * matrix[column][k]).sum::<f64>();
            let value = matrix[row][column] - rest;
            if row != column {
                matrix[row][column] = value / matrix[column][column];
            } else if value > 0.0 {
                matrix[row][row] = value.sqrt();
            } else {
                return None;
            }
        }
    }
    for row in 0..N {
        let rest = (0..row).map(|k| matrix[row][k] * right[k]).sum::<f64>();
        right[row] = (right[row] - rest) / matrix[row][row];
    }
    for row in (0..N).rev() {
        let rest = (row + 1..N).map(|k| matrix[k][row] * right[k]).sum::<f64>();
        right[row] = (right[row] - rest) / matrix[row][row];
    }
    Some(right)
}

impl<const N: usize, M: SpeedNetwork<N> + Send> SpeedPredictor for Learner<N, M> {
    fn observe(&mut self, speed: f64, resources: Resources) {
        self.average.push(speed);
        if self.seen >= 2 {
            if self.window.len() == WINDOW {
                self.window.pop_front();
            }
            self.window.push_back((self.history, speed));
        }
        self.history = SpeedHistory {
            speeds: [speed, self.history.speeds[0]],
            cpu: [resources.cpu, self.history.cpu[0]],
            memory: [resources.memory, self.history.memory[0]],
        };
        self.seen += 1;
        self.since_stopped += 1;
        if self.seen == self.warm_up.max(2) {
            self.scale = self.average.mean();
        }
    }

    fn predict(&self) -> Option<f64> {
        match self.scale {
            Some(scale) if self.trained => Some(scale * M::output(&self.weights, &divided(&self.history, scale))),
            _ => self.average.mean(),
        }
    }

    fn train_step(&mut self) -> bool {
        let stopped = self.small_gains >= PATIENCE;
        let Some(scale) = self.scale.filter(|_| !stopped || self.since_stopped >= RESUME_AFTER) else { return false };
        if stopped {
            self.small_gains = 0;
            self.damping = 1e-2;
        }
        let gain = self.step(scale);
        self.small_gains = if gain < LEAST_GAIN { self.small_gains + 1 } else { 0 };
        if self.small_gains >= PATIENCE {
            self.trained = true;
            self.since_stopped = 0;
        }
        true
    }

    fn weights(&self) -> Option<&[f64]> {
        self.trained.then_some(&self.weights)
    }
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng};
    use rand_xoshiro::Xoshiro256PlusPlus;

    use super::super::PredictorKind;
    use super::*;

    /// A worker whose speed follows the available CPU, which changes at random, with noise and rare slow iterations:
    /// the speed and the present resources per iteration.
    fn history(seed: u64, iterations: usize) -> Vec<(f64, Resources)> {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
        let mut cpu = 0.0;
        let mut iteration = || {
            let noise = 1.0 + 0.06 * (random.random::<f64>() - 0.5);
            let spike = if random.random::<f64>() < 0.005 { 0.6 } else { 1.0 };
            let speed = 100.0 * (1.0 - cpu) * noise * spike;
            if random.random::<f64>() < 0.02 {
                cpu = 0.6 * random.random::<f64>();
            }
            (speed, Resources { cpu, memory: 0.3 })
        };
        (0..iterations).map(|_| iteration()).collect()
    }

    /// The root mean square error after twice `warm_up` iterations.
    fn error(kind: PredictorKind, history: &[(f64, Resources)], warm_up: usize) -> f64 {
        let mut predictor = kind.build(warm_up, None);
        let mut squares = Vec::new();
        for (iteration, &(speed, resources)) in history.iter().enumerate() {
            if let Some(predicted) = predictor.predict().filter(|_| iteration >= 2 * warm_up) {
                squares.push((predicted - speed).powi(2));
            }
            predictor.observe(speed, resources);
            predictor.train_step();
        }
        (squares.iter().sum::<f64>() / squares.len() as f64).sqrt()
    }

    #[test]
    fn narx_which_uses_the_resources_predicts_best() {
        for seed in 0..5 {
            let history = history(seed, 3_000);
            let [narx, ema] = [PredictorKind::Narx, PredictorKind::Ema].map(|kind| error(kind, &history, 500));
            assert!(narx < 0.75 * ema, "seed {seed}: narx {narx}, ema {ema}");
            for (name, kind) in PredictorKind::NAMES {
                let other = error(kind, &history, 500);
                assert!(narx <= other, "seed {seed}: narx {narx}, {name} {other}");
            }
        }
    }

    #[test]
    fn training_stops_and_resumes() {
        let mut narx = PredictorKind::Narx.build(100, None);
        let history = history(1, 400);
        history[..99].iter().for_each(|&(speed, resources)| narx.observe(speed, resources));
        assert!(!narx.train_step(), "no training during the warm-up");
        history[99..300].iter().for_each(|&(speed, resources)| narx.observe(speed, resources));
        let steps = (0..1_000).take_while(|_| narx.train_step()).count();
        assert!((4..200).contains(&steps), "stopped after {steps} steps");
        assert!(narx.weights().is_some());
        history[300..349].iter().for_each(|&(speed, resources)| narx.observe(speed, resources));
        assert!(!narx.train_step());
        narx.observe(history[349].0, history[349].1);
        assert!(narx.train_step());
    }

    #[test]
    fn pretrained_weights_are_used_at_once() {
        let mut teacher = PredictorKind::Narx.build(500, None);
        for (speed, resources) in history(1, 2_000) {
            teacher.observe(speed, resources);
            teacher.train_step();
        }
        let weights = teacher.weights().unwrap().to_vec();
        let pupil_history = history(2, 400);
        let late_error = |weights: Option<&[f64]>| {
            let mut pupil = PredictorKind::Narx.build(500, weights);
            let mut sum = 0.0;
            for (iteration, &(speed, resources)) in pupil_history.iter().enumerate() {
                sum += pupil.predict().filter(|_| iteration > 50).map_or(0.0, |predicted| (predicted - speed).powi(2));
                pupil.observe(speed, resources);
                pupil.train_step();
            }
            sum
        };
        assert!(late_error(Some(&weights)) < 0.8 * late_error(None));
        // Weights of another kind of network are ignored.
        assert_eq!(late_error(Some(&[1.0; 5])), late_error(None));
    }

    #[test]
    fn equations_are_solved() {
        let matrix = [[4.0, 0.0, 0.0], [2.0, 5.0, 0.0], [1.0, 3.0, 6.0]];
        let found = solve(matrix, [7.0, 10.0, 10.0]).unwrap();
        assert!(found.iter().all(|value| (value - 1.0).abs() < 1e-12), "{found:?}");
        assert_eq!(solve([[0.0]], [1.0]), None);
    }
}
