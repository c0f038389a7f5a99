//! The simulation of a run under faults: server, workers and connections on a virtual clock.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use paceline_core::{LawBroken, Scheme, Setup, Span, TaskId, Time, WorkerId};
use paceline_protocol::{
    GradientLocation, HANDSHAKE_TIMEOUT, HEARTBEAT_INTERVAL, Notice, PeerTrust, SessionId, ToServer, ToWorker,
};
use paceline_runtime::HeldLease;
use thiserror::Error;

use crate::fault_schedule::{CONNECTION_TIMEOUT, Fault, FaultSchedule, LinkFault, SPEED_RANGE, ServerCut};
use crate::random::{mixed, unit};
use crate::server::{Outgoing, TortureServer};
use crate::standby::{LeaseStep, RESTART};
use crate::storage::SharedStorage;
use crate::timeout_rule::TimeoutRule;
use crate::worker::{Effect, WorkerProcess, falsified};

/// The time that workers and server have to recover after the last fault: seconds, and tasks of the slowest worker. A
/// task of several local iterations may have started just before.
const RECOVERY_SECONDS: f64 = 90.0;
const RECOVERY_TASKS: f64 = 4.0;

/// The number of new versions that the model must reach after the recovery, and the time limit for them.
const PROGRESS_VERSIONS: u64 = 3;
const PROGRESS_TASKS: f64 = 40.0;

/// How long a worker tries to connect to a server that it can't reach.
const CONNECT_TIMEOUT: Span = Span(5_000_000_000);

/// Why a scheme failed under a fault schedule.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum TortureFailure {
    /// The scheme broke a law.
    #[error(transparent)]
    Law(Box<LawBroken>),
    /// The decisions or the ledger contradict the checker.
    #[error("{problem}; the latest events, oldest first:\n  {}", events.join("\n  "))]
    Inconsistent {
        /// What is inconsistent.
        problem: String,
        /// The latest events.
        events: Vec<String>,
    },
    /// A worker was dismissed although it sent heartbeats and made progress.
    #[error("{worker} was dismissed at {at} although it was alive and made progress: {reason}")]
    Dismissed {
        /// The worker.
        worker: WorkerId,
        /// When.
        at: Time,
        /// The reason that the server gave.
        reason: String,
    },
    /// Workers did not rejoin although all faults are over.
    #[error("{joined} of {expected} workers are in the run, {since_last_fault} after the end of the last fault")]
    NotBack {
        /// Workers in the run.
        joined: usize,
        /// Workers whose process is running.
        expected: usize,
        /// Time since the end of the last fault.
        since_last_fault: Span,
    },
    /// The model makes no progress although all faults are over.
    #[error("the model is stuck at version {version}, {since_last_fault} after the end of the last fault")]
    Stalled {
        /// The last version.
        version: u64,
        /// Time since the end of the last fault.
        since_last_fault: Span,
    },
    /// Two servers decide in one run.
    #[error("{at}: {problem}")]
    TwoDeciders {
        /// Which.
        problem: String,
        /// When.
        at: Time,
    },
    /// The scheme panicked.
    #[error("the scheme panicked: {0}")]
    Panicked(String),
}

/// The counts of a run without a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TortureReport {
    /// Events that the scheme handled.
    pub events: u64,
    /// Versions of the model.
    pub versions: u64,
}

/// Runs a scheme under a fault schedule. `build` makes the scheme at the start and at every restart of the server.
///
/// # Errors
/// If the scheme breaks a law or panics, the ledger is inconsistent, a healthy worker is dismissed, or the run does not
/// recover from its faults.
pub fn torture(
    schedule: &FaultSchedule,
    build: &dyn Fn(&Setup) -> Box<dyn Scheme>,
) -> Result<TortureReport, TortureFailure> {
    torture_with(schedule, build, None)
}

/// As [`torture`], with a rule that dismisses workers in addition to the protocol's own.
///
/// # Errors
/// As [`torture`].
pub fn torture_with(
    schedule: &FaultSchedule,
    build: &dyn Fn(&Setup) -> Box<dyn Scheme>,
    rule: Option<Box<dyn TimeoutRule>>,
) -> Result<TortureReport, TortureFailure> {
    let result = catch_unwind(AssertUnwindSafe(|| FaultSimulation::new(schedule, build, rule).run()));
    result.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| text.to_string()));
        Err(TortureFailure::Panicked(text.unwrap_or_default()))
    })
}

