//! The built-in networks, one per file.

mod charlm;
mod cnn;
mod mlp;
mod resnet;

pub use charlm::CharacterModel;
pub use cnn::Cnn;
pub use mlp::Mlp;
pub use resnet::ResNet;
