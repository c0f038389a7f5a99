//! What is one more gradient worth? DBW's estimate of how much the next step lowers the loss, (10)–(16).
//!
//! Everything comes from what aggregation shows anyway: two norms and the mean loss. The norms tell signal from noise;
//! how much the loss really fell tells how curved it is.

use std::collections::VecDeque;
use std::str::FromStr;

use crate::Aggregate;

/// How the smoothness constant L is averaged over iterations.
///
/// A single estimate (12) divides the loss's fall, which late in training is all noise, by a small number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Smoothness {
    /// The mean of the single estimates of D iterations: (15) as printed.
    #[default]
    Mean,
    /// The ratio of the sums of numerators and denominators of (12) over so many iterations. The falls of the loss add up
    /// to that from the first to the last iteration, so that the noise of all in between cancels.
    Pooled(usize),
}

impl FromStr for Smoothness {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        let pooled = |text: &str| text.strip_prefix("pooled-")?.parse().ok().filter(|iterations| *iterations > 0);
        match (text, pooled(text)) {
            ("mean", _) => Ok(Smoothness::Mean),
            (_, Some(iterations)) => Ok(Smoothness::Pooled(iterations)),
            _ => Err("mean or pooled-N (N iterations, at least 1)"),
        }
    }
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
    variances: Recent<f64>,
    gradients: Recent<f64>,
    /// Numerators and denominators of (12).
    smoothness: Recent<(f64, f64)>,
    rule: Smoothness,
    last: Option<Shown>,
}

impl GainEstimator {
    /// Averages over the last `window` iterations, D in the paper.
    pub(crate) fn new(window: usize, rule: Smoothness) -> Self {
        let pairs = if let Smoothness::Pooled(iterations) = rule { iterations } else { window };
        GainEstimator {
            variances: Recent::new(window),
            gradients: Recent::new(window),
            smoothness: Recent::new(pairs),
            rule,
            last: None,
        }
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
        if let Some(previous) = &self.last {
            // DBW (12)
            let fall = previous.loss - loss;
            let numerator = 2.0 * (previous.rate * previous.gradient - fall);
            let denominator = previous.rate * previous.rate * previous.step;
            if denominator > 0.0 {
                self.smoothness.push((numerator, denominator));
            }
        }
        self.last = variance.map(|variance| {
            // DBW (11)
            let gradient = (square_of_sum - variance / k).max(0.0);
            self.gradients.push(gradient);
            Shown { rate, loss, gradient, step: gradient + variance / k }
        });
    }

    /// The gain of the next iteration; `None` before L can be told, which takes two iterations.
    pub(crate) fn gain(&self) -> Option<Gain> {
        let rate = self.last?.rate;
        let variance = self.variances.mean()?; // DBW (13)
        let gradient = self.gradients.mean()?; // DBW (14)
        let curvature = rate * rate * self.smoothness()? / 2.0;
        // DBW (16)
        let gain = Gain { descent: rate * gradient - curvature * gradient, noise: curvature * variance };
        (gain.descent.is_finite() && gain.noise.is_finite()).then_some(gain)
    }

    /// L, and 0 where the average is below: a loss that falls faster than its slope says is concave there, but that
    /// noise should pay is not to be concluded from it.
    fn smoothness(&self) -> Option<f64> {
        let smoothness = match self.rule {
            // DBW (15)
            Smoothness::Mean => mean(self.smoothness.iter().map(|(numerator, denominator)| numerator / denominator)),
            Smoothness::Pooled(_) => {
                let sum = |of: fn(&(f64, f64)) -> f64| self.smoothness.iter().map(of).sum::<f64>();
                (!self.smoothness.is_empty()).then(|| sum(|pair| pair.0) / sum(|pair| pair.1))
            }
        };
        smoothness.map(|smoothness| smoothness.clamp(0.0, f64::INFINITY))
    }
}

