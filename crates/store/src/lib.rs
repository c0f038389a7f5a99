//! Parameters and what changes them, without network or clock.
//!
//! A model is one flat `f32` vector with a named [`Layout`]. [`aggregate`] combines the gradients of several workers
//! and computes the norms that schemes decide by. An [`Optimizer`] applies the result at the rate of a [`Schedule`].
//! [`Shards`] cut the vector for threads or hosts without changing a bit of the result. A [`CheckpointFolder`] stores
//! what a run needs to resume, [`CheckpointObjects`] the same in parts, in any [`ObjectStorage`]. [`write_tensors`] stores other named tensors, such as a pretrained predictor.

mod aggregate;
mod atomic;
mod checkpoint;
mod flat_tensors;
mod layout;
mod manifest;
mod object_storage;
mod optimizer;
mod optimizer_spec;
mod parameter_group;
mod parted_checkpoint;
mod schedule;
mod shards;
mod tensor_file;

pub use aggregate::{Norms, ShardNorms, aggregate, aggregate_shard, continue_shard};
pub use atomic::{create_folder, try_file, write_file};
pub use checkpoint::{
    Checkpoint, CheckpointError, CheckpointFolder, CheckpointView, LatestCheckpoint, ReservedModel, load_checkpoint,
    read_model,
};
pub use layout::{Layout, TensorEntry};
pub use manifest::{CheckpointFile, CheckpointPart};
pub use object_storage::{FolderObjects, ObjectStorage, host_name};
pub use optimizer::{NextState, Optimizer, OptimizerRules, OptimizerStep};
pub use optimizer_spec::{EmptyGroup, Moments, OptimizerKind, OptimizerSpec};
pub use paceline_spec::SpecError;
pub use parameter_group::ParameterGroup;
pub use parted_checkpoint::{CheckpointObjects, LatestParts, PartedView, WrittenParts, write_parts};
pub use schedule::{Schedule, ScheduleShape};
pub use shards::{BLOCK, Shards};
pub use tensor_file::{Notes, TensorFileError, TensorFileErrorKind, Tensors, read_tensors, write_tensors};
