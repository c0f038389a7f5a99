//! A worker's process: the protocol of the real one, with computations that only take time.

use paceline_core::{Assignment, Span, Time, Work, WorkerId};
use paceline_protocol::{
    AfterIteration, Fingerprint, GradientLocation, HeldParameters, PeerTrust, Reaction, ResultStatus, Role,
    ServerSearch, SessionEnd, SessionId, ToServer, ToWorker, WireReport, WorkerProtocol, after_iteration,
};

/// An output of a worker process.
#[derive(Debug, Clone)]
pub(crate) enum Effect {
    Send(ToServer),
    /// Compute an iteration. The number of the computation tells at its end whether it is still current.
    Compute {
        computation: u64,
        assignment: Assignment,
    },
    /// Close the connection of a session.
    Close(SessionId),
    /// Connect again after a while.
    Reconnect,
    /// The process ends.
    Exit,
}

/// The task that a worker computes.
#[derive(Debug, Clone, Copy)]
struct TaskInProgress {
    assignment: Assignment,
    /// Local iterations done.
    done: u32,
    /// Whether the worker waits for an answer.
    waits: bool,
    /// Since the last report.
    since: Time,
}

/// One process of a worker.
#[derive(Debug)]
pub(crate) struct WorkerProcess {
    pub(crate) worker: WorkerId,
    /// Identifies the process.
    pub(crate) number: u64,
    pub(crate) trust: PeerTrust,
    pub(crate) session: Option<SessionId>,
    /// The servers by number.
    pub(crate) servers: ServerSearch<usize>,
    /// Whether the server has answered the hello.
    is_welcome: bool,
    /// Whether its updates go to shards, and it may have to hold one.
    shards: bool,
    protocol: WorkerProtocol<()>,
    running: Option<TaskInProgress>,
    computations: u64,
    /// Counts its steps.
    pub(crate) progress: u64,
    /// Failed attempts to join in a row.
    pub(crate) attempts: u32,
    pub(crate) frozen_until: Time,
    pub(crate) stuck_until: Time,
    pub(crate) false_reports_until: Time,
}

impl WorkerProcess {
    /// A process of a worker of one of `servers` servers, which have the parameters in shards or not.
    pub(crate) fn new(worker: WorkerId, number: u64, servers: usize, shards: bool) -> Self {
        let is_local = worker.0.is_multiple_of(2) && !shards;
        WorkerProcess {
            worker,
            number,
            trust: if is_local { PeerTrust::SameUser } else { PeerTrust::Network },
            session: None,
            servers: ServerSearch::new(0, 1..servers),
            is_welcome: false,
            shards,
            protocol: WorkerProtocol::default(),
            running: None,
            computations: 0,
            progress: 0,
            attempts: 0,
            frozen_until: Time::START,
            stuck_until: Time::START,
            false_reports_until: Time::START,
        }
    }

    /// Starts a session.
    pub(crate) fn connect(&mut self, session: SessionId) -> Vec<Effect> {
        (self.session, self.is_welcome) = (Some(session), false);
        self.protocol = WorkerProtocol::default();
        self.running = None;
        self.computations += 1;
        vec![Effect::Send(ToServer::Hello { role: Role::Worker(Some(self.worker.0)), emulated: None, token: None })]
    }

    pub(crate) fn heartbeat(&self) -> Effect {
        Effect::Send(ToServer::Heartbeat { progress: self.progress })
    }

    /// The connection is closed.
    pub(crate) fn on_closed(&mut self) -> Vec<Effect> {
        self.protocol.end(SessionEnd::Lost("connection closed".into()));
        self.on_end(SessionEnd::Lost("connection closed".into()))
    }

    fn on_end(&mut self, end: SessionEnd) -> Vec<Effect> {
        self.session = None;
        self.running = None;
        self.computations += 1;
        match end {
            SessionEnd::Lost(_) | SessionEnd::RetryLater(_) => vec![Effect::Reconnect],
            SessionEnd::Finished(_) | SessionEnd::Refused(_) => vec![Effect::Exit],
        }
    }

    /// The time limit of the handshake has come. A server that accepts connections may stand still all the same.
    pub(crate) fn on_handshake_timeout(&mut self) -> Vec<Effect> {
        if self.is_welcome {
            return Vec::new();
        }
        self.servers.pass_on();
        self.hang_up("no answer to the hello")
    }

    /// Ends the session.
    fn hang_up(&mut self, reason: &str) -> Vec<Effect> {
        let close = self.session.map(Effect::Close);
        close.into_iter().chain(self.on_end(SessionEnd::Lost(reason.into()))).collect()
    }