/// The last few values of something.
#[derive(Debug)]
struct Recent<T> {
    values: VecDeque<T>,
    most: usize,
}

impl<T: Copy> Recent<T> {
    fn new(most: usize) -> Self {
        Recent { values: VecDeque::new(), most }
    }

    fn push(&mut self, value: T) {
        if self.values.len() == self.most {
            self.values.pop_front();
        }
        self.values.push_back(value);
    }

    fn iter(&self) -> impl Iterator<Item = &T> {
        self.values.iter()
    }

    fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    fn last(&self) -> Option<T> {
        self.values.back().copied()
    }
}

impl Recent<f64> {
    fn mean(&self) -> Option<f64> {
        mean(self.iter().copied())
    }
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (count, sum) = values.fold((0, 0.0), |(count, sum), value| (count + 1, sum + value));
    (count > 0).then(|| sum / f64::from(count))
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
        for rule in [Smoothness::Mean, Smoothness::Pooled(4)] {
            let mut estimator = GainEstimator::new(1, rule);
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
    }

    #[test]
    fn one_gradient_shows_no_variance() {
        let mut alone = GainEstimator::new(5, Smoothness::Mean);
        for loss in [2.0, 1.0, 0.5] {
            alone.observe(1, &shown(loss, 4.0, 4.0));
        }
        assert_eq!(alone.gain(), None);

        let mut estimator = GainEstimator::new(5, Smoothness::Mean);
        let position = follow(&mut estimator, 3, 4, 2.0);
        let before = estimator.variances.mean();
        follow(&mut estimator, 3, 1, position);
        assert_eq!(estimator.variances.mean(), before);
        // The norm of a single gradient is not taken for the norm of the true one.
        let gradient = estimator.gradients.last().unwrap();
        assert!(gradient < 36.0, "{gradient}");
        close(estimator.smoothness().unwrap(), 3.0);
    }

    #[test]
    fn pooling_cancels_the_noise_of_the_loss() {
        let estimate = |rule| {
            let mut estimator = GainEstimator::new(5, rule);
            let mut worst = 0.0_f64;
            for step in 0..40 {
                // The loss does not move but for noise; neither does the gradient.
                let noise = if step % 3 == 0 { 0.04 } else { -0.02 };
                estimator.observe(4, &shown(1.0 + noise, 8.0, 1.0));
                if step > 20 {
                    worst = worst.max(estimator.smoothness().unwrap());
                }
            }
            worst
        };
        // 2 / η × 2/3: the true gradient is 2/3 of the step.
        let truth = 2.0 / RATE * 2.0 / 3.0;
        assert!(estimate(Smoothness::Mean) > 1.15 * truth);
        assert!(estimate(Smoothness::Pooled(20)) < 1.07 * truth);
    }

    #[test]
    fn a_loss_that_falls_too_fast_is_taken_for_straight() {
        let mut estimator = GainEstimator::new(5, Smoothness::Mean);
        for loss in [3.0, 1.0] {
            estimator.observe(2, &shown(loss, 8.0, 3.0));
        }
        let gain = estimator.gain().unwrap();
        close(gain.of(1), RATE * 2.0);
        assert_eq!(gain.of(1), gain.of(9));
    }

    #[test]
    fn what_is_not_finite_is_no_estimate() {
        let mut estimator = GainEstimator::new(5, Smoothness::Mean);
        for loss in [1.0, f64::NAN] {
            estimator.observe(2, &shown(loss, 8.0, 3.0));
        }
        assert_eq!(estimator.gain(), None);
    }

    #[test]
    fn rules_are_read() {
        assert_eq!("mean".parse(), Ok(Smoothness::Mean));
        assert_eq!("pooled-20".parse(), Ok(Smoothness::Pooled(20)));
        for text in ["", "pooled", "pooled-0", "pooled-x", "median"] {
            assert!(text.parse::<Smoothness>().is_err(), "{text}");
        }
    }
}
