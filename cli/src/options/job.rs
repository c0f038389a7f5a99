//! The options of a run on real workers.

use std::path::Path;

use clap::Args;
use paceline_config::{TrainingOptions, WorkloadSpec, seconds, whole};
use paceline_core::{Dispatch, SchemeSpec, Setup, Span};
use paceline_models::Model;
use paceline_net::{DataPlane, MAX_CONNECTIONS, PayloadRule, TransportOptions};
use paceline_runtime::{Goals, Job, JobModel, OfferedModel};
use serde_json::json;

/// What to train, how, and until when.
#[derive(Debug, Clone, Args)]
pub struct JobOptions {
    /// The scheme, as NAME or NAME:KEY=VALUE,… (`paceline simulate --help` lists all)
    #[arg(long, value_name = "SCHEME", default_value = "bsp", value_parser = paceline_config::scheme)]
    pub scheme: SchemeSpec,

    /// How schemes that wait for k of n workers dispatch work: pull, push-wait or push-interrupt
    #[arg(long, value_name = "DISPATCH")]
    pub dispatch: Option<Dispatch>,

    /// Number of workers; the run starts when all of them have joined
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = whole::<u32>(1..=MAX_CONNECTIONS as u64))]
    pub workers: u32,

    /// When to stop: at the first of loss<X (mean of the samples of five rounds), accuracy>X (in two evaluations in a
    /// row), iterations=N, time=SECONDS, samples=N; may be given several times
    #[arg(long, value_name = "GOAL,…", default_value = "accuracy>0.97,iterations=3000")]
    pub until: Vec<Goals>,

    /// Longest time without progress, in seconds, before a worker that sends heartbeats is dismissed as stuck; the
    /// worker's own history usually gives a shorter one, and never one that it has exceeded before
    #[arg(long, value_name = "SECONDS", default_value_t = 3600.0, value_parser = seconds)]
    pub timeout: f64,

    /// Seed of all random numbers
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    pub seed: u64,

    /// Threads that aggregate gradients and step the model [default: as many as the size of the model and the number
    /// of processors make worthwhile]
    #[arg(long, value_name = "N", value_parser = whole::<u32>(1..=1024))]
    pub step_threads: Option<u32>,

    /// Format of values sent over TCP: f32, f16, bf16, int8, or auto: every worker takes the one that suits its link
    #[arg(long, value_name = "FORMAT", default_value = "f32")]
    pub payload: PayloadRule,

    /// Where the updates of a script are summed: in the `server`, or by a `collective` operation of its processes (NCCL or
    /// Gloo), whose optimizers then step; for schemes that sum an update of every worker
    #[arg(long, value_name = "PLACE", default_value_t)]
    pub data_plane: DataPlane,

    /// Model to train: softmax, mlp, cnn, resnet8, resnet20 or charlm
    #[arg(long, value_name = "MODEL", default_value = "cnn", help_heading = "Training")]
    pub model: Model,

    #[command(flatten)]
    pub training: TrainingOptions,
}

impl JobOptions {
    /// Reads the data and checks that all options fit together.
    pub fn load(&self) -> anyhow::Result<Job> {
        let setup = self.training.setup(self.workers as usize, self.dispatch);
        self.scheme.build(&setup)?;
        let goals = Goals::any(&self.until);
        let data = self.training.load()?;
        let workload = self.training.workload(self.model, &data, setup.workers, self.seed)?;
        self.training.check_goals(&goals, self.model, workload.as_ref())?;
        let initial = self.training.initial(workload.as_ref())?;
        Ok(Job {
            scheme: self.scheme.clone(),
            setup,
            model: JobModel::Workload(workload),
            initial,
            workload_spec: WorkloadSpec::new(self.model, &self.training, setup.workers, self.seed).to_text(),
            optimizer: self.training.optimizer.clone(),
            schedule: self.training.schedule,
            rate: self.training.lr.0,
            clip_sum: self.training.clip_sum,
            step_threads: self.step_threads.map(|threads| threads as usize),
            evaluate_every: self.training.evaluate_every,
            goals,
            timeout: Span::from_seconds(self.timeout),
            seed: self.seed,
        })
    }

    /// What the scheme is built for, with the batch of a script.
    pub fn setup_of_script(&self, batch: u32) -> Setup {
        Setup { batch, ..self.training.setup(self.workers as usize, self.dispatch) }
    }

    /// The job of a model that the workers bring.
    pub fn of_script(&self, model: OfferedModel, goals: Goals, evaluate_every: u64) -> anyhow::Result<Job> {
        let setup = self.setup_of_script(model.training.batch);
        self.scheme.build(&setup)?;
        Ok(Job {
            scheme: self.scheme.clone(),
            workload_spec: json!({
                "scheme": self.scheme.to_string(),
                "workers": self.workers,
                "seed": self.seed,
                "lr_rule": self.training.lr_rule.to_string(),
            })
            .to_string(),
            clip_sum: self.training.clip_sum,
            step_threads: self.step_threads.map(|threads| threads as usize),
            evaluate_every,
            goals,
            timeout: Span::from_seconds(self.timeout),
            seed: self.seed,
            ..Job::offered(model, setup)
        })
    }

    /// The files that are read.
    pub fn inputs(&self) -> Vec<&Path> {
        let files = [self.scheme.model().map(Path::new), self.training.data.file(), self.training.init.as_deref()];
        files.into_iter().flatten().collect()
    }

    /// The transport options.
    pub fn transport(&self) -> TransportOptions {
        TransportOptions { payload: self.payload, data_plane: self.data_plane, ..TransportOptions::default() }
    }
}
