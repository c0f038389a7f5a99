//! Partitions: which worker draws which samples.

use std::fmt;
use std::str::FromStr;

use paceline_spec::{Form, Spec, SpecError};
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_distr::Distribution;
use rand_distr::multi::Dirichlet;
use rand_xoshiro::Xoshiro256PlusPlus;
use thiserror::Error;

/// How the training samples are split among the workers. As text: `iid`, `by-class`, `dirichlet:0.5`.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Partition {
    /// Every worker draws from the same distribution (the default). With [`Order::Epochs`](crate::Order::Epochs) the
    /// set is split evenly at random; with replacement every worker draws from the whole set.
    #[default]
    Iid,
    /// The samples are sorted by label and cut into one contiguous part per worker, so that each worker has few
    /// classes: the non-i.i.d. setting of ESync.
    ByClass,
    /// Each class is split by Dirichlet-distributed weights of this concentration, above 0. A smaller value gives more
    /// unequal parts: 0.1 is very unequal, 100 is nearly i.i.d. Every worker gets at least one sample.
    Dirichlet(f64),
}

/// Why samples cannot be split among workers.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum PartitionError {
    /// A worker would have no sample.
    #[error("{samples} samples cannot be split among {workers} workers; expected at least one sample per worker")]
    TooFewSamples {
        /// Number of samples.
        samples: usize,
        /// Number of workers.
        workers: usize,
    },
    /// The number of workers is 0.
    #[error("samples cannot be split among 0 workers; expected at least 1 worker")]
    NoWorkers,
    /// The concentration of [`Partition::Dirichlet`] is not a finite number above 0.
    #[error("Dirichlet concentration {alpha}; expected a finite number above 0")]
    Concentration {
        /// The given concentration.
        alpha: f64,
    },
}

impl Partition {
    /// Splits the samples with these labels into one part per worker. The parts are disjoint, cover all samples, and
    /// none is empty. Each part is a list of sample indices.
    ///
    /// # Errors
    /// If there are fewer samples than workers, no workers, or the concentration is not valid.
    pub fn split(self, labels: &[u8], workers: usize, seed: u64) -> Result<Vec<Vec<usize>>, PartitionError> {
        let samples = labels.len();
        if workers == 0 {
            return Err(PartitionError::NoWorkers);
        }
        if samples < workers {
            return Err(PartitionError::TooFewSamples { samples, workers });
        }
        let mut generator = Xoshiro256PlusPlus::seed_from_u64(seed);
        let mut order: Vec<usize> = (0..samples).collect();
        match self {
            Partition::Iid => order.shuffle(&mut generator),
            Partition::ByClass => order.sort_by_key(|&sample| labels[sample]),
            Partition::Dirichlet(alpha) => {
                return dirichlet(labels, workers, alpha, &mut generator);
            }
        }
        let cut = |worker: usize| worker * samples / workers;
        Ok((0..workers).map(|worker| order[cut(worker)..cut(worker + 1)].to_vec()).collect())
    }
}

fn dirichlet(
    labels: &[u8],
    workers: usize,
    alpha: f64,
    generator: &mut Xoshiro256PlusPlus,
) -> Result<Vec<Vec<usize>>, PartitionError> {
    if !(alpha.is_finite() && alpha > 0.0) {
        return Err(PartitionError::Concentration { alpha });
    }
    let mut classes = vec![Vec::new(); usize::from(u8::MAX) + 1];
    for (sample, &label) in labels.iter().enumerate() {
        classes[usize::from(label)].push(sample);
    }
    // The Dirichlet distribution needs at least two dimensions.
    let weights = (workers > 1)
        .then(|| Dirichlet::new(&vec![alpha; workers]).map_err(|_| PartitionError::Concentration { alpha }))
        .transpose()?;
    let mut parts = vec![Vec::new(); workers];
    for mut class in classes {
        class.shuffle(generator);
        let shares = weights.as_ref().map_or(vec![1.0], |weights| weights.sample(generator));
        let (mut cumulative, mut start) = (0.0, 0);
        for (worker, share) in shares.iter().enumerate() {
            cumulative += share;
            // Rounding the cumulative share instead of each share assigns every sample exactly once.
            let end = if worker + 1 == workers {
                class.len()
            } else {
                ((cumulative * class.len() as f64).round() as usize).clamp(start, class.len())
            };
            parts[worker].extend_from_slice(&class[start..end]);
            start = end;
        }
    }
    while let Some(empty) = parts.iter().position(Vec::is_empty) {
        let largest = (0..workers).max_by_key(|&worker| parts[worker].len());
        let moved = largest.and_then(|worker| parts[worker].pop());
        parts[empty].extend(moved);
    }
    Ok(parts)
}

