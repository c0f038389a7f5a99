//! `paceline work`: compute gradients for a server.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::anyhow;
use clap::Args;
use paceline_config::{Failure, WorkloadSpec};
use paceline_core::WorkerId;
use paceline_net::{Address, DEFAULT_PORT, Keys, ServerSearch, Worker, WorkerError, WorkerNotice};
use paceline_report::numbers::counted;
use paceline_runtime::RunEnding;
use serde_json::json;

use crate::interrupt;
use crate::options::DelaySpec;
use crate::output::say;

/// Compute gradients for a server until its run ends
#[derive(Args)]
#[command(after_help = "Without --join and --rank, the address and the rank come from the environment, as torchrun \
(MASTER_ADDR, MASTER_PORT, RANK), Slurm (SLURM_LAUNCH_NODE_IPADDR, SLURM_PROCID) and MPI (OMPI_COMM_WORLD_RANK, \
PMI_RANK) set them.

Examples:
  paceline work --join 10.0.0.1:7077
  paceline work --join 10.0.0.1,10.0.0.2        (with a standby)")]
pub struct WorkArgs {
    /// Address of the server: HOST:PORT, HOST or local:NAME; also those of its standbys, separated by commas
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',')]
    join: Vec<Address>,

    /// Rank to ask for; without it the server chooses one
    #[arg(long, value_name = "RANK")]
    rank: Option<u32>,

    /// Folder with the server's certificate and the token, as `paceline keys` creates it; for shards also the key
    #[arg(long, value_name = "DIR")]
    keys: Option<PathBuf>,

    /// How long to try to reach the server, at the start and after a lost connection, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    join_timeout: u32,

    /// Emulate a straggler, for demonstrations and tests: a factor (3.0) or times (lognormal:-2,0.5 or trace:FILE);
    /// every output mentions it
    #[arg(long, value_name = "FACTOR|TIMES")]
    emulate: Option<DelaySpec>,

    /// The rank whose times are emulated, if it is not this worker's
    #[arg(long, value_name = "RANK", hide = true)]
    emulated_rank: Option<u32>,

    /// Device that computes the gradients: cpu, cuda[:N] or wgpu[:N]
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    device: String,

    /// Exit when the parent process with this number exits
    #[arg(long, value_name = "PID", hide = true)]
    parent: Option<i32>,

    /// Print only errors
    #[arg(long)]
    quiet: bool,

    /// Print one JSON object at the end
    #[arg(long)]
    json: bool,
}

/// The server's address and this process's rank, as a launcher sets them in the environment.
#[derive(Debug, Default, PartialEq)]
struct LauncherEnvironment {
    host: Option<String>,
    port: Option<String>,
    rank: Option<String>,
}

impl LauncherEnvironment {
    /// Reads the environment. If several launchers have set variables, the first one counts.
    fn read(variable: impl Fn(&str) -> Option<String>) -> Self {
        let first = |names: &[&str]| names.iter().find_map(|name| variable(name));
        LauncherEnvironment {
            host: first(&["MASTER_ADDR", "SLURM_LAUNCH_NODE_IPADDR"]),
            port: variable("MASTER_PORT"),
            rank: first(&["RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"]),
        }
    }

    fn address(&self) -> anyhow::Result<Option<Address>> {
        let Some(host) = &self.host else { return Ok(None) };
        let port = self.port.clone().unwrap_or_else(|| DEFAULT_PORT.to_string());
        Ok(Some(format!("{host}:{port}").parse()?))
    }

    fn rank(&self) -> anyhow::Result<Option<u32>> {
        let parse = |text: &String| {
            text.parse().map_err(|_| anyhow!("the environment's rank is '{text}'; expected a whole number"))
        };
        self.rank.as_ref().map(parse).transpose()
    }
}

