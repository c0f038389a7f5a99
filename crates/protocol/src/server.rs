//! The server's side of the protocol: sessions, membership, assignments, and who is alive.

use std::collections::{BTreeMap, BTreeSet};

use paceline_core::{
    Action, Commit, CommitOutcome, Decision, DriveError, Event, Executor, Lateness, Ledger, LedgerError, LocalLength,
    Share, Span, TaskId, Time, WorkerId,
};
use paceline_store::OptimizerSpec;
use paceline_workload::Evaluation;
use subtle::ConstantTimeEq;

use crate::message::{GradientLocation, RunPosition, TaskSettings, ToServer, ToWorker, Token, WireReport};
use crate::notice::Notice;
use crate::payload::PayloadFormat;
use crate::tasks::{Cancellation, OpenTasks, ReadyTask, ReportOutcome};
use crate::{Fingerprint, HEARTBEAT_INTERVAL};

/// The time limit of the handshake: from the connection, encryption included, to the complete hello.
pub const HANDSHAKE_TIMEOUT: Span = Span(10_000_000_000);

/// A worker is gone when it has sent nothing for this long: two heartbeats and a half.
const PATIENCE: Span = Span(HEARTBEAT_INTERVAL.0 * 5 / 2);

/// The longest patience with a worker that was gone and came back, as an overloaded machine makes it seem. After a while
/// without such a silence, the patience is the usual one again.
const MAX_PATIENCE: Span = Span(30_000_000_000);
const PATIENCE_PERIOD: Span = Span(60_000_000_000);

/// If the protocol is called later than it asked for by more than this, the server stood still. So that a short stall does
/// not go unnoticed, it asks to be called at least every [`TICK`].
const STALL_TOLERANCE: Span = Span(250_000_000);
const TICK: Span = Span(500_000_000);

/// The shortest stall that the user is notified of: it would have cost workers if it were theirs.
const NOTICED_STALL: Span = PATIENCE;

/// Identifies a connection. Numbers are never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u64);

/// How far the server trusts a peer, and how values travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerTrust {
    /// A process of the same user on the same machine. It needs no token; values are in shared memory.
    SameUser,
    /// A peer on a network. It needs the token, if there is one; values are sent.
    Network,
}

/// What the server tells its workers, and asks of them.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// The run starts when this many workers are ready.
    pub workers: usize,
    /// Describes the workload; every worker builds the same workload from it.
    pub workload_spec: String,
    /// The fingerprint of the workload.
    pub fingerprint: Fingerprint,
    /// The seed of the initial parameters.
    pub seed: u64,
    /// The number format of values that are sent.
    pub payload: PayloadFormat,
    /// The optimizer of local iterations.
    pub optimizer: OptimizerSpec,
    /// The token that a peer on a network must have to join; `None` lets every peer join.
    pub token: Option<Token>,
    /// How long a worker of unknown speed may make no progress before it is dismissed.
    pub timeout: Span,
}

/// How many ranks a run for `workers` workers has. More workers than planned may join, but not without limit: reports
/// and tables have a row for every rank.
pub fn max_ranks(workers: usize) -> u32 {
    u32::try_from((2 * workers).max(workers + 8)).unwrap_or(u32::MAX)
}

/// What a [`ServerProtocol`] does to the world: messages, the model, observers.
///
/// Times are those of the run, which begin when enough workers are ready.
pub trait ServerHost {
    /// Why the run can't continue.
    type Error;

    /// Sends a message.
    fn send(&mut self, session: SessionId, message: &ToWorker);

    /// Sends a last message and closes the connection. What the worker may still read or write stays as it is until
    /// the connection is closed from the other side, too.
    fn close(&mut self, session: SessionId, last: &ToWorker);

    /// A task is going to be sent, now or later: keeps the newest model for it. Returns how far the run is.
    fn prepare(&mut self, session: SessionId, task: TaskId) -> RunPosition;

    /// Sends an assignment; `message` is an [`Assign`](ToWorker::Assign) without shared buffers.
    ///
    /// # Errors
    /// If the run can't continue.
    fn assign(&mut self, session: SessionId, task: TaskId, message: ToWorker) -> Result<(), Self::Error>;

    /// The result of a task is no longer needed. If the assignment was not sent yet, it need not be; the host then
    /// answers in the worker's name that the task is [dropped](ToServer::Dropped).
    fn cancel(&mut self, session: SessionId, task: TaskId);

    /// A cancelled task is over: the worker has finished or dropped it, or never got it. Its buffers are free.
    fn release(&mut self, session: SessionId, task: TaskId);

    /// The update of a task has arrived. Returns `false` if its values are missing.
    fn keep(&mut self, session: SessionId, task: TaskId, update: ReportedUpdate) -> bool;

