//! The samples of a network: images, windows of text, or custom data.

mod images;
mod text;

use std::ops::Range;

use burn::tensor::{Device, Int, Tensor, TensorData};
use paceline_workload::{Draw, Order, Partition, PartitionError, Sampler};

pub use images::Images;
pub use text::TextWindows;

/// Samples and their targets, on a device.
#[derive(Debug)]
pub struct Batch<I, T = Tensor<1, Int>> {
    /// The input of the network.
    pub input: I,
    /// What its output is compared with: by default, the correct class of each prediction.
    pub targets: T,
}

/// Training samples and held-out samples for networks with input `I` and targets `T`.
pub trait Samples<I, T = Tensor<1, Int>>: Send + Sync {
    /// The training samples of `draw`. Equal draws must give equal samples.
    fn draw(&self, draw: Draw, device: &Device) -> Batch<I, T>;

    /// The number of held-out samples, at least 1.
    fn held_out_len(&self) -> usize;

    /// The held-out samples of a range within 0..[`held_out_len`](Self::held_out_len).
    fn held_out(&self, range: Range<usize>, device: &Device) -> Batch<I, T>;
}

/// How workers draw training samples. Default: one worker, i.i.d. with replacement, seed 0.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampling {
    /// How the samples are split among the workers.
    pub partition: Partition,
    /// The order in which a worker draws the samples of its part.
    pub order: Order,
    /// The number of workers at the start.
    pub workers: usize,
    /// The seed of the partition and of all draws.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Sampling { partition: Partition::default(), order: Order::default(), workers: 1, seed: 0 }
    }
}

impl Sampling {
    /// The sampler for training samples with these labels.
    ///
    /// # Errors
    /// If the samples cannot be split among the workers.
    pub fn sampler(&self, labels: &[u8]) -> Result<Sampler, PartitionError> {
        Sampler::new(labels, self.partition, self.order, self.workers, self.seed)
    }
}

/// Class numbers as a tensor.
fn classes(numbers: impl Iterator<Item = i64>, device: &Device) -> Tensor<1, Int> {
    let numbers: Vec<i64> = numbers.collect();
    let count = numbers.len();
    Tensor::from_data(TensorData::new(numbers, [count]), device)
}
