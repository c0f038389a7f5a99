//! The world around the server: workers, network, and what happens to them.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use paceline_core::{LawBroken, Scheme, Setup, Span, Time, WorkerId};
use thiserror::Error;

use crate::history::{History, Link, Trouble};
use crate::message::{Envelope, ToServer, ToWorker};
use crate::server::Server;
use crate::worker::{Effect, Process, TICK};

/// How long everyone may take to find together again after the last trouble.
const SETTLED: Span = Span(90_000_000_000);

/// How long the model may take to move on from then, and how many versions show that it does.
const STANDSTILL: Span = Span(300_000_000_000);
const VERSIONS: u64 = 3;

/// How a history ended badly.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum Failure {
    /// The scheme broke a law.
    #[error(transparent)]
    Law(Box<LawBroken>),
    /// The books do not add up.
    #[error("{what}; the latest events, oldest first:\n  {}", events.join("\n  "))]
    Books {
        /// What is wrong.
        what: String,
        /// What led to it.
        events: Vec<String>,
    },
    /// The model no longer moves on though all workers are well.
    #[error("the model stands still at version {version} though all has been well for {calm}")]
    StandsStill {
        /// The last version.
        version: u64,
        /// For how long there was no trouble.
        calm: Span,
    },
    /// The scheme panicked.
    #[error("the scheme panicked: {0}")]
    Panicked(String),
}

/// What there is to say of a history that was survived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Survival {
    /// How many events the scheme heard.
    pub events: u64,
    /// How many versions the model went through.
    pub versions: u64,
}

/// Lives through a history under the scheme that `build` makes; it is made anew when the server is restarted.
///
/// # Errors
/// If a law is broken, the books do not add up, or the model stands still when all is well again.
pub fn torture(history: &History, build: &dyn Fn(&Setup) -> Box<dyn Scheme>) -> Result<Survival, Failure> {
    let lived = catch_unwind(AssertUnwindSafe(|| World::new(history, build).live()));
    lived.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| text.to_string()));
        Err(Failure::Panicked(text.unwrap_or_default()))
    })
}

/// Something that will happen.
#[derive(Debug, Clone, Copy)]
enum Coming {
    Trouble(Trouble),
    /// The server is back.
    Back,
    /// All is well from here on.
    Calm,
    /// All has been well for long enough.
    Settled,
    ToServer(Envelope<ToServer>),
    ToWorker(Envelope<ToWorker>),
    Closed(WorkerId, u64),
    Computed(WorkerId, u64),
    Tick(WorkerId, u64),
}

impl Coming {
    /// The process that has to be awake for it.
    fn process(&self) -> Option<WorkerId> {
        match *self {
            Coming::ToWorker(Envelope { worker, .. }) | Coming::Computed(worker, _) | Coming::Tick(worker, _) => {
                Some(worker)
            }
            _ => None,
        }
    }
}

struct World<'a> {
    history: &'a History,
    now: Time,
    coming: BTreeMap<(Time, u64), Coming>,
    /// Counts what was put on the agenda, so that things of one moment happen in the order they were put there.
    counted: u64,
    server: Server<'a>,
    processes: BTreeMap<WorkerId, Process>,
    factors: BTreeMap<WorkerId, f64>,
    links: Vec<(WorkerId, Link, Time)>,
    sessions: u64,
    settled: Option<u64>,
}

impl<'a> World<'a> {
    fn new(history: &'a History, build: &'a dyn Fn(&Setup) -> Box<dyn Scheme>) -> Self {
        World {
            history,
            now: Time::START,
            coming: BTreeMap::new(),
            counted: 0,
            server: Server::new(history, build),
            processes: BTreeMap::new(),
            factors: BTreeMap::new(),
            links: Vec::new(),
            sessions: 0,
            settled: None,
        }
    }