    /// The worker has left: its arrived updates are void.
    fn discard_all(&mut self, worker: WorkerId);

    /// An arrived update will not be committed.
    fn discard(&mut self, task: TaskId);

    /// Steps the model by `updates`; `live` workers take part.
    ///
    /// # Errors
    /// If the run can't continue.
    fn commit(&mut self, commit: &Commit, live: usize) -> Result<CommitOutcome, Self::Error>;

    /// An event led to these decisions, which are carried out next.
    ///
    /// # Errors
    /// If the run can't continue.
    fn begin_turn(&mut self, now: Time, event: &Event, decisions: &[Decision]) -> Result<(), Self::Error>;

    /// All decisions on `event` are carried out.
    ///
    /// # Errors
    /// If the run can't continue.
    fn end_turn(&mut self, now: Time, event: &Event, ledger: &Ledger) -> Result<(), Self::Error>;

    /// A process is ready to evaluate models; there is no other.
    fn evaluator_joined(&mut self, session: SessionId);

    /// It has left.
    fn evaluator_left(&mut self);

    /// It has evaluated the model of the assignment `number`, at the run's time `now`. Returns `false` if it has no such
    /// assignment.
    fn evaluated(&mut self, now: Time, number: u64, evaluation: Evaluation, ledger: &Ledger) -> bool;

    /// A worker computed a gradient or local iterations of a task, in `compute` altogether.
    fn computed(&mut self, task: TaskId, iterations: u32, compute: Span);

    /// Something happened that the user should know.
    fn notice(&mut self, notice: Notice);
}

/// An update that a worker has reported.
#[derive(Debug, Clone, PartialEq)]
pub struct ReportedUpdate {
    /// The mean loss of its samples.
    pub loss: f64,
    /// Where its values are.
    pub gradient: GradientLocation,
    /// The learning rates that the worker asks for, as in [`ToServer::Report`].
    pub rates: Vec<f64>,
    /// Its samples in all iterations.
    pub samples: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Its hello must arrive by this time.
    Handshake(Time),
    /// It builds the workload.
    Building(WorkerId),
    /// It is a member of the run.
    Joined(WorkerId),
    /// It evaluates models.
    Evaluating,
    /// The run is over; it closes the connection next.
    Finished,
}

impl Stage {
    fn worker(self) -> Option<WorkerId> {
        match self {
            Stage::Building(worker) | Stage::Joined(worker) => Some(worker),
            Stage::Evaluating => Some(WorkerId::EVALUATOR),
            Stage::Handshake(_) | Stage::Finished => None,
        }
    }
}

/// One connection.
#[derive(Debug)]
struct SessionState {
    peer: String,
    trust: PeerTrust,
    emulated: Option<String>,
    stage: Stage,
    /// When something arrived last.
    heard: Time,
    /// It is gone when nothing has arrived for this long.
    patience: Span,
    /// When it was last silent for longer than usual, or connected.
    silent: Time,
    /// The worker's counter of steps, and when it moved last.
    progress: u64,
    progressed: Time,
    tasks: OpenTasks,
    /// The last of its tasks whose update was committed.
    committed: Option<u64>,
    /// The task that the user was notified of as late.
    noticed_late: Option<TaskId>,
    /// When its liveness is checked next.
    check_at: Time,
}

impl SessionState {
    /// Something has arrived.
    fn hear(&mut self, now: Time) {
        if now.since(self.heard) >= PATIENCE {
            self.silent = now;
        } else if now.since(self.silent) > PATIENCE_PERIOD {
            self.patience = PATIENCE;
        }
        self.heard = now;
    }
}

/// The server's side of the protocol.
///
/// Every call takes the time of a clock that does not run backwards. The driver calls [`on_timer`] at [`next_timer`] or
/// as soon after it as it can, and before that passes on everything that has arrived.
///
/// [`on_timer`]: ServerProtocol::on_timer
/// [`next_timer`]: ServerProtocol::next_timer
pub struct ServerProtocol {
    config: ServerConfig,
    ledger: Ledger,
    /// How far the driver's clock has jumped back in all. The own clock, which all times below are of, never does.
    setback: Span,
    lateness: Lateness,
    sessions: BTreeMap<SessionId, SessionState>,
    /// The session of every rank that is taken.
    members: BTreeMap<WorkerId, SessionId>,
    /// All sessions by the time of their next check.
    checks: BTreeSet<(Time, SessionId)>,
    /// The patience with workers that were gone once.
    patience: BTreeMap<WorkerId, Span>,
    now: Time,
    /// When the run started or resumed; `None` until enough workers are ready.
    started: Option<Time>,
    /// The run's time at that moment.
    start_time: Time,
    /// Whether the run is over.
    is_over: bool,
}

