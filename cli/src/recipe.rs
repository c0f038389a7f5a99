//! What a server tells its workers so that they make the same workload.

use std::sync::Arc;

use anyhow::Context;
use paceline_models::{ModelKind, Sampling, device};
use paceline_workload::{Data, DataSource, Workload};
use serde::{Deserialize, Serialize};

use crate::options::{DATA_SEED, Training};

/// A workload in words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    model: String,
    data: String,
    partition: String,
    order: String,
    workers: usize,
    seed: u64,
}

impl Recipe {
    /// The recipe of a run.
    pub fn new(model: ModelKind, training: &Training, workers: usize, seed: u64) -> Self {
        Recipe {
            model: model.to_string(),
            data: training.data.to_string(),
            partition: training.partition.to_string(),
            order: training.order.to_string(),
            workers,
            seed,
        }
    }

    /// The recipe as it travels.
    pub fn to_text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Makes the workload of a recipe that came from a server, to compute on the device of this name.
    pub fn make(text: &str, device_name: &str) -> anyhow::Result<Arc<dyn Workload>> {
        let recipe: Recipe = serde_json::from_str(text).with_context(|| format!("the recipe '{text}'"))?;
        let source: DataSource = recipe.data.parse()?;
        let data: Data = source.load(DATA_SEED).with_context(|| format!("data {source}"))?;
        let sampling = Sampling {
            partition: recipe.partition.parse()?,
            order: recipe.order.parse()?,
            workers: recipe.workers,
            seed: recipe.seed,
        };
        let model: ModelKind = recipe.model.parse()?;
        Ok(model.workload(&data, &sampling, &device(device_name)?)?)
    }
}
