//! Neural networks as workloads, computed by [Burn](https://burn.dev).
//!
//! A [`ModelKind`] names a model and makes it a workload on given data. Behind each name but `softmax` is a
//! [`Network`]: a Burn module that turns an input into logits. A [`BurnWorkload`] joins any network, one's own
//! included, with its [`Samples`] ([`Images`], [`TextWindows`]) on a [`Device`], which [`device`] picks by name: the
//! CPU, or with the features `cuda` and `wgpu` a GPU.
//!
//! A network's tensors become flat parameters and back in `flat`; `initial` draws the values that training starts
//! from. Neither touches a state that replicas share, so that each gives the same bits as if it were alone.

mod device;
mod error;
mod flat;
mod initial;
mod kind;
mod network;
mod networks;
mod samples;
mod workload;

pub use burn::tensor::Device;
pub use device::{DeviceError, device};
pub use error::ModelError;
pub use kind::ModelKind;
pub use network::Network;
pub use networks::{CharacterModel, Cnn, Mlp, ResNet};
pub use paceline_workload::Draw;
pub use samples::{Batch, Images, Samples, Sampling, TextWindows};
pub use workload::BurnWorkload;
