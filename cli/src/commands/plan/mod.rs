//! `paceline plan`: what a scheme would decide, from numbers in a file.

mod barrier;
mod batches;
mod speeds;
mod times;

use clap::{Args, Subcommand};

use crate::failure::Failure;

/// Ask a scheme's planner, with numbers from a file
#[derive(Args)]
#[command(after_help = "\
Examples:
  printf '10 20 30\\n14 25 36\\n' > times.txt
  paceline plan barrier times.txt
  printf '100\\n50\\n' > workers.txt
  paceline plan batches workers.txt --total 192")]
pub struct Plan {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    Barrier(barrier::Barrier),
    Batches(batches::Batches),
    Speeds(speeds::SpeedsOf),
    Times(times::Times),
}

impl Plan {
    pub fn run(self) -> Result<(), Failure> {
        match self.what {
            What::Barrier(command) => command.run(),
            What::Batches(command) => command.run(),
            What::Speeds(command) => command.run(),
            What::Times(command) => command.run(),
        }
    }
}
