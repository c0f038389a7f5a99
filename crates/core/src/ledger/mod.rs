//! The ledger that runs a scheme and checks its laws.

mod law;
mod saved;
mod state;
mod turn;

use std::collections::VecDeque;

use crate::{Action, Assignment, Decision, Event, Question, Scheme, Time, Until, Version, WorkerId};
use state::LedgerState;

pub use law::{ExpectedEvent, Law, LawBroken, LedgerError, Refusal};
pub use saved::SavedLedger;
pub use state::SampleCounts;
pub use turn::Turn;

/// How many of the latest events and decisions are kept to explain a broken law.
const HISTORY: usize = 256;

#[derive(Debug, Clone)]
enum HistoryLine {
    Event(Time, Event),
    Decision(Decision),
}

/// Runs one scheme and checks that it keeps the [laws](Law).
///
/// Call [`handle`](Ledger::handle) with one event after another and carry out the decisions it returns, in order.
/// After an [`Action::Commit`] the next event must be its [`Event::Committed`]; several commits of one turn are
/// confirmed one by one. Each confirmation is followed by an [`Event::Broken`] for every update that the commit left
/// out. At [`next_timer`](Ledger::next_timer) feed [`Event::Timer`].
pub struct Ledger {
    scheme: Box<dyn Scheme>,
    state: LedgerState,
    latest: Time,
    unconfirmed: VecDeque<Version>,
    decisions: Vec<Decision>,
    history: VecDeque<HistoryLine>,
}

impl Ledger {
    /// A ledger without workers.
    pub fn new(scheme: Box<dyn Scheme>) -> Self {
        Ledger {
            scheme,
            state: LedgerState::default(),
            latest: Time::START,
            unconfirmed: VecDeque::new(),
            decisions: Vec::new(),
            history: VecDeque::with_capacity(HISTORY),
        }
    }

    /// Passes an event to the scheme and returns its decisions.
    ///
    /// # Errors
    /// [`LedgerError::Refused`] if the event is invalid; the ledger is unchanged then. [`LedgerError::Broken`] if the
    /// scheme broke a law; the ledger must not be used further.
    pub fn handle(&mut self, now: Time, event: Event) -> Result<&[Decision], LedgerError> {
        if now < self.latest {
            return Err(Refusal::OutOfOrder { now, latest: self.latest }.into());
        }
        match (self.unconfirmed.front(), &event) {
            (Some(expected), Event::Committed { version, .. }) if version == expected => {}
            // It belongs to the last confirmed commit, whatever follows.
            (_, Event::Broken { .. }) => {}
            (Some(&expected), _) => {
                return Err(Refusal::OutOfTurn { expected: ExpectedEvent::Confirmation(expected) }.into());
            }
            (None, Event::Committed { .. }) => {
                return Err(Refusal::OutOfTurn { expected: ExpectedEvent::NoConfirmation }.into());
            }
            (None, _) => {}
        }

        self.decisions.clear();
        let mut turn = Turn { now, state: &mut self.state, decisions: &mut self.decisions, broken: None };
        match event {
            Event::Joined { worker } => {
                turn.state.join(worker)?;
                self.scheme.on_joined(&mut turn, worker);
            }
            Event::Left { worker } => {
                turn.state.leave(worker)?;
                self.scheme.on_left(&mut turn, worker);
            }
            Event::Reported { task, report } => {
                let update = turn.state.report(now, task, report)?;
                self.scheme.on_reported(&mut turn, &update);
            }
            Event::Asked { task, iterations, report } => {
                turn.state.ask(task, iterations)?;
                self.scheme.on_asked(&mut turn, &Question { task, iterations, report });
            }
            Event::Committed { ref aggregate, .. } => {
                self.unconfirmed.pop_front();
                turn.state.confirm();
                self.scheme.on_committed(&mut turn, aggregate.as_ref());
            }
            Event::Broken { task } => turn.state.leave_out(task)?,
            Event::Late { task } => {
                turn.state.check_running(task)?;
                self.scheme.on_late(&mut turn, task);
            }
            Event::Timer => {
                turn.state.timer(now);
                self.scheme.on_timer(&mut turn);
            }
        }
        let broken = turn.broken.take();
        self.latest = now;
        self.record(now, event);
        let closed = broken.map_or_else(|| self.state.close_turn(), Err);
        if let Err(law) = closed {
            let history = self.history.iter().map(HistoryLine::to_string).collect();
            return Err(LedgerError::Broken(Box::new(LawBroken { law, history })));
        }
        Ok(&self.decisions)
    }

    /// When the last event was.
    pub fn latest(&self) -> Time {
        self.latest
    }

    fn record(&mut self, now: Time, event: Event) {
        let skipped = self.decisions.len().saturating_sub(HISTORY - 1);
        let decisions = self.decisions.iter().skip(skipped).cloned().map(HistoryLine::Decision);
        for line in std::iter::once(HistoryLine::Event(now, event)).chain(decisions) {
            if self.history.len() == HISTORY {
                self.history.pop_front();
            }
            self.history.push_back(line);
        }
        for decision in &self.decisions {
            if let Action::Commit(commit) = &decision.action {
                self.unconfirmed.push_back(commit.version);
            }
        }
    }

    /// When [`Event::Timer`] is due.
    pub fn next_timer(&self) -> Option<Time> {
        self.state.timers.first().copied()
    }

    /// Whether the scheme [watches lateness](Scheme::watches_lateness).
    pub fn watches_lateness(&self) -> bool {
        self.scheme.watches_lateness()
    }

    /// Whether the scheme [compensates](Scheme::compensates).
    pub fn compensates(&self) -> bool {
        self.scheme.compensates()
    }

    /// The newest version of the model.
    pub fn version(&self) -> Version {
        self.state.version
    }

    /// The number of joined workers.
    pub fn live(&self) -> usize {
        self.state.live
    }

    /// What became of all assigned samples.
    pub fn samples(&self) -> SampleCounts {
        self.state.samples
    }

    /// Whether every arrived update is committed or discarded. The state at such a moment needs no gradients, so a run can
    /// resume from there.
    pub fn is_settled(&self) -> bool {
        self.state.is_settled()
    }

    /// The worker's samples in tasks, and in updates that are neither committed nor discarded. They are lost if it leaves.
    pub fn outstanding(&self, worker: WorkerId) -> u64 {
        self.state.outstanding(worker)
    }

    /// The workers with arrived updates that are neither committed nor discarded, by rank.
    pub fn unsettled_workers(&self) -> Vec<WorkerId> {
        self.state.unsettled_workers()
    }

    /// The worker's present task.
    pub fn running(&self, worker: WorkerId) -> Option<Assignment> {
        self.state.running(worker)
    }

    /// The task that is queued behind the worker's present one.
    pub fn queued(&self, worker: WorkerId) -> Option<Assignment> {
        self.state.queued(worker)
    }

    /// What an idle worker waits for; `None` if it works or has not joined.
    pub fn waits_for(&self, worker: WorkerId) -> Option<Until> {
        self.state.hold(worker)
    }
}

impl std::fmt::Display for HistoryLine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            HistoryLine::Event(now, event) => write!(f, "{now}: {event:?}"),
            HistoryLine::Decision(decision) => write!(f, "  {:?} ({})", decision.action, decision.reason),
        }
    }
}