impl WorkArgs {
    pub fn run(self) -> Result<(), Failure> {
        if let Some(parent) = self.parent {
            exit_with_parent(parent).map_err(Failure::run)?;
        }
        interrupt::listen(|| std::process::exit(RunEnding::Interrupted.exit_code().into()))?;
        let (servers, rank) = self
            .servers_and_rank(&LauncherEnvironment::read(|name| std::env::var(name).ok()))
            .map_err(Failure::Input)?;
        let emulation = match &self.emulate {
            // Times are drawn by rank. Without one, the process number makes workers differ.
            Some(delay) => {
                let rank = self.emulated_rank.or(rank).unwrap_or_else(std::process::id);
                Some(delay.load(WorkerId(rank), 0).map_err(Failure::Input)?)
            }
            None => None,
        };
        if let (Some(emulation), false) = (&emulation, self.quiet) {
            eprintln!("emulating a straggler: {emulation}");
        }
        let address = servers.first().clone();
        let worker = Worker {
            servers,
            rank,
            join_timeout: Duration::from_secs(u64::from(self.join_timeout)),
            emulation,
            keys: self.keys.as_deref().map(Keys::read).transpose().map_err(Failure::input)?,
            ..Worker::new(address.clone())
        };
        let mut progress = |progress: WorkerNotice<'_>| match progress {
            _ if self.quiet => {}
            WorkerNotice::Waiting { error } => {
                eprintln!("no server at {address} yet ({error}); retrying for {} s", self.join_timeout);
            }
            WorkerNotice::Disconnected { reason } => {
                eprintln!("disconnected: {reason}; trying to rejoin for {} s", self.join_timeout)
            }
            WorkerNotice::Joined { worker, address } => eprintln!("joined {address} as {worker}"),
        };
        let build = |workload_spec: &str| {
            WorkloadSpec::build(workload_spec, &self.device).map_err(|error| format!("{error:#}"))
        };
        let done = worker.run(build, &mut progress).map_err(|error| match error {
            WorkerError::Lost { .. } => Failure::run(error),
            _ => Failure::Input(error.into()),
        })?;
        if self.json {
            say(json!({ "worker": done.worker, "tasks": done.tasks, "reason": done.reason }));
        } else if !self.quiet {
            let tasks = counted(done.tasks as usize, "task");
            say(format_args!("{} did {tasks}; the run has ended: {}", done.worker, done.reason));
        }
        Ok(())
    }

    /// Where the server and its standbys are, and the rank: by the flags, or else the environment.
    fn servers_and_rank(
        &self,
        environment: &LauncherEnvironment,
    ) -> anyhow::Result<(ServerSearch<Address>, Option<u32>)> {
        let (address, standbys) = match self.join.split_first() {
            Some((address, standbys)) => (Some(address.clone()), standbys.to_vec()),
            None => (environment.address()?, Vec::new()),
        };
        let address = address.ok_or_else(|| {
            anyhow!("no server to join: give --join HOST:PORT, or set MASTER_ADDR (and MASTER_PORT) in the environment")
        })?;
        let rank = match self.rank {
            Some(rank) => Some(rank),
            None => environment.rank()?,
        };
        Ok((ServerSearch::new(address, standbys), rank))
    }
}

/// Makes the system end this process when its parent exits. Fails if the parent has exited already.
fn exit_with_parent(parent: i32) -> std::io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM))?;
    match rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get()) {
        Some(pid) if pid == parent => Ok(()),
        _ => Err(std::io::Error::other(format!("the parent process {parent} has exited"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> (Option<String>, Option<u32>) {
        let find = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.to_string());
        let environment = LauncherEnvironment::read(find);
        (environment.address().unwrap().map(|address| address.to_string()), environment.rank().unwrap())
    }

    #[test]
    fn launchers_set_the_address_and_the_rank() {
        let torchrun = [("MASTER_ADDR", "node-0"), ("MASTER_PORT", "29500"), ("RANK", "3")];
        assert_eq!(read(&torchrun), (Some("node-0:29500".into()), Some(3)));
        let slurm = [("SLURM_LAUNCH_NODE_IPADDR", "10.0.0.1"), ("SLURM_PROCID", "5")];
        assert_eq!(read(&slurm), (Some("10.0.0.1:7077".into()), Some(5)));
        assert_eq!(read(&[("OMPI_COMM_WORLD_RANK", "1")]), (None, Some(1)));
        assert_eq!(read(&[("PMI_RANK", "2")]), (None, Some(2)));
        assert_eq!(read(&[]), (None, None));
        assert!(LauncherEnvironment { rank: Some("x".into()), ..LauncherEnvironment::default() }.rank().is_err());
    }
}
