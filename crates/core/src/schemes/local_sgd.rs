//! `local-sgd`: every worker does τ local iterations, then the replicas are averaged.

use super::{SchemeError, Settings, Setup};
use crate::local_rounds::{LocalPolicy, LocalRounds};
use crate::{LocalLength, LocalWork, Reason, ReplicaStart, Scheme, Time, WorkerId};

/// The same number of iterations for every worker.
pub(super) struct FixedIterations {
    pub(super) iterations: u32,
    pub(super) start: ReplicaStart,
}

impl LocalPolicy for FixedIterations {
    fn work(&mut self, _now: Time, _worker: WorkerId, reason: Reason) -> (LocalWork, Reason) {
        (LocalWork { start: self.start, length: LocalLength::Iterations(self.iterations) }, reason)
    }
}

pub(super) fn build(settings: &Settings<'_>, setup: &Setup) -> Result<Box<dyn Scheme>, SchemeError> {
    let iterations = settings.required("tau", 1..=1_000_000)?;
    let policy = FixedIterations { iterations, start: ReplicaStart::Model };
    Ok(Box::new(LocalRounds::new(policy, settings.global_rate()?, setup.batch)))
}
