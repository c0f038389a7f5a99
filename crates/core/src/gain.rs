//! What is one more gradient worth? DBW's estimate of how much the next step lowers the loss, (10)–(16).
//!
//! Everything comes from what aggregation shows anyway: two norms and the mean loss. The norms tell signal from noise;
//! how curved the loss is follows from the learning rate, or from how much it really fell.

use crate::Aggregate;
use crate::recent::Recent;

/// Where the smoothness constant L comes from: how fast the slope of the loss changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Smoothness {
    /// L = 1/(2η): the learning rate is taken to be well chosen, about as large as the curvature lets it be. (Balles,
    /// Romero and Hennig, 2017, whose gain DBW's is made after, take L = 1/η. But noise points everywhere, and most
    /// directions are flatter than the steepest: of 1, 1/2 and 1/4, on MNIST the half is best or close to it.) A gain is
    /// then left wherever the gradient stands out of a third of the noise.
    Rate,
    /// (12) and (15) as printed: the mean of what each iteration's fall of the loss gives. Late in training that fall is
    /// all noise, and so is L.
    Measured,
}

/// The expected fall of the loss as a function of k.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Gain {
    /// What a step along the true gradient would gain.
    descent: f64,
    /// What the noise of a single gradient costs.
    noise: f64,
}

impl Gain {
    /// The gain of a step of `k` gradients.
    pub(crate) fn of(&self, k: usize) -> f64 {
        self.descent - self.noise / k as f64
    }
}

/// What one iteration showed, at its end.
#[derive(Debug, Clone, Copy)]
struct Shown {
    rate: f64,
    loss: f64,
    /// ‖∇F‖²⁺.
    gradient: f64,
    /// E‖g‖²: that and the noise that is left in the mean of k gradients.
    step: f64,
}

/// Estimates the [`Gain`] of the next iteration from the last ones.
#[derive(Debug)]
pub(crate) struct GainEstimator {
    variances: Recent,
    gradients: Recent,
    smoothness: Smoothness,
    /// Single estimates of L.
    measured: Recent,
    last: Option<Shown>,
}

impl GainEstimator {
    /// Averages over the last `window` iterations, D in the paper.
    pub(crate) fn new(window: usize, smoothness: Smoothness) -> Self {
        let [variances, gradients, measured] = [(); 3].map(|()| Recent::new(window));
        GainEstimator { variances, gradients, smoothness, measured, last: None }
    }

    /// Takes in what an iteration of `updates` equally weighted gradients showed.
    pub(crate) fn observe(&mut self, updates: usize, aggregate: &Aggregate) {
        let Aggregate { loss, rate, sum_of_squares, square_of_sum } = *aggregate;
        let k = updates as f64;
        if updates > 1 {
            // DBW (10)
            self.variances.push(((sum_of_squares - k * square_of_sum) / (k - 1.0)).max(0.0));
        }
        // One gradient shows no variance: the last ones must do.
        let variance = match updates {
            1 => self.variances.mean(),
            _ => self.variances.last(),
        };
        if let Some(previous) = self.last.filter(|previous| previous.step > 0.0) {
            // DBW (12)
            let fall = previous.loss - loss;
            let numerator = 2.0 * (previous.rate * previous.gradient - fall);
            self.measured.push(numerator / (previous.rate * previous.rate * previous.step));
        }
        self.last = variance.map(|variance| {
            // DBW (11)
            let gradient = (square_of_sum - variance / k).max(0.0);
            self.gradients.push(gradient);
            Shown { rate, loss, gradient, step: gradient + variance / k }
        });
    }

