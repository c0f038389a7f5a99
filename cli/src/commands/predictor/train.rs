//! `paceline predictor train`: learn a cluster's run-times from a recorded run.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context;
use clap::Args;
use paceline_config::{Failure, whole};
use paceline_core::run_times::{Amortized, DeepMarkov, IndependentNormal, RunTimePredictor, SAMPLES};
use paceline_experiments::train_predictor;
use paceline_predictor::{Assessment, Options, RunTimes, Trained, assess};
use paceline_report::numbers::time;
use paceline_report::tables::aligned;
use paceline_runtime::write_pretrained;
use serde_json::json;

use crate::destination::check_file;
use crate::output::say;

/// Learn a cluster's run-times from the trace of a fully synchronous run
#[derive(Args)]
#[command(after_help = "\
The last fifth of the iterations is kept apart: training ends when it is no longer foreseen better, and the summary is of \
it. ELBO is in nats per run-time; the error is that of order statistics, as a share of the mean run-time; covered are those \
within ±2 s.d. of the prediction (95 % if all were normal); throughput is that at the predicted cutoffs, as a share of the \
largest there could have been.

Example:
  paceline simulate --model none --workers 32 --times bursts:4,1,0.1,3,0.02,0.1 \\
    --until iterations=1000 --record times.csv
  paceline predictor train times.csv --out cluster.model
  paceline simulate --model none --workers 32 --times bursts:4,1,0.1,3,0.02,0.1 \\
    --until iterations=300 --seeds 2 --scheme cutoff:predictor=dmm,model=cluster.model")]
pub struct PredictorTrainArgs {
    /// The trace, as --record writes it: CSV or .parquet, a row per iteration, a column per worker
    trace: PathBuf,

    /// Where the model goes
    #[arg(long, value_name = "FILE")]
    out: PathBuf,

    /// Iterations that are looked back on
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = whole::<u16>(2..=1000))]
    lag: u16,

    /// Numbers that the cluster's state is made of
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = whole::<u16>(1..=1024))]
    latent: u16,

    /// Units of hidden layers
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = whole::<u16>(1..=4096))]
    hidden: u16,

    /// How often the trace is gone through, at most
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = whole::<u32>(1..=1_000_000))]
    epochs: u32,

    /// Epochs without a better validation after which it is over
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = whole::<u32>(1..=1_000_000))]
    patience: u32,

    /// The seed of everything random
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    seed: u64,

    /// Print one JSON object instead of tables
    #[arg(long)]
    json: bool,
}

impl PredictorTrainArgs {
    pub fn run(self) -> Result<(), Failure> {
        let (times, options) = self.prepare().map_err(Failure::Input)?;
        let began = Instant::now();
        let trained = train_predictor(&times, &options)
            .with_context(|| self.trace.display().to_string())
            .map_err(Failure::Input)?;
        let seconds = began.elapsed().as_secs_f64();
        let model = Arc::new(DeepMarkov::new(&trained.pretrained).map_err(Failure::run)?);
        let shown =
            |predictor: &mut dyn RunTimePredictor| assess(predictor, times.rows(), trained.validation.clone()).1;
        let of_model = shown(&mut Amortized::new(model, SAMPLES, self.seed));
        let of_normal = shown(&mut IndependentNormal::new(options.lag));
        write_pretrained(&self.out, &trained.pretrained).map_err(Failure::run)?;
        self.report(&times, &trained, seconds, &[("dmm", of_model), ("normal", of_normal)]);
        Ok(())
    }

    /// Reads and checks everything before hours are spent.
    fn prepare(&self) -> anyhow::Result<(RunTimes, Options)> {
        check_file("--out", &self.out)?;
        let options = Options {
            lag: self.lag.into(),
            latent: self.latent.into(),
            hidden: self.hidden.into(),
            epochs: self.epochs as usize,
            patience: self.patience as usize,
            seed: self.seed,
        };
        Ok((super::read(&self.trace)?, options))
    }

    fn report(&self, times: &RunTimes, trained: &Trained, seconds: f64, found: &[(&str, Option<Assessment>)]) {
        let best = &trained.best;
        if self.json {
            let assessed = |assessment: Option<Assessment>| {
                assessment.map(|Assessment { iterations, error, covered, throughput, waiting_for_all }| {
                    json!({
                        "iterations": iterations,
                        "error": error,
                        "covered": covered,
                        "throughput": throughput,
                        "waiting_for_all": waiting_for_all,
                    })
                })
            };
            let found = found.iter().map(|&(name, assessment)| (name.to_string(), json!(assessed(assessment))));
            let summary = json!({
                "model": self.out,
                "workers": times.workers(),
                "iterations": times.rows().len(),
                "epochs": trained.epochs,
                "best_epoch": best.number,
                "training_elbo": best.training,
                "validation_elbo": best.validation,
                "seconds": seconds,
                "assessed": serde_json::Map::from_iter(found),
            });
            say(summary);
            return;
        }
        say(format_args!(
            "{} workers, {} iterations, {} epochs in {}; best after {}: ELBO {:.4} in training, {:.4} in \
             validation\n",
            times.workers(),
            times.rows().len(),
            trained.epochs,
            time(seconds),
            best.number,
            best.training,
            best.validation
        ));
        let percent = |share: f64| format!("{:.1} %", 100.0 * share);
        let mut rows = vec![["predictor", "error", "covered", "throughput", "waiting for all"].map(String::from)];
        for (name, assessment) in found {
            if let Some(Assessment { error, covered, throughput, waiting_for_all, .. }) = *assessment {
                rows.push([
                    name.to_string(),
                    percent(error),
                    percent(covered),
                    percent(throughput),
                    percent(waiting_for_all),
                ]);
            }
        }
        say(aligned(rows));
        eprintln!("wrote {}", self.out.display());
    }
}
