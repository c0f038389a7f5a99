//! The server: a ledger, deadlines, conversations, and a disk that outlives it.

use std::collections::{BTreeMap, VecDeque};

use paceline_core::{
    Action, Aggregate, Deadlines, Event, Ledger, LedgerError, Scheme, Setup, Span, Time, Version, WorkerId,
};

use crate::history::History;
use crate::message::{Envelope, ToServer, ToWorker};
use crate::witness::{Mark, Witness};
use crate::world::Failure;

/// No worker's deadline is further away.
const CEILING: Span = Span(60_000_000_000);

/// How many of the latest events a failure shows.
const SHOWN: usize = 40;

#[derive(Debug, Default)]
struct Member {
    session: u64,
    running: Option<u64>,
    queued: Option<u64>,
    /// The iterations that it last asked about.
    asked: u32,
}

/// The last checkpoint on the disk.
#[derive(Debug, Clone, Copy, Default)]
struct Checkpoint {
    events: usize,
    mark: Mark,
}

pub(crate) struct Server<'a> {
    setup: Setup,
    checkpoint_every: u64,
    build: &'a dyn Fn(&Setup) -> Box<dyn Scheme>,
    ledger: Ledger,
    deadlines: Deadlines,
    members: BTreeMap<WorkerId, Member>,
    pub(crate) witness: Witness,
    pub(crate) running: bool,
    pub(crate) disk_full_until: Time,
    /// How much the clock is ahead of the true time, in nanoseconds.
    ahead: i64,
    latest: Time,
    /// On the disk: every event of the run.
    log: Vec<(Time, Event)>,
    checkpoint: Checkpoint,
    /// What is to be sent.
    pub(crate) outgoing: Vec<Envelope<ToWorker>>,
    pub(crate) events: u64,
}

impl<'a> Server<'a> {
    pub(crate) fn new(history: &History, build: &'a dyn Fn(&Setup) -> Box<dyn Scheme>) -> Self {
        let setup = Setup { workers: history.workers, batch: history.batch, dispatch: None };
        Server {
            setup,
            checkpoint_every: history.checkpoint_every,
            build,
            ledger: Ledger::new(build(&setup)),
            deadlines: Deadlines::new(CEILING),
            members: BTreeMap::new(),
            witness: Witness::default(),
            running: true,
            disk_full_until: Time::START,
            ahead: 0,
            latest: Time::START,
            log: Vec::new(),
            checkpoint: Checkpoint::default(),
            outgoing: Vec::new(),
            events: 0,
        }
    }

    // --- time ---

    /// What the server's clock says; it never lets time run backwards.
    fn clock(&self, now: Time) -> Time {
        Time(now.0.saturating_add_signed(self.ahead)).max(self.latest)
    }

    pub(crate) fn jump(&mut self, by: i64) {
        self.ahead += by;
    }

    /// When, in true time, the server has to act by itself.
    pub(crate) fn next(&self, now: Time) -> Option<Time> {
        if !self.running {
            return None;
        }
        let due = [self.ledger.next_timer(), self.deadlines.next()].into_iter().flatten().min()?;
        Some(Time(due.0.saturating_add_signed(-self.ahead)).max(now))
    }

    /// A timer or a deadline has come.
    pub(crate) fn wake(&mut self, now: Time) -> Result<(), Failure> {
        let clock = self.clock(now);
        if let Some((worker, _)) = self.deadlines.take_expired(clock) {
            return self.dismiss(now, worker);
        }
        if self.ledger.next_timer().is_some_and(|at| at <= clock) { self.feed(now, Event::Timer) } else { Ok(()) }
    }

    // --- conversations ---

    fn say(&mut self, worker: WorkerId, session: u64, words: ToWorker) {
        self.outgoing.push(Envelope { worker, session, words });
    }

    /// The worker is gone for the server, and told so in case it is not.
    fn dismiss(&mut self, now: Time, worker: WorkerId) -> Result<(), Failure> {
        let Some(member) = self.members.remove(&worker) else { return Ok(()) };
        self.say(worker, member.session, ToWorker::Refuse);
        self.feed(now, Event::Left { worker })
    }

    /// A connection has closed.
    pub(crate) fn closed(&mut self, now: Time, worker: WorkerId, session: u64) -> Result<(), Failure> {
        let current = self.members.get(&worker).is_some_and(|member| member.session == session);
        if self.running && current { self.dismiss(now, worker) } else { Ok(()) }
    }

    pub(crate) fn hear(&mut self, now: Time, message: Envelope<ToServer>) -> Result<(), Failure> {
        let Envelope { worker, session, words } = message;
        if !self.running {
            return Ok(());
        }
        let current = self.members.get(&worker).map(|member| member.session);
        match words {
            ToServer::Hello if current.is_none() => {
                self.members.insert(worker, Member { session, ..Member::default() });
                self.say(worker, session, ToWorker::Welcome);
                return self.feed(now, Event::Joined { worker });
            }
            ToServer::Hello if current != Some(session) => {
                self.say(worker, session, ToWorker::Later);
                return Ok(());
            }
            _ if current != Some(session) => {
                self.say(worker, session, ToWorker::Refuse);
                return Ok(());
            }
            ToServer::Hello | ToServer::Ping => {
                self.say(worker, session, ToWorker::Welcome);
                return Ok(());
            }
            ToServer::Bye => return self.dismiss(now, worker),
            ToServer::Report(_, report) | ToServer::Ask(_, _, report) => {
                if self.deadlines.is_implausible(worker, self.clock(now), &report) {
                    return self.dismiss(now, worker);
                }
            }
        }
        match words {
            ToServer::Report(task, report) => self.feed(now, Event::Reported { task, report }),
            ToServer::Ask(task, iterations, report) => self.feed(now, Event::Asked { task, iterations, report }),
            ToServer::Hello | ToServer::Ping | ToServer::Bye => Ok(()),
        }
    }

