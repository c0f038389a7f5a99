//! `paceline plan`: what a scheme would decide, from numbers in a file.

mod barrier;
mod batches;
mod speeds;
mod times;

use clap::{Args, Subcommand};

use crate::failure::Failure;

/// Ask a scheme's planner, with numbers from a file
#[derive(Args)]
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