type Handled<H> = Result<(), DriveError<<H as ServerHost>::Error>>;

impl ServerProtocol {
    /// The protocol of a run that waits for its workers.
    pub fn new(config: ServerConfig, ledger: Ledger) -> Self {
        ServerProtocol {
            lateness: Lateness::new(config.timeout),
            config,
            ledger,
            sessions: BTreeMap::new(),
            members: BTreeMap::new(),
            checks: BTreeSet::new(),
            patience: BTreeMap::new(),
            now: Time::START,
            setback: Span::ZERO,
            started: None,
            start_time: Time::START,
            is_over: false,
        }
    }

    /// Continues a run at its time `at`. Its workers, `departed`, have to rejoin.
    ///
    /// # Errors
    /// If the run can't continue.
    pub fn resume<H: ServerHost>(
        &mut self,
        now: Time,
        at: Time,
        departed: impl IntoIterator<Item = WorkerId>,
        host: &mut H,
    ) -> Handled<H> {
        (self.now, self.started, self.start_time) = (now, Some(now), at);
        departed.into_iter().try_for_each(|worker| self.feed(Event::Left { worker }, host))
    }

    /// The ledger of the run.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Whether enough workers have joined for the run to start.
    pub fn has_started(&self) -> bool {
        self.started.is_some()
    }

    /// The time of the run when the driver's clock shows `now`.
    pub fn run_time(&self, now: Time) -> Time {
        self.run_time_at(now + self.setback)
    }

    /// What the driver's clock shows at a time of the run; `None` if the run has not started.
    pub fn clock_time(&self, at: Time) -> Option<Time> {
        self.own_time_at(at).map(|time| self.shown(time))
    }

    /// When [`on_timer`](ServerProtocol::on_timer) is due.
    pub fn next_timer(&self) -> Option<Time> {
        let timer = self.scheme_timer();
        [timer, self.next_check()].into_iter().flatten().min().map(|time| self.shown(time))
    }

    /// When the scheme wants to be called, on the own clock.
    fn scheme_timer(&self) -> Option<Time> {
        self.ledger.next_timer().filter(|_| !self.is_over).and_then(|at| self.own_time_at(at))
    }

    fn run_time_at(&self, time: Time) -> Time {
        self.start_time + self.started.map_or(Span::ZERO, |started| time.since(started))
    }

    fn own_time_at(&self, at: Time) -> Option<Time> {
        self.started.map(|started| started + at.since(self.start_time))
    }

    /// What the driver's clock shows at a time of the own clock.
    fn shown(&self, time: Time) -> Time {
        Time(time.0.saturating_sub(self.setback.0))
    }

    /// Moves the own clock on to when the driver's clock shows `now`. If that has jumped back, the own clock goes on from
    /// where it is: times are not cut short.
    fn move_clock(&mut self, now: Time) {
        let time = now + self.setback;
        self.setback += self.now.since(time);
        self.now = self.now.max(time);
    }

    fn next_check(&self) -> Option<Time> {
        self.checks.first().map(|&(at, _)| at.min(self.now + TICK))
    }

    /// The connected workers that have joined.
    pub fn joined(&self) -> usize {
        self.sessions.values().filter(|session| matches!(session.stage, Stage::Joined(_))).count()
    }

    /// Whether every connection is closed.
    pub fn is_empty(&self) -> bool {
        self.sessions.is_empty()
    }

    // --- inputs ---

    /// A peer has connected.
    pub fn on_connected<H: ServerHost>(
        &mut self,
        now: Time,
        id: SessionId,
        peer: String,
        trust: PeerTrust,
        host: &mut H,
    ) {
        self.advance(now, host);
        let deadline = self.now + HANDSHAKE_TIMEOUT;
        self.checks.insert((deadline, id));
        self.sessions.insert(
            id,
            SessionState {
                peer,
                trust,
                emulated: None,
                stage: Stage::Handshake(deadline),
                heard: self.now,
                patience: PATIENCE,
                silent: self.now,
                progress: 0,
                progressed: self.now,
                tasks: OpenTasks::default(),
                committed: None,
                noticed_late: None,
                check_at: deadline,
            },
        );
    }

    /// Bytes of a longer transfer have arrived, which is a sign of life and of progress.
    pub fn on_transfer<H: ServerHost>(&mut self, now: Time, id: SessionId, host: &mut H) {
        self.advance(now, host);
        if let Some(session) = self.sessions.get_mut(&id) {
            session.hear(self.now);
            progressed(session, self.now, &mut self.lateness);
        }
    }

