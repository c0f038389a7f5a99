//! A model of the server: a ledger, deadlines, sessions, and a disk that survives restarts.

use std::collections::{BTreeMap, VecDeque};

use paceline_core::{
    Action, Aggregate, Deadlines, Event, Ledger, LedgerError, Scheme, Setup, Span, Time, Version, WorkerId,
};

use crate::checker::{CheckerMark, LawChecker};
use crate::fault_schedule::FaultSchedule;
use crate::fault_simulation::TortureFailure;
use crate::message::{Envelope, ToServer, ToWorker};

/// The longest deadline of a worker.
const MAX_DEADLINE: Span = Span(60_000_000_000);

/// The number of latest events in a failure.
const LATEST_EVENTS: usize = 40;

#[derive(Debug, Default)]
struct MockMember {
    session: u64,
    running: Option<u64>,
    queued: Option<u64>,
    /// The local iterations at its last question.
    asked: u32,
}

/// The last checkpoint on the disk.
#[derive(Debug, Clone, Copy, Default)]
struct SavedState {
    /// The length of the event log.
    events: usize,
    mark: CheckerMark,
}

pub(crate) struct MockServer<'a> {
    setup: Setup,
    checkpoint_every: u64,
    build: &'a dyn Fn(&Setup) -> Box<dyn Scheme>,
    ledger: Ledger,
    deadlines: Deadlines,
    members: BTreeMap<WorkerId, MockMember>,
    pub(crate) checker: LawChecker,
    pub(crate) running: bool,
    pub(crate) disk_full_until: Time,
    /// How much the clock is ahead of the true time, in nanoseconds.
    ahead: i64,
    latest: Time,
    /// The event log on the disk.
    log: Vec<(Time, Event)>,
    checkpoint: SavedState,
    /// Messages to send.
    pub(crate) outgoing: Vec<Envelope<ToWorker>>,
    pub(crate) events: u64,
}

impl<'a> MockServer<'a> {
    pub(crate) fn new(schedule: &FaultSchedule, build: &'a dyn Fn(&Setup) -> Box<dyn Scheme>) -> Self {
        let setup = Setup { workers: schedule.workers, batch: schedule.batch, dispatch: None };
        MockServer {
            setup,
            checkpoint_every: schedule.checkpoint_every,
            build,
            ledger: Ledger::new(build(&setup)),
            deadlines: Deadlines::new(MAX_DEADLINE),
            members: BTreeMap::new(),
            checker: LawChecker::default(),
            running: true,
            disk_full_until: Time::START,
            ahead: 0,
            latest: Time::START,
            log: Vec::new(),
            checkpoint: SavedState::default(),
            outgoing: Vec::new(),
            events: 0,
        }
    }

    // --- time ---

    /// The time of the server's clock. It never runs backwards.
    fn clock(&self, now: Time) -> Time {
        Time(now.0.saturating_add_signed(self.ahead)).max(self.latest)
    }

    pub(crate) fn jump_clock(&mut self, by: i64) {
        self.ahead += by;
    }

    /// The true time of the server's next timer or deadline.
    pub(crate) fn next(&self, now: Time) -> Option<Time> {
        if !self.running {
            return None;
        }
        let due = [self.ledger.next_timer(), self.deadlines.next()].into_iter().flatten().min()?;
        Some(Time(due.0.saturating_add_signed(-self.ahead)).max(now))
    }

    /// Handles a due timer or deadline.
    pub(crate) fn wake(&mut self, now: Time) -> Result<(), TortureFailure> {
        let clock = self.clock(now);
        if let Some((worker, _)) = self.deadlines.take_expired(clock) {
            return self.dismiss(now, worker);
        }
        if self.ledger.next_timer().is_some_and(|at| at <= clock) { self.feed(now, Event::Timer) } else { Ok(()) }
    }

    // --- sessions ---

