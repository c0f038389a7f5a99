//! Where a network's batches come from.

mod images;
mod text;

use std::ops::Range;

use burn::tensor::{Device, Int, Tensor, TensorData};
use paceline_workload::{Draw, Order, Partition, PartitionError, Sampler};

pub use images::Images;
pub use text::TextWindows;

/// Samples on a device, with what is to be predicted of them.
#[derive(Debug)]
pub struct Batch<I> {
    /// What the network reads.
    pub input: I,
    /// The class of each prediction.
    pub targets: Tensor<1, Int>,
}

/// Training samples to draw from and held-out ones to measure on, for networks that read `I`.
pub trait Samples<I>: Send + Sync {
    /// The samples that `draw` stands for: equal draws, equal samples.
    fn draw(&self, draw: Draw, device: &Device) -> Batch<I>;

    /// How many samples are held out, at least 1.
    fn held_out_len(&self) -> usize;

    /// The held-out samples of a range within 0..[`held_out_len`](Self::held_out_len).
    fn held_out(&self, range: Range<usize>, device: &Device) -> Batch<I>;
}

/// Who draws which training samples in which order. Default: one worker, i.i.d. with replacement, seed 0.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampling {
    /// How the samples are spread over the workers.
    pub partition: Partition,
    /// In which order a worker goes through its part.
    pub order: Order,
    /// How many workers there are at the start.
    pub workers: usize,
    /// Decides all of it.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Sampling { partition: Partition::default(), order: Order::default(), workers: 1, seed: 0 }
    }
}

impl Sampling {
    /// The workers' streams over samples with these labels.
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