    /// A message has arrived.
    ///
    /// # Errors
    /// If the run can't continue. A message that breaks the protocol is not an error: its worker is dismissed.
    pub fn on_message<H: ServerHost>(
        &mut self,
        now: Time,
        id: SessionId,
        message: ToServer,
        host: &mut H,
    ) -> Handled<H> {
        self.advance(now, host);
        // The peer may have been dismissed while the message was on its way.
        let Some(session) = self.sessions.get_mut(&id) else { return Ok(()) };
        session.hear(self.now);
        match (session.stage, message) {
            (Stage::Finished, _) => Ok(()),
            (Stage::Handshake(_), ToServer::Hello { rank, emulated, token }) => {
                self.on_hello(id, rank, emulated, token.as_ref(), host)
            }
            (Stage::Handshake(_), _) => self.violation(id, "expected a hello as the first message", host),
            (_, ToServer::Hello { .. }) => self.violation(id, "second hello", host),
            (_, ToServer::Leave { reason }) => self.dismiss(id, printable(&reason), false, host),
            (_, ToServer::Heartbeat { progress }) => {
                if std::mem::replace(&mut session.progress, progress) != progress {
                    progressed(session, self.now, &mut self.lateness);
                }
                Ok(())
            }
            (Stage::Building(worker), ToServer::Ready { fingerprint }) => self.on_ready(id, worker, &fingerprint, host),
            (Stage::Building(_), _) => self.violation(id, "expected a ready message", host),
            (Stage::Joined(_) | Stage::Evaluating, ToServer::Ready { .. }) => {
                self.violation(id, "second ready message", host)
            }
            (Stage::Evaluating, ToServer::Evaluated { number, loss, accuracy }) => {
                let evaluation = Evaluation { loss: loss.unwrap_or(f64::NAN), accuracy: accuracy.filter(is_share) };
                match host.evaluated(self.run_time_at(self.now), number, evaluation, &self.ledger) {
                    true => Ok(()),
                    false => self.violation(id, "an evaluation that was not asked for", host),
                }
            }
            (Stage::Evaluating, _) => self.violation(id, "expected an evaluation", host),
            (Stage::Joined(worker), message) => {
                progressed(session, self.now, &mut self.lateness);
                match message {
                    ToServer::Asked { number, iterations, report } => {
                        self.on_asked(id, TaskId { worker, number }, iterations, report, host)
                    }
                    ToServer::Report { number, report, loss, gradient, rates } => {
                        let update = ReportedUpdate { loss, gradient, rates, samples: 0 };
                        self.on_report(id, TaskId { worker, number }, report, update, host)
                    }
                    ToServer::Dropped { number } => self.on_dropped(id, TaskId { worker, number }, host),
                    _ => Ok(()),
                }
            }
        }
    }

    /// A connection was closed by the peer or has failed.
    ///
    /// # Errors
    /// If the run can't continue.
    pub fn on_closed<H: ServerHost>(&mut self, now: Time, id: SessionId, reason: String, host: &mut H) -> Handled<H> {
        self.advance(now, host);
        self.dismiss(id, reason, false, host)
    }

    /// The time of [`next_timer`](ServerProtocol::next_timer) has come. Everything that had arrived before was passed on.
    ///
    /// # Errors
    /// If the run can't continue.
    pub fn on_timer<H: ServerHost>(&mut self, now: Time, host: &mut H) -> Handled<H> {
        self.advance(now, host);
        while let Some(&(at, id)) = self.checks.first()
            && at <= self.now
        {
            self.check(id, host)?;
        }
        if self.scheme_timer().is_some_and(|at| at <= self.now) {
            self.feed(Event::Timer, host)?;
        }
        Ok(())
    }

    /// Ends the run. Removes the workers whose updates are not committed and will not be, so that the run can be resumed
    /// from here, and sends the end to every worker. An evaluator stays, for the last model, until
    /// [`finish_evaluation`](ServerProtocol::finish_evaluation).
    ///
    /// # Errors
    /// If the run can't continue.
    pub fn finish<H: ServerHost>(&mut self, now: Time, reason: &str, host: &mut H) -> Handled<H> {
        self.move_clock(now);
        for worker in self.ledger.unsettled_workers() {
            host.discard_all(worker);
            self.feed(Event::Left { worker }, host)?;
        }
        self.is_over = true;
        self.close(reason, |stage| stage != Stage::Evaluating, host);
        Ok(())
    }

    /// Sends the end of the run to the evaluator.
    pub fn finish_evaluation<H: ServerHost>(&mut self, reason: &str, host: &mut H) {
        self.close(reason, |stage| stage == Stage::Evaluating, host);
    }