/// An input of the server.
#[derive(Debug, Clone)]
pub(crate) enum ToServerEvent {
    Connected(SessionId, WorkerId, PeerTrust),
    Message(SessionId, ToServer),
    Closed(SessionId),
}

/// An event in the queue.
#[derive(Debug, Clone)]
pub(crate) enum ScheduledEvent {
    Fault(Fault),
    /// A process of a server ends, because a shard is lost.
    ServerEnds(usize, u64),
    /// The server is started again after its last process, this one, has ended.
    ServerBack(usize, u64),
    /// A server's process works on a lease.
    Lease(usize, u64, LeaseStep),
    /// The server continues after it stood still.
    StallOver(usize),
    /// All faults are over.
    FaultsOver,
    /// The recovery time is over: progress is measured from here on.
    Recovered,
    ToServer(usize, ToServerEvent),
    ToWorker(SessionId, ToWorker),
    /// The time limit of a worker's handshake.
    HandshakeTimeout(SessionId),
    /// The connection is closed on the worker's side.
    ClosedAtWorker(SessionId),
    /// A step of a worker's computation is done; this many follow.
    Computed(WorkerId, u64, u32, Span),
    Heartbeat(WorkerId, u64),
    Connect(WorkerId, u64),
}

/// A connection, or what is left of it.
#[derive(Debug)]
pub(crate) struct SimulatedConnection {
    worker: WorkerId,
    pub(crate) server: usize,
    /// The process at the worker's end.
    process: u64,
    /// When the last message arrives at the server and at the worker: messages arrive in order.
    at_server: Time,
    at_worker: Time,
}

pub(crate) struct FaultSimulation<'a> {
    pub(crate) schedule: &'a FaultSchedule,
    pub(crate) now: Time,
    queue: BTreeMap<(Time, u64), ScheduledEvent>,
    /// Number of events added to the queue, so that events at equal times keep their order.
    pub(crate) queued: u64,
    pub(crate) servers: Vec<TortureServer<'a>>,
    pub(crate) storage: SharedStorage,
    processes: BTreeMap<WorkerId, WorkerProcess>,
    pub(crate) connections: BTreeMap<SessionId, SimulatedConnection>,
    /// Slowdowns of the workers.
    factors: BTreeMap<WorkerId, f64>,
    /// Faults of the connections, and when they end.
    link_faults: Vec<(WorkerId, LinkFault, Time)>,
    /// Until when a worker may be taken for gone or stuck: a fault that it can't hide from the server.
    excused_until: BTreeMap<WorkerId, Time>,
    numbers: u64,
    /// When all faults are over.
    pub(crate) faults_over: Time,
    /// The version at the end of the recovery time.
    recovered_at: Option<u64>,
}

impl<'a> FaultSimulation<'a> {
    fn new(
        schedule: &'a FaultSchedule,
        build: &'a dyn Fn(&Setup) -> Box<dyn Scheme>,
        mut rule: Option<Box<dyn TimeoutRule>>,
    ) -> Self {
        let server = |index| TortureServer::new(index, schedule, build, rule.take());
        FaultSimulation {
            schedule,
            now: Time::START,
            queue: BTreeMap::new(),
            queued: 0,
            servers: (0..schedule.servers).map(server).collect(),
            storage: SharedStorage::default(),
            processes: BTreeMap::new(),
            connections: BTreeMap::new(),
            factors: BTreeMap::new(),
            link_faults: Vec::new(),
            excused_until: BTreeMap::new(),
            numbers: 0,
            faults_over: Time::START,
            recovered_at: None,
        }
    }

