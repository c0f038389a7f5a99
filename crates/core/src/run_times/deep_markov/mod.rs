//! A deep Markov model of a cluster: its state changes from iteration to iteration and determines every worker's
//! run-time (Cutoff SGD, sections 3.1.2 and 3.1.3).
//!
//! [`DeepMarkov`] is the model with its guide, which infers the state from observations. [`Amortized`] predicts with
//! both. This crate only evaluates them. The crate `paceline-predictor` trains them to maximize [`DeepMarkov::elbo`].

mod elbo;
mod forecaster;
mod layers;
mod model;

pub use elbo::Elbo;
pub use forecaster::{Amortized, SAMPLES};
pub use layers::LEAST_DEVIATION;
pub use model::{DeepMarkov, KIND, Size, scale};
