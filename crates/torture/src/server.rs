//! The server under test: the protocol of the real one, with a disk that survives restarts and without a model.

use std::collections::{BTreeMap, BTreeSet};

use paceline_core::{
    Aggregate, Commit, CommitOutcome, Decision, DriveError, Event, Ledger, LedgerError, PlanRequest, SavedLedger,
    Scheme, SchemePace, Setup, Share, Span, TaskId, Time, WorkerId,
};
use paceline_protocol::{
    Evaluation, Fingerprint, Notice, PayloadRule, PeerTrust, ReportedUpdate, RunPosition, ServerConfig, ServerHost,
    ServerProtocol, SessionId, ToServer, ToWorker,
};
use paceline_store::OptimizerKind;

use crate::checker::{CheckerMark, LawChecker};
use crate::fault_schedule::FaultSchedule;
use crate::fault_simulation::TortureFailure;
use crate::timeout_rule::TimeoutRule;

/// The ceiling of the run: the time without progress after which a worker of unknown speed is dismissed.
const TIMEOUT: Span = Span(3_600_000_000_000);

/// What the server's clock shows at the start, in nanoseconds: it may jump back.
const START_OF_CLOCK: i64 = 3_600_000_000_000;

/// The number of latest events in a failure.
const LATEST_EVENTS: usize = 40;

/// The last checkpoint on the disk.
#[derive(Debug, Clone, Default)]
struct SavedState {
    /// The ledger with its scheme, as text; `None` before the first checkpoint.
    ledger: Option<String>,
    /// The length of the event log.
    events: usize,
    mark: CheckerMark,
}

/// A message to a worker, or the end of its connection after a last message.
#[derive(Debug, Clone)]
pub(crate) enum Outgoing {
    Send(SessionId, ToWorker),
    Close(SessionId, ToWorker),
}

/// What the protocol acts on.
pub(crate) struct TortureHost {
    pub(crate) checker: LawChecker,
    /// The event log on the disk.
    log: Vec<(Time, Event)>,
    pub(crate) outgoing: Vec<Outgoing>,
    pub(crate) notices: Vec<Notice>,
    trust: BTreeMap<SessionId, PeerTrust>,
    /// Tasks with buffers, by session.
    buffers: BTreeSet<(SessionId, TaskId)>,
    /// Updates that are neither committed nor discarded.
    arrived: BTreeSet<TaskId>,
    /// A rule that dismisses workers, in addition to the protocol's own.
    rule: Option<Box<dyn TimeoutRule>>,
    pub(crate) events: u64,
}

impl TortureHost {
    fn check(&self, holds: bool, problem: impl FnOnce() -> String) -> Result<(), TortureFailure> {
        if holds { Ok(()) } else { Err(self.inconsistent(problem())) }
    }

    fn inconsistent(&self, problem: String) -> TortureFailure {
        let from = self.log.len().saturating_sub(LATEST_EVENTS);
        let events = self.log[from..].iter().map(|(at, event)| format!("{at}: {event:?}")).collect();
        TortureFailure::Inconsistent { problem, events }
    }
}

impl ServerHost for TortureHost {
    type Error = TortureFailure;

    fn send(&mut self, session: SessionId, message: &ToWorker) {
        self.outgoing.push(Outgoing::Send(session, message.clone()));
    }

    fn close(&mut self, session: SessionId, last: &ToWorker) {
        self.outgoing.push(Outgoing::Close(session, last.clone()));
        self.trust.remove(&session);
        self.buffers.retain(|&(owner, _)| owner != session);
    }

    fn prepare(&mut self, session: SessionId, task: TaskId) -> RunPosition {
        self.buffers.insert((session, task));
        RunPosition::default()
    }

    fn assign(&mut self, session: SessionId, task: TaskId, message: ToWorker) -> Result<(), TortureFailure> {
        self.check(self.buffers.contains(&(session, task)), || format!("{task} is sent without a model"))?;
        let ToWorker::Assign { assignment, .. } = &message else {
            return Err(self.inconsistent(format!("{task} is sent as {message:?}")));
        };
        let version = assignment.version;
        self.outgoing.push(Outgoing::Send(session, message));
        if self.trust.get(&session) == Some(&PeerTrust::Network) {
            self.outgoing.push(Outgoing::Send(session, ToWorker::Model { version }));
        }
        Ok(())
    }