    // --- the run ---

    /// Tells the scheme, does what it decides, and confirms its commits until there are none left.
    fn feed(&mut self, now: Time, event: Event) -> Result<(), Failure> {
        let clock = self.clock(now);
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let decisions = match self.ledger.handle(clock, event) {
                Ok(decisions) => decisions.to_vec(),
                // It costs only its sender.
                Err(LedgerError::Refused(_)) => return Ok(()),
                Err(LedgerError::Broken(broken)) => return Err(Failure::Law(broken)),
            };
            self.latest = clock;
            self.events += 1;
            self.log.push((clock, event));
            self.deadlines.observe(clock, &event, &decisions);
            let seen = self.witness.observe(&event, &decisions).and_then(|()| self.witness.compare(&self.ledger));
            seen.map_err(|what| self.wrong(what))?;
            self.take_note(&event);
            for decision in &decisions {
                if let Action::Commit { version, .. } = decision.action {
                    events.push_back(Event::Committed { version, aggregate: shown(version) });
                }
                self.carry_out(&decision.action);
            }
        }
        self.save(now);
        Ok(())
    }

    fn take_note(&mut self, event: &Event) {
        match *event {
            Event::Reported { task, .. } => self.advance(task.worker),
            Event::Asked { task, iterations, .. } => {
                if let Some(member) = self.members.get_mut(&task.worker) {
                    member.asked = iterations;
                }
            }
            _ => {}
        }
    }

    fn advance(&mut self, worker: WorkerId) {
        if let Some(member) = self.members.get_mut(&worker) {
            member.running = member.queued.take();
        }
    }

    fn carry_out(&mut self, action: &Action) {
        let (worker, words) = match *action {
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
                self.advance(task.worker);
                (task.worker, ToWorker::Interrupt(task))
            }
            Action::Commit { .. } | Action::Discard { .. } | Action::Hold { .. } | Action::Wake { .. } => return,
        };
        if let Some(session) = self.members.get(&worker).map(|member| member.session) {
            self.say(worker, session, words);
        }
    }

    fn wrong(&self, what: String) -> Failure {
        let from = self.log.len().saturating_sub(SHOWN);
        let events = self.log[from..].iter().map(|(at, event)| format!("{at}: {event:?}")).collect();
        Failure::Books { what, events }
    }

    // --- the disk ---

    fn save(&mut self, now: Time) {
        let due = self.witness.version >= self.checkpoint.mark.version + self.checkpoint_every;
        // Gradients that wait to be committed are on no disk.
        if due && self.ledger.is_settled() && now >= self.disk_full_until {
            self.checkpoint = Checkpoint { events: self.log.len(), mark: self.witness.mark() };
        }
    }

    /// Dies: whatever is not on the disk is lost.
    pub(crate) fn kill(&mut self) {
        self.running = false;
        self.members.clear();
        self.outgoing.clear();
    }

    /// Goes on from the last checkpoint: the events up to it give the scheme's state back, and everyone has to come anew.
    pub(crate) fn resume(&mut self, now: Time) -> Result<(), Failure> {
        let Checkpoint { events, mark } = self.checkpoint;
        self.running = true;
        self.log.truncate(events);
        self.latest = self.log.last().map_or(Time::START, |&(at, _)| at);
        self.ledger = Ledger::new((self.build)(&self.setup));
        self.deadlines = Deadlines::new(CEILING);
        self.witness.return_to(mark);
        for &(at, event) in &self.log {
            match event {
                Event::Joined { worker } => {
                    self.witness.present.insert(worker);
                }
                Event::Left { worker } => {
                    self.witness.present.remove(&worker);
                }
                _ => {}
            }
            if let Err(error) = self.ledger.handle(at, event) {
                return Err(self.wrong(format!("the log can't be replayed: {error}")));
            }
        }
        self.witness.compare(&self.ledger).map_err(|what| self.wrong(format!("after a restart: {what}")))?;
        let gone: Vec<WorkerId> = self.witness.present.iter().copied().collect();
        gone.into_iter().try_for_each(|worker| self.feed(now, Event::Left { worker }))
    }
}

/// What a commit showed: nothing now and then, else numbers that make dynamic schemes change their minds.
fn shown(version: Version) -> Option<Aggregate> {
    let wave = (version.0 as f64 * 1.7).sin();
    let aggregate =
        Aggregate { loss: 1.0 + 0.5 * wave, rate: 0.1, sum_of_squares: 8.0 + 6.0 * wave, square_of_sum: 1.0 };
    (!version.0.is_multiple_of(7)).then_some(aggregate)
}
