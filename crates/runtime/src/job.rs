//! A job: what a server trains, how, and until when.

use std::sync::Arc;

use paceline_core::{SchemeSpec, Setup, Span};
use paceline_protocol::OfferedTraining;
use paceline_store::{OptimizerKind, OptimizerSpec, Schedule};
use paceline_workload::Workload;

use crate::{Goals, JobModel, OfferedModel, RateSpec, StepThreads, server_optimizer};

/// What is trained, how, and until when.
#[derive(Clone)]
pub struct Job {
    /// The scheme.
    pub scheme: SchemeSpec,
    /// What the scheme is built for. The run starts when this many workers are ready.
    pub setup: Setup,
    /// The model.
    pub model: JobModel,
    /// The parameters to start from; `None` for the model's own.
    pub initial: Option<Arc<[f32]>>,
    /// Describes the workload. The server sends it to every worker, which builds the same workload from it.
    pub workload_spec: String,
    /// How gradients change the parameters.
    pub optimizer: OptimizerSpec,
    /// How the learning rate changes.
    pub schedule: Schedule,
    /// The learning rate.
    pub rate: f32,
    /// The largest norm of a sum of gradients; longer ones are scaled down.
    pub clip_sum: Option<f32>,
    /// Threads that aggregate gradients and step the model; `None` for as many as pay off and processors are idle. Their
    /// number does not change the result.
    pub step_threads: Option<usize>,
    /// Samples between evaluations on the held-out set, which run in parallel with the training. There is always one
    /// at the end; with 0 it is the only one.
    pub evaluate_every: u64,
    /// When the run ends.
    pub goals: Goals,
    /// The longest time that a worker may make no progress although it sends heartbeats. Usually its own history sets a
    /// shorter one.
    pub timeout: Span,
    /// The seed of everything random.
    pub seed: u64,
}

impl Job {
    /// A job of a workload under `bsp` for 1000 iterations, with plain SGD at a rate of 0.1, and no evaluation before the
    /// end.
    pub fn new(workload: Arc<dyn Workload>, setup: Setup) -> Self {
        Job::of_model(JobModel::Workload(workload), setup)
    }

    /// The same of a model that the workers bring, with their optimizer and learning rate.
    pub fn offered(model: OfferedModel, setup: Setup) -> Self {
        let OfferedTraining { optimizer, rate, .. } = model.training.clone();
        Job { optimizer, rate, ..Job::of_model(JobModel::Offered(Arc::new(model)), setup) }
    }

    fn of_model(model: JobModel, setup: Setup) -> Self {
        let valid = "the defaults parse";
        Job {
            scheme: "bsp".parse().expect(valid),
            setup,
            model,
            initial: None,
            workload_spec: String::new(),
            optimizer: OptimizerKind::Sgd { decay: 0.0 }.into(),
            schedule: Schedule::default(),
            rate: 0.1,
            clip_sum: None,
            step_threads: None,
            evaluate_every: 0,
            goals: "iterations=1000".parse().expect(valid),
            timeout: Span::from_seconds(60.0),
            seed: 1,
        }
    }

    /// The parameters to start from.
    pub fn initial(&self) -> Vec<f32> {
        self.initial.as_ref().map_or_else(|| self.model.initial(self.seed), |initial| initial.to_vec())
    }

    /// The threads that aggregate gradients and step the model.
    pub fn step_threads(&self) -> StepThreads {
        self.step_threads
            .map_or_else(|| StepThreads::automatic(self.model.layout().len(), self.setup.workers), StepThreads::new)
    }

    /// The optimizer that the server steps with.
    pub fn server_optimizer(&self) -> OptimizerSpec {
        server_optimizer(&self.scheme, self.setup.workers, &self.optimizer)
    }

    /// What sets the learning rate.
    pub fn rate_spec(&self) -> RateSpec {
        RateSpec { base: self.rate, schedule: self.schedule, rule: self.setup.rate_rule }
    }
}
