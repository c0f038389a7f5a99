//! `paceline plan speeds`: compare predictors of workers' speeds on a recorded run.

use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::Args;
use paceline_config::Failure;
use paceline_core::WorkerId;
use paceline_core::speed::PredictorKind;
use paceline_report::speeds::ObservedSpeeds;
use paceline_report::tables::aligned;
use paceline_runtime::{open_events, read_events};
use serde_json::json;

use crate::output::say;

/// Compare predictors of speed on a recorded run, and train them for the next
#[derive(Args)]
#[command(after_help = "\
Each speed is predicted before it is observed. Errors are root mean squares in samples per second, over the tasks \
after --first. Trained weights are printed as a setting that another run can start from.

Example:
  paceline simulate --model none --times contention:l2 --until iterations=1500 --out RUN
  paceline plan speeds RUN/events.jsonl")]
pub struct SpeedsArgs {
    /// Event log of a run
    file: PathBuf,

    /// Tasks of each worker to leave out of the error, while predictors warm up
    #[arg(long, value_name = "N", default_value_t = 600)]
    first: usize,

    /// Print one JSON object per predictor instead of text: predictor, rmse, next (speeds by worker), weights
    #[arg(long)]
    json: bool,
}

impl SpeedsArgs {
    pub fn run(self) -> Result<(), Failure> {
        let observed = self.read().with_context(|| self.file.display().to_string()).map_err(Failure::Input)?;
        let mut rows = vec![["predictor", "error"].map(String::from)];
        let mut trained = String::new();
        for (name, kind) in PredictorKind::NAMES {
            let predicted = observed.predicted(kind);
            let error = observed.error(&predicted, self.first);
            let weights: Option<Vec<String>> =
                predicted.speeds.weights().map(|weights| weights.iter().map(f64::to_string).collect());
            let weights = weights.map(|weights| weights.join("/"));
            if self.json {
                let next: Vec<Option<f64>> = (0..observed.workers.len() as u32)
                    .map(|worker| predicted.speeds.predict(WorkerId(worker)))
                    .collect();
                say(json!({ "predictor": name, "rmse": error, "next": next, "weights": weights }));
            }
            rows.push([name.into(), format!("{error:.3}")]);
            if let Some(weights) = weights {
                trained += &format!("\nlb-bsp:predictor={name},weights={weights}");
            }
        }
        if !self.json {
            say(format_args!("{}{trained}", aligned(rows)));
        }
        Ok(())
    }

    fn read(&self) -> anyhow::Result<ObservedSpeeds> {
        let mut observed = ObservedSpeeds::default();
        read_events(open_events(&self.file)?, &mut observed)?;
        let longest = observed.workers.iter().map(Vec::len).max().unwrap_or(0);
        if longest <= self.first {
            bail!("no worker did more than {longest} tasks; expected more than --first {}", self.first);
        }
        Ok(observed)
    }
}
