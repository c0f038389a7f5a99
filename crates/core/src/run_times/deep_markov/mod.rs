//! A deep Markov model of a cluster: its state moves on from iteration to iteration, and the state decides how long each
//! worker takes (Cutoff SGD, sections 3.1.2 and 3.1.3).
//!
//! [`DeepMarkov`] is the model with its guide, which infers the state from what was observed; [`Amortized`] predicts with
//! them. Here they only compute: they are trained elsewhere, from what [`DeepMarkov::elbo`] says of them.

mod elbo;
mod forecaster;
mod layers;
mod model;

pub use elbo::Elbo;
pub use forecaster::{Amortized, SAMPLES};
pub use layers::LEAST_DEVIATION;
pub use model::{DeepMarkov, KIND, Size, scale};
