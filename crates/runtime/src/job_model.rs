//! The model of a job: one that this program computes, or one that the workers bring.

use std::sync::Arc;

use paceline_protocol::{Fingerprint, OfferedTraining};
use paceline_store::Layout;
use paceline_workload::Workload;

/// The model of a job.
#[derive(Clone)]
pub enum JobModel {
    /// A model with its data. Server and workers build it from the same description, and the server evaluates it.
    Workload(Arc<dyn Workload>),
    /// A model that the workers bring, e.g. of a PyTorch script. The server knows its parameters and nothing else.
    Offered(Arc<OfferedModel>),
}

/// A model as a worker describes it.
#[derive(Debug, Clone, PartialEq)]
pub struct OfferedModel {
    /// The names and shapes of its tensors.
    pub layout: Layout,
    /// The parameters to start from.
    pub initial: Vec<f32>,
    /// How the worker trains it.
    pub training: OfferedTraining,
}

impl JobModel {
    /// The layout of the parameters.
    pub fn layout(&self) -> &Layout {
        match self {
            JobModel::Workload(workload) => workload.layout(),
            JobModel::Offered(model) => &model.layout,
        }
    }

    /// The initial parameters.
    pub fn initial(&self, seed: u64) -> Vec<f32> {
        match self {
            JobModel::Workload(workload) => workload.initial(seed),
            JobModel::Offered(model) => model.initial.clone(),
        }
    }

    /// What every worker's model must agree with.
    pub fn fingerprint(&self, seed: u64) -> Fingerprint {
        match self {
            JobModel::Workload(workload) => Fingerprint::of(workload.as_ref(), seed),
            JobModel::Offered(model) => Fingerprint::of_layout(&model.layout, model.training.frozen),
        }
    }

    /// The model with its data, if this program has both.
    pub fn workload(&self) -> Option<&Arc<dyn Workload>> {
        match self {
            JobModel::Workload(workload) => Some(workload),
            JobModel::Offered(_) => None,
        }
    }
}
