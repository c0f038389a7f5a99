//! DBW's estimator of how much the next step lowers the loss, as a function of k, (10)–(16).
//!
//! It needs only statistics that aggregation computes anyway: two norms and the mean loss. The norms separate signal
//! from noise. The curvature of the loss follows from the learning rate, or from the measured decrease of the loss.

use serde::{Deserialize, Serialize};

use crate::recent::RecentValues;
use crate::{Aggregate, GradientNoise, RateRule};

/// How the smoothness constant L is estimated: how fast the slope of the loss changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Smoothness {
    /// L = 1/(2η): assumes that the learning rate is well chosen, about as large as the curvature allows. (Balles,
    /// Romero and Hennig, 2017, whose gain DBW follows, take L = 1/η. But noise points in every direction, and most
    /// directions are flatter than the steepest: of 1, 1/2 and 1/4, on MNIST 1/2 is best or close to it.) The gain is
    /// then positive if the squared gradient norm is above a third of the noise.
    Rate,
    /// (12) and (15) as printed: the mean of what each iteration's decrease of the loss gives. Late in training the
    /// decrease is mostly noise, and so is L.
    Measured,
}

/// The expected decrease of the loss as a function of k.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Gain {
    /// ‖∇F‖².
    gradient: f64,
    /// The variance of a single gradient.
    variance: f64,
    /// L.
    smoothness: f64,
    /// The learning rate before the rule.
    rate: f64,
    rule: RateRule,
    noise: GradientNoise,
}

impl Gain {
    /// DBW (16): the gain of a step of `k` gradients in a run of `workers` workers, with the rate that the rule gives it.
    pub(crate) fn of(&self, k: usize, workers: usize) -> f64 {
        let rate = self.rate * self.rule.factor(k, workers, &self.noise);
        let step = self.gradient + self.variance / k as f64;
        rate * self.gradient - rate * rate * self.smoothness / 2.0 * step
    }
}

/// The estimates from one iteration.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct IterationSample {
    #[serde(with = "crate::number")]
    rate: f64,
    #[serde(with = "crate::number")]
    scheduled_rate: f64,
    #[serde(with = "crate::number")]
    loss: f64,
    /// ‖∇F‖²⁺.
    #[serde(with = "crate::number")]
    gradient: f64,
    /// E‖g‖²: ‖∇F‖²⁺ plus the noise in the mean of k gradients.
    #[serde(with = "crate::number")]
    step: f64,
}

/// Estimates the [`Gain`] of the next iteration from the last ones.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct GainEstimator {
    variances: RecentValues,
    gradients: RecentValues,
    smoothness: Smoothness,
    /// Single estimates of L.
    measured: RecentValues,
    last: Option<IterationSample>,
    rule: RateRule,
    noise: GradientNoise,
}

impl GainEstimator {
    /// An estimator that averages over the last `window` iterations (the paper's D), in a run under `rule`.
    pub(crate) fn new(window: usize, smoothness: Smoothness, rule: RateRule) -> Self {
        let [variances, gradients, measured] = [(); 3].map(|()| RecentValues::new(window));
        let noise = GradientNoise::default();
        GainEstimator { variances, gradients, smoothness, measured, last: None, rule, noise }
    }

    /// Adds the statistics of an iteration of `updates` equally weighted gradients.
    pub(crate) fn observe(&mut self, updates: usize, aggregate: &Aggregate) {
        let &Aggregate { loss, rate, scheduled_rate, mean_square, square_of_mean, .. } = aggregate;
        self.noise.observe(aggregate);
        let k = updates as f64;
        if updates > 1 {
            // DBW (10)
            self.variances.push((k * (mean_square - square_of_mean) / (k - 1.0)).max(0.0));
        }
        // One gradient has no variance: use the mean of the last ones.
        let variance = match updates {
            1 => self.variances.mean(),
            _ => self.variances.last(),
        };
        if let Some(previous) = self.last.filter(|previous| previous.step > 0.0) {
            // DBW (12)
            let decrease = previous.loss - loss;
            let numerator = 2.0 * (previous.rate * previous.gradient - decrease);
            self.measured.push(numerator / (previous.rate * previous.rate * previous.step));
        }
        self.last = variance.map(|variance| {
            // DBW (11)
            let gradient = (square_of_mean - variance / k).max(0.0);
            self.gradients.push(gradient);
            IterationSample { rate, scheduled_rate, loss, gradient, step: gradient + variance / k }
        });
    }