    /// Sends the end of the run to the peers in some stages.
    fn close<H: ServerHost>(&mut self, reason: &str, is_meant: impl Fn(Stage) -> bool, host: &mut H) {
        let version = self.ledger.version();
        for (&id, session) in self.sessions.iter_mut().filter(|(_, session)| is_meant(session.stage)) {
            host.close(id, &ToWorker::Finished { reason: reason.into(), version, buffer: None });
            if let Some(worker) = session.stage.worker() {
                self.members.remove(&worker);
            }
            self.checks.remove(&(session.check_at, id));
            session.stage = Stage::Finished;
        }
    }

    // --- time ---

    /// Moves the clock on. If the server stood still, nobody knows since when: the time since its last call counts for no
    /// worker.
    fn advance<H: ServerHost>(&mut self, now: Time, host: &mut H) {
        let (last, due) = (self.now, self.next_check());
        self.move_clock(now);
        if due.is_none_or(|due| self.now <= due + STALL_TOLERANCE) {
            return;
        }
        let stall = self.now.since(last);
        for session in self.sessions.values_mut() {
            session.heard = session.heard + stall;
            session.progressed = session.progressed + stall;
            session.check_at = session.check_at + stall;
            if let Stage::Handshake(deadline) = &mut session.stage {
                *deadline = *deadline + stall;
            }
        }
        self.checks = self.checks.iter().map(|&(at, id)| (at + stall, id)).collect();
        self.lateness.delay(stall);
        if stall >= NOTICED_STALL {
            host.notice(Notice::Stalled { span: stall });
        }
    }

    /// Checks whether a peer is alive and makes progress, and plans the next check.
    fn check<H: ServerHost>(&mut self, id: SessionId, host: &mut H) -> Handled<H> {
        let now = self.now;
        let Some(session) = self.sessions.get_mut(&id) else { return Ok(()) };
        if let Stage::Handshake(deadline) = session.stage {
            if deadline <= now {
                let reason = format!("no handshake within {:.0} s", HANDSHAKE_TIMEOUT.seconds());
                return self.dismiss(id, reason, false, host);
            }
            self.schedule(id, deadline);
            return Ok(());
        }
        let silence = now.since(session.heard);
        if silence >= session.patience {
            if let Some(worker) = session.stage.worker() {
                let patience = Span((2 * session.patience.0).min(MAX_PATIENCE.0));
                self.patience.insert(worker, patience);
            }
            let reason = format!("no sign of life for {:.1} s; it may rejoin", silence.seconds());
            return self.dismiss(id, reason, true, host);
        }
        let mut next = session.heard + session.patience;
        let mut late = None;
        if let Stage::Joined(worker) = session.stage
            && let Some((task, elapsed)) = self.lateness.running(worker, now)
        {
            let stuck_after = self.lateness.stuck_after(worker);
            let pause = now.since(session.progressed);
            if pause >= stuck_after {
                // Its time is known from below.
                self.lateness.on_progress(worker, pause);
                let reason = format!("stuck: alive, but without progress for {:.1} s; it may rejoin", pause.seconds());
                return self.dismiss(id, reason, true, host);
            }
            next = next.min(session.progressed + stuck_after);
            if let Some(late_after) = self.lateness.late_after(worker).filter(|_| session.noticed_late != Some(task)) {
                if elapsed >= late_after {
                    session.noticed_late = Some(task);
                    late = Some(task);
                    let expected = self.lateness.usual(worker).unwrap_or_default();
                    host.notice(Notice::Late { worker, elapsed, expected });
                } else {
                    next = next.min(now + (late_after - elapsed));
                }
            }
        }
        self.schedule(id, next);
        match late.filter(|_| self.ledger.watches_lateness()) {
            Some(task) => self.feed(Event::Late { task }, host),
            None => Ok(()),
        }
    }

