//! Checks that server and worker have the same workload.

use std::fmt;

use paceline_store::Layout;
use paceline_workload::{Draw, Workload};
use serde::{Deserialize, Serialize};

/// The relative difference that is allowed between probes: other processors add in another order.
const TOLERANCE: f64 = 1e-3;

/// The number of samples in the probe.
const PROBE_SAMPLES: u32 = 32;

/// Identifies a workload by its layout and by a probe: the loss and gradient of a few samples at the initial
/// parameters.
///
/// The probe depends on the model, the data, their order and the seed. It is compared with a tolerance, so that
/// different machines can take part in one run.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Fingerprint {
    /// The length of the parameter vector.
    parameters: u64,
    /// The CRC-32 of the tensors' names and shapes.
    layout: u32,
    /// A checksum of what else must be the same.
    frozen: u32,
    /// The loss of the probe.
    loss: f64,
    /// The norm of the probe's gradient, statistics included.
    norm: f64,
}

impl Fingerprint {
    /// The fingerprint of a model that can't be probed: dropout or augmentation make every gradient differ. `frozen` is a
    /// checksum of the values that are not trained, and of the optimizer.
    pub fn of_layout(layout: &Layout, frozen: u32) -> Self {
        let mut hasher = crc32fast::Hasher::new();
        for entry in layout.entries() {
            hasher.update(format!("{} {:?}\n", entry.name, entry.shape).as_bytes());
        }
        Fingerprint { parameters: layout.len() as u64, layout: hasher.finalize(), frozen, ..Fingerprint::default() }
    }

    /// The fingerprint of `workload`, with initial parameters from `seed`.
    pub fn of(workload: &dyn Workload, seed: u64) -> Self {
        let parameters = workload.initial(seed);
        let mut gradient = vec![0.0; parameters.len()];
        let draw = Draw { worker: 0, offset: 0, samples: PROBE_SAMPLES };
        let loss = workload.replica().gradient(&parameters, draw, &mut gradient);
        let squares: f64 = gradient.iter().map(|&value| f64::from(value).powi(2)).sum();
        Fingerprint { loss, norm: squares.sqrt(), ..Fingerprint::of_layout(workload.layout(), 0) }
    }

    /// How the workload of a worker differs from this one of the server, if it does.
    pub fn difference(&self, worker: &Fingerprint) -> Option<String> {
        let close = |a: f64, b: f64| (a - b).abs() <= TOLERANCE * a.abs().max(b.abs());
        if (self.parameters, self.layout) == (worker.parameters, worker.layout)
            && close(self.loss, worker.loss)
            && close(self.norm, worker.norm)
        {
            let difference = "its optimizer, or values that are not trained, are not those of the server's model";
            return (self.frozen != worker.frozen).then(|| difference.into());
        }
        Some(format!("the server has {self}; the worker has {worker}"))
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Fingerprint { parameters, layout, loss, norm, .. } = self;
        write!(f, "{parameters} parameters (layout {layout:08x})")?;
        if self.norm > 0.0 { write!(f, ", probe loss {loss:.4}, gradient {norm:.4}") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_workload::{Order, Partition, Sampler, SoftmaxRegression, synthetic_digits};

    fn fingerprint(data_seed: u64, draw_seed: u64) -> Fingerprint {
        let splits = synthetic_digits(data_seed, 500, 100).unwrap();
        let labels = splits.train().labels();
        let sampler = Sampler::new(labels, Partition::Iid, Order::WithReplacement, 4, draw_seed).unwrap();
        Fingerprint::of(&SoftmaxRegression::new(splits, sampler, 0.0), 0)
    }

    #[test]
    fn other_data_or_another_sample_order_is_detected() {
        let own = fingerprint(1, 1);
        assert_eq!(own.difference(&fingerprint(1, 1)), None);
        assert!(own.difference(&fingerprint(2, 1)).is_some());
        assert!(own.difference(&fingerprint(1, 2)).is_some());
    }

    #[test]
    fn rounding_differences_are_tolerated_and_other_shapes_are_not() {
        let own = fingerprint(1, 1);
        let other_processor = Fingerprint { norm: own.norm * (1.0 + 1e-6), ..own };
        assert_eq!(own.difference(&other_processor), None);
        assert!(own.difference(&Fingerprint { layout: own.layout ^ 1, ..own }).is_some());
        assert!(own.difference(&Fingerprint { loss: f64::NAN, ..own }).is_some());
        let other_frozen = own.difference(&Fingerprint { frozen: 1, ..own });
        assert!(other_frozen.is_some_and(|difference| difference.contains("not trained")));
    }
}
