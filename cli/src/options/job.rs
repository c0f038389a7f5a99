//! A run on real workers.

use clap::Args;
use paceline_config::{TrainingOptions, WorkloadSpec, seconds, whole};
use paceline_core::{Dispatch, SchemeSpec, Setup, Span};
use paceline_models::ModelKind;
use paceline_net::{MAX_CONNECTIONS, PayloadFormat, TransportOptions};
use paceline_runtime::{Goals, Job};

/// What is trained, how, and until when.
#[derive(Debug, Clone, Args)]
pub struct JobOptions {
    /// The scheme, as NAME or NAME:KEY=VALUE,… (`paceline simulate --help` lists them all)
    #[arg(long, value_name = "SCHEME", default_value = "bsp", value_parser = paceline_config::scheme)]
    pub scheme: SchemeSpec,

    /// How schemes that wait for k of n hand out work: pull, push-wait or push-interrupt
    #[arg(long, value_name = "DISPATCH")]
    pub dispatch: Option<Dispatch>,

    /// How many workers there are; the run begins when so many are ready
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = whole::<u32>(1..=MAX_CONNECTIONS as u64))]
    pub workers: u32,

    /// When to stop, whichever comes first: loss<X (mean of the last five iterations), accuracy>X, iterations=N,
    /// time=SECONDS, samples=N; may be given several times
    #[arg(long, value_name = "GOAL,…", default_value = "accuracy>0.97,iterations=3000")]
    pub until: Vec<Goals>,

    /// The longest time that a worker may take for a task before it times out, in seconds; usually its own history
    /// sets a shorter one
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0, value_parser = seconds)]
    pub timeout: f64,

    /// The seed of everything random
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    pub seed: u64,

    /// Threads that aggregate gradients and step the model, each a range of it
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole::<u32>(1..=1024))]
    pub shards: u32,

    /// How values travel over TCP: f32, f16 or bf16
    #[arg(long, value_name = "FORM", default_value = "f32")]
    pub payload: PayloadFormat,

    /// softmax, mlp, cnn, resnet8, resnet20 or charlm
    #[arg(long, value_name = "MODEL", default_value = "cnn", help_heading = "Training")]
    pub model: ModelKind,

    #[command(flatten)]
    pub training: TrainingOptions,

    /// Measure on the held-out set every N iterations, and at the end; 0 for at the end only
    #[arg(long, value_name = "N", default_value_t = 25, help_heading = "Training")]
    pub evaluate_every: u64,
}

impl JobOptions {
    /// Reads the data and checks that everything goes together.
    pub fn load(&self) -> anyhow::Result<Job> {
        let setup = Setup { workers: self.workers as usize, batch: self.training.batch, dispatch: self.dispatch };
        self.scheme.build(&setup)?;
        let goals = Goals::any(&self.until);
        if goals.need_accuracy() && self.evaluate_every == 0 {
            anyhow::bail!("--until {goals} needs --evaluate-every above 0");
        }
        let data = self.training.load()?;
        let workload = self.training.workload(self.model, &data, setup.workers, self.seed)?;
        Ok(Job {
            scheme: self.scheme.clone(),
            setup,
            workload,
            workload_spec: WorkloadSpec::new(self.model, &self.training, setup.workers, self.seed).to_text(),
            optimizer: self.training.optimizer,
            schedule: self.training.schedule(),
            rate: self.training.lr.0,
            shards: self.shards as usize,
            evaluate_every: self.evaluate_every,
            goals,
            timeout: Span::from_seconds(self.timeout),
            seed: self.seed,
        })
    }

    /// How values travel.
    pub fn transport(&self) -> TransportOptions {
        TransportOptions { payload: self.payload, ..TransportOptions::default() }
    }
}