    fn schedule(&mut self, id: SessionId, at: Time) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        self.checks.remove(&(session.check_at, id));
        session.check_at = at.max(self.now + Span(1));
        self.checks.insert((session.check_at, id));
    }

    // --- membership ---

    /// Gives a new worker a rank and sends it the workload.
    fn on_hello<H: ServerHost>(
        &mut self,
        id: SessionId,
        rank: Option<u32>,
        emulated: Option<String>,
        token: Option<&Token>,
        host: &mut H,
    ) -> Handled<H> {
        let Some(session) = self.sessions.get_mut(&id) else { return Ok(()) };
        if let Some(reason) = denial(session.trust, self.config.token.as_ref(), token) {
            return self.violation(id, reason, host);
        }
        if self.is_over {
            self.close("the run is over", |stage| matches!(stage, Stage::Handshake(_)), host);
            return Ok(());
        }
        let limit = max_ranks(self.config.workers);
        let taken = |rank: u32| self.members.contains_key(&WorkerId(rank));
        let rank = match rank {
            Some(rank) if rank >= limit && WorkerId(rank) != WorkerId::EVALUATOR => {
                let workers = self.config.workers;
                let reason = format!("rank {rank}: expected 0 to {} in a run for {workers} workers", limit - 1);
                return self.dismiss(id, reason, false, host);
            }
            // It may be the same worker, whose old connection is not closed yet.
            Some(rank) if taken(rank) => {
                let reason = match WorkerId(rank) {
                    WorkerId::EVALUATOR => "there is an evaluator".into(),
                    _ => format!("rank {rank} is taken"),
                };
                return self.dismiss(id, reason, true, host);
            }
            Some(rank) => rank,
            None => match (0..limit).find(|&rank| !taken(rank)) {
                Some(rank) => rank,
                None => return self.dismiss(id, format!("all {limit} ranks are taken"), true, host),
            },
        };
        let worker = WorkerId(rank);
        session.stage = Stage::Building(worker);
        session.emulated = emulated.as_deref().map(printable);
        session.patience = self.patience.get(&worker).copied().unwrap_or(PATIENCE);
        self.members.insert(worker, id);
        let ServerConfig { workload_spec, seed, payload, optimizer, .. } = &self.config;
        let (workload_spec, seed, payload, optimizer) = (workload_spec.clone(), *seed, *payload, optimizer.clone());
        host.send(id, &ToWorker::Welcome { rank, workload_spec, seed, payload, optimizer });
        let next = self.now + PATIENCE;
        self.schedule(id, next);
        Ok(())
    }

    fn on_ready<H: ServerHost>(
        &mut self,
        id: SessionId,
        worker: WorkerId,
        theirs: &Fingerprint,
        host: &mut H,
    ) -> Handled<H> {
        if let Some(difference) = self.config.fingerprint.difference(theirs) {
            return self.dismiss(id, format!("different workload: {difference}"), false, host);
        }
        let Some(session) = self.sessions.get_mut(&id) else { return Ok(()) };
        if worker == WorkerId::EVALUATOR {
            session.stage = Stage::Evaluating;
            host.notice(Notice::EvaluatorJoined { peer: session.peer.clone() });
            host.evaluator_joined(id);
            return Ok(());
        }
        session.stage = Stage::Joined(worker);
        host.notice(Notice::Joined { worker, peer: session.peer.clone(), emulated: session.emulated.clone() });
        if self.started.is_some() {
            return self.feed(Event::Joined { worker }, host);
        }
        let is_ready = |id: &SessionId| self.sessions.get(id).is_some_and(|one| matches!(one.stage, Stage::Joined(_)));
        let ready: Vec<WorkerId> =
            self.members.iter().filter(|(_, id)| is_ready(id)).map(|(&worker, _)| worker).collect();
        if ready.len() >= self.config.workers {
            self.started = Some(self.now);
            ready.into_iter().try_for_each(|worker| self.feed(Event::Joined { worker }, host))?;
        }
        Ok(())
    }

    /// Dismisses a peer that broke the protocol. It may not rejoin.
    fn violation<H: ServerHost>(&mut self, id: SessionId, reason: &str, host: &mut H) -> Handled<H> {
        self.dismiss(id, reason.into(), false, host)
    }

    /// Removes a peer that has left or must leave; `may_rejoin` is sent to it.
    fn dismiss<H: ServerHost>(&mut self, id: SessionId, reason: String, may_rejoin: bool, host: &mut H) -> Handled<H> {
        let Some(session) = self.sessions.remove(&id) else { return Ok(()) };
        self.checks.remove(&(session.check_at, id));
        // If the peer has left, the message is lost, which does no harm.
        host.close(id, &ToWorker::Refuse { reason: reason.clone(), may_rejoin });
        if let Some(worker) = session.stage.worker() {
            self.members.remove(&worker);
        }
        match session.stage {
            Stage::Finished => Ok(()),
            Stage::Handshake(_) | Stage::Building(_) => {
                host.notice(Notice::Refused { peer: session.peer, reason });
                Ok(())
            }
            Stage::Evaluating => {
                host.evaluator_left();
                host.notice(Notice::EvaluatorLeft { reason });
                Ok(())
            }
            Stage::Joined(worker) => {
                host.discard_all(worker);
                let lost = self.ledger.outstanding(worker);
                if self.started.is_some() {
                    self.feed(Event::Left { worker }, host)?;
                }
                let remaining = self.joined();
                host.notice(Notice::Left { worker, reason, lost, remaining });
                Ok(())
            }
        }
    }

    /// Dismisses a worker for a reason that its messages do not show, such as broken updates.
    ///
    /// # Errors
    /// If the run can't continue.
    pub fn dismiss_worker<H: ServerHost>(
        &mut self,
        now: Time,
        worker: WorkerId,
        reason: String,
        may_rejoin: bool,
        host: &mut H,
    ) -> Handled<H> {
        self.advance(now, host);
        let id = self.members.get(&worker).copied();
        id.map_or(Ok(()), |id| self.dismiss(id, reason, may_rejoin, host))
    }

    // --- tasks ---

    fn on_asked<H: ServerHost>(
        &mut self,
        id: SessionId,
        task: TaskId,
        iterations: u32,
        report: WireReport,
        host: &mut H,
    ) -> Handled<H> {
        let Some(session) = self.sessions.get_mut(&id) else { return Ok(()) };
        let sent = match session.tasks.asked(task.number, iterations) {
            Ok(Some(sent)) => sent,
            Ok(None) => return Ok(()),
            Err(violation) => return self.violation(id, &violation.to_string(), host),
        };
        let report = report.bounded(self.now.since(sent));
        self.feed_report(id, Event::Asked { task, iterations, report }, host)?;
        if self.sessions.contains_key(&id) {
            host.computed(task, 1, report.compute);
        }
        Ok(())
    }

    fn on_report<H: ServerHost>(
        &mut self,
        id: SessionId,
        task: TaskId,
        report: WireReport,
        update: ReportedUpdate,
        host: &mut H,
    ) -> Handled<H> {
        let Some(session) = self.sessions.get_mut(&id) else { return Ok(()) };
        let trust = session.trust;
        let outcome = match session.tasks.reported(task.number) {
            Ok(outcome) => outcome,
            Err(violation) => return self.violation(id, &violation.to_string(), host),
        };
        let ReportOutcome::Wanted { sent, late, length, samples, iterations } = outcome else {
            host.release(id, task);
            return self.send_next(id, host);
        };
        let as_assigned = match update.gradient {
            GradientLocation::InPlace => trust == PeerTrust::SameUser,
            GradientLocation::Follows => trust == PeerTrust::Network,
            GradientLocation::Withheld => late,
        };
        let report = report.bounded(self.now.since(sent));
        let samples = u64::from(report.samples.unwrap_or(samples)) * u64::from(iterations);
        let update = ReportedUpdate { samples, ..update };
        self.send_next(id, host)?;
        if !as_assigned || !host.keep(id, task, update) {
            let reason = format!("the gradient of {task} was not sent as assigned");
            return self.dismiss(id, reason, false, host);
        }
        self.feed_report(id, Event::Reported { task, report }, host)?;
        // Those that the worker asked about are counted already.
        let iterations = match length {
            Some(LocalLength::AskAndWait | LocalLength::AskAndContinue) => 0,
            Some(LocalLength::Iterations(_)) | None => iterations,
        };
        if self.sessions.contains_key(&id) && iterations > 0 {
            host.computed(task, iterations, report.compute);
        }
        Ok(())
    }

    fn on_dropped<H: ServerHost>(&mut self, id: SessionId, task: TaskId, host: &mut H) -> Handled<H> {
        let Some(session) = self.sessions.get_mut(&id) else { return Ok(()) };
        if let Err(violation) = session.tasks.dropped(task.number) {
            return self.violation(id, &violation.to_string(), host);
        }
        host.release(id, task);
        self.send_next(id, host)
    }

    /// Sends assignments that were held back.
    fn send_next<H: ServerHost>(&mut self, id: SessionId, host: &mut H) -> Handled<H> {
        let Some(session) = self.sessions.get_mut(&id) else { return Ok(()) };
        send_next(self.now, id, session, host).map_err(DriveError::Executor)
    }

    // --- decisions of the scheme ---

    fn feed<H: ServerHost>(&mut self, event: Event, host: &mut H) -> Handled<H> {
        let at = self.run_time_at(self.now);
        let mut executor = HostExecutor {
            now: self.now,
            sessions: &mut self.sessions,
            members: &self.members,
            lateness: &mut self.lateness,
            host,
        };
        self.ledger.drive(at, event, &mut executor)
    }

    /// Feeds a worker's report to the scheme. Dismisses the worker if the report is impossible.
    fn feed_report<H: ServerHost>(&mut self, id: SessionId, event: Event, host: &mut H) -> Handled<H> {
        match self.feed(event, host) {
            Err(DriveError::Ledger(LedgerError::Refused(refusal))) => self.violation(id, &refusal.to_string(), host),
            result => result,
        }
    }
}

