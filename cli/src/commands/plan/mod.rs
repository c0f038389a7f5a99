//! `paceline plan`: what a scheme would decide, from numbers in a file.

mod barrier;
mod batches;
mod speeds;
mod times;

use clap::{Args, Subcommand};
use paceline_config::Failure;

/// Ask a scheme's planner, with numbers from a file
#[derive(Args)]
#[command(after_help = "\
Examples:
  printf '10 20 30\\n14 25 36\\n' > times.txt
  paceline plan barrier times.txt
  printf '100\\n50\\n' > workers.txt
  paceline plan batches workers.txt --total 192")]
pub struct PlanArgs {
    #[command(subcommand)]
    command: PlanCommand,
}

#[derive(Subcommand)]
enum PlanCommand {
    Barrier(barrier::BarrierArgs),
    Batches(batches::BatchesArgs),
    Speeds(speeds::SpeedsArgs),
    Times(times::TimesArgs),
}

impl PlanArgs {
    pub fn run(self) -> Result<(), Failure> {
        match self.command {
            PlanCommand::Barrier(command) => command.run(),
            PlanCommand::Batches(command) => command.run(),
            PlanCommand::Speeds(command) => command.run(),
            PlanCommand::Times(command) => command.run(),
        }
    }
}