    fn cancel(&mut self, _: SessionId, _: TaskId) {}

    fn release(&mut self, session: SessionId, task: TaskId) {
        self.buffers.remove(&(session, task));
    }

    fn keep(&mut self, session: SessionId, task: TaskId, _: ReportedUpdate) -> bool {
        self.arrived.insert(task);
        self.buffers.remove(&(session, task))
    }

    fn discard_all(&mut self, worker: WorkerId) {
        self.arrived.retain(|task| task.worker != worker);
    }

    fn discard(&mut self, task: TaskId) {
        self.arrived.remove(&task);
    }

    fn commit(&mut self, commit: &Commit, _: usize) -> Result<CommitOutcome, TortureFailure> {
        for Share { task, .. } in commit.updates.iter() {
            let has_arrived = self.arrived.remove(task);
            self.check(has_arrived, || format!("{task} is committed, but its update is not there"))?;
        }
        Ok(mock_outcome(self.checker.version + 1, &commit.updates))
    }

    fn begin_turn(&mut self, now: Time, event: &Event, decisions: &[Decision]) -> Result<(), TortureFailure> {
        self.events += 1;
        self.log.push((now, event.clone()));
        if let Some(rule) = &mut self.rule {
            rule.observe(now, event, decisions);
        }
        self.checker.observe(event, decisions).map_err(|problem| self.inconsistent(problem))
    }

    fn end_turn(&mut self, _: Time, _: &Event, ledger: &Ledger) -> Result<(), TortureFailure> {
        self.checker.compare(ledger).map_err(|problem| self.inconsistent(problem))
    }

    fn evaluator_joined(&mut self, _: SessionId) {}

    fn evaluator_left(&mut self) {}

    fn evaluated(&mut self, _: Time, _: u64, _: Evaluation, _: &Ledger) -> bool {
        false
    }

    fn computed(&mut self, _: TaskId, _: u32, _: Span) {}

    fn notice(&mut self, notice: Notice) {
        self.notices.push(notice);
    }
}

/// The server's process and its disk.
pub(crate) struct TortureServer<'a> {
    setup: Setup,
    checkpoint_every: u64,
    build: &'a dyn Fn(&Setup) -> Box<dyn Scheme>,
    /// `None` while the server is down.
    protocol: Option<ServerProtocol>,
    pub(crate) host: TortureHost,
    pub(crate) disk_full_until: Time,
    pub(crate) stalled_until: Time,
    /// How much the clock is ahead of the true time, in nanoseconds.
    ahead: i64,
    checkpoint: SavedState,
}

impl<'a> TortureServer<'a> {
    pub(crate) fn new(
        schedule: &FaultSchedule,
        build: &'a dyn Fn(&Setup) -> Box<dyn Scheme>,
        rule: Option<Box<dyn TimeoutRule>>,
    ) -> Self {
        let setup = Setup::new(schedule.workers, schedule.batch);
        TortureServer {
            setup,
            checkpoint_every: schedule.checkpoint_every,
            build,
            protocol: Some(ServerProtocol::new(config(setup.workers), Ledger::new(build(&setup)))),
            host: TortureHost {
                checker: LawChecker::default(),
                log: Vec::new(),
                outgoing: Vec::new(),
                notices: Vec::new(),
                trust: BTreeMap::new(),
                buffers: BTreeSet::new(),
                arrived: BTreeSet::new(),
                rule,
                events: 0,
            },
            disk_full_until: Time::START,
            stalled_until: Time::START,
            ahead: START_OF_CLOCK,
            checkpoint: SavedState::default(),
        }
    }

    pub(crate) fn is_running(&self) -> bool {
        self.protocol.is_some()
    }

    /// The number of workers that have joined.
    pub(crate) fn joined(&self) -> usize {
        self.protocol.as_ref().map_or(0, ServerProtocol::joined)
    }

    // --- time ---

    /// The time of the server's clock.
    fn clock(&self, now: Time) -> Time {
        Time(now.0.saturating_add_signed(self.ahead))
    }

