//! The simulation of a run under faults: server, workers and network on a virtual clock.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use paceline_core::{LawBroken, Scheme, Setup, Span, Time, WorkerId};
use thiserror::Error;

use crate::fault_schedule::{Fault, FaultSchedule, LinkFault};
use crate::message::{Envelope, ToServer, ToWorker};
use crate::server::MockServer;
use crate::worker::{Effect, HEARTBEAT_INTERVAL, WorkerProcess};

/// The time that workers and server have to recover after the last fault.
const RECOVERY_TIME: Span = Span(90_000_000_000);

/// The number of new versions that the model must reach after the recovery, and the time limit for them.
const PROGRESS_TIMEOUT: Span = Span(300_000_000_000);
const PROGRESS_VERSIONS: u64 = 3;

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
/// If the scheme breaks a law or panics, the ledger is inconsistent, or the model makes no progress after the last
/// fault.
pub fn torture(
    schedule: &FaultSchedule,
    build: &dyn Fn(&Setup) -> Box<dyn Scheme>,
) -> Result<TortureReport, TortureFailure> {
    let result = catch_unwind(AssertUnwindSafe(|| FaultSimulation::new(schedule, build).run()));
    result.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| text.to_string()));
        Err(TortureFailure::Panicked(text.unwrap_or_default()))
    })
}

/// An event in the queue.
#[derive(Debug, Clone, Copy)]
enum ScheduledEvent {
    Fault(Fault),
    /// The server resumes.
    ServerBack,
    /// All faults are over.
    FaultsOver,
    /// The recovery time is over: progress is measured from here on.
    Recovered,
    ToServer(Envelope<ToServer>),
    ToWorker(Envelope<ToWorker>),
    Closed(WorkerId, u64),
    Computed(WorkerId, u64),
    Heartbeat(WorkerId, u64),
}

impl ScheduledEvent {
    /// The worker whose process handles the event.
    fn process(&self) -> Option<WorkerId> {
        match *self {
            ScheduledEvent::ToWorker(Envelope { worker, .. })
            | ScheduledEvent::Computed(worker, _)
            | ScheduledEvent::Heartbeat(worker, _) => Some(worker),
            _ => None,
        }
    }
}

struct FaultSimulation<'a> {
    schedule: &'a FaultSchedule,
    now: Time,
    queue: BTreeMap<(Time, u64), ScheduledEvent>,
    /// Number of events added to the queue, so that events at equal times keep their order.
    queued: u64,
    server: MockServer<'a>,
    processes: BTreeMap<WorkerId, WorkerProcess>,
    /// Slowdowns of the workers.
    factors: BTreeMap<WorkerId, f64>,
    /// Link faults, and when they end.
    link_faults: Vec<(WorkerId, LinkFault, Time)>,
    sessions: u64,
    /// The version at the end of the recovery time.
    recovered_at: Option<u64>,
}

impl<'a> FaultSimulation<'a> {
    fn new(schedule: &'a FaultSchedule, build: &'a dyn Fn(&Setup) -> Box<dyn Scheme>) -> Self {
        FaultSimulation {
            schedule,
            now: Time::START,
            queue: BTreeMap::new(),
            queued: 0,
            server: MockServer::new(schedule, build),
            processes: BTreeMap::new(),
            factors: BTreeMap::new(),
            link_faults: Vec::new(),
            sessions: 0,
            recovered_at: None,
        }
    }

    fn run(mut self) -> Result<TortureReport, TortureFailure> {
        let mut faults_over = Time::START;
        for &(at, fault) in &self.schedule.faults {
            self.enqueue(at, ScheduledEvent::Fault(fault));
            faults_over = faults_over.max(at + duration(fault));
        }
        for worker in 0..self.schedule.workers as u32 {
            self.start(WorkerId(worker));
        }
        self.enqueue(faults_over, ScheduledEvent::FaultsOver);
        self.enqueue(faults_over + RECOVERY_TIME, ScheduledEvent::Recovered);
        let end = faults_over + RECOVERY_TIME + PROGRESS_TIMEOUT;
        loop {
            let version = self.server.checker.version;
            if self.recovered_at.is_some_and(|recovered| version >= recovered + PROGRESS_VERSIONS) {
                return Ok(TortureReport { events: self.server.events, versions: version });
            }
            let queued = self.queue.first_key_value().map(|(&(at, _), _)| at);
            let due = self.server.next(self.now);
            let Some(at) = [queued, due].into_iter().flatten().min().filter(|&at| at <= end) else { break };
            self.now = at;
            if due == Some(at) && queued != Some(at) {
                self.server.wake(at)?;
            } else if let Some((_, event)) = self.queue.pop_first() {
                self.handle(event)?;
            }
            self.send_outgoing();
        }
        Err(TortureFailure::Stalled {
            version: self.server.checker.version,
            since_last_fault: RECOVERY_TIME + PROGRESS_TIMEOUT,
        })
    }

