//! `local-sgd`: every worker does τ local iterations, then the replicas are averaged.

use serde::{Deserialize, Serialize};

use super::{
    GLOBAL_RATE, LocalPart, MOMENTUM, OUTER, SchemeEntry, SchemeError, Setting, Settings, Setup, UpperBound, averaging,
};
use crate::local_rounds::LocalPolicy;
use crate::{LocalLength, LocalWork, Reason, ReplicaStart, Time, WorkerId};

/// The same number of iterations for every worker.
#[derive(Serialize, Deserialize)]
pub(super) struct FixedIterations {
    pub(super) iterations: u32,
    pub(super) start: ReplicaStart,
}

impl LocalPolicy for FixedIterations {
    fn work(&mut self, _now: Time, _worker: WorkerId, reason: Reason) -> (LocalWork, Reason) {
        (LocalWork { start: self.start, length: LocalLength::Iterations(self.iterations) }, reason)
    }
}

pub(super) const ENTRY: SchemeEntry = SchemeEntry::local(
    "local-sgd",
    "every worker does the same number of local iterations, then replicas are averaged",
    [147, 152, 0],
    build,
)
.settings(&[
    Setting::count("tau", "local iterations per round", 1, UpperBound::Value(1_000_000)),
    GLOBAL_RATE,
    OUTER,
    MOMENTUM,
])
.compared(|_| vec!["tau=4".into(), "tau=16".into()])
.variants(&["tau=2,outer=nesterov,rate=0.7"]);

fn build(settings: &Settings<'_>, _setup: &Setup) -> Result<LocalPart, SchemeError> {
    let iterations = settings.count("tau")?;
    let policy = FixedIterations { iterations, start: ReplicaStart::Model };
    Ok(LocalPart::new(policy, averaging(settings)?))
}