    /// The gain of the next iteration; `None` until the variance, and L where it is measured, can be estimated.
    pub(crate) fn gain(&self) -> Option<Gain> {
        let rate = self.last?.scheduled_rate;
        let variance = self.variances.mean()?; // DBW (13)
        let gradient = self.gradients.mean()?; // DBW (14)
        let smoothness = match self.smoothness {
            Smoothness::Rate => 0.5 / rate,
            // DBW (15). L is negative if the loss fell faster than its slope predicts. It is clamped, since otherwise
            // noise would count as a gain.
            Smoothness::Measured => self.measured.mean()?.clamp(0.0, f64::INFINITY),
        };
        let is_finite = [rate, gradient, variance, smoothness].iter().all(|value| value.is_finite());
        is_finite.then_some(Gain { gradient, variance, smoothness, rate, rule: self.rule, noise: self.noise })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: f64 = 0.1;

    fn aggregate(loss: f64, mean_square: f64, square_of_mean: f64) -> Aggregate {
        Aggregate { loss, rate: RATE, scheduled_rate: RATE, mean_square, square_of_mean, ..Aggregate::default() }
    }

    fn close(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-12, "found {found}, expected {expected}");
    }

    /// A quadratic with curvature 3 and gradients of noise 8, measured without error.
    fn follow(estimator: &mut GainEstimator, iterations: usize, k: usize, mut position: f64) -> f64 {
        let (curvature, noise) = (3.0, 8.0);
        for _ in 0..iterations {
            let square = (curvature * position) * (curvature * position);
            let step = square + noise / k as f64;
            estimator.observe(k, &aggregate(curvature * position * position / 2.0, square + noise, step));
            // The expected loss after the step is as (9) says with L = 3; that fixes the next position.
            let loss = curvature * position * position / 2.0 - RATE * square + curvature * RATE * RATE / 2.0 * step;
            position = (2.0 * loss / curvature).sqrt();
        }
        position
    }

    #[test]
    fn a_quadratic_is_known_after_two_iterations() {
        let mut estimator = GainEstimator::new(1, Smoothness::Measured, RateRule::FIXED);
        assert_eq!(estimator.gain(), None);
        let position = follow(&mut estimator, 1, 4, 2.0);
        assert_eq!(estimator.gain(), None);
        follow(&mut estimator, 1, 4, position);
        let gain = estimator.gain().unwrap();
        let square = 9.0 * position * position;
        for k in [1, 4, 16] {
            close(gain.of(k, 4), (RATE - 1.5 * RATE * RATE) * square - 1.5 * RATE * RATE * 8.0 / k as f64);
        }
    }

    #[test]
    fn with_a_well_chosen_rate_the_gain_is_the_gradient_above_a_third_of_the_noise() {
        let mut estimator = GainEstimator::new(5, Smoothness::Rate, RateRule::FIXED);
        estimator.observe(4, &aggregate(1.0, 3.0 + 8.0, 3.0 + 2.0));
        let gain = estimator.gain().unwrap();
        for k in [1, 2, 4] {
            close(gain.of(k, 4), RATE / 4.0 * (3.0 * 3.0 - 8.0 / k as f64));
        }
    }

    #[test]
    fn one_gradient_gives_no_variance() {
        let mut alone = GainEstimator::new(5, Smoothness::Measured, RateRule::FIXED);
        for loss in [2.0, 1.0, 0.5] {
            alone.observe(1, &aggregate(loss, 4.0, 4.0));
        }
        assert_eq!(alone.gain(), None);

        let mut estimator = GainEstimator::new(5, Smoothness::Measured, RateRule::FIXED);
        let position = follow(&mut estimator, 3, 4, 2.0);
        let before = estimator.variances.mean();
        follow(&mut estimator, 3, 1, position);
        assert_eq!(estimator.variances.mean(), before);
        // The norm of a single gradient does not count as the norm of the true gradient.
        let gradient = estimator.gradients.last().unwrap();
        assert!(gradient < 36.0, "{gradient}");
        close(estimator.measured.mean().unwrap(), 3.0);
    }

    #[test]
    fn a_negative_curvature_counts_as_zero() {
        let mut estimator = GainEstimator::new(5, Smoothness::Measured, RateRule::FIXED);
        for loss in [3.0, 1.0] {
            estimator.observe(2, &aggregate(loss, 4.0, 3.0));
        }
        let gain = estimator.gain().unwrap();
        close(gain.of(1, 4), RATE * 2.0);
        assert_eq!(gain.of(1, 4), gain.of(9, 4));
    }

    #[test]
    fn a_loss_that_is_not_finite_gives_no_gain() {
        let mut estimator = GainEstimator::new(5, Smoothness::Measured, RateRule::FIXED);
        for loss in [1.0, f64::NAN] {
            estimator.observe(2, &aggregate(loss, 4.0, 3.0));
        }
        assert_eq!(estimator.gain(), None);
    }
}
