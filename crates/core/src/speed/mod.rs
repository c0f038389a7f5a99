//! How fast each worker will be in the next iteration (LB-BSP, section 3.2).
//!
//! A [`SpeedPredictor`] follows one worker; [`Speeds`] keeps one per worker, guards them against nonsense and trains
//! those that learn, one at a time. [`PredictorKind`] names them all.

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

/// What other programs leave a worker, as shares from 0 to 1. A worker that does not say is taken to have all to itself.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Resources {
    /// The share of its processors that others use.
    pub cpu: f64,
    /// The share of its memory that is in use.
    pub memory: f64,
}

/// Predicts one worker's speed, in samples per second.
pub trait SpeedPredictor: Send {
    /// The worker was so fast in the iteration that ended, and has these resources now that the next begins.
    fn observe(&mut self, speed: f64, resources: Resources);

    /// How fast it will be in the next iteration; `None` before it was observed.
    fn predict(&self) -> Option<f64>;

    /// Learns a little from what was observed: short enough, some tens of microseconds, never to be in the way of a
    /// decision. Returns whether there was something to learn.
    fn train_step(&mut self) -> bool {
        false
    }

    /// What was learnt, for another predictor of the same kind to start from; `None` for those that don't learn, and
    /// before they have.
    fn weights(&self) -> Option<&[f64]> {
        None
    }
}
