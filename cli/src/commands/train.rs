//! `paceline train`: a server and its worker processes on this machine.

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
pub struct TrainArgs {
    #[command(flatten)]
    job: JobOptions,

    /// Makes workers late on purpose, e.g. 0=3.0 (three times slower) or 1-2=lognormal:-2,0.5 (their tasks' times); may be
    /// given several times; says so in every output
    #[arg(long, value_name = "RANKS=FACTOR|TIMES")]
    emulate: Vec<StragglerSpec>,

    /// How values travel
    #[arg(long, value_name = "TRANSPORT", value_enum, default_value_t = TransportKind::SharedMemory)]
    transport: TransportKind,

    #[command(flatten)]
    output: ServingOutput,
}

impl TrainArgs {
    pub fn run(self, configuration: &Configuration) -> Result<(), Failure> {
        let job = self.job.load().map_err(Failure::Input)?;
        self.check_emulation().map_err(Failure::Input)?;
        // The folder is refused now rather than after the workers were started.
        self.output.folder().map_err(Failure::Input)?;
        self.output.check_http(false).map_err(Failure::Input)?;
        let resumed = self.output.resume_point(&job).map_err(Failure::Input)?;
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
        let watch = WorkerProcesses {
            stopper: server.stopper(),
            started: started.clone(),
            over: AtomicBool::new(false),
            running: Mutex::new(running),
            ended: Condvar::new(),
        };
        std::thread::scope(|scope| {
            for (worker, pid) in workers.zip(pids) {
                let watch = &watch;
                scope.spawn(move || watch.wait_for(worker, pid));
            }
            let outcome = serving::run(server, &job, &self.output, configuration, resumed, started);
            watch.see_off();
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
            "--join-timeout",
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

/// How long workers may take to end when the server is gone.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(3);

/// Looks after the worker processes.
struct WorkerProcesses {
    stopper: Stopper,
    started: Arc<AtomicBool>,
    over: AtomicBool,
    /// Those that have not ended, or whose end has not been looked at: their process numbers are still theirs.
    running: Mutex<BTreeMap<WorkerId, Child>>,
    ended: Condvar,
}

impl WorkerProcesses {
    fn running(&self) -> MutexGuard<'_, BTreeMap<WorkerId, Child>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a worker's end. A run that can't begin, or go on, without it is ended.
    fn wait_for(&self, worker: WorkerId, pid: Pid) {
        while let Err(Errno::INTR) = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT) {}
        let (child, left) = {
            let mut running = self.running();
            (running.remove(&worker), running.len())
        };
        self.ended.notify_all();
        let Some(mut child) = child else { return };
        let ended = child.wait();
        if self.over.load(Ordering::Relaxed) {
            return;
        }
        let how = ended.map_or_else(|error| error.to_string(), |status| status.to_string());
        if !self.started.load(Ordering::Relaxed) {
            self.stopper.stop(&format!("{worker} ended before the run began ({how})"));
        } else if left == 0 {
            self.stopper.stop(&format!("no worker left; {worker} ended last ({how})"));
        }
    }

    /// Waits, not for long, until the workers have ended by themselves, since the server is gone. The others were stopped,
    /// or hang.
    fn see_off(&self) {
        self.over.store(true, Ordering::Relaxed);
        let waited = self.ended.wait_timeout_while(self.running(), SHUTDOWN_TIMEOUT, |running| !running.is_empty());
        for (worker, child) in waited.unwrap_or_else(PoisonError::into_inner).0.iter_mut() {
            tracing::warn!("{worker} did not end by itself, so it was killed");
            // It fails only if it has ended just now.
            let _ = child.kill();
        }
    }
}
