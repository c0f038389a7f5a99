//! `paceline plan barrier`: where workers wait least for each other.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use paceline_core::barrier::{Algorithm, Barrier as Planned, PredictedTimes, plan};

use crate::failure::Failure;

/// Put the barrier where workers wait least, given when each will finish its next iterations
#[derive(Args)]
#[command(after_help = "\
Prints how long the first to arrive waits (d_Z), when the barrier opens (t_sync), and after which iteration, counted from
1, each worker waits. Times are whole numbers in any unit.

Example:
  printf '10 20 30\\n14 25 36\\n' > times.txt && paceline plan barrier times.txt")]
pub struct Barrier {
    /// Predicted times: a row per worker, with blanks, tabs or commas between the times
    file: PathBuf,

    /// zipline (ours), zipline-basic, zipline-opt, zipline-opt-bs (the paper's), naive, or one of the inexact
    /// full-grid-scan and grid-scan
    #[arg(long, value_name = "ALGORITHM", default_value_t)]
    algorithm: Algorithm,

    /// Print one JSON object instead of text: wait, at, iterations
    #[arg(long)]
    json: bool,
}

impl Barrier {
    pub fn run(self) -> Result<(), Failure> {
        let (times, barrier) = self.plan().with_context(|| self.file.display().to_string()).map_err(Failure::Input)?;
        if self.json {
            println!("{}", serde_json::to_string(&barrier).map_err(Failure::run)?);
        } else {
            println!("{}", in_words(&times, &barrier));
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
