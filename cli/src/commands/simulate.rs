//! `paceline simulate`: a scheme on a virtual clock.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, anyhow, bail};
use clap::Args;
use indicatif::MultiProgress;
use paceline_core::{CATALOGUE, Handout, SchemeSpec, Setup};
use paceline_models::ModelKind;
use paceline_run::{Goals, Header, Iteration, Monitor, Observer, Recorder, Summary};
use paceline_sim::Simulation;
use paceline_workload::Data;
use serde::Serialize;

use crate::config::Settings;
use crate::failure::Failure;
use crate::options::{Cluster, Seeds, Training};
use crate::output::{Progress, bars, table};
use crate::run_folder::{RunFolder, check_free};

/// A model, or none: then only time passes.
#[derive(Debug, Clone, Copy)]
struct Model(Option<ModelKind>);

impl FromStr for Model {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        match text {
            "none" => Ok(Model(None)),
            _ => Ok(Model(Some(text.parse().map_err(|error| anyhow!("{error}, or none"))?))),
        }
    }
}

/// Run a scheme on a virtual clock, with real gradients
#[derive(Args)]
#[command(after_help = after_help())]
pub struct Simulate {
    /// The scheme, as NAME or NAME:KEY=VALUE,… (see below)
    #[arg(long, value_name = "SCHEME", default_value = "bsp")]
    scheme: SchemeSpec,

    /// How schemes that wait for k of n hand out work: pull, push-wait or push-interrupt
    #[arg(long, value_name = "HANDOUT")]
    handout: Option<Handout>,

    /// When to stop, whichever comes first: loss<X (mean of the last five iterations), accuracy>X, iterations=N,
    /// time=SECONDS, samples=N; may be given several times
    #[arg(long, value_name = "GOAL,…", default_value = "loss<0.5,iterations=2000")]
    until: Vec<Goals>,

    /// Which seeds to run: 7, 1..20 (both ends included) or 1,5,9
    #[arg(long, value_name = "SEEDS", default_value = "1")]
    seeds: Seeds,

    /// Threads that compute; results are the same for any number [default: all cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,

    #[command(flatten)]
    cluster: Cluster,

    /// none (only time passes), softmax, mlp, cnn, resnet8, resnet20 or charlm
    #[arg(long, value_name = "MODEL", default_value = "softmax", help_heading = "Training")]
    model: Model,

    #[command(flatten)]
    training: Training,

    /// Measure on the held-out set every N iterations, and at the end; 0 for at the end only
    #[arg(long, value_name = "N", default_value_t = 10, help_heading = "Training")]
    evaluate_every: u64,

    #[command(flatten)]
    output: Output,
}

/// Where results go.
#[derive(Args)]
#[command(next_help_heading = "Output")]
struct Output {
    /// Read options from a TOML file whose keys are these flags; flags count more
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Write a run folder here (one per seed inside it, if there are several): configuration, events, metrics, model
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,

    /// Write every worker's run-times as a trace that --times trace:FILE reads back (CSV, or .parquet); one seed only
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,

    /// Print one JSON object per run on standard output
    #[arg(long)]
    json: bool,

    /// With --json: one object per iteration, too
    #[arg(long, requires = "json")]
    trace: bool,
}

fn after_help() -> String {
    let mut text = String::from("Schemes:\n");
    for entry in CATALOGUE {
        text += &format!("  {:<8} {}\n", entry.name, entry.summary);
        for (key, meaning) in entry.settings {
            text += &format!("             {key}: {meaning}\n");
        }
    }
    text + "
Examples:
  paceline simulate --scheme ssp:staleness=3 --slow 0=5
  paceline simulate --scheme backup:k=6 --model cnn --lr 0.08 --until 'loss<0.3' --out RUN
  paceline simulate --model none --times pareto:1,1.5 --until iterations=1000 --seeds 1..20 --json
  paceline simulate --config RUN/config.toml --scheme bsp"
}

/// An iteration as a line of JSON.
#[derive(Serialize)]
struct IterationLine<'a> {
    seed: u64,
    #[serde(flatten)]
    iteration: &'a Iteration,
}

/// Keeps a run's iterations as lines, to be printed when it is its turn.
struct Lines {
    seed: u64,
    text: String,
}

impl Observer for Lines {
    fn on_iteration(&mut self, iteration: &Iteration, _monitor: &Monitor) {
        let line = IterationLine { seed: self.seed, iteration };
        // An iteration is plain numbers and text: there is always a way to write it.
        self.text += &serde_json::to_string(&line).unwrap_or_default();
        self.text.push('\n');
    }
}

/// Everything that the runs of all seeds share.
struct Prepared {
    simulation: Simulation,
    model: Option<(ModelKind, Data)>,
}

