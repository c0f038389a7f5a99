//! Goodput: samples per second times what a sample is worth. It is what schemes can be compared by while they run.
//!
//! The unit of progress is a step of `bsp`. A scheme makes other steps: of fewer gradients, or of replicas that have drifted
//! apart. What such a step is worth follows from the learning-rate rule and from the noise that aggregation shows.

use serde::{Deserialize, Serialize};

use crate::{Aggregate, GradientNoise, RateRule, Reason, Setup};

/// The progress of a step of `k` gradients, in steps of `bsp` with `workers` gradients: how far it moves the model under the
/// rule, divided by what its noise costs.
///
/// With noise N, the variance of a gradient over its squared norm, a step of rate r and k gradients loses r·N/k of what
/// it would gain without noise.
pub fn step_progress(rule: &RateRule, k: usize, workers: usize, noise: &GradientNoise) -> f64 {
    let (k, workers) = (k.max(1), workers.max(1));
    let factor = rule.factor(k, workers, noise);
    let ratio = noise.gain(usize::MAX) - 1.0;
    factor * (1.0 + ratio / workers as f64) / (1.0 + factor * ratio / k as f64)
}

/// How much of the bound that [`drift_cost`] follows is lost, chosen on the scenarios of `experiments/scenarios`.
const DRIFT: f64 = 0.045;

/// The least cost of a local iteration. Late in a run there is hardly anything but noise, at a rate that was chosen for less of it.
const LEAST_DRIFT: f64 = 0.01;

/// The cost of a local iteration while no noise is measured.
const UNKNOWN_DRIFT: f64 = 0.04;

/// What a local iteration costs beyond the first of a round: the replicas drift apart.
///
/// Replicas differ by the noise of their own gradients. What that does to later gradients grows with its variance N, relative
/// to the gradient, and with the square of the rate (Koloskova et al., A unified theory of decentralized SGD, 2020). A rate
/// that suits steps of n gradients is about 1 / (1 + N/n) of the one without noise.
fn drift_cost(workers: usize, noise: &GradientNoise) -> f64 {
    let Some(ratio) = noise.ratio() else { return UNKNOWN_DRIFT };
    let rate = 1.0 / (1.0 + ratio / workers.max(1) as f64);
    (DRIFT * ratio * rate * rate).max(LEAST_DRIFT)
}

/// The progress of averaging replicas that have done this many iterations in all, in steps of `bsp`.
pub fn averaging_progress(iterations: u64, replicas: usize, workers: usize, noise: &GradientNoise) -> f64 {
    let length = iterations as f64 / replicas.max(1) as f64;
    iterations as f64 / workers.max(1) as f64 / (1.0 + drift_cost(workers, noise) * (length - 1.0).max(0.0))
}

/// Adds up the progress of a run.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Goodput {
    rule: RateRule,
    workers: usize,
    batch: u32,
    noise: GradientNoise,
    /// In steps of `bsp`.
    progress: f64,
}

impl Goodput {
    /// A run with this setup, at its start.
    pub fn new(setup: &Setup) -> Self {
        let Setup { workers, batch, rate_rule: rule, .. } = *setup;
        Goodput { rule, workers, batch, noise: GradientNoise::default(), progress: 0.0 }
    }

    /// Takes in a commit of this many updates, made for this reason.
    pub fn on_commit(&mut self, updates: usize, reason: &Reason) {
        self.progress += if let Reason::Averaged { workers, iterations } = *reason {
            averaging_progress(iterations, workers as usize, self.workers, &self.noise)
        } else {
            step_progress(&self.rule, updates, self.workers, &self.noise)
        };
    }

    /// Takes in what the aggregation of a commit shows.
    pub fn on_aggregate(&mut self, reason: &Reason, aggregate: &Aggregate) {
        let length = match *reason {
            Reason::Averaged { workers, iterations } => iterations as f64 / f64::from(workers.max(1)),
            _ => 1.0,
        };
        self.noise.observe_replicas(aggregate, length);
    }

    /// How many samples `bsp` would have needed for the progress so far.
    pub fn samples(&self) -> f64 {
        self.progress * self.workers as f64 * f64::from(self.batch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(variance: f64, square: f64) -> GradientNoise {
        let norms = (0..4).map(|worker| crate::UpdateNorm::from((worker, 0, variance + square))).collect();
        let mut noise = GradientNoise::default();
        noise.observe(&Aggregate {
            mean_square: square + variance,
            square_of_mean: square + variance / 4.0,
            norms,
            ..Aggregate::default()
        });
        noise
    }

    #[test]
    fn every_sample_counts_equally_under_the_proportional_rule() {
        let rule: RateRule = "proportional".parse().unwrap();
        for noise in [GradientNoise::default(), noise(6.0, 2.0)] {
            for k in 1..=8 {
                assert!((step_progress(&rule, k, 8, &noise) - k as f64 / 8.0).abs() < 1e-9);
            }
        }
    }

    #[test]
    fn at_a_fixed_rate_a_small_step_gains_as_much_as_its_noise_allows() {
        let rule = RateRule::FIXED;
        // σ² = 6, μ² = 2: N = 3. Without noise all steps are worth the same.
        assert!((step_progress(&rule, 2, 8, &noise(0.0, 2.0)) - 1.0).abs() < 1e-9);
        let expected = (1.0 + 3.0 / 8.0) / (1.0 + 3.0 / 2.0);
        assert!((step_progress(&rule, 2, 8, &noise(6.0, 2.0)) - expected).abs() < 1e-9);
        assert!((step_progress(&rule, 8, 8, &noise(6.0, 2.0)) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn one_iteration_of_every_worker_is_a_step() {
        let noise = GradientNoise::default();
        assert_eq!(averaging_progress(8, 8, 8, &noise), 1.0);
        assert_eq!(averaging_progress(6, 6, 8, &noise), 0.75);
        assert!((averaging_progress(32, 8, 8, &noise) - 4.0 / 1.12).abs() < 1e-9);
    }

    #[test]
    fn local_iterations_cost_more_with_noise_and_with_workers() {
        let cost = |workers, variance| 1.0 / averaging_progress(2, 1, workers, &noise(variance, 1.0)) / workers as f64;
        // N = n: a quarter of N.
        assert!((cost(8, 8.0) * 2.0 - (1.0 + DRIFT * 8.0 / 4.0)).abs() < 1e-9);
        assert!(cost(8, 1.0) < cost(8, 4.0) && cost(4, 30.0) < cost(8, 30.0) && cost(8, 30.0) < cost(16, 30.0));
        // Equal gradients, and nothing but noise: the least cost.
        for noise in [noise(0.0, 1.0), noise(1.0, 0.0)] {
            assert!((averaging_progress(32, 8, 8, &noise) - 4.0 / 1.03).abs() < 1e-9);
        }
    }

    #[test]
    fn a_run_of_bsp_is_worth_its_samples_and_a_quorum_as_much_as_it_has() {
        let setup = Setup { rate_rule: "proportional".parse().unwrap(), ..Setup::new(8, 4) };
        let mut goodput = Goodput::new(&setup);
        let quorum = |waited_for| Reason::Quorum { waited_for, workers: 8 };
        goodput.on_commit(8, &quorum(8));
        assert!((goodput.samples() - 32.0).abs() < 1e-9);
        goodput.on_commit(6, &quorum(6));
        assert!((goodput.samples() - 56.0).abs() < 1e-9);
        goodput.on_commit(8, &Reason::Averaged { workers: 8, iterations: 8 });
        assert!((goodput.samples() - 88.0).abs() < 1e-9);
    }
}
