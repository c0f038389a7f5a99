//! Labelled images for networks that read `Tensor<4>`.

use std::ops::Range;

use burn::tensor::{Device, Tensor, TensorData};
use paceline_workload::{Dataset, Draw, PartitionError, Sampler, Splits};

use super::{Batch, Samples, Sampling, classes};

/// Labelled images as samples × channels × height × width.
#[derive(Debug)]
pub struct Images {
    splits: Splits,
    sampler: Sampler,
}

impl Images {
    /// Images whose training samples are drawn from `splits` as `sampling` specifies.
    ///
    /// # Errors
    /// If the samples cannot be split among the workers.
    pub fn new(splits: Splits, sampling: &Sampling) -> Result<Self, PartitionError> {
        let sampler = sampling.sampler(splits.train().labels())?;
        Ok(Images { splits, sampler })
    }
}

impl Samples<Tensor<4>> for Images {
    fn draw(&self, draw: Draw, device: &Device) -> Batch<Tensor<4>> {
        let mut indices = Vec::new();
        self.sampler.indices(draw, &mut indices);
        gathered(self.splits.train(), &indices, device)
    }

    fn held_out_len(&self) -> usize {
        self.splits.held_out().len()
    }

    fn held_out(&self, range: Range<usize>, device: &Device) -> Batch<Tensor<4>> {
        let indices: Vec<usize> = range.collect();
        gathered(self.splits.held_out(), &indices, device)
    }
}

fn gathered(dataset: &Dataset, indices: &[usize], device: &Device) -> Batch<Tensor<4>> {
    let (mut features, mut labels) = (Vec::new(), Vec::new());
    dataset.gather(indices, &mut features, &mut labels);
    let [channels, height, width] = dataset.shape();
    let features = TensorData::new(features, [indices.len(), channels, height, width]);
    Batch { input: Tensor::from_data(features, device), targets: classes(labels.into_iter().map(i64::from), device) }
}
