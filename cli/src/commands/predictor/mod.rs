//! `paceline predictor`: models of a cluster's run-times, for `cutoff:predictor=dmm`.

mod panel;
mod show;
mod train;

use std::path::Path;

use anyhow::Context;
use clap::{Args, Subcommand};
use paceline_predictor::RunTimes;
use paceline_run::Trace;

use crate::failure::Failure;

pub use panel::panel;
pub use train::learn;

/// Learn a cluster's run-times from a recorded run, and look at what was learnt
#[derive(Args)]
#[command(after_help = "\
Examples:
  paceline predictor train times.csv --out cluster.model
  paceline predictor show cluster.model times.csv --plot foreseen.png
  paceline simulate --scheme cutoff:predictor=dmm,model=cluster.model --times trace:times.csv")]
pub struct Predictor {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    Train(train::Train),
    Show(show::Show),
}

impl Predictor {
    pub fn run(self) -> Result<(), Failure> {
        match self.what {
            What::Train(command) => command.run(),
            What::Show(command) => command.run(),
        }
    }
}

/// The run-times of a trace of a fully synchronous run.
fn read(path: &Path) -> anyhow::Result<RunTimes> {
    let trace = Trace::read(path)?;
    RunTimes::of_columns(trace.workers()).with_context(|| path.display().to_string())
}