    pub(crate) fn jump_clock(&mut self, by: i64) {
        self.ahead += by;
    }

    /// The true time at which the server must be called.
    pub(crate) fn next(&self, now: Time) -> Option<Time> {
        let protocol = self.protocol.as_ref()?;
        let rule = self.host.rule.as_ref().and_then(|rule| rule.next()).and_then(|at| protocol.clock_time(at));
        let due = [protocol.next_timer(), rule].into_iter().flatten().min()?;
        Some(Time(due.0.saturating_add_signed(-self.ahead)).max(now).max(self.stalled_until))
    }

    // --- inputs ---

    /// Calls the protocol, if the server is running.
    fn call(
        &mut self,
        now: Time,
        call: impl FnOnce(&mut ServerProtocol, Time, &mut TortureHost) -> Result<(), DriveError<TortureFailure>>,
    ) -> Result<(), TortureFailure> {
        let clock = self.clock(now);
        let Some(protocol) = &mut self.protocol else { return Ok(()) };
        call(protocol, clock, &mut self.host).map_err(failure)?;
        if let Some(request) = protocol.ledger().plan_request() {
            let paces = mock_plan(protocol.ledger().version().0, request);
            protocol.on_planned(clock, paces, &mut self.host).map_err(failure)?;
        }
        self.save(now);
        Ok(())
    }

    pub(crate) fn on_connected(
        &mut self,
        now: Time,
        session: SessionId,
        trust: PeerTrust,
    ) -> Result<(), TortureFailure> {
        self.call(now, |protocol, clock, host| {
            host.trust.insert(session, trust);
            protocol.on_connected(clock, session, "a worker".into(), trust, host);
            Ok(())
        })
    }

    pub(crate) fn on_message(
        &mut self,
        now: Time,
        session: SessionId,
        message: ToServer,
    ) -> Result<(), TortureFailure> {
        self.call(now, |protocol, clock, host| protocol.on_message(clock, session, message, host))
    }

    pub(crate) fn on_closed(&mut self, now: Time, session: SessionId) -> Result<(), TortureFailure> {
        self.call(now, |protocol, clock, host| protocol.on_closed(clock, session, "connection closed".into(), host))
    }

    /// The time of [`next`](TortureServer::next) has come.
    pub(crate) fn on_timer(&mut self, now: Time) -> Result<(), TortureFailure> {
        self.call(now, |protocol, clock, host| {
            let at = protocol.run_time(clock);
            let dismissed = host.rule.as_mut().filter(|_| protocol.has_started()).and_then(|rule| rule.overdue(at));
            if let Some((worker, may_rejoin)) = dismissed {
                protocol.dismiss_worker(clock, worker, "overdue".into(), may_rejoin, host)?;
            }
            protocol.on_timer(clock, host)
        })
    }

    /// Whether the rule under test dismisses the sender of a message.
    pub(crate) fn is_dismissed(
        &mut self,
        now: Time,
        worker: WorkerId,
        message: &ToServer,
    ) -> Result<(), TortureFailure> {
        self.call(now, |protocol, clock, host| {
            let at = protocol.run_time(clock);
            let rule = host.rule.as_mut();
            match rule.and_then(|rule| rule.refuses(at, worker, message)) {
                Some(may_rejoin) => protocol.dismiss_worker(clock, worker, "implausible".into(), may_rejoin, host),
                None => Ok(()),
            }
        })
    }

    // --- the disk ---

    fn save(&mut self, now: Time) {
        let Some(protocol) = &self.protocol else { return };
        let due = self.host.checker.version >= self.checkpoint.mark.version + self.checkpoint_every;
        // Uncommitted gradients are not saved, so a checkpoint is taken only when there are none.
        if due && protocol.ledger().is_settled() && now >= self.disk_full_until {
            let ledger = serde_json::to_string(&protocol.ledger().save()).ok();
            self.checkpoint = SavedState { ledger, events: self.host.log.len(), mark: self.host.checker.mark() };
        }
    }

    /// Kills the server: all state that is not on the disk is lost.
    pub(crate) fn kill(&mut self) {
        self.protocol = None;
        self.host.outgoing.clear();
        self.host.notices.clear();
        self.host.buffers.clear();
        self.host.arrived.clear();
        self.host.trust.clear();
    }

