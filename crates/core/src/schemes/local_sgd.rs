//! `local-sgd`: everyone does τ local iterations, then the replicas are averaged.

use super::{Settings, Setup, SpecError};
use crate::local_rounds::{LocalRounds, Pace};
use crate::{LocalLength, LocalWork, Reason, ReplicaStart, Scheme, Time, WorkerId};

/// As many iterations for everyone.
pub(super) struct Fixed {
    pub(super) iterations: u32,
    pub(super) start: ReplicaStart,
}

impl Pace for Fixed {
    fn work(&mut self, _now: Time, _worker: WorkerId, reason: Reason) -> (LocalWork, Reason) {
        (LocalWork { start: self.start, length: LocalLength::Iterations(self.iterations) }, reason)
    }
}

pub(super) fn build(settings: &Settings<'_>, setup: &Setup) -> Result<Box<dyn Scheme>, SpecError> {
    let iterations = settings.required("tau", 1..=1_000_000)?;
    let pace = Fixed { iterations, start: ReplicaStart::Model };
    Ok(Box::new(LocalRounds::new(pace, settings.global_rate()?, setup.batch)))
}
