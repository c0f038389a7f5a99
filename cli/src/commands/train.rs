//! `paceline train`: a server and worker processes on this machine.

use std::ffi::{OsStr, OsString};
use std::num::NonZero;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::available_parallelism;

use anyhow::anyhow;
use clap::{Args, ValueEnum};
use paceline_config::Failure;
use paceline_config::file::Configuration;
use paceline_core::WorkerId;
use paceline_net::{Address, ServerSearch};
use paceline_sim::RankSet;

use crate::launched::LaunchOptions;
use crate::logs;
use crate::options::{JobOptions, StragglerSpec};
use crate::program::ProgramStart;
use crate::script::{self, ScriptOptions};
use crate::serving::{HttpDefault, ScriptWorkers, ServedRun, ServingOutput};

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
  paceline train --model mlp --data mnist --workers 2 --until 'accuracy>0.98' --out RUN
  paceline train --scheme lb-bsp --workers 4 -- python script.py")]
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

    /// Train the model of a script that uses the Python package: its command, after --
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl TrainArgs {
    pub fn run(self, configuration: &Configuration) -> Result<(), Failure> {
        if !self.command.is_empty() {
            return self.run_script(configuration);
        }
        if let Some(folder) = &self.output.resume
            && !configuration.is_given("model")
        {
            return Err(Failure::Input(anyhow!(
                "the run in {} trains the model of a script: give its command after --",
                folder.display()
            )));
        }
        let job = self.job.load().map_err(Failure::Input)?;
        self.check_emulation().map_err(Failure::Input)?;
        let traces = self.emulate.iter().filter_map(|straggler| straggler.delay.file());
        let inputs = self.job.inputs().into_iter().chain(traces).collect();
        let program = ProgramStart::find().map_err(Failure::Run)?;
        let command = |server: &Address, worker| self.command(&program, server, worker);
        let run = ServedRun {
            addresses: &[self.address()],
            transport: self.job.transport(),
            output: &self.output,
            http: HttpDefault::Loopback,
            configuration,
            inputs,
            open: false,
            lease: None,
            taken: None,
            storage: self.output.storage().map_err(Failure::Input)?,
            launch: &LaunchOptions::default(),
        };
        run.run(&job, |run, bars| {
            run.run_with_processes(self.job.workers, command, logs::worker_output(bars, self.output.json))
        })
    }

    /// Trains the model that the workers bring.
    fn run_script(self, configuration: &Configuration) -> Result<(), Failure> {
        let name = self.command.join(OsStr::new(" "));
        let script = ScriptOptions::new(&self.job, &self.output, configuration, &name.to_string_lossy())?;
        self.check_emulation().map_err(Failure::Input)?;
        let traces = self.emulate.iter().filter_map(|straggler| straggler.delay.file());
        let run = ServedRun {
            addresses: &[self.address()],
            transport: self.job.transport(),
            output: &self.output,
            http: HttpDefault::Loopback,
            configuration: script.configuration(),
            inputs: self.job.scheme.model().map(Path::new).into_iter().chain(traces).collect(),
            open: false,
            lease: None,
            taken: None,
            storage: None,
            launch: &LaunchOptions::default(),
        };
        let command = |server: &Address, folder: &Path, worker| self.script(server, folder, worker);
        run.run_script(&script, Some(&ScriptWorkers { count: self.job.workers, command: &command }))
    }

    /// Where the server listens.
    fn address(&self) -> Address {
        match self.transport {
            TransportKind::SharedMemory => Address::Local { name: format!("paceline-{}", std::process::id()) },
            TransportKind::Tcp => Address::Tcp { host: "127.0.0.1".into(), port: 0 },
        }
    }

    fn check_emulation(&self) -> anyhow::Result<()> {
        for straggler in &self.emulate {
            if self.emulated_ranks.is_none() {
                straggler.check(self.job.workers as usize)?;
            }
            for worker in straggler.ranks.workers() {
                straggler.delay.load(worker, self.job.seed)?;
            }
        }
        Ok(())
    }

    /// The command that starts a worker.
    fn command(&self, program: &ProgramStart, server: &Address, worker: WorkerId) -> Command {
        let mut command = program.command();
        command.args(["work", "--quiet", "--join", &server.to_string(), "--rank", &worker.0.to_string()]);
        // A lost server does not come back, and a full one has a free rank soon: a few seconds are enough.
        let pid = std::process::id().to_string();
        command.args(["--join-timeout", "5", "--device", &self.job.training.device, "--parent", &pid]);
        if let Some((delay, rank)) = self.delay_of(worker) {
            command.args(["--emulate", &delay, "--emulated-rank", &rank]);
        }
        command.stdin(Stdio::null());
        // Only the server gets Ctrl-C; it stops its workers.
        command.process_group(0);
        command
    }

    /// The command that starts a worker of a script. The environment tells it of the run.
    fn script(&self, server: &Address, folder: &Path, worker: WorkerId) -> Command {
        let mut command = Command::new(&self.command[0]);
        command.args(&self.command[1..]).stdin(Stdio::null());
        command.env("PACELINE_FOLDER", folder);
        let servers = ServerSearch::new(server.clone(), Vec::new());
        script::set_environment(&mut command, &servers, worker, self.job.workers, self.job.seed);
        if let Some((delay, rank)) = self.delay_of(worker) {
            command.env("PACELINE_EMULATE", delay).env("PACELINE_EMULATED_RANK", rank);
        }
        // A lost server does not come back.
        command.env("PACELINE_JOIN_TIMEOUT", "5");
        // Workers share the processors; a script that wants other numbers of threads sets them.
        let processors = available_parallelism().map_or(1, NonZero::get);
        let threads = (processors / self.job.workers as usize).max(1).to_string();
        for (variable, value) in [("OMP_NUM_THREADS", threads.as_str()), ("PYTHONUNBUFFERED", "1")] {
            if std::env::var_os(variable).is_none() {
                command.env(variable, value);
            }
        }
        // Only the server gets Ctrl-C; it stops its workers.
        command.process_group(0);
        let end_with_parent =
            || Ok(rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM))?);
        // SAFETY: it makes one system call and allocates nothing.
        unsafe { command.pre_exec(end_with_parent) };
        command
    }

    /// The emulated delay of a worker, and the rank whose times are emulated.
    fn delay_of(&self, worker: WorkerId) -> Option<(String, String)> {
        let emulated = self.emulated_ranks.as_ref().and_then(|ranks| ranks.workers().get(worker.index()).copied());
        let emulated = emulated.unwrap_or(worker);
        let is_this = |straggler: &&StragglerSpec| straggler.ranks.workers().any(|rank| rank == emulated);
        let straggler = self.emulate.iter().rev().find(is_this)?;
        Some((straggler.delay.to_string(), emulated.0.to_string()))
    }
}
