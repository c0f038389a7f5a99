//! The ledger that runs a scheme and checks its laws.

mod history;
mod law;
mod saved;
mod state;
mod turn;

use std::collections::VecDeque;

use crate::{Assignment, Decision, Event, PlanRequest, Question, Scheme, Time, Until, Version, WorkerId};
use history::History;
use state::LedgerState;

pub use law::{ExpectedEvent, Law, LawBroken, LedgerError, Refusal};
pub use saved::SavedLedger;
pub use state::SampleCounts;
pub use turn::Turn;

/// Runs one scheme and checks that it keeps the [laws](Law).
///
/// Call [`handle`](Ledger::handle) with one event after another and carry out the decisions it returns, in order.
/// After an [`Action::Commit`](crate::Action::Commit) the next event must be its [`Event::Committed`]; several commits of one turn are
/// confirmed one by one. Each confirmation is followed by an [`Event::Broken`] for every update that the commit left
/// out. At [`next_timer`](Ledger::next_timer) feed [`Event::Timer`].
pub struct Ledger {
    scheme: Box<dyn Scheme>,
    state: LedgerState,
    latest: Time,
    unconfirmed: VecDeque<Version>,
    history: History,
    /// The events that follow from the decisions at hand. Empty between two calls of [`drive`](Ledger::drive).
    follow_ups: VecDeque<Event>,
}

impl Ledger {
    /// A ledger without workers.
    pub fn new(scheme: Box<dyn Scheme>) -> Self {
        Ledger {
            scheme,
            state: LedgerState::default(),
            latest: Time::START,
            unconfirmed: VecDeque::new(),
            history: History::default(),
            follow_ups: VecDeque::new(),
        }
    }

    /// Passes an event to the scheme and returns its decisions.
    ///
    /// # Errors
    /// [`LedgerError::Refused`] if the event is invalid; the ledger is unchanged then. [`LedgerError::Broken`] if the
    /// scheme broke a law; the ledger must not be used further.
    pub fn handle(&mut self, now: Time, event: Event) -> Result<&[Decision], LedgerError> {
        self.take_in(now, event)?;
        Ok(self.history.last().1)
    }

    /// Passes an event to the scheme.
    pub(crate) fn take_in(&mut self, now: Time, event: Event) -> Result<(), LedgerError> {
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

        let before = self.state.version;
        let (event, decisions) = self.history.begin_turn(now, event);
        let mut turn = Turn { now, state: &mut self.state, decisions, broken: None };
        if let Err(refusal) = pass(self.scheme.as_mut(), event, &mut turn) {
            self.history.cancel_turn();
            return Err(refusal.into());
        }
        let closed = match turn.broken {
            Some(law) => Err(law),
            None => turn.state.close_turn(),
        };
        self.latest = now;
        if matches!(event, Event::Committed { .. }) {
            self.unconfirmed.pop_front();
        }
        // Every commit makes one version.
        for earlier in before.0..self.state.version.0 {
            self.unconfirmed.push_back(Version(earlier + 1));
        }
        if let Err(law) = closed {
            return Err(LedgerError::Broken(Box::new(LawBroken { law, history: self.history.text() })));
        }
        Ok(())
    }

    /// The event of the last turn.
    #[inline]
    pub(crate) fn last_event(&self) -> &Event {
        self.history.last().0
    }

    /// The last turn, and where the events are appended that follow from its decisions.
    #[inline]
    pub(crate) fn last_turn_and_follow_ups(&mut self) -> (&Event, &[Decision], &mut VecDeque<Event>) {
        let (event, decisions) = self.history.last();
        (event, decisions, &mut self.follow_ups)
    }

    /// The next event that follows from decisions.
    #[inline]
    pub(crate) fn next_follow_up(&mut self) -> Option<Event> {
        self.follow_ups.pop_front()
    }

    /// When the last event was.
    pub fn latest(&self) -> Time {
        self.latest
    }

    /// When [`Event::Timer`] is due.
    #[inline]
    pub fn next_timer(&self) -> Option<Time> {
        self.state.timers.first().copied()
    }

    /// Whether the scheme [watches lateness](Scheme::watches_lateness).
    pub fn watches_lateness(&self) -> bool {
        self.scheme.watches_lateness()
    }

    /// Whether the scheme [waits for all workers](Scheme::waits_for_all).
    pub fn waits_for_all(&self) -> bool {
        self.scheme.waits_for_all()
    }

    /// Whether the scheme [compensates](Scheme::compensates).
    pub fn compensates(&self) -> bool {
        self.scheme.compensates()
    }

    /// What the scheme [wants to have planned](Scheme::plan_request).
    #[inline]
    pub fn plan_request(&self) -> Option<PlanRequest> {
        self.scheme.plan_request()
    }

    /// The newest version of the model.
    #[inline]
    pub fn version(&self) -> Version {
        self.state.version
    }

    /// The number of joined workers.
    #[inline]
    pub fn live(&self) -> usize {
        self.state.live
    }

    /// What became of all assigned samples.
    #[inline]
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

/// Takes an event in and passes it to the scheme. A refused event changes nothing.
#[inline]
fn pass(scheme: &mut dyn Scheme, event: &Event, turn: &mut Turn<'_>) -> Result<(), Refusal> {
    match *event {
        Event::Joined { worker } => {
            turn.state.join(worker)?;
            scheme.on_joined(turn, worker);
        }
        Event::Left { worker } => {
            turn.state.leave(worker)?;
            scheme.on_left(turn, worker);
        }
        Event::Reported { task, ref report } => {
            let update = turn.state.report(turn.now, task, report)?;
            scheme.on_reported(turn, &update);
        }
        Event::Asked { task, iterations, report } => {
            turn.state.ask(task, iterations)?;
            scheme.on_asked(turn, &Question { task, iterations, report });
        }
        Event::Committed { ref aggregate, .. } => {
            turn.state.confirm();
            scheme.on_committed(turn, aggregate.as_ref());
        }
        Event::Broken { task } => turn.state.leave_out(task)?,
        Event::Late { task } => {
            turn.state.check_running(task)?;
            scheme.on_late(turn, task);
        }
        Event::Timer => {
            turn.state.timer(turn.now);
            scheme.on_timer(turn);
        }
        Event::Planned { ref paces } => {
            if scheme.plan_request().is_none() {
                return Err(Refusal::NothingToPlan);
            }
            scheme.on_planned(turn, paces);
        }
    }
    Ok(())
}
