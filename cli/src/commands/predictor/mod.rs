//! `paceline predictor`: models of a cluster's run-times, for `cutoff:predictor=dmm`.

mod show;
mod train;

use std::path::Path;

use anyhow::Context;
use clap::Subcommand;
use paceline_config::Failure;
use paceline_predictor::RunTimes;
use paceline_trace::Trace;

/// Train a model of a cluster's run-times on a recorded run, and evaluate it
#[derive(Subcommand)]
#[command(after_help = "\
Examples:
  paceline predictor train times.csv --out cluster.model
  paceline predictor show cluster.model times.csv --plot forecast.svg
  paceline simulate --scheme cutoff:predictor=dmm,model=cluster.model --times trace:times.csv")]
pub enum PredictorCommand {
    Train(train::PredictorTrainArgs),
    Show(show::PredictorShowArgs),
}

impl PredictorCommand {
    pub fn run(self) -> Result<(), Failure> {
        match self {
            PredictorCommand::Train(command) => command.run(),
            PredictorCommand::Show(command) => command.run(),
        }
    }
}

/// Reads the trace of a fully synchronous run.
fn read(path: &Path) -> anyhow::Result<RunTimes> {
    let trace = Trace::read(path)?;
    RunTimes::of_columns(trace.workers()).with_context(|| path.display().to_string())
}