impl Simulate {
    pub fn run(self, settings: &Settings) -> Result<(), Failure> {
        let prepared = self.prepare().map_err(Failure::Input)?;
        let seeds = &self.seeds.0;
        let threads = match self.threads {
            Some(threads) => usize::from(threads),
            None => std::thread::available_parallelism().map_or(1, usize::from),
        };
        let at_once = threads.min(seeds.len());
        let bars = bars();
        let next = AtomicUsize::new(0);
        let printer = Mutex::new(Printer { json: self.output.json, done: vec![None; seeds.len()], printed: 0 });
        let failure: Mutex<Option<anyhow::Error>> = Mutex::new(None);
        let work = || {
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(&seed) = seeds.get(index) else { return };
                match self.run_seed(&prepared, settings, seed, threads / at_once, &bars) {
                    Ok(done) => lock(&printer).done(index, done),
                    Err(error) => {
                        lock(&failure).get_or_insert(error);
                        next.store(seeds.len(), Ordering::Relaxed);
                    }
                }
            }
        };
        std::thread::scope(|scope| (0..at_once).for_each(|_| drop(scope.spawn(work))));
        let summaries = lock(&printer).summaries();
        if !self.output.json && !summaries.is_empty() {
            println!("{}", table(&summaries));
        }
        match lock(&failure).take() {
            Some(error) => Err(Failure::Run(error)),
            None => Ok(()),
        }
    }

    /// Reads and checks everything before anything is run or written.
    fn prepare(&self) -> anyhow::Result<Prepared> {
        let goals = Goals::any(&self.until);
        let (workers, times, script) = self.cluster.load()?;
        let setup = Setup { workers, batch: self.training.batch, handout: self.handout };
        self.scheme.build(&setup)?;
        let model = match self.model.0 {
            Some(kind) => {
                let data = self.training.load()?;
                // Whether model and data go together shows only now.
                self.training.workload(kind, &data, workers, 0)?;
                Some((kind, data))
            }
            // The default goal names a loss, which has no meaning without a model, but also a limit, which has.
            None if goals.need_model() && goals.iteration_limit().is_none() => {
                bail!("--until {goals} needs a model, but --model is none")
            }
            None => None,
        };
        if goals.need_accuracy() && self.evaluate_every == 0 {
            bail!("--until {goals} needs --evaluate-every above 0");
        }
        if let (Some(path), true) = (&self.output.record, self.seeds.0.len() > 1) {
            bail!("--record {} is of one run, but there are {} seeds", path.display(), self.seeds.0.len());
        }
        if let Some(out) = &self.output.out {
            check_free(out)?;
        }
        let simulation = Simulation {
            scheme: self.scheme.clone(),
            setup,
            times,
            slowness: self.cluster.slow.clone(),
            script,
            network: self.cluster.network,
            training: None,
            goals,
            seed: 0,
        };
        Ok(Prepared { simulation, model })
    }

    fn run_seed(
        &self,
        prepared: &Prepared,
        settings: &Settings,
        seed: u64,
        threads: usize,
        bars: &MultiProgress,
    ) -> anyhow::Result<(String, Summary)> {
        let mut simulation = Simulation { seed, ..prepared.simulation.clone() };
        let workers = simulation.setup.workers;
        if let Some((kind, data)) = &prepared.model {
            simulation.training = Some(paceline_sim::Training {
                workload: self.training.workload(*kind, data, workers, seed)?,
                optimizer: self.training.optimizer,
                schedule: self.training.schedule(),
                rate: self.training.lr.0,
                evaluate_every: self.evaluate_every,
                threads,
            });
        }
        let mut folder = match &self.output.out {
            Some(out) => {
                let header = Header::new(self.scheme.clone(), &simulation.setup);
                let settings = settings.clone().with("seeds", seed).with("workers", workers);
                Some(RunFolder::create(&self.folder(out, seed), &settings, &header)?)
            }
            None => None,
        };
        let mut lines = self.output.trace.then(|| Lines { seed, text: String::new() });
        let mut recorder = self.output.record.is_some().then(Recorder::default);
        let mut progress = Progress::new(bars, format!("{} seed {seed}", self.scheme), &simulation.goals);
        let mut observers: Vec<&mut dyn Observer> = vec![&mut progress];
        observers.extend(folder.as_mut().map(|folder| folder as &mut dyn Observer));
        observers.extend(lines.as_mut().map(|lines| lines as &mut dyn Observer));
        observers.extend(recorder.as_mut().map(|recorder| recorder as &mut dyn Observer));
        let outcome = simulation.run(&mut observers)?;

        if let Some(folder) = folder {
            let layout = simulation.training.as_ref().map(|training| training.workload.layout());
            folder.finish(&outcome.summary, layout.zip(outcome.parameters.as_deref()))?;
        }
        if let (Some(path), Some(recorder)) = (&self.output.record, recorder) {
            recorder.finish().write(path).context("--record")?;
        }
        Ok((lines.map_or(String::new(), |lines| lines.text), outcome.summary))
    }

    fn folder(&self, out: &Path, seed: u64) -> PathBuf {
        if self.seeds.0.len() == 1 { out.into() } else { out.join(format!("seed-{seed}")) }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Prints finished runs in the order of the seeds, whatever the order they finish in.
struct Printer {
    json: bool,
    done: Vec<Option<(String, Summary)>>,
    printed: usize,
}

impl Printer {
    fn done(&mut self, index: usize, run: (String, Summary)) {
        self.done[index] = Some(run);
        while let Some(Some((lines, summary))) = self.done.get(self.printed) {
            if self.json {
                print!("{lines}");
                println!("{}", serde_json::to_string(summary).unwrap_or_default());
            }
            self.printed += 1;
        }
    }

    fn summaries(&self) -> Vec<Summary> {
        self.done.iter().flatten().map(|(_, summary)| summary.clone()).collect()
    }
}
