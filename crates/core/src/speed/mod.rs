//! Predicts each worker's speed in the next iteration (LB-BSP, section 3.2).
//!
//! A [`SpeedPredictor`] follows one worker. [`Speeds`] keeps one per worker, ignores invalid speeds and trains the
//! predictors that learn, one at a time. [`PredictorKind`] lists them all.

mod arima;
mod dual;
mod ema;
mod kind;
mod learner;
mod memoryless;
mod networks;
mod speeds;

pub use arima::Arima;
pub use ema::Ema;
pub use kind::PredictorKind;
pub use memoryless::Memoryless;
pub use speeds::Speeds;

use serde::{Deserialize, Serialize};

use crate::Restorable;

/// The use of a worker's machine, as shares from 0 to 1. The default, for a worker that reports nothing, is an idle
/// machine.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Resources {
    /// The share of the processors' time that other programs use.
    #[serde(with = "crate::number")]
    pub cpu: f64,
    /// The share of the memory that is in use.
    #[serde(with = "crate::number")]
    pub memory: f64,
}

/// Predicts one worker's speed, in samples per second.
pub trait SpeedPredictor: Send + Restorable {
    /// Adds the speed of the last iteration and the resources at the start of the next.
    fn observe(&mut self, speed: f64, resources: Resources);

    /// The speed in the next iteration; `None` before the first observation.
    fn predict(&self) -> Option<f64>;

    /// Does one training step of some tens of microseconds, short enough not to delay a decision. Returns whether
    /// training was needed.
    fn train_step(&mut self) -> bool {
        false
    }

    /// The trained weights, which another predictor of the same kind can start from. `None` before training is done,
    /// and for predictors that don't learn.
    fn weights(&self) -> Option<&[f64]> {
        None
    }
}
