//! `paceline plan barrier`: where workers wait least for each other.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use paceline_config::Failure;
use paceline_core::barrier::{Algorithm, Barrier as Planned, PredictedTimes, plan};
use paceline_report::plot::{self, Figure, Mark, Series, colour_of};

use crate::destination::check_picture;
use crate::output::say;

/// Put the barrier where workers wait least, given when each will finish its next iterations
#[derive(Args)]
#[command(after_help = "\
Prints how long the first to arrive waits (d_Z), when the barrier opens (t_sync), and after which iteration, counted \
from 1, each worker waits. Times are whole numbers in any unit.

Example:
  printf '10 20 30\\n14 25 36\\n' > times.txt
  paceline plan barrier times.txt")]
pub struct BarrierArgs {
    /// Predicted times: a row per worker, with blanks, tabs or commas between the times
    file: PathBuf,

    /// zipline (ours), zipline-basic, zipline-opt, zipline-opt-bs (the paper's), naive, or one of the inexact
    /// full-grid-scan and grid-scan
    #[arg(long, value_name = "ALGORITHM", default_value_t)]
    algorithm: Algorithm,

    /// Print one JSON object instead of text: wait, at, iterations
    #[arg(long)]
    json: bool,

    /// Draw the times and the barrier's window into this .png or .svg
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

impl BarrierArgs {
    pub fn run(self) -> Result<(), Failure> {
        if let Some(plot) = &self.plot {
            check_picture("--plot", plot).map_err(Failure::Input)?;
        }
        let (times, barrier) = self.plan().with_context(|| self.file.display().to_string()).map_err(Failure::Input)?;
        if let Some(path) = &self.plot {
            plot::save(path, &[figure(&times, &barrier)]).map_err(Failure::run)?;
        }
        if self.json {
            say(serde_json::to_string(&barrier).map_err(Failure::run)?);
        } else {
            say(in_words(&times, &barrier));
        }
        Ok(())
    }

    fn plan(&self) -> anyhow::Result<(PredictedTimes, Planned)> {
        let times: PredictedTimes = std::fs::read_to_string(&self.file)?.parse()?;
        let barrier = plan(self.algorithm, &times)?;
        Ok((times, barrier))
    }
}

fn in_words(times: &PredictedTimes, barrier: &Planned) -> String {
    let Planned { wait, at, iterations } = barrier;
    let mut text = format!("barrier at {at}, the first waits {wait}\nworker  iteration  ends at");
    for (worker, (row, &iteration)) in times.rows().zip(iterations).enumerate() {
        text += &format!("\n{worker:>6}  {iteration:>9}  {}", row[iteration as usize - 1]);
    }
    text
}

/// The paper's fig. 4: everyone's times, those that make the barrier, and the window in which they lie.
fn figure(times: &PredictedTimes, barrier: &Planned) -> Figure {
    let origin = times.rows().map(|row| row[0]).min().unwrap_or(0);
    let point = |worker: usize, time: u64| ((time - origin) as f64, worker as f64);
    let rows = || times.rows().enumerate();
    let all = rows().flat_map(|(worker, row)| row.iter().map(move |&time| point(worker, time)));
    let chosen = rows().zip(&barrier.iterations);
    let chosen = chosen.map(|((worker, row), &iteration)| point(worker, row[iteration as usize - 1]));
    let series = |mark, scheme, points| Series { name: String::new(), mark, colour: colour_of(scheme), points };
    Figure {
        title: format!("Predicted ends of iterations, and the barrier, at which the first waits {}", barrier.wait),
        x: format!("time after {origin}"),
        y: "worker".into(),
        shaded: Some(((barrier.at - barrier.wait - origin) as f64, (barrier.at - origin) as f64)),
        series: vec![series(Mark::Dots, "ssp", all.collect()), series(Mark::Squares, "elastic-bsp", chosen.collect())],
    }
}
