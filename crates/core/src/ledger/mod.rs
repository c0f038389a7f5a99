//! The ledger around every scheme: it keeps the laws, whatever the scheme does.

mod law;
mod state;
mod turn;

use std::collections::VecDeque;

use crate::{Action, Decision, Event, Question, Scheme, Time, Until, Version, WorkerId};
use state::LedgerState;

pub use law::{Expected, Law, LawBroken, LedgerError, Refusal};
pub use state::SampleCounts;
pub use turn::Turn;

/// How many of the latest events and decisions are kept to explain a broken law.
const HISTORY: usize = 256;

#[derive(Debug, Clone)]
enum Line {
    Event(Time, Event),
    Decision(Decision),
}

/// Runs one scheme by the laws.
///
/// Call [`handle`](Ledger::handle) with one event after another and carry out the decisions it returns, in order.
/// After an [`Action::Commit`] the next event must be its [`Event::Committed`]; several commits of one turn are
/// confirmed one by one. At [`next_timer`](Ledger::next_timer) feed [`Event::Timer`].
pub struct Ledger {
    scheme: Box<dyn Scheme>,
    books: LedgerState,
    latest: Time,
    unconfirmed: VecDeque<Version>,
    decisions: Vec<Decision>,
    history: VecDeque<Line>,
}

impl Ledger {
    /// A ledger without workers.
    pub fn new(scheme: Box<dyn Scheme>) -> Self {
        Ledger {
            scheme,
            books: LedgerState::default(),
            latest: Time::START,
            unconfirmed: VecDeque::new(),
            decisions: Vec::new(),
            history: VecDeque::with_capacity(HISTORY),
        }
    }

    /// Tells the scheme of an event and returns what it decides.
    ///
    /// # Errors
    /// [`LedgerError::Refused`] if the event can't be: nothing has changed then. [`LedgerError::Broken`] if the scheme
    /// broke a law: the ledger must not be used further.
    pub fn handle(&mut self, now: Time, event: Event) -> Result<&[Decision], LedgerError> {
        if now < self.latest {
            return Err(Refusal::Past { now, latest: self.latest }.into());
        }
        match (self.unconfirmed.front(), &event) {
            (Some(expected), Event::Committed { version, .. }) if version == expected => {}
            (Some(&expected), _) => {
                return Err(Refusal::OutOfTurn { expected: Expected::Confirmation(expected) }.into());
            }
            (None, Event::Committed { .. }) => {
                return Err(Refusal::OutOfTurn { expected: Expected::NoConfirmation }.into());
            }
            (None, _) => {}
        }

        self.decisions.clear();
        let mut turn = Turn { now, books: &mut self.books, decisions: &mut self.decisions, broken: None };
        match event {
            Event::Joined { worker } => {
                turn.books.join(worker)?;
                self.scheme.on_joined(&mut turn, worker);
            }
            Event::Left { worker } => {
                turn.books.leave(worker)?;
                self.scheme.on_left(&mut turn, worker);
            }
            Event::Reported { task, report } => {
                let update = turn.books.report(now, task, report)?;
                self.scheme.on_reported(&mut turn, &update);
            }
            Event::Asked { task, iterations, report } => {
                turn.books.ask(task, iterations)?;
                self.scheme.on_asked(&mut turn, &Question { task, iterations, report });
            }
            Event::Committed { ref aggregate, .. } => {
                self.unconfirmed.pop_front();
                self.scheme.on_committed(&mut turn, aggregate.as_ref());
            }
            Event::Timer => {
                turn.books.timer(now);
                self.scheme.on_timer(&mut turn);
            }
        }
        let broken = turn.broken.take();
        self.latest = now;
        self.remember(now, event);
        let closed = broken.map_or_else(|| self.books.close_turn(), Err);
        if let Err(law) = closed {
            let history = self.history.iter().map(Line::to_string).collect();
            return Err(LedgerError::Broken(Box::new(LawBroken { law, history })));
        }
        Ok(&self.decisions)
    }

    fn remember(&mut self, now: Time, event: Event) {
        let skipped = self.decisions.len().saturating_sub(HISTORY - 1);
        let decisions = self.decisions.iter().skip(skipped).cloned().map(Line::Decision);
        for line in std::iter::once(Line::Event(now, event)).chain(decisions) {
            if self.history.len() == HISTORY {
                self.history.pop_front();
            }
            self.history.push_back(line);
        }
        for decision in &self.decisions {
            if let Action::Commit { version, .. } = decision.action {
                self.unconfirmed.push_back(version);
            }
        }
    }

    /// When [`Event::Timer`] is due.
    pub fn next_timer(&self) -> Option<Time> {
        self.books.timers.first().copied()
    }

    /// Whether the scheme [compensates](Scheme::compensates).
    pub fn compensates(&self) -> bool {
        self.scheme.compensates()
    }

    /// The newest version of the model.
    pub fn version(&self) -> Version {
        self.books.version
    }

    /// How many workers there are.
    pub fn live(&self) -> usize {
        self.books.live
    }

    /// Where all samples went.
    pub fn samples(&self) -> SampleCounts {
        self.books.samples
    }

    /// Whether no arrived update waits to be settled. What has happened up to such a moment can be
    /// [handled](Ledger::handle) again by a fresh ledger without the updates' gradients: the run can go on from there.
    pub fn is_settled(&self) -> bool {
        self.books.is_settled()
    }

    /// What an idle worker waits for; `None` if it works or is not there.
    pub fn waits_for(&self, worker: WorkerId) -> Option<Until> {
        self.books.hold(worker)
    }
}

impl std::fmt::Display for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Line::Event(now, event) => write!(f, "{now}: {event:?}"),
            Line::Decision(decision) => write!(f, "  {:?} ({})", decision.action, decision.reason),
        }
    }
}