/// Why a peer may not join, if it has not the server's token where it needs one.
pub(crate) fn denial(trust: PeerTrust, ours: Option<&Token>, theirs: Option<&Token>) -> Option<&'static str> {
    let ours = ours.filter(|_| trust == PeerTrust::Network)?;
    match theirs {
        None => Some("no token: start the worker with --keys DIR"),
        Some(theirs) if !bool::from(ours.ct_eq(theirs)) => {
            Some("wrong token: start the worker with the --keys DIR of the server")
        }
        Some(_) => None,
    }
}

fn is_share(value: &f64) -> bool {
    (0.0..=1.0).contains(value)
}

/// The worker of a session made progress.
fn progressed(session: &mut SessionState, now: Time, lateness: &mut Lateness) {
    if let Stage::Joined(worker) = session.stage {
        lateness.on_progress(worker, now.since(session.progressed));
    }
    session.progressed = now;
}

fn send_next<H: ServerHost>(
    now: Time,
    id: SessionId,
    session: &mut SessionState,
    host: &mut H,
) -> Result<(), H::Error> {
    while let Some(ReadyTask { assignment, after, run }) = session.tasks.send_next(now) {
        let settings = TaskSettings { run, committed: session.committed };
        host.assign(id, assignment.task, ToWorker::Assign { assignment, after, buffers: None, settings })?;
    }
    Ok(())
}