    /// The gain of the next iteration; `None` before the variance can be told, and L where it is measured.
    pub(crate) fn gain(&self) -> Option<Gain> {
        let rate = self.last?.rate;
        let variance = self.variances.mean()?; // DBW (13)
        let gradient = self.gradients.mean()?; // DBW (14)
        let smoothness = match self.smoothness {
            Smoothness::Rate => 0.5 / rate,
            // DBW (15). Below 0 the loss fell faster than its slope says; that noise should pay is not to be concluded
            // from it.
            Smoothness::Measured => self.measured.mean()?.clamp(0.0, f64::INFINITY),
        };
        let curvature = rate * rate * smoothness / 2.0;
        // DBW (16)
        let gain = Gain { descent: rate * gradient - curvature * gradient, noise: curvature * variance };
        (gain.descent.is_finite() && gain.noise.is_finite()).then_some(gain)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: f64 = 0.1;

    fn shown(loss: f64, sum_of_squares: f64, square_of_sum: f64) -> Aggregate {
        Aggregate { loss, rate: RATE, sum_of_squares, square_of_sum }
    }

    fn close(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-12, "found {found}, expected {expected}");
    }

    /// A quadratic with curvature 3 and gradients of noise 8, seen without any error of measurement.
    fn follow(estimator: &mut GainEstimator, iterations: usize, k: usize, mut position: f64) -> f64 {
        let (curvature, noise) = (3.0, 8.0);
        for _ in 0..iterations {
            let square = (curvature * position) * (curvature * position);
            let step = square + noise / k as f64;
            estimator.observe(k, &shown(curvature * position * position / 2.0, k as f64 * (square + noise), step));
            // The expected loss after the step is as (9) says with L = 3; that fixes the next position.
            let loss = curvature * position * position / 2.0 - RATE * square + curvature * RATE * RATE / 2.0 * step;
            position = (2.0 * loss / curvature).sqrt();
        }
        position
    }

    #[test]
    fn a_quadratic_is_known_after_two_iterations() {
        let mut estimator = GainEstimator::new(1, Smoothness::Measured);
        assert_eq!(estimator.gain(), None);
        let position = follow(&mut estimator, 1, 4, 2.0);
        assert_eq!(estimator.gain(), None);
        follow(&mut estimator, 1, 4, position);
        let gain = estimator.gain().unwrap();
        let square = 9.0 * position * position;
        for k in [1, 4, 16] {
            close(gain.of(k), (RATE - 1.5 * RATE * RATE) * square - 1.5 * RATE * RATE * 8.0 / k as f64);
        }
    }

    #[test]
    fn a_rate_that_is_well_chosen_gains_what_stands_out_of_a_third_of_the_noise() {
        let mut estimator = GainEstimator::new(5, Smoothness::Rate);
        estimator.observe(4, &shown(1.0, 4.0 * (3.0 + 8.0), 3.0 + 2.0));
        let gain = estimator.gain().unwrap();
        for k in [1, 2, 4] {
            close(gain.of(k), RATE / 4.0 * (3.0 * 3.0 - 8.0 / k as f64));
        }
    }

    #[test]
    fn one_gradient_shows_no_variance() {
        let mut alone = GainEstimator::new(5, Smoothness::Measured);
        for loss in [2.0, 1.0, 0.5] {
            alone.observe(1, &shown(loss, 4.0, 4.0));
        }
        assert_eq!(alone.gain(), None);

        let mut estimator = GainEstimator::new(5, Smoothness::Measured);
        let position = follow(&mut estimator, 3, 4, 2.0);
        let before = estimator.variances.mean();
        follow(&mut estimator, 3, 1, position);
        assert_eq!(estimator.variances.mean(), before);
        // The norm of a single gradient is not taken for the norm of the true one.
        let gradient = estimator.gradients.last().unwrap();
        assert!(gradient < 36.0, "{gradient}");
        close(estimator.measured.mean().unwrap(), 3.0);
    }

    #[test]
    fn a_loss_that_falls_too_fast_is_taken_for_straight() {
        let mut estimator = GainEstimator::new(5, Smoothness::Measured);
        for loss in [3.0, 1.0] {
            estimator.observe(2, &shown(loss, 8.0, 3.0));
        }
        let gain = estimator.gain().unwrap();
        close(gain.of(1), RATE * 2.0);
        assert_eq!(gain.of(1), gain.of(9));
    }

    #[test]
    fn what_is_not_finite_is_no_estimate() {
        let mut estimator = GainEstimator::new(5, Smoothness::Measured);
        for loss in [1.0, f64::NAN] {
            estimator.observe(2, &shown(loss, 8.0, 3.0));
        }
        assert_eq!(estimator.gain(), None);
    }
}
