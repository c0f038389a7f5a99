//! `paceline plan barrier`: the barrier with the shortest wait.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use paceline_config::{Failure, ForceOption};
use paceline_core::barrier::{Algorithm, Barrier, PredictedTimes, plan};
use paceline_report::plot::{self, Figure, Mark, Series, colour_of};
use paceline_spec::read_text;

use crate::destination::check_picture;
use crate::output::say;

/// Place a barrier where the wait is shortest, given when each worker finishes its next iterations
#[derive(Args)]
#[command(after_help = "\
Prints the wait of the first worker to arrive (d_Z), the time of the barrier (t_sync), and the iteration, counted from \
1, after which each worker waits. Times are whole numbers in any unit.

Example:
  printf '10 20 30\\n14 25 36\\n' > times.txt
  paceline plan barrier times.txt")]
pub struct BarrierArgs {
    /// Predicted times: a row per worker, separated by blanks, tabs or commas
    file: PathBuf,

    /// Algorithm: zipline (Paceline's), zipline-basic, zipline-opt, zipline-opt-bs (the paper's), naive, or the inexact
    /// full-grid-scan and grid-scan
    #[arg(long, value_name = "ALGORITHM", default_value_t)]
    algorithm: Algorithm,

    /// Print one JSON object instead of text: wait, at, iterations
    #[arg(long)]
    json: bool,

    /// Draw the times and the barrier (.svg; .png with --features png)
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,

    #[command(flatten)]
    force: ForceOption,
}

impl BarrierArgs {
    pub fn run(self) -> Result<(), Failure> {
        if let Some(plot) = &self.plot {
            check_picture("--plot", plot, self.force, &[&self.file]).map_err(Failure::Input)?;
        }
        let (times, barrier) = self.plan().with_context(|| self.file.display().to_string()).map_err(Failure::Input)?;
        if let Some(path) = &self.plot {
            plot::save(path, &[figure(&times, &barrier)]).map_err(Failure::run)?;
        }
        if self.json {
            say(serde_json::to_string(&barrier).map_err(Failure::run)?);
        } else {
            say(description(&times, &barrier));
        }
        Ok(())
    }

    fn plan(&self) -> anyhow::Result<(PredictedTimes, Barrier)> {
        let times: PredictedTimes = read_text(&self.file)?.parse()?;
        let barrier = plan(self.algorithm, &times)?;
        Ok((times, barrier))
    }
}

fn description(times: &PredictedTimes, barrier: &Barrier) -> String {
    let Barrier { wait, at, iterations } = barrier;
    let mut text = format!("barrier at {at}, longest wait {wait}\nworker  iteration  ends at");
    for (worker, (row, &iteration)) in times.rows().zip(iterations).enumerate() {
        text += &format!("\n{worker:>6}  {iteration:>9}  {}", row[iteration as usize - 1]);
    }
    text
}

/// The paper's fig. 4: all times, those at the barrier, and the interval between the first and the last of them.
fn figure(times: &PredictedTimes, barrier: &Barrier) -> Figure {
    let origin = times.rows().map(|row| row[0]).min().unwrap_or(0);
    let point = |worker: usize, time: u64| ((time - origin) as f64, worker as f64);
    let rows = || times.rows().enumerate();
    let all = rows().flat_map(|(worker, row)| row.iter().map(move |&time| point(worker, time)));
    let at_barrier = rows().zip(&barrier.iterations);
    let at_barrier = at_barrier.map(|((worker, row), &iteration)| point(worker, row[iteration as usize - 1]));
    let series = |mark, scheme, points| Series { name: String::new(), mark, colour: colour_of(scheme), points };
    Figure {
        title: format!("Predicted ends of iterations and the barrier (longest wait: {})", barrier.wait),
        x: format!("time after {origin}"),
        y: "worker".into(),
        shaded: Some(((barrier.at - barrier.wait - origin) as f64, (barrier.at - origin) as f64)),
        series: vec![
            series(Mark::Dots, "ssp", all.collect()),
            series(Mark::Squares, "elastic-bsp", at_barrier.collect()),
        ],
    }
}
