//! `easgd`: synchronous elastic averaging; every worker keeps its own replica, tied to the model by an elastic force
//! (Zhang, Choromanska & LeCun, 2015).
//!
//! Every τ iterations the model moves by β of the mean distance to the replicas, and each replica by α = β/n of its
//! distance to the model. The model moves first: replicas are pulled towards its new position.

use super::local_sgd::FixedIterations;
use super::{SchemeError, Settings, Setup};
use crate::local_rounds::LocalRounds;
use crate::{ReplicaStart, Scheme};

pub(super) fn build(settings: &Settings<'_>, setup: &Setup) -> Result<Box<dyn Scheme>, SchemeError> {
    let iterations = settings.optional("tau", 10, 1..=1_000_000)?;
    let beta: f32 = settings.optional("beta", 0.9, 0.001..=1.0)?;
    let pull = beta / setup.workers.max(1) as f32;
    let policy = FixedIterations { iterations, start: ReplicaStart::Replica { pull } };
    Ok(Box::new(LocalRounds::new(policy, beta, setup.batch)))
}
