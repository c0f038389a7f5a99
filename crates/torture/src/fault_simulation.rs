//! The simulation of a run under faults: server, workers and connections on a virtual clock.

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};

use paceline_core::{LawBroken, Scheme, Setup, Span, Time, WorkerId};
use paceline_protocol::{Fingerprint, HEARTBEAT_INTERVAL, Notice, PeerTrust, SessionId, ToServer, ToWorker};
use thiserror::Error;

use crate::fault_schedule::{Fault, FaultSchedule, LinkFault, SPEED_RANGE};
use crate::server::{Outgoing, TortureServer};
use crate::timeout_rule::TimeoutRule;
use crate::worker::{Effect, WorkerProcess, falsified};

/// The time that workers and server have to recover after the last fault: seconds, and tasks of the slowest worker. A
/// task of several local iterations may have started just before.
const RECOVERY_SECONDS: f64 = 90.0;
const RECOVERY_TASKS: f64 = 4.0;

/// The number of new versions that the model must reach after the recovery, and the time limit for them.
const PROGRESS_VERSIONS: u64 = 3;
const PROGRESS_TASKS: f64 = 40.0;

/// A connection that is cut for longer than this is lost, as over TCP.
const CONNECTION_TIMEOUT: Span = Span(30_000_000_000);

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
enum ToServerEvent {
    Connected(SessionId, PeerTrust),
    Message(SessionId, ToServer),
    Closed(SessionId),
}

/// An event in the queue.
#[derive(Debug, Clone)]
enum ScheduledEvent {
    Fault(Fault),
    /// The server resumes after it was killed.
    ServerBack,
    /// The server continues after it stood still.
    StallOver,
    /// All faults are over.
    FaultsOver,
    /// The recovery time is over: progress is measured from here on.
    Recovered,
    ToServer(ToServerEvent),
    ToWorker(SessionId, ToWorker),
    /// The connection is closed on the worker's side.
    ClosedAtWorker(SessionId),
    /// A step of a worker's computation is done; this many follow.
    Computed(WorkerId, u64, u32, Span),
    Heartbeat(WorkerId, u64),
    Connect(WorkerId, u64),
}

/// A connection, or what is left of it.
#[derive(Debug)]
struct SimulatedConnection {
    worker: WorkerId,
    /// The process at the worker's end.
    process: u64,
    /// When the last message arrives at the server and at the worker: messages arrive in order.
    at_server: Time,
    at_worker: Time,
}

struct FaultSimulation<'a> {
    schedule: &'a FaultSchedule,
    now: Time,
    queue: BTreeMap<(Time, u64), ScheduledEvent>,
    /// Number of events added to the queue, so that events at equal times keep their order.
    queued: u64,
    server: TortureServer<'a>,
    /// What arrives while the server stands still.
    inbox: VecDeque<ToServerEvent>,
    processes: BTreeMap<WorkerId, WorkerProcess>,
    connections: BTreeMap<SessionId, SimulatedConnection>,
    /// Slowdowns of the workers.
    factors: BTreeMap<WorkerId, f64>,
    /// Faults of the connections, and when they end.
    link_faults: Vec<(WorkerId, LinkFault, Time)>,
    /// Until when a worker may be taken for gone or stuck: a fault that it can't hide from the server.
    excused_until: BTreeMap<WorkerId, Time>,
    numbers: u64,
    /// The version at the end of the recovery time.
    recovered_at: Option<u64>,
}

impl<'a> FaultSimulation<'a> {
    fn new(
        schedule: &'a FaultSchedule,
        build: &'a dyn Fn(&Setup) -> Box<dyn Scheme>,
        rule: Option<Box<dyn TimeoutRule>>,
    ) -> Self {
        FaultSimulation {
            schedule,
            now: Time::START,
            queue: BTreeMap::new(),
            queued: 0,
            server: TortureServer::new(schedule, build, rule),
            inbox: VecDeque::new(),
            processes: BTreeMap::new(),
            connections: BTreeMap::new(),
            factors: BTreeMap::new(),
            link_faults: Vec::new(),
            excused_until: BTreeMap::new(),
            numbers: 0,
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
            let version = self.server.host.checker.version;
            if self.recovered_at.is_some_and(|recovered| version >= recovered + PROGRESS_VERSIONS) {
                let (joined, expected) = (self.server.joined(), self.processes.len());
                if joined != expected {
                    return Err(TortureFailure::NotBack { joined, expected, since_last_fault: recovery });
                }
                return Ok(TortureReport { events: self.server.host.events, versions: version });
            }
            let queued = self.queue.first_key_value().map(|(&(at, _), _)| at);
            let due = self.server.next(self.now);
            let Some(at) = [queued, due].into_iter().flatten().min().filter(|&at| at <= end) else { break };
            self.now = at;
            if due == Some(at) && queued != Some(at) {
                self.server.on_timer(at)?;
            } else if let Some((_, event)) = self.queue.pop_first() {
                self.handle(event)?;
            }
            self.after_server()?;
        }
        Err(TortureFailure::Stalled { version: self.server.host.checker.version, since_last_fault })
    }

