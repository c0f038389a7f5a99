//! Worker processes on the server's machine: started, restarted when they die, and stopped after the run.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use paceline_core::WorkerId;
use paceline_runtime::{StopReason, is_interrupted};
use rustix::io::Errno;
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

use crate::Stopper;
use crate::worker_output::{FollowedOutput, WorkerOutput};

/// How long workers may take to exit after the server has, if they have nothing to do of their own.
pub const EXIT_TIMEOUT: Duration = Duration::from_secs(3);

/// How often an interrupt is looked for.
const INTERVAL: Duration = Duration::from_millis(100);

/// The delays before a worker's restarts. There are no more restarts than these within [`RESTART_WINDOW`].
const RESTART_DELAYS: [Duration; 3] = [Duration::from_millis(500), Duration::from_secs(2), Duration::from_secs(8)];

/// A restart that is older than this no longer counts.
const RESTART_WINDOW: Duration = Duration::from_secs(600);

/// The exit code of a worker that was refused or dismissed for good, or can't work here at all.
const REFUSED: i32 = 2;

/// The worker processes of one run.
pub struct LocalWorkers<'a> {
    /// The command that starts a worker.
    pub command: &'a (dyn Fn(WorkerId) -> Command + Sync),
    /// Whether one process more is started, for the [evaluator](WorkerId::EVALUATOR). The run does without if it is gone.
    pub has_evaluator: bool,
    /// Stops the run when no worker is left.
    pub stopper: Stopper,
    /// Whether the run has started. A worker that exits before that stops the run.
    pub started: Arc<AtomicBool>,
    /// Called with a line for the user.
    pub announce: &'a (dyn Fn(&str) + Sync),
    /// Where the output of the processes goes.
    pub output: WorkerOutput,
    /// How long workers may take to exit after the run; `None` for as long as it takes, unless the user interrupts.
    pub exit_timeout: Option<Duration>,
}

/// A process that has not been waited for.
struct LocalProcess {
    child: Child,
    output: FollowedOutput,
}

/// The processes at present.
#[derive(Default)]
struct WorkerProcesses {
    /// Those that have not been waited for, so that their numbers are not reused.
    running: BTreeMap<WorkerId, LocalProcess>,
    /// How many workers run or are to be restarted.
    remaining: usize,
    /// Whether a worker is gone for good that should not be.
    failed: bool,
    stopping: bool,
}

/// The restarts of one worker.
#[derive(Default)]
struct RestartHistory(VecDeque<Instant>);

impl RestartHistory {
    /// The number of the next restart and the delay before it; `None` if there were too many.
    fn next(&mut self, now: Instant) -> Option<(usize, Duration)> {
        while self.0.pop_front_if(|restart| now.duration_since(*restart) > RESTART_WINDOW).is_some() {}
        let delay = *RESTART_DELAYS.get(self.0.len())?;
        self.0.push_back(now);
        Some((self.0.len(), delay))
    }
}

