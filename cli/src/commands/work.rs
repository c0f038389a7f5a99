//! `paceline work`: compute gradients for a server.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::anyhow;
use clap::Args;
use paceline_config::{Failure, WorkloadSpec};
use paceline_core::WorkerId;
use paceline_net::{Address, DEFAULT_PORT, Keys, WorkError, Worker, WorkerNotice};
use paceline_report::numbers::counted;
use serde_json::json;

use crate::options::DelaySpec;
use crate::output::say;

/// Compute gradients for a server, until its run is over
#[derive(Args)]
#[command(after_help = "Without --join and --rank, the environment says where and who, as torchrun (MASTER_ADDR, \
MASTER_PORT, RANK), Slurm (SLURM_LAUNCH_NODE_IPADDR, SLURM_PROCID) and MPI (OMPI_COMM_WORLD_RANK, \
PMI_RANK) set it.

Example:
  paceline work --join 10.0.0.1:7077")]
pub struct WorkArgs {
    /// The server's address: HOST:PORT, HOST or local:NAME
    #[arg(long, value_name = "ADDRESS")]
    join: Option<Address>,

    /// The rank to ask for; the server chooses if there is none
    #[arg(long, value_name = "RANK")]
    rank: Option<u32>,

    /// The folder with the server's certificate and the token, as paceline keys made it
    #[arg(long, value_name = "DIR")]
    keys: Option<PathBuf>,

    /// How long to try to reach the server, at first and whenever the connection is lost, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    join_timeout: u32,

    /// Be late on purpose, for demonstrations and tests: a factor (3.0), or times (lognormal:-2,0.5 or trace:FILE); says
    /// so in every output
    #[arg(long, value_name = "FACTOR|TIMES")]
    emulate: Option<DelaySpec>,

    /// What computes the gradients: cpu, cuda[:N] or wgpu[:N]
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    device: String,

    /// End with the process of this number, which started this one
    #[arg(long, value_name = "PID", hide = true)]
    parent: Option<i32>,

    /// Say nothing unless something goes wrong
    #[arg(long)]
    quiet: bool,

    /// Print one JSON object at the end
    #[arg(long)]
    json: bool,
}

/// Where a launcher says the server is, and which rank this process has.
#[derive(Debug, Default, PartialEq)]
struct Launched {
    host: Option<String>,
    port: Option<String>,
    rank: Option<String>,
}

impl Launched {
    /// What the environment says; of several launchers' variables the first counts.
    fn read(variable: impl Fn(&str) -> Option<String>) -> Self {
        let first = |names: &[&str]| names.iter().find_map(|name| variable(name));
        Launched {
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
        let parse = |text: &String| text.parse().map_err(|_| anyhow!("the environment's rank '{text}' is no number"));
        self.rank.as_ref().map(parse).transpose()
    }
}

impl WorkArgs {
    pub fn run(self) -> Result<(), Failure> {
        if let Some(parent) = self.parent {
            end_with(parent).map_err(Failure::run)?;
        }
        let (address, rank) = self.place(&Launched::read(|name| std::env::var(name).ok())).map_err(Failure::Input)?;
        let emulation = match &self.emulate {
            // Times are drawn by rank; without one, the process tells workers apart.
            Some(lateness) => {
                let rank = rank.unwrap_or_else(std::process::id);
                Some(lateness.load(WorkerId(rank), 0).map_err(Failure::Input)?)
            }
            None => None,
        };
        if let (Some(emulation), false) = (&emulation, self.quiet) {
            eprintln!("straggling is emulated: {emulation}");
        }
        let worker = Worker {
            address: address.clone(),
            rank,
            join_timeout: Duration::from_secs(u64::from(self.join_timeout)),
            emulation,
            congestion: None,
            keys: self.keys.as_deref().map(Keys::read).transpose().map_err(Failure::input)?,
        };
        let mut progress = |progress: WorkerNotice<'_>| match progress {
            _ if self.quiet => {}
            WorkerNotice::Waiting { error } => {
                eprintln!("no server at {address} yet ({error}); trying for {} s", self.join_timeout);
            }
            WorkerNotice::Out { reason } => {
                eprintln!("out: {reason}; trying to join again for {} s", self.join_timeout)
            }
            WorkerNotice::Welcomed { worker } => eprintln!("joined {address} as {worker}"),
        };
        let make =
            |workload_spec: &str| WorkloadSpec::make(workload_spec, &self.device).map_err(|error| format!("{error:#}"));
        let done = worker.run(make, &mut progress).map_err(|error| match error {
            WorkError::Lost { .. } => Failure::run(error),
            _ => Failure::Input(error.into()),
        })?;
        if self.json {
            say(json!({ "worker": done.worker, "tasks": done.tasks, "reason": done.reason }));
        } else if !self.quiet {
            say(format_args!(
                "{} did {}; the run is over: {}",
                done.worker,
                counted(done.tasks as usize, "task"),
                done.reason
            ));
        }
        Ok(())
    }

    /// Flags first, then the environment.
    fn place(&self, launched: &Launched) -> anyhow::Result<(Address, Option<u32>)> {
        let address = match &self.join {
            Some(address) => Some(address.clone()),
            None => launched.address()?,
        };
        let address = address.ok_or_else(|| {
            anyhow!("no server to join: give --join HOST:PORT, or set MASTER_ADDR (and MASTER_PORT) in the environment")
        })?;
        let rank = match self.rank {
            Some(rank) => Some(rank),
            None => launched.rank()?,
        };
        Ok((address, rank))
    }
}

/// Has the system end this process when its parent ends; at once if it has ended already.
fn end_with(parent: i32) -> std::io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM))?;
    match rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get()) {
        Some(pid) if pid == parent => Ok(()),
        _ => Err(std::io::Error::other(format!("process {parent}, which started this one, is gone"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launched(variables: &[(&str, &str)]) -> (Option<String>, Option<u32>) {
        let find = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.to_string());
        let launched = Launched::read(find);
        (launched.address().unwrap().map(|address| address.to_string()), launched.rank().unwrap())
    }

    #[test]
    fn launchers_say_where_and_who() {
        let torchrun = [("MASTER_ADDR", "node-0"), ("MASTER_PORT", "29500"), ("RANK", "3")];
        assert_eq!(launched(&torchrun), (Some("node-0:29500".into()), Some(3)));
        let slurm = [("SLURM_LAUNCH_NODE_IPADDR", "10.0.0.1"), ("SLURM_PROCID", "5")];
        assert_eq!(launched(&slurm), (Some("10.0.0.1:7077".into()), Some(5)));
        assert_eq!(launched(&[("OMPI_COMM_WORLD_RANK", "1")]), (None, Some(1)));
        assert_eq!(launched(&[("PMI_RANK", "2")]), (None, Some(2)));
        assert_eq!(launched(&[]), (None, None));
        assert!(Launched { rank: Some("x".into()), ..Launched::default() }.rank().is_err());
    }
}
