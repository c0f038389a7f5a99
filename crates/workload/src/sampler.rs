//! From a draw to sample indices: a pure function of seed, worker and position in the worker's stream.

use std::fmt;
use std::str::FromStr;

use paceline_spec::{SpecError, one_of};

use crate::contract::Draw;
use crate::hash::{below, hash, permuted};
use crate::partition::{Partition, PartitionError};

/// In which order a worker goes through its part. As text: `with-replacement`, `epochs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// Each sample is drawn independently (the default): gradients are unbiased however often a worker is asked.
    #[default]
    WithReplacement,
    /// Every sample of the part once, in random order, then again in another.
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

/// Every worker's endless stream of sample indices.
#[derive(Debug, Clone)]
pub struct Sampler {
    parts: Vec<Vec<usize>>,
    order: Order,
    seed: u64,
}

impl Sampler {
    /// Streams over the samples with these `labels`, spread over `workers`, the number known at the start.
    /// A late joiner, whose id is not below it, draws from part id mod `workers`, in an order of its own.
    pub fn new(
        labels: &[u8],
        partition: Partition,
        order: Order,
        workers: usize,
        seed: u64,
    ) -> Result<Self, PartitionError> {
        // Drawing i.i.d. with replacement from a random part would only add a bias: everyone has the whole set.
        let whole = partition == Partition::Iid && order == Order::WithReplacement;
        let parts = partition.split(labels, if whole { 1 } else { workers }, seed)?;
        Ok(Sampler { parts, order, seed })
    }

    /// How many samples `worker` draws from; with [`Order::Epochs`] the length of its epoch.
    pub fn part_len(&self, worker: u32) -> usize {
        self.part(worker).len()
    }

    /// Replaces `indices` by the samples of `draw`.
    pub fn indices(&self, draw: Draw, indices: &mut Vec<usize>) {
        let part = self.part(draw.worker);
        let length = part.len() as u64;
        let (seed, worker) = (self.seed, u64::from(draw.worker));
        let place = |position: u64| match self.order {
            Order::WithReplacement => below(hash(&[seed, worker, position]), part.len()),
            Order::Epochs => {
                let epoch = hash(&[seed, worker, position / length]);
                permuted((position % length) as usize, part.len(), epoch)
            }
        };
        indices.clear();
        indices.extend((draw.offset..draw.offset + u64::from(draw.samples)).map(|position| part[place(position)]));
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
        fn an_epoch_shows_each_sample_of_the_part_once(
            labels in proptest::collection::vec(0u8..4, 8..200),
            by_class: bool,
            worker in 0u32..20,
            epoch in 0u64..1000,
            seed: u64,
        ) {
            let partition = if by_class { Partition::ByClass } else { Partition::Iid };
            let sampler = Sampler::new(&labels, partition, Order::Epochs, 8, seed).unwrap();
            let length = sampler.part_len(worker);
            let mut seen = drawn(&sampler, worker, epoch * length as u64, length);
            seen.sort_unstable();
            let mut part = partition.split(&labels, 8, seed).unwrap()[worker as usize % 8].clone();
            part.sort_unstable();
            prop_assert_eq!(seen, part);
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
            assert_ne!(first, drawn(&sampler(1, order), 3, 0, 100), "a late joiner");
            assert_ne!(first, drawn(&sampler(1, order), 0, 100, 100), "another epoch");
        }
    }

    #[test]
    fn with_replacement_everyone_sees_everything() {
        let sampler = Sampler::new(&[0; 50], Partition::Iid, Order::WithReplacement, 10, 7).unwrap();
        let mut seen = drawn(&sampler, 9, 0, 2000);
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 50);
    }

    #[test]
    fn orders_are_read_back() {
        for order in [Order::WithReplacement, Order::Epochs] {
            assert_eq!(order.to_string().parse(), Ok(order));
        }
        let error = "shuffled".parse::<Order>().unwrap_err().to_string();
        assert!(error.contains("`shuffled`: expected with-replacement or epochs"));
    }
}
