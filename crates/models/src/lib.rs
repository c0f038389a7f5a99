//! Neural networks as workloads, computed by [Burn](https://burn.dev).
//!
//! A [`Model`] is chosen by its name and creates a workload; [`add_model`] adds one from outside. Every model except
//! `softmax` is a [`Classifier`]: a Burn module that computes logits from an input. A [`Network`] may have any other loss.
//! A [`BurnWorkload`] combines any network, custom ones included, with its [`Samples`] ([`Images`], [`TextWindows`]) on a
//! [`Device`]. [`device`] selects one by name: the CPU, or with the features `cuda` and `wgpu` a GPU.
//!
//! The module `flat` converts between the tensors of a network and flat parameters; `initial` draws initial parameters.
//! Neither uses shared state, so that a replica gives the same bits alone and next to others.

mod catalogue;
mod device;
mod error;
mod flat;
mod initial;
mod network;
mod networks;
mod samples;
mod workload;

pub use burn::tensor::Device;
pub use catalogue::{BuiltWorkload, Model, ModelEntry, add_model};
pub use device::{DeviceError, device};
pub use error::ModelError;
pub use network::{BatchScore, Classifier, Network};
pub use networks::{CharacterModel, Cnn, Mlp, ResNet};
pub use paceline_workload::Draw;
pub use samples::{Batch, Images, Samples, Sampling, TextWindows};
pub use workload::BurnWorkload;
