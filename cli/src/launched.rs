//! What a server does for the process that starts it: it says where it is, ends with that process, ends when no worker
//! is left, and lets the workers wait for it.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use paceline_core::{Decision, Event, Time};
use paceline_net::{Address, Stopper};
use paceline_runtime::{Observer, StopReason};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, getpid, getppid, kill_process, pidfd_open, set_parent_process_death_signal,
};
use serde::Serialize;

/// What a server tells the process that starts it.
#[derive(Serialize)]
pub struct Announcement<'a> {
    /// Where it listens.
    pub addresses: &'a [Address],
    /// The run folder.
    pub folder: &'a Path,
    /// The seed of all random numbers.
    pub seed: u64,
    /// Whether one more process of the script is to evaluate the model.
    pub takes_evaluator: bool,
    /// Whether processes of workers hold the parameters.
    pub has_shards: bool,
}

impl Announcement<'_> {
    /// Writes it to a file, as one line of JSON.
    pub fn write(&self, path: &Path) -> anyhow::Result<()> {
        let line = serde_json::to_string(self)? + "\n";
        let written = File::options().write(true).open(path).and_then(|mut file| file.write_all(line.as_bytes()));
        written.with_context(|| format!("--announce {}", path.display()))
    }
}

/// Makes the system end this process when its parent exits. Fails if the parent has exited already.
pub fn exit_with_parent(parent: i32) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::TERM))?;
    match getppid().map(|pid| pid.as_raw_nonzero().get()) {
        Some(pid) if pid == parent => Ok(()),
        _ => Err(io::Error::other(format!("the parent process {parent} has exited"))),
    }
}

/// Interrupts this process once when its parent exits. Fails if the parent has exited already.
///
/// A signal that the system sends would come for every thread of the parent, and the second one ends a command at once.
pub fn interrupt_with_parent(parent: i32) -> io::Result<()> {
    let gone = || io::Error::other(format!("the parent process {parent} has exited"));
    let process = Pid::from_raw(parent).ok_or_else(gone)?;
    let handle = match pidfd_open(process, PidfdFlags::empty()) {
        // Linux before 5.3 has none.
        Err(Errno::NOSYS) => return exit_with_parent(parent),
        handle => handle?,
    };
    // Another process may have got its number before.
    if getppid() != Some(process) {
        return Err(gone());
    }
    let wait = move || {
        while let Err(Errno::INTR) = poll(&mut [PollFd::new(&handle, PollFlags::IN)], None) {}
        // It fails for no process that there is.
        let _ = kill_process(getpid(), Signal::TERM);
    };
    thread::Builder::new().name("parent".into()).spawn(wait).map(|_| ())
}

/// Options of a server that another process starts.
#[derive(Debug, Default, clap::Args)]
pub struct LaunchOptions {
    /// End the run when all workers have left and none has come back for this long, with exit code 5
    #[arg(long, value_name = "SECONDS", value_parser = positive)]
    pub empty_timeout: Option<f64>,

    /// When interrupted, as by a supervisor that moves this server, let the workers wait for the run to be resumed, as long as
    /// their --join-timeout says
    #[arg(long)]
    pub keep_workers: bool,

    /// Stop the run when the parent process with this number exits
    #[arg(long, value_name = "PID", hide = true)]
    pub parent: Option<i32>,

    /// Write addresses and run folder to this file, once the server listens
    #[arg(long, value_name = "FILE", hide = true)]
    pub announce: Option<PathBuf>,

    /// What started the run, for the configuration in its folder
    #[arg(long, value_name = "NAME", hide = true)]
    pub launch: Option<String>,
}

fn positive(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds: &f64| *seconds > 0.0 && *seconds < 1e9);
    seconds.ok_or_else(|| "expected seconds, above 0".into())
}

/// Tells an [`EmptyRunWatch`] whether there are workers.
pub struct WorkerCount {
    workers: usize,
    changes: Sender<bool>,
}

impl Observer for WorkerCount {
    fn on_turn(&mut self, _now: Time, event: &Event, _decisions: &[Decision]) {
        match event {
            Event::Joined { .. } => self.workers += 1,
            Event::Left { .. } => self.workers = self.workers.saturating_sub(1),
            _ => return,
        }
        // There may be no watch, and it has ended if it has stopped the run.
        let _ = self.changes.send(self.workers == 0);
    }
}

/// Stops a run that has had workers and has none for some time.
pub struct EmptyRunWatch {
    is_empty: Receiver<bool>,
}

impl EmptyRunWatch {
    /// A watch, and the observer of the run that it needs.
    pub fn new() -> (Self, WorkerCount) {
        let (changes, is_empty) = mpsc::channel();
        (EmptyRunWatch { is_empty }, WorkerCount { workers: 0, changes })
    }

    /// Watches the run in a thread, which ends when the observer is dropped.
    pub fn start(self, timeout: Duration, stopper: Stopper) -> io::Result<()> {
        let stop = move || {
            let seconds = timeout.as_secs_f64();
            stopper.stop(StopReason::NoWorkers(format!("none came back within {seconds} s")));
        };
        thread::Builder::new().name("empty-run".into()).spawn(move || self.watch(timeout, stop)).map(|_| ())
    }

    /// Calls `stop` when there was no worker for this long. Returns when it has, or when the run is over.
    fn watch(self, timeout: Duration, stop: impl FnOnce()) {
        let mut limit = None;
        loop {
            let change = match limit {
                None => self.is_empty.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(limit) => self.is_empty.recv_timeout(limit),
            };
            match change {
                Ok(is_empty) => limit = bool::then_some(is_empty, timeout),
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => return stop(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use paceline_core::WorkerId;

    use super::*;

    /// Whether a run with these events is stopped.
    fn is_stopped(events: &[Event]) -> bool {
        let (watch, mut count) = EmptyRunWatch::new();
        let (stop, stopped) = mpsc::channel();
        events.iter().for_each(|event| count.on_turn(Time::START, event, &[]));
        let timeout = Duration::from_millis(1);
        let watching = thread::spawn(move || watch.watch(timeout, move || stop.send(()).unwrap()));
        // Until all that was sent is handled, and no longer.
        if events.is_empty() || !matches!(events.last(), Some(Event::Left { .. })) {
            drop(count);
        }
        watching.join().unwrap();
        stopped.try_recv().is_ok()
    }

    #[test]
    fn a_run_is_stopped_only_when_its_last_worker_stays_away() {
        let (joined, left) =
            (|worker| Event::Joined { worker: WorkerId(worker) }, |worker| Event::Left { worker: WorkerId(worker) });
        assert!(!is_stopped(&[]), "it waits for its first worker");
        assert!(!is_stopped(&[joined(0)]));
        assert!(is_stopped(&[joined(0), left(0)]));
        assert!(!is_stopped(&[joined(0), left(0), joined(1)]));
        assert!(is_stopped(&[joined(0), joined(1), left(0), left(1)]));
    }
}
