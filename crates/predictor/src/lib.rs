//! Trains a deep Markov model of the run-times of a cluster (Cutoff SGD, section 3.1.3).
//!
//! The model and its predictions are in [`paceline_core::run_times`]. This crate has what needs automatic
//! differentiation: [`train`] trains a model on the [`RunTimes`] of a fully synchronous run, and [`assess`] measures
//! the forecasts of a predictor on them.

mod assess;
mod graph;
mod initial;
mod run_times;
mod training;

pub use assess::{Assessment, PredictedIteration, assess};
pub use run_times::{RunTimes, RunTimesError};
pub use training::{EpochReport, TrainedPredictor, TrainingConfig, train};
