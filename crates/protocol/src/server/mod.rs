//! The server's side of the protocol: sessions and their tasks. `membership` says who takes part, `liveness` who is alive;
//! `executor` carries out what the scheme decides, and `host` is what the driver does.

mod executor;
mod host;
mod liveness;
mod membership;

use std::collections::{BTreeMap, BTreeSet};

use paceline_core::{
    DriveError, Event, Lateness, Ledger, LedgerError, LocalLength, SchemePace, Span, TaskId, Time, WorkerId,
};
use paceline_store::OptimizerSpec;
use paceline_workload::Evaluation;

use crate::Fingerprint;
use crate::message::{GradientLocation, ToServer, ToWorker, Token, WireReport};
use crate::notice::Notice;
use crate::payload::PayloadRule;
use crate::tasks::{OpenTasks, ReportOutcome};
use executor::{HostExecutor, send_next};
pub use host::{PeerTrust, ReportedUpdate, ServerHost, SessionId};
use liveness::{PATIENCE, TICK, progressed};
pub(crate) use membership::denial;
use membership::printable;
pub use membership::{max_ranks, token_matches};

/// The time limit of the handshake: from the connection, encryption included, to the complete hello.
pub const HANDSHAKE_TIMEOUT: Span = Span(10_000_000_000);

/// How long a run in shards that resumes waits for all of its workers and shards. Then it goes on with those that are there.
const GATHERING_TIME: Span = Span(20_000_000_000);

/// Who holds the parameters of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ParameterHolders {
    /// The server.
    #[default]
    Server,
    /// Processes of workers.
    Workers {
        /// How many parts one of them may have to hold.
        parts: u8,
    },
    /// This many processes without a worker. The run starts when they are there.
    Apart(usize),
    /// Every worker's process holds all of them.
    Members,
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
    pub payload: PayloadRule,
    /// The optimizer of local iterations.
    pub optimizer: OptimizerSpec,
    /// The token that a peer on a network must have to join; `None` lets every peer join.
    pub token: Option<Token>,
    /// How long a worker of unknown speed may make no progress before it is dismissed.
    pub timeout: Span,
    /// The number of the lease under which the run is served; 0 without one.
    pub epoch: u64,
    /// Whether a process may join to evaluate models.
    pub takes_evaluator: bool,
    /// Who holds the parameters.
    pub holders: ParameterHolders,
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
    /// It holds a part of the parameters, and computes nothing.
    Holding,
    /// The run is over; it closes the connection next.
    Finished,
}

