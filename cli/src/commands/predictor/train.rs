//! `paceline predictor train`: train a model of a cluster's run-times on a recorded run.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context;
use clap::Args;
use paceline_config::{Failure, ForceOption, whole};
use paceline_core::run_times::{Amortized, DeepMarkov, IndependentNormal, RunTimePredictor, SAMPLES};
use paceline_experiments::train_predictor;
use paceline_predictor::{Assessment, RunTimes, TrainedPredictor, TrainingConfig, assess};
use paceline_report::numbers::time;
use paceline_report::tables::aligned;
use paceline_runtime::write_pretrained;
use serde_json::json;

use crate::interrupt;
use crate::output::say;

/// Train a model of a cluster's run-times on the trace of a fully synchronous run
#[derive(Args)]
#[command(after_help = "\
The last fifth of the iterations is the validation set: training ends when its ELBO no longer improves, and the table \
is about it. ELBO is in nats per run-time. Error is that of order statistics, as a share of the mean run-time. Covered \
is the share of order statistics within ±2 s.d. of the prediction (95 % for a normal distribution). Throughput is that \
at the predicted cutoffs, as a share of the largest possible.

Example:
  paceline simulate --model none --workers 32 --times bursts:4,1,0.1,3,0.02,0.1 \\
    --until iterations=1000 --record times.csv
  paceline predictor train times.csv --out cluster.model
  paceline simulate --model none --workers 32 --times bursts:4,1,0.1,3,0.02,0.1 \\
    --until iterations=300 --seeds 2 --scheme cutoff:predictor=dmm,model=cluster.model")]
pub struct PredictorTrainArgs {
    /// Trace, as --record writes it: .csv, a row per iteration, a column per worker
    trace: PathBuf,

    /// File to write the model to
    #[arg(long, value_name = "FILE")]
    out: PathBuf,

    /// Number of past iterations that a prediction uses
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = whole::<u16>(2..=1000))]
    lag: u16,

    /// Size of the latent state of the cluster
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = whole::<u16>(1..=1024))]
    latent: u16,

    /// Units per hidden layer
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = whole::<u16>(1..=4096))]
    hidden: u16,

    /// Largest number of passes over the trace
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = whole::<u32>(1..=1_000_000))]
    epochs: u32,

    /// Epochs without a better validation ELBO before training ends
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = whole::<u32>(1..=1_000_000))]
    patience: u32,

    /// Seed of all random numbers
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    seed: u64,

    #[command(flatten)]
    force: ForceOption,

    /// Print one JSON object instead of tables
    #[arg(long)]
    json: bool,
}

impl PredictorTrainArgs {
    pub fn run(self) -> Result<(), Failure> {
        let (times, options) = self.prepare().map_err(Failure::Input)?;
        interrupt::listen_for_result()?;
        let start = Instant::now();
        let trained = train_predictor(&times, &options)
            .with_context(|| self.trace.display().to_string())
            .map_err(Failure::Input)?;
        let seconds = start.elapsed().as_secs_f64();
        let model = Arc::new(DeepMarkov::new(&trained.pretrained).map_err(Failure::run)?);
        let assessed =
            |predictor: &mut dyn RunTimePredictor| assess(predictor, times.rows(), trained.validation.clone()).1;
        let of_model = assessed(&mut Amortized::new(model, SAMPLES, self.seed));
        let of_normal = assessed(&mut IndependentNormal::new(options.lag));
        write_pretrained(&self.out, &trained.pretrained).map_err(Failure::run)?;
        self.report(&times, &trained, seconds, &[("dmm", of_model), ("normal", of_normal)]);
        interrupt::check()
    }

    /// Reads and checks all input before the training, which may take hours.
    fn prepare(&self) -> anyhow::Result<(RunTimes, TrainingConfig)> {
        self.force.check("--out", &self.out, &[&self.trace])?;
        let options = TrainingConfig {
            lag: self.lag.into(),
            latent: self.latent.into(),
            hidden: self.hidden.into(),
            epochs: self.epochs as usize,
            patience: self.patience as usize,
            seed: self.seed,
        };
        Ok((super::read(&self.trace)?, options))
    }

    fn report(&self, times: &RunTimes, trained: &TrainedPredictor, seconds: f64, found: &[(&str, Option<Assessment>)]) {
        let (workers, iterations, epochs) = (times.workers(), times.rows().len(), trained.epochs);
        let best = &trained.best;
        if self.json {
            let assessed = |assessment: Option<Assessment>| {
                assessment.map(|Assessment { iterations, error, covered, throughput, waiting_for_all }| {
                    json!({
                        "iterations": iterations, "error": error, "covered": covered, "throughput": throughput,
                        "waiting_for_all": waiting_for_all,
                    })
                })
            };
            let found = found.iter().map(|&(name, assessment)| (name.to_string(), json!(assessed(assessment))));
            say(json!({
                "model": self.out, "workers": workers, "iterations": iterations, "epochs": epochs,
                "best_epoch": best.number, "training_elbo": best.training, "validation_elbo": best.validation,
                "seconds": seconds, "assessed": serde_json::Map::from_iter(found),
            }));
            return;
        }
        say(format_args!(
            "{workers} workers, {iterations} iterations, {epochs} epochs in {}; best after {}: ELBO {:.4} in training, \
             {:.4} in validation\n",
            time(seconds),
            best.number,
            best.training,
            best.validation
        ));
        let percent = |share: f64| format!("{:.1} %", 100.0 * share);
        let mut rows = vec![["predictor", "error", "covered", "throughput", "waiting for all"].map(String::from)];
        for (name, assessment) in found {
            if let Some(Assessment { error, covered, throughput, waiting_for_all, .. }) = *assessment {
                let [error, covered, throughput, waiting] = [error, covered, throughput, waiting_for_all].map(percent);
                rows.push([name.to_string(), error, covered, throughput, waiting]);
            }
        }
        say(aligned(rows));
        eprintln!("wrote {}", self.out.display());
    }
}
