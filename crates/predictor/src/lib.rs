//! Trains a deep Markov model of a cluster's run-times (Cutoff SGD, section 3.1.3).
//!
//! The model itself, and what is predicted with it, is [`paceline_core::run_times`]; here is what needs automatic
//! differentiation. [`RunTimes`] are those of a fully synchronous run; [`train`] learns from them; [`assess`] says how good a
//! predictor's forecasts of them are.

mod assess;
mod graph;
mod initial;
mod run_times;
mod training;

pub use assess::{Assessment, Foreseen, assess};
pub use run_times::{RunTimes, RunTimesError};
pub use training::{Epoch, Options, Trained, train};
