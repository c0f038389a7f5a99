//! `arima`: ARIMA(2,2,1), fitted as it goes.

use super::{Resources, SpeedPredictor};

/// How uncertain the coefficients are at first: large against 1, so that data soon count for more than the start.
const UNCERTAINTY: f64 = 100.0;

/// Predicts by the second differences z of the speeds: `zₖ = φ₁ zₖ₋₁ + φ₂ zₖ₋₂ + θ eₖ₋₁ + eₖ`, with e what the
/// prediction was wrong by. φ and θ come from recursive maximum
/// likelihood (Ljung): least squares on regressors that are filtered by the moving average.
#[derive(Debug, Clone)]
pub struct Arima {
    /// The first speed, which all are divided by.
    scale: f64,
    /// The last speeds, newest first, and how many there were.
    speeds: [f64; 2],
    seen: u32,
    /// zₖ₋₁, zₖ₋₂ and eₖ₋₁.
    regressors: [f64; 3],
    /// How the error changes with each coefficient, less the sign.
    filtered: [f64; 3],
    /// φ₁, φ₂ and θ.
    coefficients: [f64; 3],
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
    /// Learns from the second difference that came after the regressors, and returns what the prediction was wrong by.
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
        // A moving average that can't be inverted would make errors grow without end.
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
    fn alternating_speeds_are_learnt() {
        // 10, 12, 10, 12, …: second differences alternate, which φ₁ = −1 says.
        let mut arima = Arima::default();
        let speed = |step: i32| if step % 2 == 0 { 10.0 } else { 12.0 };
        (0..200).for_each(|step| arima.observe(speed(step), Resources::default()));
        assert!((arima.predict().unwrap() - speed(200)).abs() < 0.05, "{:?}", arima);
    }
}