    fn enqueue(&mut self, at: Time, event: ScheduledEvent) {
        self.queue.insert((at, self.queued), event);
        self.queued += 1;
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

    fn handle(&mut self, event: ScheduledEvent) -> Result<(), TortureFailure> {
        let now = self.now;
        let frozen_until =
            event.process().and_then(|worker| self.processes.get(&worker)).map(|process| process.frozen_until);
        if let Some(until) = frozen_until.filter(|&until| until > now) {
            self.enqueue(until, event);
            return Ok(());
        }
        match event {
            ScheduledEvent::Fault(fault) => self.apply(fault)?,
            ScheduledEvent::ServerBack => {
                if !self.server.running {
                    self.server.resume(now)?;
                }
            }
            ScheduledEvent::FaultsOver => {
                self.link_faults.clear();
                self.factors.clear();
                for worker in 0..self.schedule.workers as u32 {
                    self.start(WorkerId(worker));
                }
            }
            ScheduledEvent::Recovered => self.recovered_at = Some(self.server.checker.version),
            ScheduledEvent::ToServer(envelope) => self.server.on_message(now, envelope)?,
            ScheduledEvent::ToWorker(Envelope { worker, session, message }) => {
                let next_session = self.sessions;
                let process = self.processes.get_mut(&worker).filter(|process| process.session == session);
                if let Some(process) = process {
                    let effects = process.on_message(now, message, next_session);
                    self.sessions += u64::from(process.session == next_session);
                    self.carry_out(worker, effects);
                }
            }
            ScheduledEvent::Closed(worker, session) => self.server.on_closed(now, worker, session)?,
            ScheduledEvent::Computed(worker, computation) => {
                if let Some(process) = self.processes.get_mut(&worker) {
                    let effects = process.on_computed(now, computation);
                    self.carry_out(worker, effects);
                }
            }
            ScheduledEvent::Heartbeat(worker, started) => {
                // Another process of the worker may have replaced the one that scheduled this heartbeat.
                if let Some(process) = self.processes.get(&worker).filter(|process| process.started == started) {
                    let effect = process.heartbeat();
                    self.enqueue(now + HEARTBEAT_INTERVAL, event);
                    self.carry_out(worker, vec![effect]);
                }
            }
        }
        Ok(())
    }

    fn start(&mut self, worker: WorkerId) {
        if self.processes.contains_key(&worker) {
            return;
        }
        let session = self.sessions;
        self.sessions += 1;
        self.processes.insert(worker, WorkerProcess::new(worker, session));
        self.enqueue(self.now, ScheduledEvent::Heartbeat(worker, session));
    }

    fn apply(&mut self, fault: Fault) -> Result<(), TortureFailure> {
        let now = self.now;
        match fault {
            Fault::Start(worker) => self.start(worker),
            Fault::Leave(worker) => {
                if self.processes.get(&worker).is_some_and(|process| process.frozen_until <= now) {
                    self.carry_out(worker, vec![Effect::Send(ToServer::Bye)]);
                    self.end(worker, Span::from_seconds(1.0));
                }
            }
            Fault::Crash(worker, after) => self.end(worker, after),
            Fault::Freeze(worker, span) => {
                if let Some(process) = self.processes.get_mut(&worker) {
                    process.frozen_until = process.frozen_until.max(now + span);
                }
            }
            Fault::Slow(worker, factor) => {
                self.factors.insert(worker, factor);
            }
            Fault::Network(worker, fault, span) => self.link_faults.push((worker, fault, now + span)),
            Fault::FalseReports(worker, span) => {
                if let Some(process) = self.processes.get_mut(&worker) {
                    process.false_reports_until = now + span;
                }
            }
            Fault::ClockJump(by) => self.server.jump_clock(by),
            Fault::DiskFull(span) => self.server.disk_full_until = now + span,
            Fault::ServerRestart(span) => {
                self.server.kill();
                self.enqueue(now + span, ScheduledEvent::ServerBack);
            }
        }
        Ok(())
    }

    /// Ends the worker's process; its connection closes after `noticed`.
    fn end(&mut self, worker: WorkerId, noticed: Span) {
        if let Some(process) = self.processes.remove(&worker) {
            self.enqueue(self.now + noticed, ScheduledEvent::Closed(worker, process.session));
        }
    }

    fn carry_out(&mut self, worker: WorkerId, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Send(message) => self.send(worker, message),
                Effect::Compute { computation, assignment, iterations } => {
                    let of_worker = self.random([2, u64::from(worker.0), 0]);
                    let of_task = self.random([1, u64::from(worker.0), assignment.task.number]);
                    // The workers' speeds differ by up to a factor of 8, the tasks of one worker by up to 2.
                    let seconds = 0.15 * 8.0_f64.powf(unit(of_worker)) * (1.0 + unit(of_task));
                    let size = f64::from(assignment.samples) / f64::from(self.schedule.batch) * f64::from(iterations);
                    let factor = self.factors.get(&worker).copied().unwrap_or(1.0);
                    let span = Span::from_seconds(seconds * size * factor);
                    self.enqueue(self.now + span, ScheduledEvent::Computed(worker, computation));
                }
            }
        }
    }

    fn send(&mut self, worker: WorkerId, message: ToServer) {
        let Some(process) = self.processes.get(&worker) else { return };
        let session = process.session;
        let envelope = Envelope { worker, session, message };
        if process.false_reports_until > self.now {
            let message = process.falsified(message, self.random([3, self.queued, 0]));
            self.transmit(worker, ScheduledEvent::ToServer(Envelope { message, ..envelope }));
        }
        self.transmit(worker, ScheduledEvent::ToServer(envelope));
    }

    fn send_outgoing(&mut self) {
        for envelope in std::mem::take(&mut self.server.outgoing) {
            self.transmit(envelope.worker, ScheduledEvent::ToWorker(envelope));
        }
    }

    /// Sends a message over the worker's link, with its current faults.
    fn transmit(&mut self, worker: WorkerId, message: ScheduledEvent) {
        let now = self.now;
        self.link_faults.retain(|&(_, _, until)| until > now);
        let random = self.random([4, self.queued, u64::from(worker.0)]);
        let mut delay = 0.001 + 0.004 * unit(random);
        let mut copies = 1;
        for &(_, fault, _) in self.link_faults.iter().filter(|&&(faulty, ..)| faulty == worker) {
            match fault {
                LinkFault::Cut => copies = 0,
                LinkFault::Lossy if random.is_multiple_of(3) => copies = 0,
                LinkFault::Lossy => {}
                LinkFault::Repeating => copies *= 2,
                LinkFault::Reordering => delay += 0.5 * unit(random.rotate_left(32)),
            }
        }
        for copy in 0..copies {
            self.enqueue(now + Span::from_seconds(delay * f64::from(1 + copy)), message);
        }
    }
}

/// Maps a random number to [0, 1).
fn unit(random: u64) -> f64 {
    (random >> 11) as f64 / (1_u64 << 53) as f64
}

/// The time until a fault is over.
fn duration(fault: Fault) -> Span {
    match fault {
        Fault::Crash(_, span)
        | Fault::Freeze(_, span)
        | Fault::Network(_, _, span)
        | Fault::FalseReports(_, span)
        | Fault::DiskFull(span)
        | Fault::ServerRestart(span) => span,
        // The clock stands still until the true time has caught up.
        Fault::ClockJump(by) if by < 0 => Span(by.unsigned_abs()),
        Fault::Start(_) | Fault::Leave(_) | Fault::Slow(..) | Fault::ClockJump(_) => Span::ZERO,
    }
}