impl fmt::Display for Partition {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Partition::Iid => write!(formatter, "iid"),
            Partition::ByClass => write!(formatter, "by-class"),
            Partition::Dirichlet(alpha) => write!(formatter, "dirichlet:{alpha}"),
        }
    }
}

impl FromStr for Partition {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let forms = [Form::new("iid", &[]), Form::new("by-class", &[]), Form::new("dirichlet", &["alpha"])];
        let spec = Spec::parse("partition", text, &forms)?;
        match spec.name() {
            "iid" => Ok(Partition::Iid),
            "by-class" => Ok(Partition::ByClass),
            _ => {
                let accept = |alpha: &f64| alpha.is_finite() && *alpha > 0.0;
                Ok(Partition::Dirichlet(spec.required("alpha", "a finite number above 0", accept)?))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn any_partition() -> impl Strategy<Value = Partition> {
        prop_oneof![Just(Partition::Iid), Just(Partition::ByClass), (0.001..100.0).prop_map(Partition::Dirichlet),]
    }

    proptest! {
        #[test]
        fn parts_are_disjoint_complete_and_not_empty(
            labels in proptest::collection::vec(0u8..10, 1..300),
            share in 0.0..1.0,
            partition in any_partition(),
            seed: u64,
        ) {
            let workers = 1 + (share * labels.len() as f64) as usize;
            let parts = partition.split(&labels, workers, seed).unwrap();
            prop_assert_eq!(parts.len(), workers);
            prop_assert!(parts.iter().all(|part| !part.is_empty()));
            let mut all: Vec<usize> = parts.concat();
            all.sort_unstable();
            prop_assert!(all.into_iter().eq(0..labels.len()));
            prop_assert_eq!(partition.to_string().parse(), Ok(partition));
        }
    }

    fn classes_per_worker(partition: Partition) -> Vec<usize> {
        let labels: Vec<u8> = (0..1000).map(|sample| (sample % 10) as u8).collect();
        let parts = partition.split(&labels, 10, 3).unwrap();
        let classes = |part: &Vec<usize>| part.iter().map(|&sample| labels[sample]).collect::<BTreeSet<_>>().len();
        parts.iter().map(classes).collect()
    }

    #[test]
    fn each_partition_has_its_skew() {
        assert_eq!(classes_per_worker(Partition::ByClass), [1; 10]);
        assert_eq!(classes_per_worker(Partition::Iid), [10; 10]);
        assert_eq!(classes_per_worker(Partition::Dirichlet(1e4)), [10; 10]);
        let skewed: usize = classes_per_worker(Partition::Dirichlet(0.05)).iter().sum();
        assert!(skewed < 60, "{skewed} of 100 worker-class pairs");
    }

    #[test]
    fn errors_name_the_value() {
        let rejection = |partition: Partition, workers| partition.split(&[0; 4], workers, 0).unwrap_err().to_string();
        assert!(rejection(Partition::Iid, 5).contains("4 samples cannot be split among 5 workers"));
        assert!(rejection(Partition::Iid, 0).contains("among 0 workers"));
        assert!(rejection(Partition::Dirichlet(-1.0), 2).contains("concentration -1;"));
        for (text, expected) in [
            ("", "unknown partition ''; expected iid, by-class or dirichlet"),
            ("IID", "unknown partition 'IID'; expected iid, by-class or dirichlet"),
            ("dirichlet", "partition 'dirichlet': alpha is missing; expected a finite number above 0"),
            ("dirichlet:", "partition 'dirichlet': alpha is missing; expected a finite number above 0"),
            ("dirichlet:0", "partition 'dirichlet': alpha=0; expected a finite number above 0"),
            ("dirichlet:nan", "partition 'dirichlet': alpha=nan; expected a finite number above 0"),
            ("dirichlet:inf", "partition 'dirichlet': alpha=inf; expected a finite number above 0"),
        ] {
            assert_eq!(text.parse::<Partition>().unwrap_err().to_string(), expected);
        }
    }
}
