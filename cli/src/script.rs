//! Runs that train the model of a script: its workers bring the model, and decide much themselves.

use std::process::Command;

use anyhow::anyhow;
use paceline_config::Failure;
use paceline_config::file::Configuration;
use paceline_core::WorkerId;
use paceline_net::{Address, ServerSearch, TransportOptions};
use paceline_runtime::{Goals, Job, OfferedModel};

use crate::options::JobOptions;
use crate::serving::ServingOutput;

/// What a script decides itself: options that can't be given beside it.
const OF_SCRIPT: [&str; 12] = [
    "model",
    "data",
    "partition",
    "order",
    "batch",
    "lr",
    "schedule",
    "optimizer",
    "micro-batch",
    "clip-gradient",
    "init",
    "device",
];

/// The options of a run that trains the model of a script.
pub struct ScriptOptions<'a> {
    job: &'a JobOptions,
    goals: Goals,
    evaluate_every: u64,
    configuration: Configuration,
}

impl<'a> ScriptOptions<'a> {
    /// Checks the options. `name` is how the user knows the script.
    pub fn new(
        job: &'a JobOptions,
        output: &ServingOutput,
        configuration: &Configuration,
        name: &str,
    ) -> Result<Self, Failure> {
        if let Some(option) = OF_SCRIPT.iter().find(|option| configuration.is_given(option)) {
            return Err(Failure::Input(anyhow!("--{option} can't be given with a script: {name} decides it itself")));
        }
        if let Some(place) = &output.checkpoints {
            return Err(Failure::Input(anyhow!(
                "--checkpoints {place} can't be given with a script: the state that it saves stays in the run folder"
            )));
        }
        let has_goals = configuration.is_given("until");
        let goals = Goals::any(if has_goals { &job.until } else { &[] });
        let asks_for_evaluations = configuration.is_given("evaluate-every") || goals.need_accuracy();
        let evaluate_every = if asks_for_evaluations { job.training.evaluate_every } else { 0 };
        job.training.check_evaluations(&goals).map_err(Failure::Input)?;
        job.scheme.build(&job.setup_of_script(1)).map_err(Failure::input)?;
        let configuration = configuration.clone().without(&OF_SCRIPT);
        let configuration = if has_goals { configuration } else { configuration.without(&["until"]) };
        let configuration =
            if asks_for_evaluations { configuration } else { configuration.without(&["evaluate-every"]) };
        Ok(ScriptOptions { job, goals, evaluate_every, configuration })
    }

    /// The options that count, for the run folder.
    pub fn configuration(&self) -> &Configuration {
        &self.configuration
    }

    /// Checks that the updates can be summed where the transport says.
    pub fn check(&self, transport: &TransportOptions) -> Result<(), Failure> {
        transport.check(&self.job.scheme, &self.job.setup_of_script(1), true).map_err(Failure::input)
    }

    /// Whether a process of the script evaluates the model.
    pub fn has_evaluator(&self) -> bool {
        self.evaluate_every > 0
    }

    /// The seed of all random numbers.
    pub fn seed(&self) -> u64 {
        self.job.seed
    }

    /// The job of the model that the workers bring.
    pub fn job(&self, model: OfferedModel) -> anyhow::Result<Job> {
        self.job.of_script(model, self.goals.clone(), self.evaluate_every)
    }
}

/// Tells a process of a script which run it is for, as `paceline.join()` reads it.
pub fn set_environment(
    command: &mut Command,
    servers: &ServerSearch<Address>,
    worker: WorkerId,
    workers: u32,
    seed: u64,
) {
    let addresses: Vec<String> = servers.addresses().map(Address::to_string).collect();
    command.env("PACELINE_SERVER", addresses.join(","));
    match worker {
        WorkerId::EVALUATOR => command.env("PACELINE_ROLE", "evaluator"),
        WorkerId(rank) => command.env("PACELINE_RANK", rank.to_string()),
    };
    command.env("PACELINE_WORKERS", workers.to_string()).env("PACELINE_SEED", seed.to_string());
}
