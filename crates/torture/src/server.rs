//! A server under test: the protocol of the real one, without a model, or with one in shards.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use paceline_core::{
    Aggregate, Commit, CommitOutcome, Decision, DriveError, Event, Ledger, LedgerError, PlanRequest, SavedLedger,
    Scheme, SchemePace, Setup, Share, Span, TaskId, Time, Version, WorkerId,
};
use paceline_protocol::{
    Evaluation, Fingerprint, Notice, ParameterHolders, PayloadRule, PeerTrust, ReportedUpdate, RunPosition,
    ServerConfig, ServerHost, ServerProtocol, SessionId, ToServer, ToWorker,
};
use paceline_runtime::{HeldLease, WatchedLease};
use paceline_store::OptimizerKind;

use crate::checker::LawChecker;
use crate::fault_schedule::FaultSchedule;
use crate::fault_simulation::{ToServerEvent, TortureFailure};
use crate::shards::{SavedModel, ShardLost, TortureShards};
use crate::storage::{SavedState, SharedStorage};
use crate::timeout_rule::TimeoutRule;

/// The ceiling of the run: the time without progress after which a worker of unknown speed is dismissed.
const TIMEOUT: Span = Span(3_600_000_000_000);

/// What the server's clock shows at the start, in nanoseconds: it may jump back.
const START_OF_CLOCK: i64 = 3_600_000_000_000;

/// The number of latest events in a failure.
const LATEST_EVENTS: usize = 40;

/// A message to a worker, or the end of its connection after a last message.
#[derive(Debug, Clone)]
pub(crate) enum Outgoing {
    Send(SessionId, ToWorker),
    Close(SessionId, ToWorker),
    /// A model from shards, which arrives at this time.
    Model(SessionId, Version, Time),
}

/// Why a server can't go on.
#[derive(Debug)]
pub(crate) enum ServerEnd {
    /// It is wrong.
    Failed(TortureFailure),
    /// A shard is lost, as happens in a real run.
    ShardLost(ShardLost),
}

impl From<ShardLost> for ServerEnd {
    fn from(lost: ShardLost) -> Self {
        ServerEnd::ShardLost(lost)
    }
}

/// What the protocol acts on.
pub(crate) struct TortureHost {
    pub(crate) checker: LawChecker,
    /// The event log on the disk.
    log: Vec<(Time, Event)>,
    pub(crate) outgoing: Vec<Outgoing>,
    pub(crate) notices: Vec<Notice>,
    peers: BTreeMap<SessionId, (WorkerId, PeerTrust)>,
    /// Tasks with buffers, by session.
    buffers: BTreeSet<(SessionId, TaskId)>,
    /// Updates that are neither committed nor discarded.
    arrived: BTreeSet<TaskId>,
    /// The model, if it is in shards.
    pub(crate) shards: Option<TortureShards>,
    /// The true time, or that at which the coordinator has the answers of its shards.
    pub(crate) now: Time,
    /// A rule that dismisses workers, in addition to the protocol's own.
    rule: Option<Box<dyn TimeoutRule>>,
    pub(crate) events: u64,
}

impl TortureHost {
    fn check(&self, holds: bool, problem: impl FnOnce() -> String) -> Result<(), ServerEnd> {
        if holds { Ok(()) } else { Err(ServerEnd::Failed(self.inconsistent(problem()))) }
    }

    fn trust(&self, session: SessionId) -> Option<PeerTrust> {
        self.peers.get(&session).map(|&(_, trust)| trust)
    }

    pub(crate) fn inconsistent(&self, problem: String) -> TortureFailure {
        let from = self.log.len().saturating_sub(LATEST_EVENTS);
        let events = self.log[from..].iter().map(|(at, event)| format!("{at}: {event:?}")).collect();
        TortureFailure::Inconsistent { problem, events }
    }
}

impl ServerHost for TortureHost {
    type Error = ServerEnd;

    fn send(&mut self, session: SessionId, message: &ToWorker) {
        self.outgoing.push(Outgoing::Send(session, message.clone()));
    }

    fn close(&mut self, session: SessionId, last: &ToWorker) {
        self.outgoing.push(Outgoing::Close(session, last.clone()));
        self.peers.remove(&session);
        self.buffers.retain(|&(owner, _)| owner != session);
    }

    fn prepare(&mut self, session: SessionId, task: TaskId) -> RunPosition {
        self.buffers.insert((session, task));
        if let Some(shards) = &mut self.shards {
            let model = shards.deliver(task.worker, session, self.now);
            self.outgoing.extend(model.map(|(version, at)| Outgoing::Model(session, version, at)));
        }
        RunPosition::default()
    }

