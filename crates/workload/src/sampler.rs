//! Samplers: from a draw to sample indices, as a pure function of seed, worker and position in the worker's stream.

use std::fmt;
use std::str::FromStr;

use paceline_spec::{SpecError, one_of};

use crate::hash::{below, hash, permuted};
use crate::partition::{Partition, PartitionError};
use crate::workload::Draw;

/// The order in which a worker draws the samples of its part. As text: `with-replacement`, `epochs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// Each sample is drawn independently (the default). Gradients are unbiased for any number of draws per worker.
    #[default]
    WithReplacement,
    /// Each epoch contains every sample of the part once, in a new random order.
    Epochs,
}

impl Order {
    const NAMES: [(&'static str, Order); 2] = [("with-replacement", Order::WithReplacement), ("epochs", Order::Epochs)];
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Order::WithReplacement => "with-replacement",
            Order::Epochs => "epochs",
        })
    }
}

impl FromStr for Order {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        one_of("order", text, &Order::NAMES)
    }
}

/// The endless streams of sample indices of all workers.
#[derive(Debug, Clone)]
pub struct Sampler {
    parts: Vec<Vec<usize>>,
    order: Order,
    seed: u64,
}

impl Sampler {
    /// Streams over the samples with these `labels`, split among `workers`, the number of workers at the start. A
    /// worker that joins later draws from part rank mod `workers`, in its own order.
    ///
    /// # Errors
    /// If the samples cannot be split among the workers.
    pub fn new(
        labels: &[u8],
        partition: Partition,
        order: Order,
        workers: usize,
        seed: u64,
    ) -> Result<Self, PartitionError> {
        // With replacement, drawing from a random part would only add a bias: every worker has the whole set.
        let whole = partition == Partition::Iid && order == Order::WithReplacement;
        let parts = partition.split(labels, if whole { 1 } else { workers }, seed)?;
        Ok(Sampler { parts, order, seed })
    }

    /// The number of samples that `worker` draws from; with [`Order::Epochs`] the length of its epoch.
    pub fn part_len(&self, worker: u32) -> usize {
        self.part(worker).len()
    }

    /// Replaces `indices` by the sample indices of `draw`.
    pub fn indices(&self, draw: Draw, indices: &mut Vec<usize>) {
        let part = self.part(draw.worker);
        let length = part.len() as u64;
        let (seed, worker) = (self.seed, u64::from(draw.worker));
        let index = |position: u64| match self.order {
            Order::WithReplacement => below(hash(&[seed, worker, position]), part.len()),
            Order::Epochs => {
                let epoch = hash(&[seed, worker, position / length]);
                permuted((position % length) as usize, part.len(), epoch)
            }
        };
        indices.clear();
        indices.extend((draw.offset..draw.offset + u64::from(draw.samples)).map(|position| part[index(position)]));
    }

    fn part(&self, worker: u32) -> &[usize] {
        &self.parts[worker as usize % self.parts.len()]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn drawn(sampler: &Sampler, worker: u32, offset: u64, samples: usize) -> Vec<usize> {
        let mut indices = Vec::new();
        let samples = samples as u32;
        sampler.indices(Draw { worker, offset, samples }, &mut indices);
        indices
    }

    proptest! {
        #[test]
        fn an_epoch_contains_each_sample_of_the_part_once(
            labels in proptest::collection::vec(0u8..4, 8..200),
            by_class: bool,
            worker in 0u32..20,
            epoch in 0u64..1000,
            seed: u64,
        ) {
            let partition = if by_class { Partition::ByClass } else { Partition::Iid };
            let sampler = Sampler::new(&labels, partition, Order::Epochs, 8, seed).unwrap();
            let length = sampler.part_len(worker);
            let mut found = drawn(&sampler, worker, epoch * length as u64, length);
            found.sort_unstable();
            let mut part = partition.split(&labels, 8, seed).unwrap()[worker as usize % 8].clone();
            part.sort_unstable();
            prop_assert_eq!(found, part);
        }

        #[test]
        fn the_stream_does_not_depend_on_how_it_is_cut(
            epochs: bool, worker: u32, offset in 0u64..1 << 40, cut in 0usize..50, seed: u64,
        ) {
            let order = if epochs { Order::Epochs } else { Order::WithReplacement };
            let sampler = Sampler::new(&[0; 100], Partition::Iid, order, 4, seed).unwrap();
            let whole = drawn(&sampler, worker, offset, 50);
            let mut pieces = drawn(&sampler, worker, offset, cut);
            pieces.extend(drawn(&sampler, worker, offset + cut as u64, 50 - cut));
            prop_assert_eq!(whole, pieces);
        }
    }

    #[test]
    fn seeds_workers_and_epochs_differ() {
        let sampler = |seed, order| Sampler::new(&[0; 300], Partition::Iid, order, 3, seed).unwrap();
        for order in [Order::WithReplacement, Order::Epochs] {
            let first = drawn(&sampler(1, order), 0, 0, 100);
            assert_ne!(first, drawn(&sampler(2, order), 0, 0, 100), "another seed");
            assert_ne!(first, drawn(&sampler(1, order), 3, 0, 100), "a worker that joined later");
            assert_ne!(first, drawn(&sampler(1, order), 0, 100, 100), "another epoch");
        }
    }

    #[test]
    fn with_replacement_a_worker_draws_from_the_whole_set() {
        let sampler = Sampler::new(&[0; 50], Partition::Iid, Order::WithReplacement, 10, 7).unwrap();
        let mut found = drawn(&sampler, 9, 0, 2000);
        found.sort_unstable();
        found.dedup();
        assert_eq!(found.len(), 50);
    }

    #[test]
    fn orders_round_trip_through_text() {
        for order in [Order::WithReplacement, Order::Epochs] {
            assert_eq!(order.to_string().parse(), Ok(order));
        }
        let error = "shuffled".parse::<Order>().unwrap_err().to_string();
        assert!(error.contains("'shuffled'; expected with-replacement or epochs"));
    }
}
