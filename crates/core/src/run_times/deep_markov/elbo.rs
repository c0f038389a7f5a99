//! The evidence lower bound: how well the model explains observations. Training maximizes it.

use std::f64::consts::PI;

use super::DeepMarkov;

/// The parts of a window's ELBO, in nats.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Elbo {
    /// The log-likelihood of the observations, given the states that the guide drew.
    pub likelihood: f64,
    /// The Kullback–Leibler divergence of the guide from the model's transitions.
    pub divergence: f64,
}

impl Elbo {
    /// The ELBO.
    pub fn value(&self) -> f64 {
        self.likelihood - self.divergence
    }
}

impl DeepMarkov {
    /// The ELBO of a window of normalized run-times, with one draw of the states. `noise` contains a standard normal
    /// number per iteration and latent unit.
    pub fn elbo(&self, window: &[Vec<f32>], noise: &[f32]) -> Elbo {
        let seen: Vec<_> = window.iter().map(|times| self.encode(times)).collect();
        let context = self.context(seen.iter());
        let mut noise = noise.iter().copied();
        let mut state = self.start(1);
        let mut elbo = Elbo { likelihood: 0.0, divergence: 0.0 };
        for (times, context) in window.iter().zip(&context) {
            let guide = self.guide(&state, context, 1);
            let prior = self.transition(&state, 1);
            for unit in 0..state.len() {
                let (mean, deviation) = (f64::from(guide.means[unit]), f64::from(guide.deviations[unit]));
                let (expected, wide) = (f64::from(prior.means[unit]), f64::from(prior.deviations[unit]));
                let (ratio, away) = (deviation / wide, (mean - expected) / wide);
                elbo.divergence += 0.5 * (ratio * ratio + away * away - 1.0) - libm::log(ratio);
            }
            state = guide.draw(|| noise.next().unwrap_or(0.0));
            let emission = self.emission(&state, 1);
            for (worker, &time) in times.iter().enumerate() {
                let deviation = f64::from(emission.deviations[worker]);
                let away = (f64::from(time) - f64::from(emission.means[worker])) / deviation;
                elbo.likelihood -= 0.5 * (away * away + libm::log(2.0 * PI)) + libm::log(deviation);
            }
        }
        elbo
    }
}