    fn live(mut self) -> Result<Survival, Failure> {
        let mut calm = Time::START;
        for &(at, trouble) in &self.history.troubles {
            self.put(at, Coming::Trouble(trouble));
            calm = calm.max(at + lasting(trouble));
        }
        for worker in 0..self.history.workers as u32 {
            self.start(WorkerId(worker));
        }
        self.put(calm, Coming::Calm);
        self.put(calm + SETTLED, Coming::Settled);
        let end = calm + SETTLED + STANDSTILL;
        loop {
            let version = self.server.witness.version;
            if self.settled.is_some_and(|settled| version >= settled + VERSIONS) {
                return Ok(Survival { events: self.server.events, versions: version });
            }
            let queued = self.coming.first_key_value().map(|(&(at, _), _)| at);
            let due = self.server.next(self.now);
            let Some(at) = [queued, due].into_iter().flatten().min().filter(|&at| at <= end) else { break };
            self.now = at;
            if due == Some(at) && queued != Some(at) {
                self.server.wake(at)?;
            } else if let Some((_, coming)) = self.coming.pop_first() {
                self.happen(coming)?;
            }
            self.send_outgoing();
        }
        Err(Failure::StandsStill { version: self.server.witness.version, calm: SETTLED + STANDSTILL })
    }

    fn put(&mut self, at: Time, coming: Coming) {
        self.coming.insert((at, self.counted), coming);
        self.counted += 1;
    }

    /// A number that depends on the seed and `salt` alone.
    fn luck(&self, salt: [u64; 3]) -> u64 {
        let mut mixed = self.history.seed;
        for part in salt {
            // SplitMix64's finalizer.
            mixed = mixed.wrapping_add(part).wrapping_add(0x9e37_79b9_7f4a_7c15);
            mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            mixed ^= mixed >> 31;
        }
        mixed
    }

