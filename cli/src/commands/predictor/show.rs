//! `paceline predictor show`: compare a model's predictions with a recorded run.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, bail};
use clap::Args;
use paceline_config::{Failure, ForceOption};
use paceline_core::WorkerId;
use paceline_core::run_times::{Amortized, DeepMarkov, Forecast, RunTimePredictor, SAMPLES, Size};
use paceline_experiments::forecast_figure;
use paceline_predictor::{Assessment, PredictedIteration, RunTimes, assess};
use paceline_report::numbers::time;
use paceline_report::plot;
use paceline_runtime::read_pretrained;
use serde_json::json;

use crate::destination::check_picture;
use crate::output::say;

/// How many of the slowest workers to name.
const MAX_NAMES: usize = 8;

/// Compare a model's predictions with a recorded run, and draw them
#[derive(Args)]
#[command(after_help = "\
Each iteration is predicted from those before it. The picture has a panel per iteration: its sorted run-times as \
predicted (±2 s.d.) and as observed, with the predicted cutoff.

Example:
  paceline predictor show cluster.model times.csv --iterations 30,200,900 --plot forecast.svg")]
pub struct PredictorShowArgs {
    /// Model, as `paceline predictor train` writes it
    model: PathBuf,

    /// Trace of a fully synchronous run of the same workers
    trace: PathBuf,

    /// Iterations to draw, counted from 1 [default: the first, the middle and the last]
    #[arg(long, value_name = "N,…", value_delimiter = ',')]
    iterations: Vec<usize>,

    /// Draw them (.svg; .png with --features png)
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,

    #[command(flatten)]
    force: ForceOption,

    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

impl PredictorShowArgs {
    pub fn run(self) -> Result<(), Failure> {
        let (model, times) = self.read().map_err(Failure::Input)?;
        let size = model.size();
        let mut predictor = Amortized::new(Arc::new(model), SAMPLES, 1);
        let rows = times.rows();
        let (all, assessment) = assess(&mut predictor, rows, 0..rows.len());
        let workers: Vec<WorkerId> = (0..size.workers as u32).map(WorkerId).collect();
        let next = predictor.predict(&workers);
        let (Some(found), Some(next)) = (assessment, next) else {
            let (found, lag) = (rows.len(), size.lag);
            let message = format!("{found} iterations; expected more than the model's lag, {lag}");
            return Err(Failure::Input(anyhow::anyhow!("{}: {message}", self.trace.display())));
        };
        let drawn = self.drawn(&all).map_err(Failure::Input)?;
        if let Some(path) = &self.plot {
            plot::save(path, &drawn.into_iter().map(forecast_figure).collect::<Vec<_>>()).map_err(Failure::run)?;
        }
        self.report(size, &found, &next);
        Ok(())
    }

    fn read(&self) -> anyhow::Result<(DeepMarkov, RunTimes)> {
        if let Some(plot) = &self.plot {
            check_picture("--plot", plot, self.force, &[&self.model, &self.trace])?;
        }
        let pretrained = read_pretrained(&self.model)?;
        let times = super::read(&self.trace)?;
        let model = DeepMarkov::new(&pretrained).and_then(|model| model.for_workers(times.workers()));
        Ok((model.with_context(|| format!("{} does not fit this trace", self.model.display()))?, times))
    }

    /// The iterations to draw.
    fn drawn<'a>(&self, all: &'a [PredictedIteration]) -> anyhow::Result<Vec<&'a PredictedIteration>> {
        let (Some(first), Some(last)) = (all.first(), all.last()) else { return Ok(Vec::new()) };
        let (first, last) = (first.iteration + 1, last.iteration + 1);
        let wanted =
            if self.iterations.is_empty() { vec![first, (first + last) / 2, last] } else { self.iterations.clone() };
        let find = |number: usize| {
            if !(first..=last).contains(&number) {
                bail!("--iterations {number}; expected {first} to {last}");
            }
            Ok(&all[number - first])
        };
        wanted.into_iter().map(find).collect()
    }

    fn report(&self, size: Size, found: &Assessment, next: &Forecast) {
        let Size { workers, lag, latent, hidden } = size;
        let weights: usize = size.shapes().iter().map(|(_, shape)| shape.iter().product::<usize>()).sum();
        let mut late: Vec<usize> = (0..workers).collect();
        late.sort_by(|&one, &other| next.workers[other].mean.total_cmp(&next.workers[one].mean));
        late.truncate(MAX_NAMES);
        let (cutoff, expected) = (next.cutoff(), next.ranks[next.cutoff() - 1].mean);
        if self.json {
            let late: Vec<serde_json::Value> =
                late.iter().map(|&worker| json!({ "worker": worker, "seconds": next.workers[worker].mean })).collect();
            say(json!({
                "workers": workers, "lag": lag, "latent": latent, "hidden": hidden, "weights": weights,
                "iterations": found.iterations, "error": found.error, "covered": found.covered,
                "throughput": found.throughput, "waiting_for_all": found.waiting_for_all,
                "next_cutoff": cutoff, "next_seconds": expected, "next_late": late,
            }));
            return;
        }
        say(format_args!(
            "model      {workers} workers, lag {lag}, latent {latent}, hidden {hidden}: {weights} weights"
        ));
        say(format_args!("predicted  {} iterations", found.iterations));
        say(format_args!("error      {:.1} % of the mean run-time", 100.0 * found.error));
        say(format_args!("covered    {:.1} % of order statistics within ±2 s.d.", 100.0 * found.covered));
        say(format_args!(
            "throughput {:.1} % of the largest possible; {:.1} % if waiting for all",
            100.0 * found.throughput,
            100.0 * found.waiting_for_all
        ));
        let named = late.iter().map(|&worker| format!("{worker} ({})", time(next.workers[worker].mean)));
        say(format_args!(
            "next       wait for {cutoff} of {workers}, {}; slowest: {}",
            time(expected),
            named.collect::<Vec<_>>().join(", ")
        ));
    }
}