impl LocalWorkers<'_> {
    /// Starts `count` workers, calls `run`, then waits for the workers to exit; not for long if `run` failed.
    ///
    /// # Errors
    /// If a process can't be started.
    pub fn run<T, E>(&self, count: u32, run: impl FnOnce() -> Result<T, E>) -> io::Result<Result<T, E>> {
        let workers = (0..count).map(WorkerId).chain(self.has_evaluator.then_some(WorkerId::EVALUATOR));
        let mut processes = WorkerProcesses { remaining: count as usize, ..WorkerProcesses::default() };
        for worker in workers.clone() {
            match self.start(worker) {
                Ok(process) => _ = processes.running.insert(worker, process),
                Err(error) => {
                    // Fails only if the process has exited.
                    processes.running.values_mut().for_each(|process| _ = process.child.kill());
                    return Err(io::Error::new(error.kind(), format!("starting {worker}: {error}")));
                }
            }
        }
        let shared = SharedProcesses { processes: Mutex::new(processes), changed: Condvar::new() };
        Ok(std::thread::scope(|scope| {
            for worker in workers {
                let shared = &shared;
                scope.spawn(move || self.supervise(worker, shared));
            }
            let outcome = run();
            self.stop_all(&shared, self.exit_timeout.or(outcome.is_err().then_some(EXIT_TIMEOUT)));
            outcome
        }))
    }

    fn start(&self, worker: WorkerId) -> io::Result<LocalProcess> {
        let mut command = (self.command)(worker);
        let spawned = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = spawned
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", command.get_program().display())))?;
        let output = self.output.follow(worker, &mut child).inspect_err(|_| {
            // Fails only if the process has exited.
            let _ = child.kill();
        })?;
        Ok(LocalProcess { child, output })
    }

    /// Waits for a worker to exit, and restarts it if it died, until it is gone for good. This thread must outlive the
    /// processes that it starts: they end with it.
    fn supervise(&self, worker: WorkerId, shared: &SharedProcesses) {
        let mut history = RestartHistory::default();
        while let Some(outcome) = shared.wait_for(worker) {
            let cause = outcome.as_ref().map_or_else(ToString::to_string, described);
            let code = outcome.as_ref().ok().and_then(ExitStatus::code);
            let next = match code {
                Some(0 | REFUSED) => None,
                _ => history.next(Instant::now()),
            };
            let is_evaluator = worker == WorkerId::EVALUATOR;
            if code.is_some() && !is_evaluator && !self.started.load(Ordering::Relaxed) {
                self.stopper.stop(StopReason::Other(format!("{worker} {cause} before the run started")));
                return;
            }
            let restarted = next.is_some_and(|(attempt, delay)| {
                let (delay_s, attempts) = (delay.as_secs_f64(), RESTART_DELAYS.len());
                (self.announce)(&format!(
                    "{worker} {cause}; it is restarted in {delay_s} s (attempt {attempt} of {attempts})"
                ));
                self.restart(worker, delay, shared)
            });
            if !restarted {
                let mut processes = shared.lock();
                processes.remaining -= usize::from(!is_evaluator);
                if processes.stopping {
                    return;
                }
                // A worker exits with 0 when the run is over.
                if code != Some(0) {
                    (self.announce)(&format!("{worker} {cause}; it is not restarted"));
                }
                if is_evaluator {
                    return;
                }
                processes.failed |= code != Some(0);
                if processes.remaining == 0 {
                    let failed = || StopReason::NoWorkers(format!("{worker} {cause}"));
                    self.stopper.stop(if processes.failed { failed() } else { StopReason::ScriptEnded });
                }
                return;
            }
        }
    }

    /// Starts a worker again, unless the run ends before.
    fn restart(&self, worker: WorkerId, delay: Duration, shared: &SharedProcesses) -> bool {
        let waited = shared.changed.wait_timeout_while(shared.lock(), delay, |processes| !processes.stopping);
        let mut processes = waited.unwrap_or_else(PoisonError::into_inner).0;
        if processes.stopping {
            return false;
        }
        match self.start(worker) {
            Ok(process) => _ = processes.running.insert(worker, process),
            Err(error) => {
                (self.announce)(&format!("{worker} can't be restarted: {error}"));
                return false;
            }
        }
        true
    }

    /// Waits for the workers to exit after the server has, and kills those that don't: they were stopped or hang.
    fn stop_all(&self, shared: &SharedProcesses, exit_timeout: Option<Duration>) {
        shared.lock().stopping = true;
        shared.changed.notify_all();
        let mut deadline = exit_timeout.map(|timeout| Instant::now() + timeout);
        let mut processes = shared.lock();
        while !processes.running.is_empty() {
            if is_interrupted() {
                deadline.get_or_insert_with(|| Instant::now() + EXIT_TIMEOUT);
            }
            if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                break;
            }
            processes = shared.changed.wait_timeout(processes, INTERVAL).unwrap_or_else(PoisonError::into_inner).0;
        }
        for (worker, process) in processes.running.iter_mut() {
            (self.announce)(&format!("{worker} did not exit in time and is killed"));
            // Fails only if the process has just exited.
            let _ = process.child.kill();
        }
    }
}

/// The processes, shared by the threads that wait for them.
struct SharedProcesses {
    processes: Mutex<WorkerProcesses>,
    changed: Condvar,
}

impl SharedProcesses {
    fn lock(&self) -> MutexGuard<'_, WorkerProcesses> {
        self.processes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a worker exits. `None` if it does not run or the run ends.
    fn wait_for(&self, worker: WorkerId) -> Option<io::Result<ExitStatus>> {
        let pid = self.lock().running.get(&worker).map(|process| Pid::from_child(&process.child))?;
        while let Err(Errno::INTR) = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT) {}
        let mut processes = self.lock();
        let LocalProcess { mut child, output } = processes.running.remove(&worker)?;
        self.changed.notify_all();
        let outcome = child.wait();
        let stopping = processes.stopping;
        drop(processes);
        output.finish();
        (!stopping).then_some(outcome)
    }
}

fn described(status: &ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exited with code {code}"),
        (None, Some(signal)) => format!("was killed by signal {signal}"),
        (None, None) => format!("ended ({status})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restarts_are_delayed_more_and_more_and_bounded_within_the_window() {
        let (mut history, start) = (RestartHistory::default(), Instant::now());
        let restarts: Vec<_> = (0..4).map(|_| history.next(start)).collect();
        let expected = RESTART_DELAYS.into_iter().enumerate().map(|(index, delay)| Some((index + 1, delay)));
        assert_eq!(restarts, expected.chain([None]).collect::<Vec<_>>());
        assert!(RESTART_DELAYS.is_sorted());
        let later = start + RESTART_WINDOW + Duration::from_secs(1);
        assert_eq!(history.next(later), Some((1, RESTART_DELAYS[0])));
    }
}
