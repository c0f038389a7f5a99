//! The *move* plane: what happens to parameters, without network or clock.
//!
//! A model is one flat `f32` vector with a named [`Layout`]. Gradients of several workers become one in [`aggregate`],
//! which also yields the norms that schemes decide by; an [`Optimizer`] applies it at the rate of a [`Schedule`].
//! [`Shards`] cut the vector for threads or hosts without changing a bit of the result, and a
//! [`CheckpointFolder`] keeps what a run needs to go on after it was killed. Other tensors, with notes about them, are kept by
//! [`write_tensors`].

mod aggregate;
mod atomic;
mod checkpoint;
mod layout;
mod manifest;
mod optimizer;
mod schedule;
mod shards;
mod tensor_file;
mod tensors;

pub use aggregate::{Norms, ShardNorms, aggregate, aggregate_shard};
pub use atomic::write_file;
pub use checkpoint::{
    Checkpoint, CheckpointError, CheckpointFolder, CheckpointView, LatestCheckpoint, export_model, load_checkpoint,
};
pub use layout::{Layout, TensorEntry};
pub use optimizer::{Moments, Optimizer, OptimizerSpec, OptimizerStep};
pub use paceline_spec::SpecError;
pub use schedule::{Schedule, Shape};
pub use shards::{BLOCK, Shards};
pub use tensor_file::{Notes, TensorFileError, TensorFileErrorKind, Tensors, read_tensors, write_tensors};