impl Stage {
    fn worker(self) -> Option<WorkerId> {
        match self {
            Stage::Building(worker) | Stage::Joined(worker) => Some(worker),
            Stage::Evaluating => Some(WorkerId::EVALUATOR),
            Stage::Handshake(_) | Stage::Holding | Stage::Finished => None,
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
    /// Whether the last worker has left, and had done all that it was started for.
    is_done: bool,
    /// The workers of a run that is resumed, until it starts.
    departed: Vec<WorkerId>,
    /// Until when that waits for all of its workers.
    gathering: Option<Time>,
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
            is_done: false,
            departed: Vec::new(),
            gathering: None,
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

    /// Continues a run at its time `at` once as many workers and shards are there as for a new one, or after 20 seconds with
    /// those that are there then. Its workers, `departed`, have to rejoin.
    pub fn resume_with_all(&mut self, now: Time, at: Time, departed: impl IntoIterator<Item = WorkerId>) {
        (self.now, self.start_time, self.gathering) = (now, at, Some(now + GATHERING_TIME));
        self.departed.extend(departed);
    }

    /// Whether a run that is resumed waits for all workers.
    pub fn gathers_all(&self) -> bool {
        self.config.holders != ParameterHolders::Server
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
        [timer, self.next_check(), self.gathering].into_iter().flatten().min().map(|time| self.shown(time))
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

    /// Whether a run has no worker left, and the last one had done all that it was started for.
    pub fn is_done(&self) -> bool {
        self.is_done && self.has_started() && self.members.is_empty()
    }

    /// The connected processes that hold a part of the parameters and compute nothing.
    fn holding(&self) -> usize {
        self.sessions.values().filter(|session| session.stage == Stage::Holding).count()
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
            (Stage::Handshake(_), ToServer::Hello { role, emulated, token }) => {
                self.on_hello(id, role, emulated, token.as_ref(), host)
            }
            (Stage::Handshake(_), _) => self.violation(id, "expected a hello as the first message", host),
            (_, ToServer::Hello { .. }) => self.violation(id, "second hello", host),
            (_, ToServer::Leave { reason, is_done }) => {
                if is_done && matches!(session.stage, Stage::Joined(_)) && self.joined() == 1 {
                    host.last_worker_leaves().map_err(DriveError::Executor)?;
                }
                self.dismiss(id, printable(&reason), false, host)?;
                self.is_done = is_done && self.joined() == 0;
                Ok(())
            }
            (_, ToServer::Heartbeat { progress }) => {
                if std::mem::replace(&mut session.progress, progress) != progress {
                    progressed(session, self.now, &mut self.lateness);
                }
                Ok(())
            }
            (Stage::Building(worker), ToServer::Ready { fingerprint, ports }) => {
                self.on_ready(id, worker, &fingerprint, ports, host)
            }
            (Stage::Building(_), _) => self.violation(id, "expected a ready message", host),
            (Stage::Holding, _) => self.violation(id, "a message of a worker from a shard", host),
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
            (Stage::Evaluating, ToServer::Payload { .. }) => Ok(()),
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
                    ToServer::Payload { format } => {
                        host.notice(Notice::Payload { worker, format });
                        Ok(())
                    }
                    ToServer::Member(message) => {
                        host.member_says(id, message);
                        Ok(())
                    }
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
        if self.gathering.is_some_and(|until| until <= self.now) {
            let is_held = !matches!(self.config.holders, ParameterHolders::Apart(_)) || self.holding() > 0;
            match self.ready() {
                ready if ready.is_empty() || !is_held => self.gathering = Some(self.now + GATHERING_TIME),
                ready => self.begin(ready, host)?,
            }
        }
        if self.scheme_timer().is_some_and(|at| at <= self.now) {
            self.feed(Event::Timer, host)?;
        }
        Ok(())
    }

    /// A planner has answered the scheme's [request](Ledger::plan_request).
    ///
    /// # Errors
    /// If the run can't continue.
    pub fn on_planned<H: ServerHost>(&mut self, now: Time, paces: Vec<SchemePace>, host: &mut H) -> Handled<H> {
        self.advance(now, host);
        if self.is_over { Ok(()) } else { self.feed(Event::Planned { paces }, host) }
    }

    /// Ends the run. Removes the workers whose updates are not committed and will not be, so that the run can be resumed
    /// from here, and sends the end to every worker. An evaluator stays, for the last model, until
    /// [`finish_evaluation`](ServerProtocol::finish_evaluation).
    ///
    /// # Errors
    /// If the run can't continue.
    pub fn finish<H: ServerHost>(&mut self, now: Time, reason: &str, host: &mut H) -> Handled<H> {
        self.settle(now, host)?;
        self.close(&self.farewell(reason), |stage| stage != Stage::Evaluating, host);
        Ok(())
    }

    /// The same for a run that is to go on later: whoever takes part is told to rejoin.
    ///
    /// # Errors
    /// If the run can't continue.
    pub fn suspend<H: ServerHost>(&mut self, now: Time, host: &mut H) -> Handled<H> {
        self.settle(now, host)?;
        let reason = "the server is stopped; the run goes on when it is back".into();
        self.close(&ToWorker::Refuse { reason, may_rejoin: true }, |_| true, host);
        Ok(())
    }

    /// Sends the end of the run to the evaluator.
    pub fn finish_evaluation<H: ServerHost>(&mut self, reason: &str, host: &mut H) {
        self.close(&self.farewell(reason), |stage| stage == Stage::Evaluating, host);
    }

    /// The end of the run, for a worker.
    fn farewell(&self, reason: &str) -> ToWorker {
        ToWorker::Finished { reason: reason.into(), version: self.ledger.version(), buffer: None }
    }

    /// Ends the run: what has arrived and is not committed is discarded.
    fn settle<H: ServerHost>(&mut self, now: Time, host: &mut H) -> Handled<H> {
        self.move_clock(now);
        for worker in self.ledger.unsettled_workers() {
            host.discard_all(worker);
            self.feed(Event::Left { worker }, host)?;
        }
        self.is_over = true;
        Ok(())
    }

    /// Sends the last message to the peers in some stages.
    fn close<H: ServerHost>(&mut self, message: &ToWorker, is_meant: impl Fn(Stage) -> bool, host: &mut H) {
        for (&id, session) in self.sessions.iter_mut().filter(|(_, session)| is_meant(session.stage)) {
            host.close(id, message);
            if let Some(worker) = session.stage.worker() {
                self.members.remove(&worker);
            }
            self.checks.remove(&(session.check_at, id));
            session.stage = Stage::Finished;
        }
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
            GradientLocation::InShards => {
                matches!(self.config.holders, ParameterHolders::Workers { .. } | ParameterHolders::Apart(_))
            }
            GradientLocation::InMembers => self.config.holders == ParameterHolders::Members,
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

fn is_share(value: &f64) -> bool {
    (0.0..=1.0).contains(value)
}
