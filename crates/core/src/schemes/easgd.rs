//! `easgd`: synchronous elastic averaging; every worker keeps its own replica, tied to the model by an elastic force
//! (Zhang, Choromanska & LeCun, 2015).
//!
//! Every τ iterations the model moves by β of the mean distance to the replicas, and each replica by α = β/n of its
//! distance to the model. The model moves first: replicas are pulled towards its new position.

use super::local_sgd::FixedIterations;
use super::{LocalPart, SchemeEntry, SchemeError, Setting, SettingDefault, Settings, Setup, UpperBound};
use crate::{CommitStep, ReplicaStart};

pub(super) const ENTRY: SchemeEntry = SchemeEntry::local(
    "easgd",
    "every worker keeps its own replica; model and replicas are pulled towards each other",
    [0, 170, 0],
    build,
)
.settings(&[
    Setting::count("tau", "local iterations between exchanges", 1, UpperBound::Value(1_000_000))
        .default(SettingDefault::Count(10)),
    Setting::number("beta", "how far the model moves towards the mean replica", 0.001, 1.0)
        .default(SettingDefault::Number(0.9)),
])
.variants(&["tau=2"]);

fn build(settings: &Settings<'_>, setup: &Setup) -> Result<LocalPart, SchemeError> {
    let iterations = settings.count("tau")?;
    let beta = settings.number("beta")? as f32;
    let pull = beta / setup.workers.max(1) as f32;
    let policy = FixedIterations { iterations, start: ReplicaStart::Replica { pull } };
    Ok(LocalPart::new(policy, CommitStep::Average { rate: beta, share: 1.0 }))
}
