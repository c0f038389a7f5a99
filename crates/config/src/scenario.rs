//! A simulation without its scheme.

use std::fmt;
use std::str::FromStr;

use anyhow::{anyhow, bail};
use clap::Args;
use paceline_core::{Dispatch, SchemeSpec, Setup, WorkerId};
use paceline_models::Model;
use paceline_runtime::Goals;
use paceline_sim::{FastWorkers, RankSet, Script, Simulation, Times};
use paceline_workload::Data;

use crate::{Cluster, Contestant, SchemeRate, TrainingOptions, file};

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

    /// Learning rate of one scheme, instead of --lr; may be given several times
    #[arg(long, value_name = "SCHEME=RATE", help_heading = "Training")]
    pub lr_of: Vec<SchemeRate>,
}

/// A scenario whose files are read and whose options are checked.
pub struct PreparedScenario<'a> {
    scenario: &'a Scenario,
    workers: usize,
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

    /// A scheme on some of the workers, or on all that are used, at its learning rate.
    pub fn contestant(&self, scheme: &SchemeSpec, ranks: Option<RankSet>) -> Contestant {
        let mut contestant = Contestant { scheme: scheme.clone(), ranks, rate: self.training.lr };
        if let Some(rate) = SchemeRate::find(&self.lr_of, &contestant.to_string(), scheme) {
            contestant.rate = rate;
        }
        contestant
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
        let used = self.cluster.only.as_ref().map_or(workers, |only| only.workers().len());
        let model = match self.model.0 {
            Some(kind) => {
                let data = self.training.load()?;
                // Checks that the model fits the data, and the weights the model.
                let workload = self.training.workload(kind, &data, used, 0)?;
                self.training.initial(workload.as_ref())?;
                self.training.check_goals(&goals, kind, workload.as_ref())?;
                Some((kind, data))
            }
            None => None,
        };
        let setup = self.training.setup(used, self.dispatch);
        Ok(PreparedScenario { scenario: self, workers, setup, times, script, goals, model })
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

    /// The number of workers, of which only some may be used.
    pub fn workers(&self) -> usize {
        self.workers
    }

    /// The workers that are used.
    fn ranks(&self) -> Vec<WorkerId> {
        let all = || (0..self.workers as u32).map(WorkerId).collect();
        self.scenario.cluster.only.as_ref().map_or_else(all, |only| only.workers().to_vec())
    }

    /// One run: a scheme, a seed, and the number of threads that compute gradients.
    pub fn simulation(&self, scheme: &SchemeSpec, seed: u64, threads: usize) -> anyhow::Result<Simulation> {
        self.simulation_of(&self.scenario.contestant(scheme, None), seed, threads)
    }

    /// One run of a contestant.
    pub fn simulation_of(&self, contestant: &Contestant, seed: u64, threads: usize) -> anyhow::Result<Simulation> {
        let training = &self.scenario.training;
        let used = contestant.ranks.as_ref().or(self.scenario.cluster.only.as_ref());
        let workers = used.map_or(self.workers, |ranks| ranks.workers().len());
        let with_model = |(kind, data): &(Model, Data)| {
            let workload = training.workload(*kind, data, workers, seed)?;
            anyhow::Ok(paceline_sim::Training {
                initial: training.initial(workload.as_ref())?,
                workload,
                optimizer: training.optimizer.clone(),
                schedule: training.schedule,
                rate: contestant.rate.0,
                clip_sum: training.clip_sum,
                evaluate_every: training.evaluate_every,
                threads,
            })
        };
        let training = self.model.as_ref().map(with_model).transpose()?;
        let simulation = Simulation { training, ..self.without_model(&contestant.scheme, seed) };
        Ok(match used {
            Some(ranks) => simulation.restricted_to(ranks),
            None => simulation,
        })
    }

    /// The fast ones among the workers that are used, under `scheme`. `None` if there is only one.
    pub fn fast_workers(&self, scheme: &SchemeSpec) -> anyhow::Result<Option<FastWorkers>> {
        let mut simulation = self.without_model(scheme, 1);
        if let (Some(network), Some((kind, data))) = (&mut simulation.network, &self.model) {
            let workload = self.scenario.training.workload(*kind, data, self.setup.workers, 1)?;
            network.bytes.get_or_insert((workload.layout().len() * size_of::<f32>()) as u64);
        }
        Ok(simulation.fast_workers(&self.ranks())?)
    }

    /// The times of a run on all workers.
    fn without_model(&self, scheme: &SchemeSpec, seed: u64) -> Simulation {
        let Scenario { training, cluster, dispatch, .. } = self.scenario;
        Simulation {
            scheme: scheme.clone(),
            setup: training.setup(self.workers, *dispatch),
            times: self.times.clone(),
            slowness: cluster.slow.clone(),
            script: self.script.clone(),
            network: cluster.network,
            training: None,
            goals: self.goals.clone(),
            seed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scheme_has_its_own_rate_if_there_is_one() {
        let scenario = Scenario::from_toml("test", "lr = 0.1\nlr-of = [\"asp=0.05\", \"bsp=0.2\"]").unwrap();
        let rate = |scheme: &str, ranks: Option<&str>| {
            scenario.contestant(&scheme.parse().unwrap(), ranks.map(|ranks| ranks.parse().unwrap())).rate.0
        };
        assert_eq!((rate("asp", None), rate("dbw", None), rate("bsp", Some("1-3"))), (0.05, 0.1, 0.2));
    }

    #[test]
    fn errors_name_the_line() {
        for (text, expected) in [
            (
                "# what it is\nworkers = 8\ntimes = \"gamma:1\"",
                "test, line 3: invalid value 'gamma:1' for '--times <TIMES>'",
            ),
            ("workers = 8\nlr-of = [\"asp\"]", "test, line 2: invalid value 'asp' for '--lr-of <SCHEME=RATE>'"),
            ("workers = 8\n\nwokers = 8", "test, line 3: unknown key 'wokers'"),
            ("workers = 8\nslow = {}", "test, line 2: 'slow' is table"),
            ("workers = 8\nslow = \"", "test, line 2: "),
        ] {
            let error = Scenario::from_toml("test", text).unwrap_err();
            let text = error.chain().map(ToString::to_string).collect::<Vec<_>>().join(": ");
            assert!(text.starts_with(expected), "{text}");
        }
    }
}
