//! The *compute* plane's contract and its data.
//!
//! A [`Workload`] turns flat parameters and a [`Draw`] into a loss and a gradient. Which samples a draw stands for is
//! decided by a [`Sampler`], a pure function of seed, worker and position, over a [`Partition`] of the training part
//! of [`Splits`]. A [`DataSource`] names the data: [`synthetic_digits`], which need no file, a [`PublishedSet`] in a
//! folder (put there by `download`, a feature of its own for the HTTP client it takes), or a [`Text`]. [`SoftmaxRegression`] is the smallest complete workload.

mod contract;
mod dataset;
mod digits;
#[cfg(feature = "download")]
mod download;
mod formats;
mod hash;
mod partition;
mod published;
mod sampler;
mod softmax;
mod source;

pub use contract::{Draw, Evaluation, Replica, Workload};
pub use dataset::{Dataset, DatasetError, Normalization, Splits};
pub use digits::synthetic_digits;
#[cfg(feature = "download")]
pub use download::{DownloadError, Progress, download};
pub use formats::FormatError;
pub use formats::text::Text;
pub use partition::{Partition, PartitionError};
pub use published::PublishedSet;
pub use sampler::{Order, Sampler};
pub use softmax::SoftmaxRegression;
pub use source::{Data, DataSource, SourceError};
