//! The workload as a server describes it to its workers.

use std::sync::Arc;

use anyhow::Context;
use paceline_models::{Model, Sampling, device};
use paceline_workload::{Data, DataSource, Workload};
use serde::{Deserialize, Serialize};

use crate::{DATA_SEED, GradientOptions, TrainingOptions};

/// A workload as text, from which a worker builds the same workload as its server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkloadSpec {
    model: String,
    data: String,
    partition: String,
    order: String,
    gradient: GradientOptions,
    workers: usize,
    seed: u64,
}

impl WorkloadSpec {
    /// The spec of a run.
    pub fn new(model: Model, training: &TrainingOptions, workers: usize, seed: u64) -> Self {
        WorkloadSpec {
            model: model.to_string(),
            data: training.data.to_string(),
            partition: training.partition.to_string(),
            order: training.order.to_string(),
            gradient: training.gradient,
            workers,
            seed,
        }
    }

    /// The spec as JSON.
    pub fn to_text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Builds the workload of a server's spec, on the named device.
    pub fn build(text: &str, device_name: &str) -> anyhow::Result<Arc<dyn Workload>> {
        let spec: WorkloadSpec = serde_json::from_str(text).with_context(|| format!("workload spec '{text}'"))?;
        let source: DataSource = spec.data.parse()?;
        let data: Data = source.load(DATA_SEED).with_context(|| format!("data {source}"))?;
        let sampling = Sampling {
            partition: spec.partition.parse()?,
            order: spec.order.parse()?,
            workers: spec.workers,
            seed: spec.seed,
        };
        let model: Model = spec.model.parse()?;
        let workload = model.workload(&data, &sampling, &device(device_name)?).map_err(anyhow::Error::from_boxed)?;
        Ok(spec.gradient.apply(workload))
    }
}
