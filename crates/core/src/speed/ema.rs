//! `ema`: an exponential moving average.

use serde::{Deserialize, Serialize};

use super::{Resources, SpeedPredictor};

/// The weight of the newest value (the paper's α).
const ALPHA: f64 = 0.2;

/// Predicts the exponential moving average of the speeds.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Ema {
    #[serde(with = "crate::number")]
    mean: Option<f64>,
}

impl Ema {
    /// Adds a value.
    pub fn push(&mut self, value: f64) {
        self.mean = Some(self.mean.map_or(value, |mean| mean + ALPHA * (value - mean)));
    }

    /// The average; `None` before the first value.
    pub fn mean(&self) -> Option<f64> {
        self.mean
    }
}

impl SpeedPredictor for Ema {
    fn observe(&mut self, speed: f64, _resources: Resources) {
        self.push(speed);
    }

    fn predict(&self) -> Option<f64> {
        self.mean
    }
}
