//! `arima`: ARIMA(2,2,1), fitted online.

use serde::{Deserialize, Serialize};

use super::{Resources, SpeedPredictor};

/// The initial variance of the coefficients: much larger than 1, so that data soon outweigh the initial values.
const UNCERTAINTY: f64 = 100.0;

/// Predicts by the second differences z of the speeds: `zₖ = φ₁ zₖ₋₁ + φ₂ zₖ₋₂ + θ eₖ₋₁ + eₖ`, where e is the
/// prediction error. φ and θ come from recursive maximum likelihood (Ljung): least squares on regressors that are
/// filtered by the moving average.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Arima {
    /// The first speed, by which all speeds are divided.
    scale: f64,
    /// The last speeds, newest first.
    #[serde(with = "crate::number")]
    speeds: [f64; 2],
    /// The number of speeds observed.
    seen: u32,
    /// zₖ₋₁, zₖ₋₂ and eₖ₋₁.
    #[serde(with = "crate::number")]
    regressors: [f64; 3],
    /// The derivatives of the error by each coefficient, with the opposite sign.
    #[serde(with = "crate::number")]
    filtered: [f64; 3],
    /// φ₁, φ₂ and θ.
    #[serde(with = "crate::number")]
    coefficients: [f64; 3],
    #[serde(with = "crate::number")]
    covariance: [[f64; 3]; 3],
}

impl Default for Arima {
    fn default() -> Self {
        let mut covariance = [[0.0; 3]; 3];
        (0..3).for_each(|index| covariance[index][index] = UNCERTAINTY);
        let (speeds, coefficients) = ([0.0; 2], [0.0; 3]);
        Arima { scale: 1.0, speeds, seen: 0, regressors: [0.0; 3], filtered: [0.0; 3], coefficients, covariance }
    }
}

fn dot(a: &[f64; 3], b: &[f64; 3]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

impl Arima {
    /// Fits the coefficients to the second difference that follows the regressors. Returns the prediction error.
    fn learn(&mut self, difference: f64) -> f64 {
        let error = difference - dot(&self.coefficients, &self.regressors);
        let theta = self.coefficients[2];
        self.filtered = std::array::from_fn(|index| self.regressors[index] - theta * self.filtered[index]);
        let spread: [f64; 3] = self.covariance.map(|row| dot(&row, &self.filtered));
        let certainty = 1.0 + dot(&spread, &self.filtered);
        for row in 0..3 {
            self.coefficients[row] += spread[row] / certainty * error;
            for column in 0..3 {
                self.covariance[row][column] -= spread[row] * spread[column] / certainty;
            }
        }
        // With a moving average that is not invertible, errors would grow without bound.
        self.coefficients[2] = self.coefficients[2].clamp(-0.99, 0.99);
        difference - dot(&self.coefficients, &self.regressors)
    }
}

impl SpeedPredictor for Arima {
    fn observe(&mut self, speed: f64, _resources: Resources) {
        if self.seen == 0 {
            self.scale = speed;
        }
        let speed = speed / self.scale;
        if self.seen >= 2 {
            let difference = speed - 2.0 * self.speeds[0] + self.speeds[1];
            let error = self.learn(difference);
            self.regressors = [difference, self.regressors[0], error];
        }
        self.speeds = [speed, self.speeds[0]];
        self.seen = self.seen.saturating_add(1);
    }

    fn predict(&self) -> Option<f64> {
        let [last, before] = self.speeds;
        match self.seen {
            0 => None,
            1 => Some(self.scale),
            _ => Some(self.scale * (2.0 * last - before + dot(&self.coefficients, &self.regressors))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trend_is_followed_exactly() {
        let mut arima = Arima::default();
        (0..50).for_each(|step| arima.observe(100.0 + 2.0 * f64::from(step), Resources::default()));
        assert!((arima.predict().unwrap() - 200.0).abs() < 1e-6);
    }

    #[test]
    fn alternating_speeds_are_learned() {
        // 10, 12, 10, 12, …: second differences alternate, as with φ₁ = −1.
        let mut arima = Arima::default();
        let speed = |step: i32| if step % 2 == 0 { 10.0 } else { 12.0 };
        (0..200).for_each(|step| arima.observe(speed(step), Resources::default()));
        assert!((arima.predict().unwrap() - speed(200)).abs() < 0.05, "{:?}", arima);
    }
}
