//! Workloads: a model with its data, as the simulator and real workers train it.
//!
//! A [`Workload`] computes a loss and a gradient from flat parameters and a [`Draw`]. A [`Sampler`] maps a draw to
//! samples: a pure function of seed, worker and position, over a [`Partition`] of the training part of [`Splits`]. A
//! [`DataSource`] names the data: [`synthetic_digits`], which need no file, a [`PublishedSet`] in a folder, or a
//! [`Text`]. `download` fetches a published set; its HTTP client is behind the feature `download`.
//! [`SoftmaxRegression`] is the smallest complete workload. [`ShapedGradients`] changes the gradients of any
//! other.

mod dataset;
mod digits;
#[cfg(feature = "download")]
mod download;
mod formats;
mod hash;
mod partition;
mod progress;
mod published;
mod sampler;
mod shaped_gradients;
mod softmax;
mod source;
mod workload;

pub use dataset::{Dataset, DatasetError, Normalization, Splits};
pub use digits::synthetic_digits;
#[cfg(feature = "download")]
pub use download::{DownloadError, DownloadProgress, download};
pub use formats::FormatError;
pub use formats::text::Text;
pub use partition::{Partition, PartitionError};
pub use progress::Progress;
pub use published::PublishedSet;
pub use sampler::{Order, Sampler};
pub use shaped_gradients::ShapedGradients;
pub use softmax::SoftmaxRegression;
pub use source::{Data, DataSource, SourceError};
pub use workload::{Draw, Evaluation, Replica, Workload};
