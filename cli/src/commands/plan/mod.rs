//! `paceline plan`: run a scheme's planner on numbers from a file.

mod barrier;
mod batches;
mod speeds;
mod times;

use clap::Subcommand;
use paceline_config::Failure;

/// Run a scheme's planner on numbers from a file
#[derive(Subcommand)]
#[command(after_help = "\
Examples:
  printf '10 20 30\\n14 25 36\\n' > times.txt
  paceline plan barrier times.txt
  printf '100\\n50\\n' > workers.txt
  paceline plan batches workers.txt --total 192")]
pub enum PlanCommand {
    Barrier(barrier::BarrierArgs),
    Batches(batches::BatchesArgs),
    Speeds(speeds::SpeedsArgs),
    Times(times::TimesArgs),
}

impl PlanCommand {
    pub fn run(self) -> Result<(), Failure> {
        match self {
            PlanCommand::Barrier(command) => command.run(),
            PlanCommand::Batches(command) => command.run(),
            PlanCommand::Speeds(command) => command.run(),
            PlanCommand::Times(command) => command.run(),
        }
    }
}