    fn run(mut self) -> Result<TortureReport, TortureFailure> {
        let mut faults_over = Time::START;
        for &(at, fault) in &self.schedule.faults {
            self.enqueue(at, ScheduledEvent::Fault(fault));
            faults_over = faults_over.max(at + fault.duration());
        }
        // Workers that are dismissed because of the last faults are started again.
        faults_over = faults_over + self.schedule.aftermath();
        self.faults_over = faults_over;
        self.start_servers()?;
        for worker in 0..self.schedule.workers as u32 {
            self.start(WorkerId(worker));
        }
        let slowest_task = self.schedule.slowest_task();
        let recovery = Span::from_seconds(RECOVERY_SECONDS + RECOVERY_TASKS * slowest_task);
        let since_last_fault = recovery + Span::from_seconds(RECOVERY_SECONDS + PROGRESS_TASKS * slowest_task);
        self.enqueue(faults_over, ScheduledEvent::FaultsOver);
        self.enqueue(faults_over + recovery, ScheduledEvent::Recovered);
        let end = faults_over + since_last_fault;
        loop {
            let version = self.version();
            if self.recovered_at.is_some_and(|recovered| version >= recovered + PROGRESS_VERSIONS) {
                let (joined, expected) = (self.serving().map_or(0, TortureServer::joined), self.processes.len());
                if joined != expected {
                    return Err(TortureFailure::NotBack { joined, expected, since_last_fault: recovery });
                }
                let events = self.servers.iter().map(|server| server.host.events).sum();
                return Ok(TortureReport { events, versions: version });
            }
            let queued = self.queue.first_key_value().map(|(&(at, _), _)| at);
            let due =
                self.servers.iter().enumerate().filter_map(|(index, one)| Some((one.next(self.now)?, index))).min();
            let times = [queued, due.map(|(at, _)| at)];
            let Some(at) = times.into_iter().flatten().min().filter(|&at| at <= end) else { break };
            self.now = at;
            match due {
                Some((due, index)) if due == at && queued != Some(at) => {
                    if self.may_decide(index)? {
                        self.servers[index].on_timer(at, &mut self.storage)?;
                        self.after_server(index)?;
                    }
                }
                _ => {
                    if let Some((_, event)) = self.queue.pop_first() {
                        self.handle(event)?;
                    }
                }
            }
        }
        Err(TortureFailure::Stalled { version: self.version(), since_last_fault })
    }