    fn assign(&mut self, session: SessionId, task: TaskId, message: ToWorker) -> Result<(), ServerEnd> {
        self.check(self.buffers.contains(&(session, task)), || format!("{task} is sent without a model"))?;
        let ToWorker::Assign { assignment, .. } = &message else {
            return self.check(false, || format!("{task} is sent as {message:?}"));
        };
        let version = assignment.version;
        self.outgoing.push(Outgoing::Send(session, message));
        if self.shards.is_none() && self.trust(session) == Some(PeerTrust::Network) {
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
        let lost: Vec<TaskId> = self.arrived.iter().copied().filter(|task| task.worker == worker).collect();
        lost.into_iter().for_each(|task| self.discard(task));
    }

    fn discard(&mut self, task: TaskId) {
        self.arrived.remove(&task);
        self.shards.iter_mut().for_each(|shards| shards.discard(task));
    }

    fn commit(&mut self, commit: &Commit, live: usize) -> Result<CommitOutcome, ServerEnd> {
        for Share { task, .. } in commit.updates.iter() {
            let has_arrived = self.arrived.remove(task);
            self.check(has_arrived, || format!("{task} is committed, but its update is not there"))?;
        }
        let Some(shards) = &mut self.shards else {
            return Ok(mock_outcome(self.checker.version + 1, &commit.updates));
        };
        let (outcome, done) = shards.commit(commit, live, self.now)?;
        self.now = done;
        outcome.map_err(|problem| ServerEnd::Failed(self.inconsistent(problem)))
    }

    fn begin_turn(&mut self, now: Time, event: &Event, decisions: &[Decision]) -> Result<(), ServerEnd> {
        self.events += 1;
        self.log.push((now, event.clone()));
        if let Some(rule) = &mut self.rule {
            rule.observe(now, event, decisions);
        }
        self.checker.observe(event, decisions).map_err(|problem| ServerEnd::Failed(self.inconsistent(problem)))
    }

    fn end_turn(&mut self, _: Time, _: &Event, ledger: &Ledger) -> Result<(), ServerEnd> {
        self.checker.compare(ledger).map_err(|problem| ServerEnd::Failed(self.inconsistent(problem)))
    }

    fn reachable_at(&mut self, worker: Option<WorkerId>, _: SessionId, _: Vec<u16>) {
        self.shards.iter_mut().zip(worker).for_each(|(shards, worker)| shards.offer(worker));
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

/// A server's process.
pub(crate) struct TortureServer<'a> {
    /// Its number.
    index: usize,
    schedule: &'a FaultSchedule,
    setup: Setup,
    build: &'a dyn Fn(&Setup) -> Box<dyn Scheme>,
    /// `None` while the server is down or stands by.
    protocol: Option<ServerProtocol>,
    pub(crate) host: TortureHost,
    /// Identifies the process.
    pub(crate) process: u64,
    /// Its lease, if it serves a run with a standby.
    pub(crate) lease: Option<HeldLease>,
    /// The lease that it watches, if it stands by.
    pub(crate) watch: Option<WatchedLease>,
    pub(crate) stalled_until: Time,
    /// Until when it is cut off from the workers and from the storage.
    pub(crate) workers_cut_until: Time,
    pub(crate) storage_cut_until: Time,
    /// What arrives while the server stands still.
    pub(crate) inbox: VecDeque<ToServerEvent>,
    /// The time at which it has noticed that a shard is lost.
    pub(crate) ends_at: Option<Time>,
    /// How much the clock is ahead of the true time, in nanoseconds.
    ahead: i64,
}

impl<'a> TortureServer<'a> {
    /// A server that is down.
    pub(crate) fn new(
        index: usize,
        schedule: &'a FaultSchedule,
        build: &'a dyn Fn(&Setup) -> Box<dyn Scheme>,
        rule: Option<Box<dyn TimeoutRule>>,
    ) -> Self {
        TortureServer {
            index,
            schedule,
            setup: Setup::new(schedule.workers, schedule.batch),
            build,
            protocol: None,
            host: TortureHost {
                checker: LawChecker::default(),
                log: Vec::new(),
                outgoing: Vec::new(),
                notices: Vec::new(),
                peers: BTreeMap::new(),
                buffers: BTreeSet::new(),
                arrived: BTreeSet::new(),
                shards: None,
                now: Time::START,
                rule,
                events: 0,
            },
            process: 0,
            lease: None,
            watch: None,
            stalled_until: Time::START,
            workers_cut_until: Time::START,
            storage_cut_until: Time::START,
            inbox: VecDeque::new(),
            ends_at: None,
            ahead: START_OF_CLOCK,
        }
    }

    pub(crate) fn is_running(&self) -> bool {
        self.protocol.is_some()
    }

    /// Until when it takes no inputs: its process stands still, or the coordinator waits for shards.
    pub(crate) fn busy_until(&self) -> Time {
        self.stalled_until.max(self.host.now)
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
        Some(Time(due.0.saturating_add_signed(-self.ahead)).max(now).max(self.busy_until()))
    }

    // --- inputs ---

    /// Calls the protocol, if the server is running.
    fn call(
        &mut self,
        now: Time,
        storage: &mut SharedStorage,
        call: impl FnOnce(&mut ServerProtocol, Time, &mut TortureHost) -> Result<(), DriveError<ServerEnd>>,
    ) -> Result<(), TortureFailure> {
        if self.ends_at.is_some() {
            return Ok(());
        }
        self.host.now = self.host.now.max(now);
        let called = self.call_protocol(now, call).map_err(end_of).and_then(|()| self.save(storage));
        match called {
            Err(ServerEnd::ShardLost(ShardLost { at })) => {
                (self.host.now, self.ends_at) = (self.host.now.max(at), Some(at));
                Ok(())
            }
            Err(ServerEnd::Failed(failure)) => Err(failure),
            Ok(()) => Ok(()),
        }
    }

    fn call_protocol(
        &mut self,
        now: Time,
        call: impl FnOnce(&mut ServerProtocol, Time, &mut TortureHost) -> Result<(), DriveError<ServerEnd>>,
    ) -> Result<(), DriveError<ServerEnd>> {
        let clock = self.clock(now);
        let Some(protocol) = &mut self.protocol else { return Ok(()) };
        call(protocol, clock, &mut self.host)?;
        if let Some(request) = protocol.ledger().plan_request() {
            let paces = mock_plan(protocol.ledger().version().0, request);
            protocol.on_planned(clock, paces, &mut self.host)?;
        }
        Ok(())
    }

    pub(crate) fn on_connected(
        &mut self,
        now: Time,
        storage: &mut SharedStorage,
        session: SessionId,
        (worker, trust): (WorkerId, PeerTrust),
    ) -> Result<(), TortureFailure> {
        self.call(now, storage, |protocol, clock, host| {
            host.peers.insert(session, (worker, trust));
            protocol.on_connected(clock, session, "a worker".into(), trust, host);
            Ok(())
        })
    }

    pub(crate) fn on_message(
        &mut self,
        now: Time,
        storage: &mut SharedStorage,
        session: SessionId,
        message: ToServer,
    ) -> Result<(), TortureFailure> {
        self.call(now, storage, |protocol, clock, host| protocol.on_message(clock, session, message, host))
    }

    pub(crate) fn on_closed(
        &mut self,
        now: Time,
        storage: &mut SharedStorage,
        session: SessionId,
    ) -> Result<(), TortureFailure> {
        let worker = self.host.peers.get(&session).map(|&(worker, _)| worker);
        self.call(now, storage, |protocol, clock, host| {
            protocol.on_closed(clock, session, "connection closed".into(), host)?;
            // The shards are told of it.
            match (worker, &host.shards) {
                (Some(worker), Some(shards)) if shards.is_lost(worker) => {
                    Err(DriveError::Executor(ShardLost { at: host.now }.into()))
                }
                _ => Ok(()),
            }
        })
    }

    /// The time of [`next`](TortureServer::next) has come.
    pub(crate) fn on_timer(&mut self, now: Time, storage: &mut SharedStorage) -> Result<(), TortureFailure> {
        self.call(now, storage, |protocol, clock, host| {
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
        storage: &mut SharedStorage,
        worker: WorkerId,
        message: &ToServer,
    ) -> Result<(), TortureFailure> {
        self.call(now, storage, |protocol, clock, host| {
            let at = protocol.run_time(clock);
            let rule = host.rule.as_mut();
            match rule.and_then(|rule| rule.refuses(at, worker, message)) {
                Some(may_rejoin) => protocol.dismiss_worker(clock, worker, "implausible".into(), may_rejoin, host),
                None => Ok(()),
            }
        })
    }

    // --- the storage ---

    /// Whether the storage can't be reached or written.
    pub(crate) fn lacks_storage(&self, now: Time, storage: &SharedStorage) -> bool {
        now < self.storage_cut_until.max(storage.full_until)
    }

    fn save(&mut self, storage: &mut SharedStorage) -> Result<(), ServerEnd> {
        let (now, version) = (self.host.now, self.host.checker.version);
        let is_due = version >= storage.checkpoint.mark.version + self.schedule.checkpoint_every;
        let may_write = self.lease.as_ref().is_none_or(|lease| lease.may_decide(clock_of_leases(now)) == Ok(true));
        // Uncommitted gradients are not saved, so a checkpoint is taken only when there are none.
        let settled = self.protocol.as_ref().filter(|protocol| is_due && protocol.ledger().is_settled());
        let Some(protocol) = settled.filter(|_| may_write && !self.lacks_storage(now, storage)) else { return Ok(()) };
        let mut model = SavedModel::default();
        if let Some(shards) = &self.host.shards {
            (model, self.host.now) = shards.fetch(now)?;
        }
        let state = SavedState {
            writer: self.index,
            epoch: self.lease.as_ref().map_or(0, HeldLease::epoch),
            ledger: serde_json::to_string(&protocol.ledger().save()).ok(),
            events: self.host.log.len(),
            mark: self.host.checker.mark(),
            model,
        };
        storage.save(state).map_err(|problem| ServerEnd::Failed(self.host.inconsistent(problem)))
    }

    /// Ends the process: all state that is not in the storage is lost.
    pub(crate) fn end(&mut self, process: u64) {
        (self.protocol, self.lease, self.watch, self.ends_at) = (None, None, None, None);
        (self.process, self.stalled_until, self.host.now) = (process, Time::START, Time::START);
        self.inbox.clear();
        self.host.outgoing.clear();
        self.host.notices.clear();
        self.host.buffers.clear();
        self.host.arrived.clear();
        self.host.peers.clear();
        self.host.shards = None;
    }

    /// What the run's history is up to a checkpoint that this server has written: its events, and what the checker knows.
    pub(crate) fn history(&self, events: usize) -> (Vec<(Time, Event)>, LawChecker) {
        (self.host.log[..events].to_vec(), self.host.checker.clone())
    }

    /// Serves the run from its last checkpoint, which every worker has to rejoin.
    pub(crate) fn resume(
        &mut self,
        now: Time,
        storage: &SharedStorage,
        (log, checker): (Vec<(Time, Event)>, LawChecker),
    ) -> Result<(), TortureFailure> {
        let SavedState { ledger, mark, model, .. } = storage.checkpoint.clone();
        (self.host.log, self.host.checker) = (log, checker);
        self.host.checker.restore(mark);
        self.host.shards = TortureShards::new(self.schedule, &model);
        let (ledger, at) = match ledger {
            Some(text) => self.restore(&text).map_err(|problem| self.host.inconsistent(problem))?,
            None => (Ledger::new((self.build)(&self.setup)), Time::START),
        };
        let departed = self.host.checker.present.clone();
        let epoch = self.lease.as_ref().map_or(0, HeldLease::epoch);
        let mut protocol = ServerProtocol::new(config(self.setup.workers, epoch, self.host.shards.is_some()), ledger);
        if mark.version > 0 {
            let clock = self.clock(now);
            if self.host.shards.is_some() {
                protocol.resume_with_all(clock, at, departed);
            } else {
                protocol.resume(clock, at, departed, &mut self.host).map_err(failure)?;
            }
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

/// A time of the clock of leases, which does not jump.
pub(crate) fn clock_of_leases(now: Time) -> Duration {
    Duration::from_nanos(now.0)
}

pub(crate) fn config(workers: usize, epoch: u64, in_shards: bool) -> ServerConfig {
    ServerConfig {
        workers,
        workload_spec: String::new(),
        fingerprint: Fingerprint::default(),
        seed: 0,
        payload: PayloadRule::default(),
        optimizer: OptimizerKind::Sgd { decay: 0.0 }.into(),
        token: None,
        timeout: TIMEOUT,
        epoch,
        takes_evaluator: true,
        holders: if in_shards { ParameterHolders::Workers { parts: 1 } } else { ParameterHolders::Server },
    }
}

fn end_of(error: DriveError<ServerEnd>) -> ServerEnd {
    match error {
        DriveError::Executor(end) => end,
        DriveError::Ledger(LedgerError::Broken(broken)) => ServerEnd::Failed(TortureFailure::Law(broken)),
        DriveError::Ledger(LedgerError::Refused(refusal)) => ServerEnd::Failed(TortureFailure::Inconsistent {
            problem: format!("the ledger refused an event: {refusal}"),
            events: Vec::new(),
        }),
    }
}

/// The failure of a server that resumes, which has no shards yet.
fn failure(error: DriveError<ServerEnd>) -> TortureFailure {
    match end_of(error) {
        ServerEnd::Failed(failure) => failure,
        ServerEnd::ShardLost(_) => unreachable!("it has no shards yet"),
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
