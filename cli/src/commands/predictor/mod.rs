//! `paceline predictor`: models of a cluster's run-times, for `cutoff:predictor=dmm`.

mod show;
mod train;

use std::path::Path;

use anyhow::Context;
use clap::{Args, Subcommand};
use paceline_config::Failure;
use paceline_predictor::RunTimes;
use paceline_trace::Trace;

/// Learn a cluster's run-times from a recorded run, and look at what was learnt
#[derive(Args)]
#[command(after_help = "\
Examples:
  paceline predictor train times.csv --out cluster.model
  paceline predictor show cluster.model times.csv --plot foreseen.png
  paceline simulate --scheme cutoff:predictor=dmm,model=cluster.model --times trace:times.csv")]
pub struct PredictorArgs {
    #[command(subcommand)]
    command: PredictorCommand,
}

#[derive(Subcommand)]
enum PredictorCommand {
    Train(train::PredictorTrainArgs),
    Show(show::PredictorShowArgs),
}

impl PredictorArgs {
    pub fn run(self) -> Result<(), Failure> {
        match self.command {
            PredictorCommand::Train(command) => command.run(),
            PredictorCommand::Show(command) => command.run(),
        }
    }
}

/// The run-times of a trace of a fully synchronous run.
fn read(path: &Path) -> anyhow::Result<RunTimes> {
    let trace = Trace::read(path)?;
    RunTimes::of_columns(trace.workers()).with_context(|| path.display().to_string())
}
