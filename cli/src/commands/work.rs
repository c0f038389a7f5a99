//! `paceline work`: compute gradients for a server.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{anyhow, bail};
use clap::Args;
use paceline_config::{Failure, WorkloadSpec};
use paceline_core::WorkerId;
use paceline_net::{Address, Keys, Role, ServerSearch, Worker};
use paceline_report::numbers::counted;
use paceline_runtime::{RunEnding, is_interrupted};
use serde_json::json;

use crate::interrupt;
use crate::launched::exit_with_parent;
use crate::launcher::LauncherEnvironment;
use crate::options::{DelaySpec, JoinOptions, failure};
use crate::output::say;
use crate::script;

/// Compute gradients for a server until its run ends
#[derive(Args)]
#[command(after_help = "Without --join and --rank, the address and the rank come from the environment, as torchrun \
(MASTER_ADDR, MASTER_PORT, RANK), Slurm (SLURM_LAUNCH_NODE_IPADDR, SLURM_PROCID) and MPI (OMPI_COMM_WORLD_RANK, \
PMI_RANK) set them; so does the number of workers, without --workers.

Examples:
  paceline work --join 10.0.0.1:7077
  paceline work --join 10.0.0.1,10.0.0.2        (with a standby)
  paceline work --join 10.0.0.1 --rank 3 --workers 8 -- python script.py        (serve --script)")]
pub struct WorkArgs {
    #[command(flatten)]
    join: JoinOptions,

    /// Rank to ask for; without it the server chooses one
    #[arg(long, value_name = "RANK")]
    rank: Option<u32>,

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

    /// The number of workers of the run. A script needs it to share its data
    #[arg(long, value_name = "N", requires = "command")]
    workers: Option<u32>,

    /// Seed of all random numbers of a script, the same for all workers
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    seed: u64,

    /// Evaluate the models of the run instead of training: one more process of the script, for a server with
    /// --evaluate-every or a goal such as accuracy>0.97
    #[arg(long, requires = "command", conflicts_with = "rank")]
    evaluate: bool,

    /// Exit when the parent process with this number exits
    #[arg(long, value_name = "PID", hide = true)]
    parent: Option<i32>,

    /// Be a worker with a script that uses the Python package: its command, after --
    #[arg(last = true, value_name = "COMMAND", conflicts_with_all = ["device", "quiet", "json"])]
    command: Vec<OsString>,
}

impl WorkArgs {
    pub fn run(self) -> Result<(), Failure> {
        if let Some(parent) = self.parent {
            exit_with_parent(parent).map_err(Failure::run)?;
        }
        let environment = LauncherEnvironment::read(|name| std::env::var(name).ok());
        let servers = self.join.servers(&environment).map_err(Failure::Input)?;
        let rank = self.rank.map_or_else(|| environment.rank(), |rank| Ok(Some(rank))).map_err(Failure::Input)?;
        if !self.command.is_empty() {
            return Err(self.become_script(&servers, rank, &environment));
        }
        // One that was started by `train` has nobody to leave when its parent is gone.
        let has_parent = self.parent.is_some();
        interrupt::listen(move || match has_parent {
            true => std::process::exit(RunEnding::Interrupted.exit_code().into()),
            false => eprintln!("interrupted: leaves when its task is done; interrupt again to end at once"),
        })?;
        let emulation = match &self.emulate {
            // Times are drawn by rank. Without one, the process number makes workers differ.
            Some(delay) => {
                let rank = self.emulated_rank.or(rank).unwrap_or_else(std::process::id);
                Some(delay.load(WorkerId(rank), 0).map_err(Failure::Input)?)
            }
            None => None,
        };
        if let (Some(emulation), false) = (&emulation, self.join.quiet) {
            eprintln!("emulating a straggler: {emulation}");
        }
        let address = servers.first().clone();
        let worker = Worker { role: Role::Worker(rank), emulation, ..self.join.process(servers)? };
        let build = |workload_spec: &str| {
            WorkloadSpec::build(workload_spec, &self.device).map_err(|error| format!("{error:#}"))
        };
        let done = worker.run(build, &mut |notice| self.join.show(&address, notice)).map_err(failure)?;
        if self.join.json {
            say(json!({ "worker": done.worker, "tasks": done.tasks, "reason": done.reason }));
        } else if !self.join.quiet {
            let tasks = counted(done.tasks as usize, "task");
            let end =
                if is_interrupted() { "it has left".into() } else { format!("the run has ended: {}", done.reason) };
            say(format_args!("{} did {tasks}; {end}", done.worker));
        }
        interrupt::check()
    }

    /// Goes on as a worker's script in this process. Returns only if it can't.
    fn become_script(
        &self,
        servers: &ServerSearch<Address>,
        rank: Option<u32>,
        environment: &LauncherEnvironment,
    ) -> Failure {
        let script = || {
            let missing =
                |what: &str| anyhow!("a script needs {what}: give it, or start it by torchrun, srun or mpirun");
            let worker = match (self.evaluate, rank) {
                (true, _) => WorkerId::EVALUATOR,
                (false, Some(rank)) => WorkerId(rank),
                (false, None) => return Err(missing("--rank")),
            };
            let workers = self.workers.map_or_else(|| environment.workers(), |workers| Ok(Some(workers)))?;
            let workers = workers.ok_or_else(|| missing("--workers"))?;
            if !self.evaluate && worker.0 >= workers {
                bail!("--rank {}: expected less than the {workers} of --workers", worker.0);
            }
            let mut command = Command::new(&self.command[0]);
            command.args(&self.command[1..]).env("PACELINE_JOIN_TIMEOUT", self.join.join_timeout.to_string());
            script::set_environment(&mut command, servers, worker, workers, self.seed);
            if let Some(keys) = &self.join.keys {
                Keys::read(keys)?;
                command.env("PACELINE_KEYS", std::path::absolute(keys)?);
            }
            if let Some(delay) = &self.emulate {
                command.env("PACELINE_EMULATE", delay.to_string());
                let rank = self.emulated_rank.or(rank);
                rank.into_iter().for_each(|rank| _ = command.env("PACELINE_EMULATED_RANK", rank.to_string()));
            }
            Ok(command)
        };
        match script() {
            Ok(mut command) => {
                let error = command.exec();
                Failure::Input(anyhow!("can't start {}: {error}", self.command[0].display()))
            }
            Err(error) => Failure::Input(error),
        }
    }
}
