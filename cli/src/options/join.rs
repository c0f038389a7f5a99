//! How a process joins a server.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::anyhow;
use clap::Args;
use paceline_config::Failure;
use paceline_net::{Address, Keys, ServerSearch, Worker, WorkerError, WorkerNotice};
use paceline_runtime::RunEnding;

use crate::launcher::LauncherEnvironment;

/// How a process joins a server, and what it prints.
#[derive(Debug, Args)]
pub struct JoinOptions {
    /// Address of the server: HOST:PORT, HOST or local:NAME; also those of its standbys, separated by commas
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',')]
    join: Vec<Address>,

    /// Folder with the server's certificate and the token, as `paceline keys` creates it; for shards also the key
    #[arg(long, value_name = "DIR")]
    pub keys: Option<PathBuf>,

    /// How long to try to reach the server, at the start and after a lost connection, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    pub join_timeout: u32,

    /// Print only errors
    #[arg(long)]
    pub quiet: bool,

    /// Print one JSON object at the end
    #[arg(long)]
    pub json: bool,
}

impl JoinOptions {
    /// Where the server and its standbys are: by the flags, or else the environment.
    pub fn servers(&self, environment: &LauncherEnvironment) -> anyhow::Result<ServerSearch<Address>> {
        let (address, standbys) = match self.join.split_first() {
            Some((address, standbys)) => (Some(address.clone()), standbys.to_vec()),
            None => (environment.address()?, Vec::new()),
        };
        let address = address.ok_or_else(|| {
            anyhow!("no server to join: give --join HOST:PORT, or set MASTER_ADDR (and MASTER_PORT) in the environment")
        })?;
        Ok(ServerSearch::new(address, standbys))
    }

    /// A process that joins these servers.
    pub fn process(&self, servers: ServerSearch<Address>) -> Result<Worker, Failure> {
        let address = servers.first().clone();
        Ok(Worker {
            servers,
            join_timeout: Duration::from_secs(u64::from(self.join_timeout)),
            keys: self.keys.as_deref().map(Keys::read).transpose().map_err(Failure::input)?,
            ..Worker::new(address)
        })
    }

    /// Tells the user of a change.
    pub fn show(&self, address: &Address, notice: WorkerNotice<'_>) {
        match notice {
            _ if self.quiet => {}
            WorkerNotice::Waiting { error } => {
                eprintln!("no server at {address} yet ({error}); retrying for {} s", self.join_timeout);
            }
            WorkerNotice::Disconnected { reason } => {
                eprintln!("disconnected: {reason}; trying to rejoin for {} s", self.join_timeout);
            }
            WorkerNotice::Joined { worker: Some(worker), address } => eprintln!("joined {address} as {worker}"),
            WorkerNotice::Joined { worker: None, address } => eprintln!("joined {address} as a shard"),
        }
    }
}

/// A process could not take part, or could not continue.
pub fn failure(error: WorkerError) -> Failure {
    match error {
        WorkerError::Interrupted => Failure::Ended(RunEnding::Interrupted),
        WorkerError::Lost { .. } => Failure::run(error),
        _ => Failure::Input(error.into()),
    }
}
