//! `paceline train`: a server and its worker processes on this machine.

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use anyhow::{Context, anyhow, bail};
use clap::{Args, ValueEnum};
use paceline_core::WorkerId;
use paceline_net::{Address, Server, Stopper};

use crate::config::Settings;
use crate::failure::Failure;
use crate::options::{JobOptions, Late};
use crate::serving::{self, ServingOutput};

/// How values travel between the server and its workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Road {
    /// In memory that all processes share.
    SharedMemory,
    /// Over loopback TCP.
    Tcp,
}

/// Train a model with worker processes on this machine
#[derive(Args)]
#[command(after_help = "Examples:
  paceline train
  paceline train --scheme backup:k=3 --emulate 0=3
  paceline train --model mlp --data mnist --workers 2 --until 'accuracy>0.98' --out RUN")]
pub struct Train {
    #[command(flatten)]
    job: JobOptions,

    /// Makes workers late on purpose, e.g. 0=3.0 (three times slower) or 1-2=lognormal:-2,0.5 (their tasks' times); may be
    /// given several times; says so in every output
    #[arg(long, value_name = "RANKS=FACTOR|TIMES")]
    emulate: Vec<Late>,

    /// How values travel
    #[arg(long, value_name = "ROAD", value_enum, default_value_t = Road::SharedMemory)]
    road: Road,

    #[command(flatten)]
    output: ServingOutput,
}

impl Train {
    pub fn run(self, settings: &Settings) -> Result<(), Failure> {
        let job = self.job.load().map_err(Failure::Input)?;
        self.check_emulation().map_err(Failure::Input)?;
        // The folder is refused now rather than after the workers were started.
        self.output.folder().map_err(Failure::Input)?;
        self.output.check_http(false).map_err(Failure::Input)?;
        let resumed = self.output.resumed(&job).map_err(Failure::Input)?;
        let address = match self.road {
            Road::SharedMemory => Address::Local { name: format!("paceline-{}", std::process::id()) },
            Road::Tcp => Address::Tcp { host: "127.0.0.1".into(), port: 0 },
        };
        let server = Server::bind(&[address], self.job.transport()).map_err(Failure::run)?;
        let address = server.addresses().first().cloned().context("the server listens").map_err(Failure::Run)?;
        let begun = Arc::new(AtomicBool::new(false));
        let workers = (0..self.job.workers).map(|rank| self.start(&address, WorkerId(rank)));
        let workers = workers.collect::<anyhow::Result<Vec<Child>>>().map_err(Failure::Run)?;
        let watch = Watch {
            stopper: server.stopper(),
            begun: begun.clone(),
            left: AtomicUsize::new(workers.len()),
            over: AtomicBool::new(false),
        };
        std::thread::scope(|scope| {
            for (rank, worker) in (0..).zip(workers) {
                let watch = &watch;
                scope.spawn(move || watch.wait_for(WorkerId(rank), worker));
            }
            let outcome = serving::run(server, &job, &self.output, settings, resumed, begun);
            // Workers end by themselves when the server is gone.
            watch.over.store(true, Ordering::Relaxed);
            outcome
        })
    }

    fn check_emulation(&self) -> anyhow::Result<()> {
        let workers = self.job.workers;
        for late in &self.emulate {
            if late.ranks.last().0 >= workers {
                bail!("--emulate names {}, but there are {workers} workers, 0 to {}", late.ranks.last(), workers - 1);
            }
            for worker in late.ranks.workers() {
                late.lateness.load(worker, self.job.seed)?;
            }
        }
        Ok(())
    }

    fn start(&self, server: &Address, worker: WorkerId) -> anyhow::Result<Child> {
        let program = std::env::current_exe().context("this program's own file")?;
        let mut command = Command::new(program);
        command.args(["work", "--quiet", "--join", &server.to_string(), "--rank", &worker.0.to_string()]);
        // If the server is lost it is gone with this process; that it has no place for a worker is soon over.
        command.args([
            "--patience",
            "5",
            "--device",
            &self.job.training.device,
            "--parent",
            &std::process::id().to_string(),
        ]);
        let emulated = self.emulate.iter().rev().find(|late| late.ranks.workers().any(|late| late == worker));
        if let Some(late) = emulated {
            command.args(["--emulate", &late.lateness.to_string()]);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null());
        // Ctrl-C is for the server, which tells its workers.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        command.spawn().with_context(|| format!("starting {worker}"))
    }
}

/// Looks after the worker processes.
struct Watch {
    stopper: Stopper,
    begun: Arc<AtomicBool>,
    left: AtomicUsize,
    over: AtomicBool,
}

impl Watch {
    /// Waits for a worker's end. A run that can't begin, or go on, without it is ended.
    fn wait_for(&self, worker: WorkerId, mut child: Child) {
        let ended = child.wait().map_err(|error| anyhow!(error));
        let left = self.left.fetch_sub(1, Ordering::Relaxed) - 1;
        if self.over.load(Ordering::Relaxed) {
            return;
        }
        let how = ended.map_or_else(|error| error.to_string(), |status| status.to_string());
        if !self.begun.load(Ordering::Relaxed) {
            self.stopper.stop(&format!("{worker} ended before the run began ({how})"));
        } else if left == 0 {
            self.stopper.stop(&format!("no worker left; {worker} ended last ({how})"));
        }
    }
}