    fn send(&mut self, worker: WorkerId, session: u64, message: ToWorker) {
        self.outgoing.push(Envelope { worker, session, message });
    }

    /// Dismisses a worker, and notifies it in case it is alive.
    fn dismiss(&mut self, now: Time, worker: WorkerId) -> Result<(), TortureFailure> {
        let Some(member) = self.members.remove(&worker) else { return Ok(()) };
        self.send(worker, member.session, ToWorker::Refuse);
        self.feed(now, Event::Left { worker })
    }

    /// Handles a closed connection.
    pub(crate) fn on_closed(&mut self, now: Time, worker: WorkerId, session: u64) -> Result<(), TortureFailure> {
        let current = self.members.get(&worker).is_some_and(|member| member.session == session);
        if self.running && current { self.dismiss(now, worker) } else { Ok(()) }
    }

    pub(crate) fn on_message(&mut self, now: Time, envelope: Envelope<ToServer>) -> Result<(), TortureFailure> {
        let Envelope { worker, session, message } = envelope;
        if !self.running {
            return Ok(());
        }
        let current = self.members.get(&worker).map(|member| member.session);
        match message {
            ToServer::Hello if current.is_none() => {
                self.members.insert(worker, MockMember { session, ..MockMember::default() });
                self.send(worker, session, ToWorker::Welcome);
                return self.feed(now, Event::Joined { worker });
            }
            ToServer::Hello if current != Some(session) => {
                self.send(worker, session, ToWorker::Retry);
                return Ok(());
            }
            _ if current != Some(session) => {
                self.send(worker, session, ToWorker::Refuse);
                return Ok(());
            }
            ToServer::Hello | ToServer::Heartbeat => {
                self.send(worker, session, ToWorker::Welcome);
                return Ok(());
            }
            ToServer::Bye => return self.dismiss(now, worker),
            ToServer::Report(_, report) | ToServer::Ask(_, _, report) => {
                if self.deadlines.is_implausible(worker, self.clock(now), &report) {
                    return self.dismiss(now, worker);
                }
            }
        }
        match message {
            ToServer::Report(task, report) => self.feed(now, Event::Reported { task, report }),
            ToServer::Ask(task, iterations, report) => self.feed(now, Event::Asked { task, iterations, report }),
            ToServer::Hello | ToServer::Heartbeat | ToServer::Bye => Ok(()),
        }
    }

    // --- the run ---