fn cancel<H: ServerHost>(id: SessionId, task: TaskId, cancellation: Cancellation, host: &mut H) {
    match cancellation {
        Cancellation::Sent => host.cancel(id, task),
        Cancellation::NotSent => host.release(id, task),
    }
}

/// Carries out the decisions of the scheme.
struct HostExecutor<'a, H> {
    now: Time,
    sessions: &'a mut BTreeMap<SessionId, SessionState>,
    members: &'a BTreeMap<WorkerId, SessionId>,
    lateness: &'a mut Lateness,
    host: &'a mut H,
}

impl<H: ServerHost> HostExecutor<'_, H> {
    fn session(&mut self, worker: WorkerId) -> Option<(SessionId, &mut SessionState)> {
        let id = *self.members.get(&worker)?;
        self.sessions.get_mut(&id).map(|session| (id, session))
    }

    fn send(&mut self, worker: WorkerId, message: &ToWorker) {
        if let Some(&id) = self.members.get(&worker) {
            self.host.send(id, message);
        }
    }
}

impl<H: ServerHost> Executor for HostExecutor<'_, H> {
    type Error = H::Error;

    fn begin_turn(&mut self, at: Time, event: &Event, decisions: &[Decision]) -> Result<(), H::Error> {
        self.lateness.observe(self.now, event, decisions);
        self.host.begin_turn(at, event, decisions)
    }

    fn commit(&mut self, commit: &Commit, live: usize) -> Result<CommitOutcome, H::Error> {
        for Share { task, .. } in commit.updates.iter() {
            if let Some((_, session)) = self.session(task.worker) {
                session.committed = Some(task.number);
            }
        }
        self.host.commit(commit, live)
    }

    fn carry_out(&mut self, _: Time, action: &Action) -> Result<(), H::Error> {
        match *action {
            Action::Assign(assignment) => {
                let (now, task) = (self.now, assignment.task);
                let Some(&id) = self.members.get(&task.worker) else { return Ok(()) };
                let Some(session) = self.sessions.get_mut(&id) else { return Ok(()) };
                if !assignment.queued {
                    session.progressed = now;
                }
                let run = self.host.prepare(id, task);
                for (number, cancellation) in session.tasks.assign(assignment, run) {
                    cancel(id, TaskId { number, ..task }, cancellation, self.host);
                }
                send_next(now, id, session, self.host)?;
            }
            Action::Interrupt { task } => {
                if let Some((id, session)) = self.session(task.worker) {
                    let cancellation = session.tasks.cancel(task.number);
                    cancel(id, task, cancellation, self.host);
                    if cancellation == Cancellation::Sent {
                        self.host.send(id, &ToWorker::Interrupt { number: task.number });
                    }
                }
            }
            Action::Discard { task } => self.host.discard(task),
            Action::Continue { task } => self.send(task.worker, &ToWorker::Continue { number: task.number }),
            Action::Collect { task } => self.send(task.worker, &ToWorker::Collect { number: task.number }),
            // Idle workers need no message, the ledger keeps the timers, and commits are carried out above.
            Action::Hold { .. } | Action::Wake { .. } | Action::Commit { .. } => {}
        }
        Ok(())
    }

    fn end_turn(&mut self, at: Time, event: &Event, ledger: &Ledger) -> Result<(), H::Error> {
        self.lateness.settle(self.now, ledger);
        self.host.end_turn(at, event, ledger)
    }
}

/// Text from a peer without control characters, which a terminal would interpret.
fn printable(text: &str) -> String {
    text.replace(char::is_control, " ")
}
