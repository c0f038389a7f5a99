//! `paceline train`: a server and worker processes on this machine.

use std::collections::BTreeMap;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use paceline_config::Failure;
use paceline_config::file::Configuration;
use paceline_core::WorkerId;
use paceline_net::{Address, Server, Stopper};
use rustix::io::Errno;
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

use crate::options::{JobOptions, StragglerSpec};
use crate::serving::{self, ServingOutput};

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
        // Checked before the workers are started.
        self.output.folder().map_err(Failure::Input)?;
        self.output.check_http(false).map_err(Failure::Input)?;
        let resume_point = self.output.resume_point(&job).map_err(Failure::Input)?;
        let address = match self.transport {
            TransportKind::SharedMemory => Address::Local { name: format!("paceline-{}", std::process::id()) },
            TransportKind::Tcp => Address::Tcp { host: "127.0.0.1".into(), port: 0 },
        };
        let server = Server::bind(&[address], self.job.transport()).map_err(Failure::run)?;
        let address = server.addresses().first().cloned().context("the server listens").map_err(Failure::Run)?;
        let started = Arc::new(AtomicBool::new(false));
        let workers = (0..self.job.workers).map(WorkerId);
        let running = workers.clone().map(|worker| Ok((worker, self.start(&address, worker)?)));
        let running = running.collect::<anyhow::Result<BTreeMap<_, _>>>().map_err(Failure::Run)?;
        let pids: Vec<_> = running.values().map(Pid::from_child).collect();
        let processes = WorkerProcesses {
            stopper: server.stopper(),
            started: started.clone(),
            stopping: AtomicBool::new(false),
            running: Mutex::new(running),
            exited: Condvar::new(),
        };
        std::thread::scope(|scope| {
            for (worker, pid) in workers.zip(pids) {
                let processes = &processes;
                scope.spawn(move || processes.wait_for(worker, pid));
            }
            let outcome = serving::run(server, &job, &self.output, configuration, resume_point, started);
            processes.stop_all();
            outcome
        })
    }

    fn check_emulation(&self) -> anyhow::Result<()> {
        let workers = self.job.workers;
        for straggler in &self.emulate {
            if straggler.ranks.last().0 >= workers {
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

    fn start(&self, server: &Address, worker: WorkerId) -> anyhow::Result<Child> {
        let program = std::env::current_exe().context("path of this program")?;
        let mut command = Command::new(program);
        command.args(["work", "--quiet", "--join", &server.to_string(), "--rank", &worker.0.to_string()]);
        // A lost server does not come back, and a full one has a free rank soon: a few seconds are enough.
        let pid = std::process::id().to_string();
        command.args(["--join-timeout", "5", "--device", &self.job.training.device, "--parent", &pid]);
        let is_this = |straggler: &&StragglerSpec| straggler.ranks.workers().any(|rank| rank == worker);
        if let Some(straggler) = self.emulate.iter().rev().find(is_this) {
            command.args(["--emulate", &straggler.delay.to_string()]);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null());
        // Only the server gets Ctrl-C; it stops its workers.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        command.spawn().with_context(|| format!("starting {worker}"))
    }
}

/// How long workers may take to exit after the server has.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(3);

/// The worker processes.
struct WorkerProcesses {
    stopper: Stopper,
    started: Arc<AtomicBool>,
    stopping: AtomicBool,
    /// Processes that have not been waited for, so that their numbers are not reused.
    running: Mutex<BTreeMap<WorkerId, Child>>,
    exited: Condvar,
}

impl WorkerProcesses {
    fn running(&self) -> MutexGuard<'_, BTreeMap<WorkerId, Child>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a worker exits. Stops the run if it has not started yet, or if no worker is left.
    fn wait_for(&self, worker: WorkerId, pid: Pid) {
        while let Err(Errno::INTR) = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT) {}
        let (child, remaining) = {
            let mut running = self.running();
            (running.remove(&worker), running.len())
        };
        self.exited.notify_all();
        let Some(mut child) = child else { return };
        let outcome = child.wait();
        if self.stopping.load(Ordering::Relaxed) {
            return;
        }
        let status = outcome.map_or_else(|error| error.to_string(), |status| status.to_string());
        if !self.started.load(Ordering::Relaxed) {
            self.stopper.stop(&format!("{worker} exited before the run started ({status})"));
        } else if remaining == 0 {
            self.stopper.stop(&format!("no worker left; {worker} exited last ({status})"));
        }
    }

    /// Waits for the workers to exit after the server has, and kills those that don't: they were stopped or hang.
    fn stop_all(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        let waited = self.exited.wait_timeout_while(self.running(), SHUTDOWN_TIMEOUT, |running| !running.is_empty());
        for (worker, child) in waited.unwrap_or_else(PoisonError::into_inner).0.iter_mut() {
            tracing::warn!("{worker} did not exit within {} s and is killed", SHUTDOWN_TIMEOUT.as_secs());
            // Fails only if the process has just exited.
            let _ = child.kill();
        }
    }
}