    /// The server that serves the run, if one does.
    fn serving(&self) -> Option<&TortureServer<'a>> {
        let running = self.servers.iter().filter(|server| server.is_running());
        running.max_by_key(|server| server.lease.as_ref().map_or(0, HeldLease::epoch))
    }

    fn version(&self) -> u64 {
        self.serving().map_or(self.storage.checkpoint.mark.version, |server| server.host.checker.version)
    }

    pub(crate) fn enqueue(&mut self, at: Time, event: ScheduledEvent) {
        self.queue.insert((at, self.queued), event);
        self.queued += 1;
    }

    pub(crate) fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// A random number that depends only on the seed and `salt`.
    pub(crate) fn random(&self, salt: [u64; 3]) -> u64 {
        mixed(self.schedule.seed, salt)
    }

    /// When the process of the event continues, if it does not run now.
    fn suspended_until(&self, event: &ScheduledEvent) -> Option<Time> {
        let process = |worker: &WorkerId| self.processes.get(worker);
        match event {
            ScheduledEvent::ToWorker(session, _)
            | ScheduledEvent::ClosedAtWorker(session)
            | ScheduledEvent::HandshakeTimeout(session) => {
                let connection = self.connections.get(session)?;
                process(&connection.worker).filter(|process| process.number == connection.process)
            }
            ScheduledEvent::Computed(worker, ..) => process(worker),
            ScheduledEvent::Heartbeat(worker, _) | ScheduledEvent::Connect(worker, _) => process(worker),
            _ => None,
        }
        .map(|process| match event {
            ScheduledEvent::Computed(..) => process.frozen_until.max(process.stuck_until),
            _ => process.frozen_until,
        })
        .filter(|&until| until > self.now)
    }

    fn handle(&mut self, event: ScheduledEvent) -> Result<(), TortureFailure> {
        let now = self.now;
        if let Some(until) = self.suspended_until(&event) {
            self.enqueue(until, event);
            return Ok(());
        }
        match event {
            ScheduledEvent::Fault(fault) => self.apply(fault),
            ScheduledEvent::ServerEnds(index, process) => {
                if self.servers[index].process == process {
                    self.end_server(index, RESTART);
                }
            }
            ScheduledEvent::ServerBack(index, process) => self.on_server_back(index, process)?,
            ScheduledEvent::Lease(index, process, step) => self.on_lease_step(index, process, step)?,
            ScheduledEvent::StallOver(index) => self.read_inbox(index)?,
            ScheduledEvent::FaultsOver => {
                self.link_faults.clear();
                for worker in 0..self.schedule.workers as u32 {
                    self.start(WorkerId(worker));
                }
            }
            ScheduledEvent::Recovered => self.recovered_at = Some(self.version()),
            ScheduledEvent::ToServer(index, event) => {
                self.servers[index].inbox.push_back(event);
                self.read_inbox(index)?;
            }
            ScheduledEvent::ToWorker(session, message) => {
                self.at_worker(session, |process, now| process.on_message(now, message));
            }
            ScheduledEvent::HandshakeTimeout(session) => {
                self.at_worker(session, |process, _| process.on_handshake_timeout());
            }
            ScheduledEvent::ClosedAtWorker(session) => {
                self.at_worker(session, |process, _| process.on_closed());
                self.connections.remove(&session);
            }
            ScheduledEvent::Computed(worker, computation, left, step) => {
                let Some(process) = self.processes.get_mut(&worker) else { return Ok(()) };
                if left > 0 && process.is_current(computation) {
                    process.progress += 1;
                    self.enqueue(now + step, ScheduledEvent::Computed(worker, computation, left - 1, step));
                } else {
                    let effects = process.on_computed(now, computation);
                    self.carry_out(worker, effects);
                }
            }
            ScheduledEvent::Heartbeat(worker, number) => {
                // Another process of the worker may have replaced the one that scheduled this heartbeat.
                if let Some(process) = self.processes.get(&worker).filter(|process| process.number == number) {
                    let effect = process.heartbeat();
                    self.enqueue(now + HEARTBEAT_INTERVAL, event);
                    self.carry_out(worker, vec![effect]);
                }
            }
            ScheduledEvent::Connect(worker, number) => self.connect(worker, number),
        }
        Ok(())
    }

    // --- workers ---

    fn start(&mut self, worker: WorkerId) {
        if self.processes.contains_key(&worker) {
            return;
        }
        let number = self.number();
        let (servers, shards) = (self.schedule.servers, self.schedule.shards > 0);
        self.processes.insert(worker, WorkerProcess::new(worker, number, servers, shards));
        self.enqueue(self.now, ScheduledEvent::Connect(worker, number));
        self.enqueue(self.now + HEARTBEAT_INTERVAL, ScheduledEvent::Heartbeat(worker, number));
    }

    fn connect(&mut self, worker: WorkerId, number: u64) {
        let session = SessionId(self.number());
        let now = self.now;
        let Some(process) = self.processes.get_mut(&worker).filter(|process| process.number == number) else { return };
        if process.session.is_some() {
            return;
        }
        let listening = process.servers.addresses().copied().find(|&index| self.servers[index].is_running());
        let Some(index) = listening else {
            return self.enqueue(now + Span::from_seconds(1.0), ScheduledEvent::Connect(worker, number));
        };
        if self.servers[index].workers_cut_until > now {
            process.servers.pass_on();
            return self.enqueue(now + CONNECT_TIMEOUT, ScheduledEvent::Connect(worker, number));
        }
        let trust = process.trust;
        let effects = process.connect(session);
        let connection = SimulatedConnection { worker, server: index, process: number, at_server: now, at_worker: now };
        self.connections.insert(session, connection);
        self.transmit_to_server(session, ToServerEvent::Connected(session, worker, trust));
        self.enqueue(now + HANDSHAKE_TIMEOUT, ScheduledEvent::HandshakeTimeout(session));
        self.carry_out(worker, effects);
    }

    /// Calls the process at the worker's end of a connection, if it is still there.
    fn at_worker(&mut self, session: SessionId, call: impl FnOnce(&mut WorkerProcess, Time) -> Vec<Effect>) {
        let Some(connection) = self.connections.get(&session) else { return };
        let (worker, now) = (connection.worker, self.now);
        let process = self.processes.get_mut(&worker).filter(|process| process.session == Some(session));
        if let Some(process) = process {
            let effects = call(process, now);
            self.carry_out(worker, effects);
        }
    }

    fn carry_out(&mut self, worker: WorkerId, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Send(message) => self.send(worker, message),
                Effect::Close(session) => {
                    self.transmit_to_server(session, ToServerEvent::Closed(session));
                    self.connections.remove(&session);
                }
                Effect::Compute { computation, assignment } => {
                    let of_worker = self.random([2, u64::from(worker.0), 0]);
                    let of_task = self.random([1, u64::from(worker.0), computation]);
                    // The tasks of one worker differ by up to a factor of 2.
                    let speed = SPEED_RANGE.powf(unit(of_worker)) * (1.0 + unit(of_task));
                    let size = f64::from(assignment.samples) / f64::from(self.schedule.batch);
                    let factor = self.factors.get(&worker).copied().unwrap_or(1.0);
                    let seconds = self.schedule.task.seconds() * speed * size * factor;
                    // A long computation makes progress every few minutes, a short one only at its end.
                    let steps = (seconds / 300.0).ceil().max(1.0);
                    let step = Span::from_seconds(seconds / steps);
                    let left = steps as u32 - 1;
                    self.enqueue(self.now + step, ScheduledEvent::Computed(worker, computation, left, step));
                }
                Effect::Reconnect => {
                    let Some(process) = self.processes.get_mut(&worker) else { continue };
                    process.attempts = (process.attempts + 1).min(5);
                    let delay = Span::from_seconds((0.05 * f64::from(1 << process.attempts)).min(2.0));
                    let number = process.number;
                    self.enqueue(self.now + delay, ScheduledEvent::Connect(worker, number));
                }
                Effect::Exit => self.end(worker, Span::from_seconds(0.001)),
            }
        }
    }

    /// Ends the worker's process; the server notices after `noticed`.
    fn end(&mut self, worker: WorkerId, noticed: Span) {
        let session = self.processes.remove(&worker).and_then(|process| process.session);
        let connection = session.and_then(|session| Some((session, self.connections.remove(&session)?)));
        if let Some((session, connection)) = connection {
            let closed = ScheduledEvent::ToServer(connection.server, ToServerEvent::Closed(session));
            self.enqueue(self.now + noticed, closed);
        }
        for shards in self.servers.iter_mut().filter_map(|server| server.host.shards.as_mut()) {
            shards.lose(worker);
        }
    }

    /// Ends a worker's connection without a word on either side.
    fn reset(&mut self, worker: WorkerId, after: Span) {
        let Some(session) = self.processes.get(&worker).and_then(|process| process.session) else { return };
        if let Some(connection) = self.connections.get(&session) {
            let closed = ScheduledEvent::ToServer(connection.server, ToServerEvent::Closed(session));
            self.enqueue(self.now + after, closed);
            self.enqueue(self.now + after, ScheduledEvent::ClosedAtWorker(session));
        }
    }

    /// A fault of the worker is over at `until`. What it held up arrives a little later, and a server that stands still
    /// acts on it when it continues.
    fn excuse(&mut self, worker: WorkerId, until: Time) {
        let busy = self.servers.iter().map(TortureServer::busy_until).max().unwrap_or_default();
        let until = until.max(busy) + self.schedule.aftermath();
        let excused = self.excused_until.entry(worker).or_default();
        *excused = (*excused).max(until);
    }

    /// A server acts on faults only when it continues.
    fn extend_excuses(&mut self, until: Time) {
        let (now, until) = (self.now, until + self.schedule.aftermath());
        let excuses = self.excused_until.values_mut().filter(|excused| **excused >= now);
        excuses.for_each(|excused| *excused = until.max(*excused));
    }

    fn apply(&mut self, fault: Fault) {
        let now = self.now;
        let over = now + fault.duration();
        match fault {
            Fault::Start(worker) => self.start(worker),
            Fault::Leave(worker) => {
                if self.processes.get(&worker).is_some_and(|process| process.frozen_until <= now) {
                    self.send(worker, ToServer::Leave { reason: "the worker leaves".into(), is_done: false });
                    self.end(worker, Span::from_seconds(1.0));
                }
            }
            Fault::Crash(worker, after) => {
                self.excuse(worker, over);
                self.end(worker, after);
            }
            Fault::Freeze(worker, span) => {
                self.excuse(worker, over);
                if let Some(process) = self.processes.get_mut(&worker) {
                    process.frozen_until = process.frozen_until.max(now + span);
                }
            }
            Fault::Stick(worker, span) => {
                self.excuse(worker, over);
                if let Some(process) = self.processes.get_mut(&worker) {
                    process.stuck_until = process.stuck_until.max(now + span);
                }
            }
            Fault::Slow(worker, factor) => {
                self.factors.insert(worker, factor);
            }
            Fault::Network(worker, fault, span) => {
                if fault != LinkFault::ToWorkerCut {
                    self.excuse(worker, over);
                }
                self.link_faults.push((worker, fault, now + span));
                if fault != LinkFault::Delayed && span > CONNECTION_TIMEOUT {
                    self.reset(worker, CONNECTION_TIMEOUT);
                }
            }
            Fault::Reset(worker) => self.reset(worker, Span::from_seconds(0.001)),
            Fault::FalseReports(worker, span) => {
                self.excuse(worker, over);
                if let Some(process) = self.processes.get_mut(&worker) {
                    process.false_reports_until = now + span;
                }
            }
            Fault::ServerStall(index, _) => {
                let server = &mut self.servers[index];
                server.stalled_until = server.stalled_until.max(over);
                let until = server.stalled_until;
                self.extend_excuses(until);
                // Other threads of the process may be first.
                let late = Span::from_seconds(0.02 * unit(self.random([10, self.queued, 0])));
                self.enqueue(until + late, ScheduledEvent::StallOver(index));
            }
            Fault::ClockJump(index, by) => self.servers[index].jump_clock(by),
            Fault::DiskFull(_) => self.storage.full_until = over,
            Fault::ServerRestart(index, span) => self.end_server(index, span),
            Fault::ServerCut(index, cut, span) => {
                let server = &mut self.servers[index];
                if cut != ServerCut::Workers {
                    server.storage_cut_until = server.storage_cut_until.max(over);
                }
                if cut != ServerCut::Storage {
                    server.workers_cut_until = server.workers_cut_until.max(over);
                    let workers: Vec<WorkerId> = self.processes.keys().copied().collect();
                    for worker in workers {
                        self.excuse(worker, over);
                        let is_cut = |session| self.connections.get(&session).is_some_and(|one| one.server == index);
                        let session = self.processes.get(&worker).and_then(|process| process.session);
                        if span > CONNECTION_TIMEOUT && session.is_some_and(is_cut) {
                            self.reset(worker, CONNECTION_TIMEOUT);
                        }
                    }
                }
            }
        }
    }

    // --- connections ---

    fn send(&mut self, worker: WorkerId, message: ToServer) {
        let Some(process) = self.processes.get(&worker) else { return };
        let Some(session) = process.session else { return };
        if let ToServer::Report { number, gradient: GradientLocation::InShards, .. } = message {
            let index = self.connections.get(&session).map(|connection| connection.server);
            if let Some(shards) = index.and_then(|index| self.servers[index].host.shards.as_mut()) {
                shards.push(TaskId { worker, number }, self.now);
            }
        }
        if process.false_reports_until > self.now {
            let message = falsified(&message, self.random([3, self.queued, 0]));
            self.transmit_to_server(session, ToServerEvent::Message(session, message));
        }
        self.transmit_to_server(session, ToServerEvent::Message(session, message));
    }

    /// When a message arrives that is sent at a time, with the connection's present faults.
    fn arrival(&mut self, worker: WorkerId, server: usize, to_server: bool, sent: Time) -> Time {
        let now = self.now;
        self.link_faults.retain(|&(_, _, until)| until > now);
        let random = self.random([4, self.queued, u64::from(worker.0)]);
        let mut at = sent + Span::from_seconds(0.001 + 0.004 * unit(random));
        at = at.max(self.servers[server].workers_cut_until);
        for &(_, fault, until) in self.link_faults.iter().filter(|&&(faulty, ..)| faulty == worker) {
            match (fault, to_server) {
                (LinkFault::Cut, _) | (LinkFault::ToServerCut, true) | (LinkFault::ToWorkerCut, false) => {
                    at = at.max(until);
                }
                (LinkFault::Delayed, _) => at = at + Span::from_seconds(0.5 * unit(random.rotate_left(32))),
                (LinkFault::ToServerCut, false) | (LinkFault::ToWorkerCut, true) => {}
            }
        }
        at
    }

    fn transmit_to_server(&mut self, session: SessionId, event: ToServerEvent) {
        let Some(&SimulatedConnection { worker, server, .. }) = self.connections.get(&session) else { return };
        let at = self.arrival(worker, server, true, self.now);
        let Some(connection) = self.connections.get_mut(&session) else { return };
        connection.at_server = connection.at_server.max(at);
        let at = connection.at_server;
        self.enqueue(at, ScheduledEvent::ToServer(server, event));
    }

    fn transmit_to_worker(&mut self, session: SessionId, event: ScheduledEvent, sent: Time) {
        let Some(&SimulatedConnection { worker, server, .. }) = self.connections.get(&session) else { return };
        let at = self.arrival(worker, server, false, sent);
        let Some(connection) = self.connections.get_mut(&session) else { return };
        connection.at_worker = connection.at_worker.max(at);
        let at = connection.at_worker;
        self.enqueue(at, event);
    }

    // --- the server ---

    /// A server handles everything that has arrived, unless it is busy.
    fn read_inbox(&mut self, index: usize) -> Result<(), TortureFailure> {
        let now = self.now;
        while !self.servers[index].inbox.is_empty() && self.servers[index].busy_until() <= now {
            if self.servers[index].is_running() && !self.may_decide(index)? {
                return Ok(());
            }
            let (server, storage) = (&mut self.servers[index], &mut self.storage);
            match server.inbox.pop_front() {
                None => {}
                Some(ToServerEvent::Connected(session, worker, trust)) => {
                    server.on_connected(now, storage, session, (worker, trust))?;
                }
                Some(ToServerEvent::Closed(session)) => server.on_closed(now, storage, session)?,
                Some(ToServerEvent::Message(session, message)) => {
                    if let Some(worker) = self.connections.get(&session).map(|connection| connection.worker) {
                        server.is_dismissed(now, storage, worker, &message)?;
                    }
                    server.on_message(now, storage, session, message)?;
                }
            }
            self.after_server(index)?;
        }
        Ok(())
    }

    /// Sends what a server has to send, and judges whom it dismissed.
    fn after_server(&mut self, index: usize) -> Result<(), TortureFailure> {
        let server = &mut self.servers[index];
        let (sent, process, ends_at) = (self.now.max(server.host.now), server.process, server.ends_at);
        for outgoing in std::mem::take(&mut server.host.outgoing) {
            match outgoing {
                Outgoing::Send(session, message) => {
                    self.transmit_to_worker(session, ScheduledEvent::ToWorker(session, message), sent);
                }
                Outgoing::Close(session, last) => {
                    self.transmit_to_worker(session, ScheduledEvent::ToWorker(session, last), sent);
                    self.transmit_to_worker(session, ScheduledEvent::ClosedAtWorker(session), sent);
                }
                Outgoing::Model(session, version, at) => {
                    self.enqueue(at, ScheduledEvent::ToWorker(session, ToWorker::Model { version }));
                }
            }
        }
        for notice in std::mem::take(&mut self.servers[index].host.notices) {
            self.judge(index, notice)?;
        }
        if let Some(at) = ends_at {
            self.enqueue(at.max(self.now), ScheduledEvent::ServerEnds(index, process));
        } else if sent > self.now {
            // The coordinator has waited for its shards.
            self.extend_excuses(sent);
            self.enqueue(sent, ScheduledEvent::StallOver(index));
        }
        Ok(())
    }

    /// A worker that is alive and makes progress is never dismissed, and what a dismissal costs is bounded and counted.
    fn judge(&self, index: usize, notice: Notice) -> Result<(), TortureFailure> {
        let Notice::Left { worker, reason, lost, .. } = notice else { return Ok(()) };
        let most = self.servers[index].host.checker.last_losses.get(&worker).copied().unwrap_or_default();
        if lost > most {
            let problem = format!("{worker} left with {lost} samples: expected at most {most}");
            return Err(TortureFailure::Inconsistent { problem, events: Vec::new() });
        }
        let closed = reason == "connection closed" || reason == "the worker leaves";
        let excused = self.excused_until.get(&worker).is_some_and(|&until| until >= self.now);
        if closed || excused {
            return Ok(());
        }
        Err(TortureFailure::Dismissed { worker, at: self.now, reason })
    }
}
