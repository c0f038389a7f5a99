//! `paceline serve`: a parameter server for workers on any machine.

use std::path::PathBuf;

use clap::Args;
use paceline_config::Failure;
use paceline_config::file::Configuration;
use paceline_net::{Address, Keys, TransportOptions};
use paceline_report::numbers::counted;

use crate::options::JobOptions;
use crate::serving::{ServedRun, ServingOutput};

/// Run a parameter server that workers on any machine can join
#[derive(Args)]
#[command(after_help = "Example (two terminals, or two machines with --listen 0.0.0.0):
  paceline serve --workers 2 --scheme backup:k=1
  paceline work --join 127.0.0.1        (twice)")]
pub struct ServeArgs {
    /// Address to listen on: HOST:PORT for TCP, local:NAME for shared memory with workers on this machine; may be given
    /// several times. An address that other machines can reach needs --keys or --open
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7077")]
    listen: Vec<Address>,

    /// Folder with the keys, as `paceline keys` creates it; workers need a copy. Encrypts TCP
    #[arg(long, value_name = "DIR")]
    keys: Option<PathBuf>,

    /// Let other machines read the status and, without --keys, join unencrypted
    #[arg(long)]
    open: bool,

    #[command(flatten)]
    job: JobOptions,

    #[command(flatten)]
    output: ServingOutput,
}

impl ServeArgs {
    pub fn run(self, configuration: &Configuration) -> Result<(), Failure> {
        let job = self.job.load().map_err(Failure::Input)?;
        let keys = self.keys.as_deref().map(Keys::read).transpose().map_err(Failure::input)?;
        let transport = TransportOptions { keys, open: self.open, ..self.job.transport() };
        let run = ServedRun {
            job: &job,
            addresses: &self.listen,
            transport,
            output: &self.output,
            configuration,
            inputs: self.job.inputs(),
            open: self.open,
        };
        run.run(|run, _| {
            let addresses: Vec<String> = run.addresses().iter().map(Address::to_string).collect();
            eprintln!("waiting for {} on {}", counted(job.setup.workers, "worker"), addresses.join(" and "));
            run.run()
        })
    }
}