    /// Resumes from the last checkpoint, which every worker has to rejoin.
    pub(crate) fn resume(&mut self, now: Time) -> Result<(), TortureFailure> {
        let SavedState { ledger, events, mark } = self.checkpoint.clone();
        self.host.log.truncate(events);
        self.host.checker.restore(mark);
        let (ledger, at) = match ledger {
            Some(text) => self.restore(&text).map_err(|problem| self.host.inconsistent(problem))?,
            None => (Ledger::new((self.build)(&self.setup)), Time::START),
        };
        let departed = self.host.checker.present.clone();
        let mut protocol = ServerProtocol::new(config(self.setup.workers), ledger);
        if mark.version > 0 {
            let clock = self.clock(now);
            protocol.resume(clock, at, departed, &mut self.host).map_err(failure)?;
        }
        self.protocol = Some(protocol);
        Ok(())
    }

    /// The saved ledger and its time. A replay of the log must lead to the same state.
    fn restore(&mut self, text: &str) -> Result<(Ledger, Time), String> {
        let saved: SavedLedger = serde_json::from_str(text).map_err(|error| format!("the saved ledger: {error}"))?;
        let (at, has_scheme) = (saved.latest(), saved.has_scheme());
        self.host.checker.present = saved.workers();
        let restored = Ledger::restore((self.build)(&self.setup), saved);
        let restored = restored.map_err(|error| format!("the saved scheme: {error}"))?;
        if has_scheme {
            let mut replayed = Ledger::new((self.build)(&self.setup));
            for (at, event) in &self.host.log {
                let handled = replayed.handle(*at, event.clone());
                handled.map_err(|error| format!("the event log can't be replayed: {error}"))?;
            }
            for ledger in [&restored, &replayed] {
                let again = serde_json::to_string(&ledger.save()).unwrap_or_default();
                if again != text {
                    return Err(format!("the saved ledger differs from the replayed one:\n  {text}\n  {again}"));
                }
            }
        }
        Ok((restored, at))
    }
}

fn config(workers: usize) -> ServerConfig {
    ServerConfig {
        workers,
        workload_spec: String::new(),
        fingerprint: Fingerprint::default(),
        seed: 0,
        payload: PayloadRule::default(),
        optimizer: OptimizerKind::Sgd { decay: 0.0 }.into(),
        token: None,
        timeout: TIMEOUT,
        epoch: 0,
        takes_evaluator: true,
        wants_shards: false,
    }
}

fn failure(error: DriveError<TortureFailure>) -> TortureFailure {
    match error {
        DriveError::Executor(failure) => failure,
        DriveError::Ledger(LedgerError::Broken(broken)) => TortureFailure::Law(broken),
        DriveError::Ledger(LedgerError::Refused(refusal)) => TortureFailure::Inconsistent {
            problem: format!("the ledger refused an event: {refusal}"),
            events: Vec::new(),
        },
    }
}

/// A plan that prefers another candidate every time.
fn mock_plan(version: u64, request: PlanRequest) -> Vec<SchemePace> {
    let best = version as usize % request.candidates.len();
    let pace = |(index, scheme)| SchemePace { scheme, pace: if index == best { 2.0 } else { 1.0 } };
    request.candidates.into_iter().enumerate().map(pace).collect()
}

/// What becomes of a commit: no aggregate for every seventh, a broken update in every eleventh, otherwise values that
/// make dynamic schemes change their decisions.
fn mock_outcome(version: u64, updates: &[Share]) -> CommitOutcome {
    let wave = (version as f64 * 1.7).sin();
    let aggregate = Aggregate {
        loss: 1.0 + 0.5 * wave,
        rate: 0.1,
        mean_square: 2.0 + 1.5 * wave,
        square_of_mean: 1.0,
        ..Aggregate::default()
    };
    let broken = updates.first().filter(|_| version.is_multiple_of(11)).map(|share| share.task);
    CommitOutcome { aggregate: (!version.is_multiple_of(7)).then_some(aggregate), broken: broken.into_iter().collect() }
}
