//! A model of a worker's process.

use paceline_core::{Assignment, LocalLength, Report, Span, TaskId, Time, WorkerId};

use crate::message::{ToServer, ToWorker};

/// Time between two heartbeats of a worker.
pub(crate) const HEARTBEAT_INTERVAL: Span = Span(2_000_000_000);

/// An output of a worker process.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Effect {
    Send(ToServer),
    /// Compute this number of iterations. The number of the computation tells at its end whether it is still current.
    Compute {
        computation: u64,
        assignment: Assignment,
        iterations: u32,
    },
}

/// The task that a worker computes.
#[derive(Debug, Clone, Copy)]
struct TaskInProgress {
    assignment: Assignment,
    /// Local iterations done.
    done: u32,
    /// Whether the worker waits for an answer.
    waits: bool,
    since: Time,
}

/// One process of a worker.
#[derive(Debug)]
pub(crate) struct WorkerProcess {
    worker: WorkerId,
    /// The number of its first session. It identifies the process.
    pub(crate) started: u64,
    pub(crate) session: u64,
    welcomed: bool,
    running: Option<TaskInProgress>,
    queued: Option<Assignment>,
    /// The newest task received. Older ones are duplicates.
    newest: Option<u64>,
    computations: u64,
    pub(crate) frozen_until: Time,
    pub(crate) false_reports_until: Time,
}

impl WorkerProcess {
    pub(crate) fn new(worker: WorkerId, session: u64) -> Self {
        WorkerProcess {
            worker,
            started: session,
            session,
            welcomed: false,
            running: None,
            queued: None,
            newest: None,
            computations: 0,
            frozen_until: Time::START,
            false_reports_until: Time::START,
        }
    }

    /// Starts a new session.
    fn reconnect(&mut self, session: u64) {
        *self = WorkerProcess {
            started: self.started,
            computations: self.computations + 1,
            frozen_until: self.frozen_until,
            false_reports_until: self.false_reports_until,
            ..WorkerProcess::new(self.worker, session)
        };
    }

    /// The periodic message. It repeats a message that may have been lost.
    pub(crate) fn heartbeat(&self) -> Effect {
        match self.running {
            _ if !self.welcomed => Effect::Send(ToServer::Hello),
            Some(TaskInProgress { assignment, done, waits: true, .. }) => {
                Effect::Send(ToServer::Ask(assignment.task, done, Report::default()))
            }
            _ => Effect::Send(ToServer::Heartbeat),
        }
    }

    /// Handles a message of the server. `next_session` is the number of the next session, if this one is closed.
    pub(crate) fn on_message(&mut self, now: Time, message: ToWorker, next_session: u64) -> Vec<Effect> {
        self.welcomed |= !matches!(message, ToWorker::Refuse | ToWorker::Retry);
        match message {
            ToWorker::Welcome | ToWorker::Retry => Vec::new(),
            ToWorker::Refuse => {
                self.reconnect(next_session);
                vec![Effect::Send(ToServer::Hello)]
            }
            ToWorker::Assign(assignment, after) => self.assign(now, assignment, after),
            ToWorker::Continue(task, iterations) => match self.running.as_mut() {
                Some(running) if running.assignment.task == task && running.waits && running.done == iterations => {
                    running.waits = false;
                    self.compute(now)
                }
                _ => Vec::new(),
            },
            ToWorker::Collect(task) => match self.running {
                Some(running) if running.assignment.task == task && running.done > 0 => {
                    self.report(now, Report::default())
                }
                _ => Vec::new(),
            },
            ToWorker::Interrupt(task) => {
                if self.queued.is_some_and(|queued| queued.task == task) {
                    self.queued = None;
                }
                match self.running {
                    Some(running) if running.assignment.task == task => self.start_queued(now),
                    _ => Vec::new(),
                }
            }
        }
    }

    fn assign(&mut self, now: Time, assignment: Assignment, after: Option<u64>) -> Vec<Effect> {
        if self.newest.is_some_and(|newest| newest >= assignment.task.number) {
            return Vec::new();
        }
        self.newest = Some(assignment.task.number);
        let finishes_first = self.running.is_some_and(|running| Some(running.assignment.task.number) == after);
        self.queued = Some(assignment);
        if finishes_first { Vec::new() } else { self.start_queued(now) }
    }

    fn start_queued(&mut self, now: Time) -> Vec<Effect> {
        let start = |assignment| TaskInProgress { assignment, done: 0, waits: false, since: now };
        self.running = self.queued.take().map(start);
        self.compute(now)
    }

    /// Starts the next computation of the current task.
    fn compute(&mut self, now: Time) -> Vec<Effect> {
        self.computations += 1;
        let Some(running) = self.running.as_mut() else { return Vec::new() };
        running.since = now;
        let assignment = running.assignment;
        let iterations = if let Some(LocalLength::Iterations(count)) = assignment.work.length() { count } else { 1 };
        vec![Effect::Compute { computation: self.computations, assignment, iterations }]
    }

    /// Handles the end of a computation.
    pub(crate) fn on_computed(&mut self, now: Time, computation: u64) -> Vec<Effect> {
        let Some(running) = self.running.as_mut().filter(|_| computation == self.computations) else {
            return Vec::new();
        };
        let report = Report { compute: now.since(running.since), ..Report::default() };
        let task = running.assignment.task;
        match running.assignment.work.length() {
            None | Some(LocalLength::Iterations(_)) => self.report(now, report),
            Some(length) => {
                running.done += 1;
                let question = Effect::Send(ToServer::Ask(task, running.done, report));
                running.waits = length == LocalLength::AskAndWait;
                let mut effects = vec![question];
                if length == LocalLength::AskAndContinue {
                    effects.extend(self.compute(now));
                }
                effects
            }
        }
    }

    fn report(&mut self, now: Time, report: Report) -> Vec<Effect> {
        let task = self.running.map(|running| running.assignment.task);
        let mut effects: Vec<Effect> =
            task.map(|task| Effect::Send(ToServer::Report(task, report))).into_iter().collect();
        effects.extend(self.start_queued(now));
        effects
    }

    /// A false version of a message; `random` chooses which.
    pub(crate) fn falsified(&self, message: ToServer, random: u64) -> ToServer {
        let absurd = |report: Report| {
            let times = [Span::ZERO, Span(1), Span(u64::MAX), Span(3_600_000_000_000)];
            let load = [None, Some(f32::NAN), Some(-3.0), Some(f32::INFINITY)][random as usize % 4];
            Report { compute: times[(random / 4) as usize % 4], cpu: load, memory: load, ..report }
        };
        let number = |task: TaskId| TaskId { number: task.number + random % 3, ..task };
        match message {
            ToServer::Report(task, report) => ToServer::Report(number(task), absurd(report)),
            ToServer::Ask(task, done, report) => {
                ToServer::Ask(number(task), done + (random / 16) as u32 % 2, absurd(report))
            }
            other => other,
        }
    }
}
