//! The options of training: data, learning rate, optimizer, device.

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use anyhow::{Context, bail};
use clap::Args;
use paceline_core::{Dispatch, RateRule, Setup};
use paceline_models::{Model, Sampling, device};
use paceline_runtime::Goals;
use paceline_store::{OptimizerSpec, Schedule, read_model};
use paceline_workload::{Data, DataSource, Order, Partition, ShapedGradients, Workload};
use serde::{Deserialize, Serialize};

/// Seed of synthetic data. It is fixed, so that runs with different seeds use the same data.
pub const DATA_SEED: u64 = 0;

/// Limit on the samples of a batch, which take a worker minutes.
const MAX_BATCH: u64 = 1_000_000;

/// A learning rate: finite and above 0.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LearningRate(pub f32);

impl FromStr for LearningRate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        positive(text).map(LearningRate)
    }
}

fn positive(text: &str) -> Result<f32, String> {
    let value = text.parse().ok().filter(|value: &f32| value.is_finite() && *value > 0.0);
    value.ok_or_else(|| "expected a number above 0".into())
}

/// How a worker computes a gradient.
#[derive(Debug, Clone, Copy, PartialEq, Default, Args, Serialize, Deserialize)]
#[command(next_help_heading = "Training")]
#[serde(deny_unknown_fields)]
pub struct GradientOptions {
    /// Compute gradients in portions of at most N samples and add them up, which takes less memory (gradient
    /// accumulation)
    #[arg(long, value_name = "N", value_parser = crate::whole::<u32>(1..=MAX_BATCH))]
    pub micro_batch: Option<u32>,

    /// Scale every worker's gradient down to this norm
    #[arg(long, value_name = "NORM", value_parser = positive)]
    pub clip_gradient: Option<f32>,
}

impl GradientOptions {
    /// The workload with gradients computed like this.
    pub(crate) fn apply(self, workload: Arc<dyn Workload>) -> Arc<dyn Workload> {
        if self == GradientOptions::default() {
            return workload;
        }
        Arc::new(ShapedGradients::new(workload, self.micro_batch, self.clip_gradient))
    }
}

/// The options of training.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Training")]
pub struct TrainingOptions {
    /// Data to train on: digits (synthetic), digits:TRAIN,HELDOUT, mnist[:DIR], fashion-mnist[:DIR], cifar10[:DIR] or
    /// text:FILE
    #[arg(long, value_name = "DATA", default_value = "digits")]
    pub data: DataSource,

    /// How samples are partitioned among workers: iid, by-class or dirichlet:ALPHA
    #[arg(long, value_name = "PARTITION", default_value = "iid")]
    pub partition: Partition,

    /// Order of samples: with-replacement or epochs
    #[arg(long, value_name = "ORDER", default_value = "with-replacement")]
    pub order: Order,

    /// Samples per worker and iteration
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = crate::whole::<u32>(1..=MAX_BATCH))]
    pub batch: u32,

    /// Learning rate
    #[arg(long, value_name = "RATE", default_value = "0.1")]
    pub lr: LearningRate,

    /// How the learning rate of a step depends on its number k of updates: fixed, proportional (k/n with n workers), sqrt
    /// or adascale (by their measured noise); :N after one of the last three if --lr is meant for steps of N updates
    #[arg(long, value_name = "RULE", default_value = "fixed")]
    pub lr_rule: RateRule,

    /// Learning rate schedule: constant, step:every=N,factor=X or cosine:over=N,floor=X, each with warmup=N
    #[arg(long, value_name = "SCHEDULE", default_value = "constant")]
    pub schedule: Schedule,

    /// Optimizer: sgd, momentum:0.9, nesterov:0.9, delayed-nesterov:0.9,delay=8, adam or adamw:0.01; after it, settings for
    /// tensors by name: 'adamw:0.01;*bias:decay=0;head.*:rate=10'
    #[arg(long, value_name = "OPTIMIZER", default_value = "sgd")]
    pub optimizer: OptimizerSpec,

    /// How gradients are computed.
    #[command(flatten)]
    pub gradient: GradientOptions,

    /// Scale the weighted mean of a step's gradients down to this norm
    #[arg(long, value_name = "NORM", value_parser = positive)]
    pub clip_sum: Option<f32>,

    /// Evaluate on the held-out set after every N samples, the same under every scheme, and at the end; 0: only at the end.
    /// A script's function for that is called in a process of its own
    #[arg(long, value_name = "SAMPLES", default_value_t = 2500)]
    pub evaluate_every: u64,

    /// Start from the weights in this file, as a run folder's model.safetensors holds them
    #[arg(long, value_name = "FILE")]
    pub init: Option<PathBuf>,

    /// Device that computes the gradients: cpu, cuda[:N] or wgpu[:N]
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    pub device: String,
}

impl TrainingOptions {
    /// Reads or generates the data.
    pub fn load(&self) -> anyhow::Result<Data> {
        self.data.load(DATA_SEED).with_context(|| format!("--data {}", self.data))
    }

    /// The workload of a model on the data, for a number of workers and a seed.
    pub fn workload(&self, model: Model, data: &Data, workers: usize, seed: u64) -> anyhow::Result<Arc<dyn Workload>> {
        let device = device(&self.device)?;
        let sampling = Sampling { partition: self.partition, order: self.order, workers, seed };
        let workload = model.workload(data, &sampling, &device).map_err(anyhow::Error::from_boxed)?;
        self.optimizer.check(workload.layout()).with_context(|| format!("--optimizer {}", self.optimizer))?;
        Ok(self.gradient.apply(workload))
    }

    /// Refuses goals that need an accuracy for a model that has none, or that is never evaluated.
    pub fn check_goals(&self, goals: &Goals, model: Model, workload: &dyn Workload) -> anyhow::Result<()> {
        if goals.need_accuracy() && !workload.has_accuracy() {
            bail!("--until {goals}: model '{model}' has no accuracy; use loss<X");
        }
        self.check_evaluations(goals)
    }

    /// Refuses goals that need an accuracy if the model is never evaluated.
    pub fn check_evaluations(&self, goals: &Goals) -> anyhow::Result<()> {
        if goals.need_accuracy() && self.evaluate_every == 0 {
            bail!("--until {goals} needs evaluations: expected --evaluate-every above 0");
        }
        Ok(())
    }

    /// The weights to start from, if a file is given. They must be those of this model.
    pub fn initial(&self, workload: &dyn Workload) -> anyhow::Result<Option<Arc<[f32]>>> {
        let Some(path) = &self.init else { return Ok(None) };
        let weights = read_model(path, workload.layout()).with_context(|| format!("--init {}", path.display()))?;
        Ok(Some(weights.into()))
    }

    /// What a scheme is built for.
    pub fn setup(&self, workers: usize, dispatch: Option<Dispatch>) -> Setup {
        Setup { workers, batch: self.batch, dispatch, rate_rule: self.lr_rule }
    }
}
