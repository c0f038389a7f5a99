//! The *compute* plane's contract and its data.
//!
//! A [`Workload`] turns flat parameters and a [`Draw`] into a loss and a gradient. Which samples a draw stands for is
//! decided by a [`Sampler`], a pure function of seed, worker and position, over a [`Partition`] of the training part
//! of [`Splits`]. The data come from [`synthetic_digits`], which need no file. [`SoftmaxRegression`] is the smallest
//! complete workload.

mod contract;
mod dataset;
mod digits;
mod hash;
mod partition;
mod sampler;
mod softmax;

pub use contract::{Draw, Evaluation, Replica, Workload};
pub use dataset::{Dataset, DatasetError, Normalization, Splits};
pub use digits::synthetic_digits;
pub use partition::{ParsePartitionError, Partition, PartitionError};
pub use sampler::{Order, ParseOrderError, Sampler};
pub use softmax::SoftmaxRegression;