    /// Passes an event to the scheme, carries out the decisions, and confirms commits until none is left.
    fn feed(&mut self, now: Time, event: Event) -> Result<(), TortureFailure> {
        let clock = self.clock(now);
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let decisions = match self.ledger.handle(clock, event) {
                Ok(decisions) => decisions.to_vec(),
                // A refused event changes nothing.
                Err(LedgerError::Refused(_)) => return Ok(()),
                Err(LedgerError::Broken(broken)) => return Err(TortureFailure::Law(broken)),
            };
            self.latest = clock;
            self.events += 1;
            self.log.push((clock, event));
            self.deadlines.observe(clock, &event, &decisions);
            let checked = self.checker.observe(&event, &decisions).and_then(|()| self.checker.compare(&self.ledger));
            checked.map_err(|problem| self.inconsistent(problem))?;
            self.update_member(&event);
            for decision in &decisions {
                if let Action::Commit { version, .. } = decision.action {
                    events.push_back(Event::Committed { version, aggregate: mock_aggregate(version) });
                }
                self.carry_out(&decision.action);
            }
        }
        self.save(now);
        Ok(())
    }

    fn update_member(&mut self, event: &Event) {
        match *event {
            Event::Reported { task, .. } => self.start_queued(task.worker),
            Event::Asked { task, iterations, .. } => {
                if let Some(member) = self.members.get_mut(&task.worker) {
                    member.asked = iterations;
                }
            }
            _ => {}
        }
    }

    fn start_queued(&mut self, worker: WorkerId) {
        if let Some(member) = self.members.get_mut(&worker) {
            member.running = member.queued.take();
        }
    }

    fn carry_out(&mut self, action: &Action) {
        let (worker, message) = match *action {
            Action::Assign(assignment) => {
                let worker = assignment.task.worker;
                let Some(member) = self.members.get_mut(&worker) else { return };
                let after = if assignment.queued { member.running } else { None };
                let slot = if assignment.queued { &mut member.queued } else { &mut member.running };
                *slot = Some(assignment.task.number);
                (worker, ToWorker::Assign(assignment, after))
            }
            Action::Continue { task } => {
                let asked = self.members.get(&task.worker).map_or(0, |member| member.asked);
                (task.worker, ToWorker::Continue(task, asked))
            }
            Action::Collect { task } => (task.worker, ToWorker::Collect(task)),
            Action::Interrupt { task } => {
                self.start_queued(task.worker);
                (task.worker, ToWorker::Interrupt(task))
            }
            Action::Commit { .. } | Action::Discard { .. } | Action::Hold { .. } | Action::Wake { .. } => return,
        };
        if let Some(session) = self.members.get(&worker).map(|member| member.session) {
            self.send(worker, session, message);
        }
    }

    fn inconsistent(&self, problem: String) -> TortureFailure {
        let from = self.log.len().saturating_sub(LATEST_EVENTS);
        let events = self.log[from..].iter().map(|(at, event)| format!("{at}: {event:?}")).collect();
        TortureFailure::Inconsistent { problem, events }
    }

    // --- the disk ---

    fn save(&mut self, now: Time) {
        let due = self.checker.version >= self.checkpoint.mark.version + self.checkpoint_every;
        // Uncommitted gradients are not saved, so a checkpoint is taken only when there are none.
        if due && self.ledger.is_settled() && now >= self.disk_full_until {
            self.checkpoint = SavedState { events: self.log.len(), mark: self.checker.mark() };
        }
    }

    /// Kills the server: all state that is not on the disk is lost.
    pub(crate) fn kill(&mut self) {
        self.running = false;
        self.members.clear();
        self.outgoing.clear();
    }

    /// Resumes from the last checkpoint: a replay of the log restores the scheme's state, and every worker has to
    /// rejoin.
    pub(crate) fn resume(&mut self, now: Time) -> Result<(), TortureFailure> {
        let SavedState { events, mark } = self.checkpoint;
        self.running = true;
        self.log.truncate(events);
        self.latest = self.log.last().map_or(Time::START, |&(at, _)| at);
        self.ledger = Ledger::new((self.build)(&self.setup));
        self.deadlines = Deadlines::new(MAX_DEADLINE);
        self.checker.restore(mark);
        for &(at, event) in &self.log {
            match event {
                Event::Joined { worker } => {
                    self.checker.present.insert(worker);
                }
                Event::Left { worker } => {
                    self.checker.present.remove(&worker);
                }
                _ => {}
            }
            if let Err(error) = self.ledger.handle(at, event) {
                return Err(self.inconsistent(format!("the event log can't be replayed: {error}")));
            }
        }
        self.checker
            .compare(&self.ledger)
            .map_err(|problem| self.inconsistent(format!("after a restart: {problem}")))?;
        let lost: Vec<WorkerId> = self.checker.present.iter().copied().collect();
        lost.into_iter().try_for_each(|worker| self.feed(now, Event::Left { worker }))
    }
}

/// The aggregate of a commit: `None` for every seventh, otherwise values that make dynamic schemes change their
/// decisions.
fn mock_aggregate(version: Version) -> Option<Aggregate> {
    let wave = (version.0 as f64 * 1.7).sin();
    let aggregate =
        Aggregate { loss: 1.0 + 0.5 * wave, rate: 0.1, sum_of_squares: 8.0 + 6.0 * wave, square_of_sum: 1.0 };
    (!version.0.is_multiple_of(7)).then_some(aggregate)
}
