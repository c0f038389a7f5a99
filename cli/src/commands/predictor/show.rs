//! `paceline predictor show`: what a model foresees, and what came to be.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, bail};
use clap::Args;
use paceline_config::Failure;
use paceline_core::WorkerId;
use paceline_core::run_times::{Amortized, DeepMarkov, Forecast, RunTimePredictor, SAMPLES, Size};
use paceline_experiments::forecast_figure;
use paceline_predictor::{Assessment, Foreseen, RunTimes, assess};
use paceline_report::numbers::time;
use paceline_report::plot;
use paceline_runtime::read_pretrained;
use serde_json::json;

use crate::destination::check_picture;
use crate::output::say;

/// How many of the workers to name that are to be late.
const NAMED: usize = 8;

/// Compare what a model foresees with a recorded run, and draw it
#[derive(Args)]
#[command(after_help = "\
Each iteration is foreseen from those before it. The picture has a panel per iteration asked for: run-times sorted, as they \
were predicted (±2 s.d.) and as they were observed, with the cutoff that would have been chosen.

Example:
  paceline predictor show cluster.model times.csv --iterations 30,200,900 --plot foreseen.png")]
pub struct PredictorShowArgs {
    /// The model, as `paceline predictor train` writes it
    model: PathBuf,

    /// The trace of a fully synchronous run of the same workers
    trace: PathBuf,

    /// Which iterations to draw, counted from 1 [default: three, early, in the middle and at the end]
    #[arg(long, value_name = "N,…", value_delimiter = ',')]
    iterations: Vec<usize>,

    /// Draw them here (.png or .svg)
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,

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
            let told = format!("{} iterations are too few to look back on {}", rows.len(), size.lag);
            return Err(Failure::Input(anyhow::anyhow!("{}: {told}", self.trace.display())));
        };
        let chosen = self.chosen(&all).map_err(Failure::Input)?;
        if let Some(path) = &self.plot {
            plot::save(path, &chosen.into_iter().map(forecast_figure).collect::<Vec<_>>()).map_err(Failure::run)?;
        }
        self.report(size, &found, &next);
        Ok(())
    }

    fn read(&self) -> anyhow::Result<(DeepMarkov, RunTimes)> {
        if let Some(plot) = &self.plot {
            check_picture("--plot", plot)?;
        }
        let pretrained = read_pretrained(&self.model)?;
        let times = super::read(&self.trace)?;
        let model = DeepMarkov::new(&pretrained).and_then(|model| model.for_workers(times.workers()));
        Ok((model.with_context(|| format!("{} is of no use here", self.model.display()))?, times))
    }

    /// The iterations to be drawn.
    fn chosen<'a>(&self, all: &'a [Foreseen]) -> anyhow::Result<Vec<&'a Foreseen>> {
        let (Some(first), Some(last)) = (all.first(), all.last()) else { return Ok(Vec::new()) };
        let (first, last) = (first.iteration + 1, last.iteration + 1);
        let wanted =
            if self.iterations.is_empty() { vec![first, (first + last) / 2, last] } else { self.iterations.clone() };
        let find = |number: usize| {
            if !(first..=last).contains(&number) {
                bail!("--iterations {number}: {first} to {last} can be foreseen");
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
        late.truncate(NAMED);
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
        say(format_args!("foreseen   {} iterations", found.iterations));
        say(format_args!("error      {:.1} % of the mean run-time", 100.0 * found.error));
        say(format_args!("covered    {:.1} % of order statistics within ±2 s.d.", 100.0 * found.covered));
        say(format_args!(
            "throughput {:.1} % of the largest possible; {:.1} % when waiting for all",
            100.0 * found.throughput,
            100.0 * found.waiting_for_all
        ));
        let named = late.iter().map(|&worker| format!("{worker} ({})", time(next.workers[worker].mean)));
        say(format_args!(
            "next       wait for {cutoff} of {workers}, {}; the latest: {}",
            time(expected),
            named.collect::<Vec<_>>().join(", ")
        ));
    }
}
