//! What a server tells its workers so that they make the same workload.

use std::sync::Arc;

use anyhow::Context;
use paceline_models::{ModelKind, Sampling, device};
use paceline_workload::{Data, DataSource, Workload};
use serde::{Deserialize, Serialize};

use crate::{DATA_SEED, TrainingOptions};

/// A workload in words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkloadSpec {
    model: String,
    data: String,
    partition: String,
    order: String,
    workers: usize,
    seed: u64,
}

impl WorkloadSpec {
    /// The spec of a run.
    pub fn new(model: ModelKind, training: &TrainingOptions, workers: usize, seed: u64) -> Self {
        WorkloadSpec {
            model: model.to_string(),
            data: training.data.to_string(),
            partition: training.partition.to_string(),
            order: training.order.to_string(),
            workers,
            seed,
        }
    }

    /// The spec as it travels.
    pub fn to_text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Makes the workload of a spec that came from a server, to compute on the device of this name.
    pub fn make(text: &str, device_name: &str) -> anyhow::Result<Arc<dyn Workload>> {
        let spec: WorkloadSpec = serde_json::from_str(text).with_context(|| format!("the spec '{text}'"))?;
        let source: DataSource = spec.data.parse()?;
        let data: Data = source.load(DATA_SEED).with_context(|| format!("data {source}"))?;
        let sampling = Sampling {
            partition: spec.partition.parse()?,
            order: spec.order.parse()?,
            workers: spec.workers,
            seed: spec.seed,
        };
        let model: ModelKind = spec.model.parse()?;
        Ok(model.workload(&data, &sampling, &device(device_name)?)?)
    }
}
