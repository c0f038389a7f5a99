//! `paceline serve`: coordinate workers that join from anywhere.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::Args;
use paceline_net::{Address, Server};

use crate::config::Settings;
use crate::failure::Failure;
use crate::options::JobOptions;
use crate::serving::{self, ServingOutput};

/// Run a parameter server that workers join from anywhere
#[derive(Args)]
#[command(after_help = "Example (two terminals, or two machines with --listen 0.0.0.0):
  paceline serve --workers 2 --scheme backup:k=1
  paceline work --join 127.0.0.1        (twice)")]
pub struct Serve {
    /// Where to listen: HOST:PORT for TCP, local:NAME for shared memory with workers on this machine; may be given
    /// several times. Whoever reaches a TCP address can join: listen on trusted networks only
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7077")]
    listen: Vec<Address>,

    #[command(flatten)]
    job: JobOptions,

    #[command(flatten)]
    output: ServingOutput,
}

impl Serve {
    pub fn run(self, settings: &Settings) -> Result<(), Failure> {
        let job = self.job.load().map_err(Failure::Input)?;
        let resumed = self.output.resumed(&job).map_err(Failure::Input)?;
        let server = Server::bind(&self.listen, self.job.transport()).map_err(|error| Failure::Input(error.into()))?;
        let addresses: Vec<String> = server.addresses().iter().map(Address::to_string).collect();
        eprintln!("waiting for {} workers on {}", job.setup.workers, addresses.join(" and "));
        serving::run(server, &job, &self.output, settings, resumed, Arc::new(AtomicBool::new(false)))
    }
}
