//! `memoryless`: the last speed.

use serde::{Deserialize, Serialize};

use super::{Resources, SpeedPredictor};

/// Predicts the last speed.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Memoryless {
    last: Option<f64>,
}

impl SpeedPredictor for Memoryless {
    fn observe(&mut self, speed: f64, _resources: Resources) {
        self.last = Some(speed);
    }

    fn predict(&self) -> Option<f64> {
        self.last
    }
}
