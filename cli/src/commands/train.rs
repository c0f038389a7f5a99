//! `paceline train`: a server and worker processes on this machine.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use paceline_config::Failure;
use paceline_config::file::Configuration;
use paceline_core::WorkerId;
use paceline_net::Address;
use paceline_sim::RankSet;

use crate::logs;
use crate::options::{JobOptions, StragglerSpec};
use crate::serving::{ServedRun, ServingOutput};

/// How values travel between the server and its workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum TransportKind {
    /// Memory that all processes share.
    SharedMemory,
    /// TCP over the loopback interface.
    Tcp,
}

/// Train a model with worker processes on this machine
#[derive(Args)]
#[command(after_help = "Examples:
  paceline train
  paceline train --scheme backup:k=3 --emulate 0=3
  paceline train --model mlp --data mnist --workers 2 --until 'accuracy>0.98' --out RUN")]
pub struct TrainArgs {
    #[command(flatten)]
    job: JobOptions,

    /// Emulate stragglers, e.g. 0=3.0 (three times slower) or 1-2=lognormal:-2,0.5 (times of their tasks); may be given
    /// several times; every output mentions it
    #[arg(long, value_name = "RANKS=FACTOR|TIMES")]
    emulate: Vec<StragglerSpec>,

    /// The ranks that --emulate means, one for each worker, if they are not the workers' own
    #[arg(long, value_name = "RANKS", hide = true)]
    emulated_ranks: Option<RankSet>,

    /// How values travel between the server and its workers
    #[arg(long, value_name = "TRANSPORT", value_enum, default_value_t = TransportKind::SharedMemory)]
    transport: TransportKind,

    #[command(flatten)]
    output: ServingOutput,
}

impl TrainArgs {
    pub fn run(self, configuration: &Configuration) -> Result<(), Failure> {
        let job = self.job.load().map_err(Failure::Input)?;
        self.check_emulation().map_err(Failure::Input)?;
        let address = match self.transport {
            TransportKind::SharedMemory => Address::Local { name: format!("paceline-{}", std::process::id()) },
            TransportKind::Tcp => Address::Tcp { host: "127.0.0.1".into(), port: 0 },
        };
        let traces = self.emulate.iter().filter_map(|straggler| straggler.delay.file());
        let inputs = self.job.inputs().into_iter().chain(traces).collect();
        let program = std::env::current_exe().context("path of this program").map_err(Failure::Run)?;
        let command = |server: &Address, worker| self.command(&program, server, worker);
        let run = ServedRun {
            job: &job,
            addresses: &[address],
            transport: self.job.transport(),
            output: &self.output,
            configuration,
            inputs,
            open: false,
        };
        run.run(|run, bars| {
            run.run_with_processes(self.job.workers, command, logs::worker_output(bars, self.output.json))
        })
    }

    fn check_emulation(&self) -> anyhow::Result<()> {
        let workers = self.job.workers;
        for straggler in &self.emulate {
            if self.emulated_ranks.is_none() && straggler.ranks.last().0 >= workers {
                bail!(
                    "--emulate {straggler}: {} does not exist; expected ranks 0 to {}",
                    straggler.ranks.last(),
                    workers - 1
                );
            }
            for worker in straggler.ranks.workers() {
                straggler.delay.load(worker, self.job.seed)?;
            }
        }
        Ok(())
    }

    /// The command that starts a worker.
    fn command(&self, program: &Path, server: &Address, worker: WorkerId) -> Command {
        let mut command = Command::new(program);
        command.args(["work", "--quiet", "--join", &server.to_string(), "--rank", &worker.0.to_string()]);
        // A lost server does not come back, and a full one has a free rank soon: a few seconds are enough.
        let pid = std::process::id().to_string();
        command.args(["--join-timeout", "5", "--device", &self.job.training.device, "--parent", &pid]);
        let emulated = self.emulated_ranks.as_ref().and_then(|ranks| ranks.workers().get(worker.index()).copied());
        let emulated = emulated.unwrap_or(worker);
        let is_this = |straggler: &&StragglerSpec| straggler.ranks.workers().any(|rank| rank == emulated);
        if let Some(straggler) = self.emulate.iter().rev().find(is_this) {
            command.args(["--emulate", &straggler.delay.to_string(), "--emulated-rank", &emulated.0.to_string()]);
        }
        command.stdin(Stdio::null());
        // Only the server gets Ctrl-C; it stops its workers.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        command
    }
}