    /// Handles a message of the server.
    pub(crate) fn on_message(&mut self, now: Time, message: ToWorker) -> Vec<Effect> {
        if let ToWorker::Model { version } = message {
            self.progress += 1;
            self.protocol.on_model(version, ());
            return self.resume(now);
        }
        let model = (self.trust == PeerTrust::SameUser).then_some(());
        let mut effects = match self.protocol.on_message(message, model) {
            Reaction::None | Reaction::SendModel => Vec::new(),
            Reaction::Join(welcome) => {
                self.is_welcome = true;
                if !self.servers.on_welcome(welcome.epoch) {
                    return self.hang_up("another server has taken over its run");
                }
                let ports = match welcome.holds {
                    HeldParameters::Parts(parts) => vec![1; parts.into()],
                    HeldParameters::Nothing | HeldParameters::All => Vec::new(),
                };
                vec![Effect::Send(ToServer::Ready { fingerprint: Fingerprint::default(), ports })]
            }
            Reaction::Drop(messages) => messages.into_iter().map(Effect::Send).collect(),
            Reaction::End(end) => return self.on_end(end),
        };
        effects.extend(self.resume(now));
        effects
    }

    /// Goes on if the last message allows it: starts a task, or takes an answer.
    fn resume(&mut self, now: Time) -> Vec<Effect> {
        match self.running {
            None => self.start_next(now),
            Some(TaskInProgress { waits: true, .. }) => match self.protocol.take_answer() {
                Some(true) => self.compute(),
                Some(false) => self.deliver(now),
                None => Vec::new(),
            },
            Some(_) => Vec::new(),
        }
    }

    fn start_next(&mut self, now: Time) -> Vec<Effect> {
        let Some((task, ())) = self.protocol.start_next() else { return Vec::new() };
        self.attempts = 0;
        self.progress += 1;
        self.running = Some(TaskInProgress { assignment: task.assignment, done: 0, waits: false, since: now });
        self.compute()
    }

    /// Starts the next computation of the current task.
    fn compute(&mut self) -> Vec<Effect> {
        self.computations += 1;
        let Some(running) = self.running.as_mut() else { return Vec::new() };
        running.waits = false;
        vec![Effect::Compute { computation: self.computations, assignment: running.assignment }]
    }

    /// Whether a computation is still going on.
    pub(crate) fn is_current(&self, computation: u64) -> bool {
        self.running.is_some() && computation == self.computations
    }

    /// Handles the end of a computation.
    pub(crate) fn on_computed(&mut self, now: Time, computation: u64) -> Vec<Effect> {
        let Some(running) = self.running.as_mut().filter(|_| computation == self.computations) else {
            return Vec::new();
        };
        self.progress += 1;
        running.done += 1;
        let Work::Local(local) = running.assignment.work else { return self.deliver(now) };
        if self.protocol.is_cancelled() {
            return self.deliver(now);
        }
        match after_iteration(local.length, running.done) {
            AfterIteration::Continue => self.compute(),
            AfterIteration::Finish => self.deliver(now),
            AfterIteration::Ask { wait } => {
                let report = WireReport { compute: now.since(running.since), ..WireReport::default() };
                running.since = now;
                running.waits = wait;
                let (number, iterations) = (running.assignment.task.number, running.done);
                let mut effects = vec![Effect::Send(ToServer::Asked { number, iterations, report })];
                if !wait {
                    effects.extend(if self.protocol.is_collected() { self.deliver(now) } else { self.compute() });
                }
                effects
            }
        }
    }

    /// Sends the result of the task, if it is still needed, and starts the next one.
    fn deliver(&mut self, now: Time) -> Vec<Effect> {
        let Some(TaskInProgress { assignment, since, .. }) = self.running.take() else { return Vec::new() };
        let number = assignment.task.number;
        let gradient = match (self.protocol.result_status(), self.trust) {
            (ResultStatus::Cancelled, _) => None,
            (_, PeerTrust::SameUser) => Some(GradientLocation::InPlace),
            (ResultStatus::Late, PeerTrust::Network) => Some(GradientLocation::Withheld),
            (ResultStatus::Wanted, PeerTrust::Network) if self.shards => Some(GradientLocation::InShards),
            (ResultStatus::Wanted, PeerTrust::Network) => Some(GradientLocation::Follows),
        };
        let report = WireReport { compute: now.since(since), ..WireReport::default() };
        let message = match gradient {
            None => ToServer::Dropped { number },
            Some(gradient) => ToServer::Report { number, report, loss: 1.0, gradient, rates: vec![] },
        };
        self.protocol.finish_task();
        let mut effects = vec![Effect::Send(message)];
        effects.extend(self.start_next(now));
        effects
    }
}

/// A false version of a message; `random` chooses which.
pub(crate) fn falsified(message: &ToServer, random: u64) -> ToServer {
    let absurd = |report: WireReport| {
        let times = [Span::ZERO, Span(1), Span(u64::MAX), Span(3_600_000_000_000)];
        let load = [None, Some(f32::NAN), Some(-3.0), Some(f32::INFINITY)][random as usize % 4];
        WireReport { compute: times[(random / 4) as usize % 4], cpu: load, memory: load, ..report }
    };
    match message.clone() {
        ToServer::Report { number, report, loss, gradient, rates } => {
            ToServer::Report { number: number + random % 3, report: absurd(report), loss, gradient, rates }
        }
        ToServer::Asked { number, iterations, report } => ToServer::Asked {
            number: number + random % 3,
            iterations: iterations + (random / 16) as u32 % 2,
            report: absurd(report),
        },
        ToServer::Heartbeat { progress } => ToServer::Heartbeat { progress: progress ^ random },
        other => other,
    }
}