    fn enqueue(&mut self, at: Time, event: ScheduledEvent) {
        self.queue.insert((at, self.queued), event);
        self.queued += 1;
    }

    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// A random number that depends only on the seed and `salt`.
    fn random(&self, salt: [u64; 3]) -> u64 {
        let mut mixed = self.schedule.seed;
        for part in salt {
            // SplitMix64's finalizer.
            mixed = mixed.wrapping_add(part).wrapping_add(0x9e37_79b9_7f4a_7c15);
            mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            mixed ^= mixed >> 31;
        }
        mixed
    }

    /// When the process of the event continues, if it does not run now.
    fn suspended_until(&self, event: &ScheduledEvent) -> Option<Time> {
        let process = |worker: &WorkerId| self.processes.get(worker);
        match event {
            ScheduledEvent::ToWorker(session, _) | ScheduledEvent::ClosedAtWorker(session) => {
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
            ScheduledEvent::ServerBack => {
                if !self.server.is_running() {
                    self.server.resume(now)?;
                }
            }
            ScheduledEvent::StallOver => self.read_inbox()?,
            ScheduledEvent::FaultsOver => {
                self.link_faults.clear();
                for worker in 0..self.schedule.workers as u32 {
                    self.start(WorkerId(worker));
                }
            }
            ScheduledEvent::Recovered => self.recovered_at = Some(self.server.host.checker.version),
            ScheduledEvent::ToServer(event) => {
                self.inbox.push_back(event);
                if self.server.stalled_until <= now {
                    self.read_inbox()?;
                }
            }
            ScheduledEvent::ToWorker(session, message) => {
                let ready = ToServer::Ready { fingerprint: Fingerprint::default(), shard: None };
                self.at_worker(session, |process, now| process.on_message(now, message, &ready));
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
        self.processes.insert(worker, WorkerProcess::new(worker, number));
        self.enqueue(self.now, ScheduledEvent::Connect(worker, number));
        self.enqueue(self.now + HEARTBEAT_INTERVAL, ScheduledEvent::Heartbeat(worker, number));
    }

    fn connect(&mut self, worker: WorkerId, number: u64) {
        let session = SessionId(self.number());
        let (now, is_running) = (self.now, self.server.is_running());
        let Some(process) = self.processes.get_mut(&worker).filter(|process| process.number == number) else { return };
        if process.session.is_some() {
            return;
        }
        if !is_running {
            return self.enqueue(now + Span::from_seconds(1.0), ScheduledEvent::Connect(worker, number));
        }
        let trust = process.trust;
        let effects = process.connect(session);
        self.connections
            .insert(session, SimulatedConnection { worker, process: number, at_server: now, at_worker: now });
        self.transmit_to_server(session, ToServerEvent::Connected(session, trust));
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
        if let Some(session) = self.processes.remove(&worker).and_then(|process| process.session) {
            self.connections.remove(&session);
            self.enqueue(self.now + noticed, ScheduledEvent::ToServer(ToServerEvent::Closed(session)));
        }
    }

    /// Ends a worker's connection without a word on either side.
    fn reset(&mut self, worker: WorkerId, after: Span) {
        if let Some(session) = self.processes.get(&worker).and_then(|process| process.session) {
            self.enqueue(self.now + after, ScheduledEvent::ToServer(ToServerEvent::Closed(session)));
            self.enqueue(self.now + after, ScheduledEvent::ClosedAtWorker(session));
        }
    }

    /// A fault of the worker is over at `until`. What it held up arrives a little later, and a server that stands still
    /// acts on it when it continues.
    fn excuse(&mut self, worker: WorkerId, until: Time) {
        let until = until.max(self.server.stalled_until) + self.schedule.aftermath();
        let excused = self.excused_until.entry(worker).or_default();
        *excused = (*excused).max(until);
    }

    fn apply(&mut self, fault: Fault) {
        let now = self.now;
        let over = now + fault.duration();
        match fault {
            Fault::Start(worker) => self.start(worker),
            Fault::Leave(worker) => {
                if self.processes.get(&worker).is_some_and(|process| process.frozen_until <= now) {
                    self.send(worker, ToServer::Leave { reason: "the worker leaves".into() });
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
            Fault::ServerStall(span) => {
                self.server.stalled_until = self.server.stalled_until.max(now + span);
                let until = self.server.stalled_until + self.schedule.aftermath();
                self.excused_until
                    .values_mut()
                    .filter(|excused| **excused >= now)
                    .for_each(|excused| *excused = until.max(*excused));
                self.enqueue(self.server.stalled_until, ScheduledEvent::StallOver);
            }
            Fault::ClockJump(by) => self.server.jump_clock(by),
            Fault::DiskFull(span) => self.server.disk_full_until = now + span,
            Fault::ServerRestart(span) => {
                self.server.kill();
                self.inbox.clear();
                let sessions: Vec<SessionId> = self.connections.keys().copied().collect();
                for session in sessions {
                    self.enqueue(now + Span::from_seconds(0.001), ScheduledEvent::ClosedAtWorker(session));
                }
                self.enqueue(now + span, ScheduledEvent::ServerBack);
            }
        }
    }

    // --- connections ---

    fn send(&mut self, worker: WorkerId, message: ToServer) {
        let Some(process) = self.processes.get(&worker) else { return };
        let Some(session) = process.session else { return };
        if process.false_reports_until > self.now {
            let message = falsified(&message, self.random([3, self.queued, 0]));
            self.transmit_to_server(session, ToServerEvent::Message(session, message));
        }
        self.transmit_to_server(session, ToServerEvent::Message(session, message));
    }

    /// When a message arrives that is sent now, with the connection's present faults.
    fn arrival(&mut self, worker: WorkerId, to_server: bool) -> Time {
        let now = self.now;
        self.link_faults.retain(|&(_, _, until)| until > now);
        let random = self.random([4, self.queued, u64::from(worker.0)]);
        let mut at = now + Span::from_seconds(0.001 + 0.004 * unit(random));
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
        let Some(worker) = self.connections.get(&session).map(|connection| connection.worker) else { return };
        let at = self.arrival(worker, true);
        let Some(connection) = self.connections.get_mut(&session) else { return };
        connection.at_server = connection.at_server.max(at);
        let at = connection.at_server;
        self.enqueue(at, ScheduledEvent::ToServer(event));
    }

    fn transmit_to_worker(&mut self, session: SessionId, event: ScheduledEvent) {
        let Some(worker) = self.connections.get(&session).map(|connection| connection.worker) else { return };
        let at = self.arrival(worker, false);
        let Some(connection) = self.connections.get_mut(&session) else { return };
        connection.at_worker = connection.at_worker.max(at);
        let at = connection.at_worker;
        self.enqueue(at, event);
    }

    // --- the server ---

    /// The server handles everything that has arrived.
    fn read_inbox(&mut self) -> Result<(), TortureFailure> {
        while let Some(event) = self.inbox.pop_front() {
            match event {
                ToServerEvent::Connected(session, trust) => self.server.on_connected(self.now, session, trust)?,
                ToServerEvent::Closed(session) => self.server.on_closed(self.now, session)?,
                ToServerEvent::Message(session, message) => {
                    if let Some(worker) = self.connections.get(&session).map(|connection| connection.worker) {
                        self.server.is_dismissed(self.now, worker, &message)?;
                    }
                    self.server.on_message(self.now, session, message)?;
                }
            }
            self.after_server()?;
        }
        Ok(())
    }

    /// Sends what the server has to send, and judges whom it dismissed.
    fn after_server(&mut self) -> Result<(), TortureFailure> {
        for outgoing in std::mem::take(&mut self.server.host.outgoing) {
            match outgoing {
                Outgoing::Send(session, message) => {
                    self.transmit_to_worker(session, ScheduledEvent::ToWorker(session, message));
                }
                Outgoing::Close(session, last) => {
                    self.transmit_to_worker(session, ScheduledEvent::ToWorker(session, last));
                    self.transmit_to_worker(session, ScheduledEvent::ClosedAtWorker(session));
                }
            }
        }
        for notice in std::mem::take(&mut self.server.host.notices) {
            self.judge(notice)?;
        }
        Ok(())
    }

    /// A worker that is alive and makes progress is never dismissed, and what a dismissal costs is bounded and counted.
    fn judge(&self, notice: Notice) -> Result<(), TortureFailure> {
        let Notice::Left { worker, reason, lost, .. } = notice else { return Ok(()) };
        let most = self.server.host.checker.last_losses.get(&worker).copied().unwrap_or_default();
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

/// Maps a random number to [0, 1).
fn unit(random: u64) -> f64 {
    (random >> 11) as f64 / (1_u64 << 53) as f64
}