    fn happen(&mut self, coming: Coming) -> Result<(), Failure> {
        let now = self.now;
        let asleep =
            coming.process().and_then(|worker| self.processes.get(&worker)).map(|process| process.frozen_until);
        if let Some(thaws) = asleep.filter(|&thaws| thaws > now) {
            self.put(thaws, coming);
            return Ok(());
        }
        match coming {
            Coming::Trouble(trouble) => self.befall(trouble)?,
            Coming::Back => {
                if !self.server.running {
                    self.server.resume(now)?;
                }
            }
            Coming::Calm => {
                self.links.clear();
                self.factors.clear();
                for worker in 0..self.history.workers as u32 {
                    self.start(WorkerId(worker));
                }
            }
            Coming::Settled => self.settled = Some(self.server.witness.version),
            Coming::ToServer(message) => self.server.hear(now, message)?,
            Coming::ToWorker(Envelope { worker, session, words }) => {
                let fresh = self.sessions;
                let process = self.processes.get_mut(&worker).filter(|process| process.session == session);
                if let Some(process) = process {
                    let effects = process.hear(now, words, fresh);
                    self.sessions += u64::from(process.session == fresh);
                    self.carry_out(worker, effects);
                }
            }
            Coming::Closed(worker, session) => self.server.closed(now, worker, session)?,
            Coming::Computed(worker, computation) => {
                if let Some(process) = self.processes.get_mut(&worker) {
                    let effects = process.computed(now, computation);
                    self.carry_out(worker, effects);
                }
            }
            Coming::Tick(worker, started) => {
                // The process that this tick is of may have been followed by another.
                if let Some(process) = self.processes.get(&worker).filter(|process| process.started == started) {
                    let effect = process.tick();
                    self.put(now + TICK, coming);
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
        self.processes.insert(worker, Process::new(worker, session));
        self.put(self.now, Coming::Tick(worker, session));
    }

    fn befall(&mut self, trouble: Trouble) -> Result<(), Failure> {
        let now = self.now;
        match trouble {
            Trouble::Start(worker) => self.start(worker),
            Trouble::Leave(worker) => {
                if self.processes.get(&worker).is_some_and(|process| process.frozen_until <= now) {
                    self.carry_out(worker, vec![Effect::Say(ToServer::Bye)]);
                    self.end(worker, Span::from_seconds(1.0));
                }
            }
            Trouble::Crash(worker, after) => self.end(worker, after),
            Trouble::Freeze(worker, span) => {
                if let Some(process) = self.processes.get_mut(&worker) {
                    process.frozen_until = process.frozen_until.max(now + span);
                }
            }
            Trouble::Slow(worker, factor) => {
                self.factors.insert(worker, factor);
            }
            Trouble::Net(worker, link, span) => self.links.push((worker, link, now + span)),
            Trouble::Lie(worker, span) => {
                if let Some(process) = self.processes.get_mut(&worker) {
                    process.lies_until = now + span;
                }
            }
            Trouble::Jump(by) => self.server.jump(by),
            Trouble::DiskFull(span) => self.server.disk_full_until = now + span,
            Trouble::Restart(span) => {
                self.server.kill();
                self.put(now + span, Coming::Back);
            }
        }
        Ok(())
    }

    /// The process is gone; the server's system sees its connection closed so much later.
    fn end(&mut self, worker: WorkerId, noticed: Span) {
        if let Some(process) = self.processes.remove(&worker) {
            self.put(self.now + noticed, Coming::Closed(worker, process.session));
        }
    }

    fn carry_out(&mut self, worker: WorkerId, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Say(words) => self.say(worker, words),
                Effect::Compute { computation, assignment, iterations } => {
                    let luck = self.luck([1, u64::from(worker.0), assignment.task.number]);
                    let usual = self.luck([2, u64::from(worker.0), 0]);
                    // Workers differ by a factor of eight, tasks of one by two.
                    let seconds = 0.15 * 8.0_f64.powf(share(usual)) * (1.0 + share(luck));
                    let size = f64::from(assignment.samples) / f64::from(self.history.batch) * f64::from(iterations);
                    let factor = self.factors.get(&worker).copied().unwrap_or(1.0);
                    let span = Span::from_seconds(seconds * size * factor);
                    self.put(self.now + span, Coming::Computed(worker, computation));
                }
            }
        }
    }

    fn say(&mut self, worker: WorkerId, words: ToServer) {
        let Some(process) = self.processes.get(&worker) else { return };
        let session = process.session;
        let lies = process.lies_until > self.now;
        let truth = Envelope { worker, session, words };
        if lies {
            let words = process.twisted(words, self.luck([3, self.counted, 0]));
            self.travel(worker, Coming::ToServer(Envelope { words, ..truth }));
        }
        self.travel(worker, Coming::ToServer(truth));
    }

    fn send_outgoing(&mut self) {
        for message in std::mem::take(&mut self.server.outgoing) {
            self.travel(message.worker, Coming::ToWorker(message));
        }
    }

    /// Sends a message on its way, as the worker's link is at present.
    fn travel(&mut self, worker: WorkerId, message: Coming) {
        let now = self.now;
        self.links.retain(|&(_, _, until)| until > now);
        let luck = self.luck([4, self.counted, u64::from(worker.0)]);
        let mut delay = 0.001 + 0.004 * share(luck);
        let mut copies = 1;
        for &(_, link, _) in self.links.iter().filter(|&&(bad, ..)| bad == worker) {
            match link {
                Link::Cut => copies = 0,
                Link::Lossy if luck.is_multiple_of(3) => copies = 0,
                Link::Lossy => {}
                Link::Repeating => copies *= 2,
                Link::Reordering => delay += 0.5 * share(luck.rotate_left(32)),
            }
        }
        for copy in 0..copies {
            self.put(now + Span::from_seconds(delay * f64::from(1 + copy)), message);
        }
    }
}

/// A share, 0 to 1, out of a number.
fn share(luck: u64) -> f64 {
    (luck >> 11) as f64 / (1_u64 << 53) as f64
}

/// How long a trouble lasts before all is well again.
fn lasting(trouble: Trouble) -> Span {
    match trouble {
        Trouble::Crash(_, span)
        | Trouble::Freeze(_, span)
        | Trouble::Net(_, _, span)
        | Trouble::Lie(_, span)
        | Trouble::DiskFull(span)
        | Trouble::Restart(span) => span,
        // The clock stands until the true time has caught up.
        Trouble::Jump(by) if by < 0 => Span(by.unsigned_abs()),
        Trouble::Start(_) | Trouble::Leave(_) | Trouble::Slow(..) | Trouble::Jump(_) => Span::ZERO,
    }
}
