//! A simulation without its scheme.

use std::fmt;
use std::str::FromStr;

use anyhow::{anyhow, bail};
use clap::Args;
use paceline_core::{Dispatch, SchemeSpec, Setup};
use paceline_models::Model;
use paceline_runtime::Goals;
use paceline_sim::{Script, Simulation, Times};
use paceline_workload::Data;

use crate::{Cluster, TrainingOptions, file};

/// A model, or none: then only times are simulated.
#[derive(Debug, Clone, Copy)]
pub struct ModelChoice(pub Option<Model>);

impl FromStr for ModelChoice {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        match text {
            "none" => Ok(ModelChoice(None)),
            _ => Ok(ModelChoice(Some(text.parse().map_err(|error| anyhow!("{error}, or none"))?))),
        }
    }
}

impl fmt::Display for ModelChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(kind) => write!(f, "{kind}"),
            None => write!(f, "none"),
        }
    }
}

/// The options of a simulation without its scheme.
#[derive(Debug, Clone, Args)]
pub struct Scenario {
    /// How schemes that wait for k of n workers dispatch work: pull, push-wait or push-interrupt
    #[arg(long, value_name = "DISPATCH")]
    pub dispatch: Option<Dispatch>,

    /// When to stop: at the first of loss<X (mean of the samples of five rounds), accuracy>X (in two evaluations in a
    /// row), iterations=N, time=SECONDS, samples=N; may be given several times
    #[arg(long, value_name = "GOAL,…", default_value = "loss<0.5,iterations=2000")]
    pub until: Vec<Goals>,

    /// The workers, their times and their network.
    #[command(flatten)]
    pub cluster: Cluster,

    /// Model to train: none (simulates only times), softmax, mlp, cnn, resnet8, resnet20 or charlm
    #[arg(long, value_name = "MODEL", default_value = "softmax", help_heading = "Training")]
    pub model: ModelChoice,

    /// How the model is trained.
    #[command(flatten)]
    pub training: TrainingOptions,
}

/// A scenario whose files are read and whose options are checked.
pub struct PreparedScenario<'a> {
    scenario: &'a Scenario,
    setup: Setup,
    times: Times,
    script: Script,
    goals: Goals,
    model: Option<(Model, Data)>,
}

impl Scenario {
    /// Reads a scenario from TOML whose keys are its flags. Errors call it `name`.
    pub fn from_toml(name: &str, text: &str) -> anyhow::Result<Self> {
        file::parse(name, text)
    }

    /// Reads and checks all input, before anything is run or written.
    pub fn prepare(&self) -> anyhow::Result<PreparedScenario<'_>> {
        self.prepare_with(Times::load(&self.cluster.times)?)
    }

    /// The same, with these times.
    pub fn prepare_with(&self, times: Times) -> anyhow::Result<PreparedScenario<'_>> {
        let mut goals = Goals::any(&self.until);
        if self.model.0.is_none() {
            // The default goals have a loss, which needs a model, and an iteration limit, which does not.
            if goals.need_model() && goals.iteration_limit().is_none() {
                bail!("--until {goals} needs a model, but --model is none; add iterations=N or choose a model")
            }
            goals = goals.limits();
        }
        let (workers, script) = self.cluster.load(&times)?;
        let setup = self.training.setup(workers, self.dispatch);
        let model = match self.model.0 {
            Some(kind) => {
                let data = self.training.load()?;
                // Checks that the model fits the data, and the weights the model.
                let workload = self.training.workload(kind, &data, workers, 0)?;
                self.training.initial(workload.as_ref())?;
                self.training.check_goals(&goals, kind, workload.as_ref())?;
                Some((kind, data))
            }
            None => None,
        };
        Ok(PreparedScenario { scenario: self, setup, times, script, goals, model })
    }
}

impl PreparedScenario<'_> {
    /// When a run stops.
    pub fn goals(&self) -> &Goals {
        &self.goals
    }

    /// The setup that schemes are built for.
    pub fn setup(&self) -> &Setup {
        &self.setup
    }

    /// One run: a scheme, a seed, and the number of threads that compute gradients.
    pub fn simulation(&self, scheme: &SchemeSpec, seed: u64, threads: usize) -> anyhow::Result<Simulation> {
        let Scenario { training, cluster, .. } = self.scenario;
        let with_model = |(kind, data): &(Model, Data)| {
            let workload = training.workload(*kind, data, self.setup.workers, seed)?;
            anyhow::Ok(paceline_sim::Training {
                initial: training.initial(workload.as_ref())?,
                workload,
                optimizer: training.optimizer.clone(),
                schedule: training.schedule,
                rate: training.lr.0,
                clip_sum: training.clip_sum,
                evaluate_every: training.evaluate_every,
                threads,
            })
        };
        Ok(Simulation {
            scheme: scheme.clone(),
            setup: self.setup,
            times: self.times.clone(),
            slowness: cluster.slow.clone(),
            script: self.script.clone(),
            network: cluster.network,
            training: self.model.as_ref().map(with_model).transpose()?,
            goals: self.goals.clone(),
            seed,
        })
    }
}
