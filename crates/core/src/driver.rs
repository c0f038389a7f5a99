//! The loop that every driver shares: feed an event, carry out the decisions, confirm the commits.

use thiserror::Error;

use crate::{Action, Aggregate, Commit, Decision, Event, Ledger, LedgerError, TaskId, Time};

/// What became of a commit.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct CommitOutcome {
    /// Statistics of the updates; `None` without a model, or if every update was broken.
    pub aggregate: Option<Aggregate>,
    /// The updates that were broken and left out.
    pub broken: Vec<TaskId>,
}

/// Carries out the decisions of a scheme: a simulated cluster, or a server with real workers.
pub trait Executor {
    /// Why a decision can't be carried out. It ends the run.
    type Error;

    /// An event led to these decisions, which are carried out next.
    ///
    /// # Errors
    /// If the run can't continue.
    fn begin_turn(&mut self, now: Time, event: &Event, decisions: &[Decision]) -> Result<(), Self::Error>;

    /// Steps the model. `live` workers take part in the run.
    ///
    /// # Errors
    /// If the run can't continue.
    fn commit(&mut self, commit: &Commit, live: usize) -> Result<CommitOutcome, Self::Error>;

    /// Carries out any other action.
    ///
    /// # Errors
    /// If the run can't continue.
    fn carry_out(&mut self, now: Time, action: &Action) -> Result<(), Self::Error>;

    /// All decisions on `event` are carried out.
    ///
    /// # Errors
    /// If the run can't continue.
    fn end_turn(&mut self, now: Time, event: &Event, ledger: &Ledger) -> Result<(), Self::Error>;
}

/// Why an event could not be handled to the end.
#[derive(Debug, Error)]
pub enum DriveError<E> {
    /// The ledger refused the event, or the scheme broke a law.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// A decision could not be carried out.
    #[error("{0}")]
    Executor(E),
}

impl Ledger {
    /// Passes an event to the scheme, carries out its decisions, and confirms its commits until none is left.
    ///
    /// # Errors
    /// If the ledger refuses `event`, which changes nothing; if the scheme breaks a law; if a decision can't be carried
    /// out.
    pub fn drive<E: Executor>(
        &mut self,
        now: Time,
        event: Event,
        executor: &mut E,
    ) -> Result<(), DriveError<E::Error>> {
        let mut live = self.live();
        self.take_in(now, event)?;
        loop {
            let (event, decisions, follow_ups) = self.last_turn_and_follow_ups();
            executor.begin_turn(now, event, decisions).map_err(DriveError::Executor)?;
            for Decision { action, .. } in decisions {
                if let Action::Commit(commit) = action {
                    let CommitOutcome { aggregate, broken } =
                        executor.commit(commit, live).map_err(DriveError::Executor)?;
                    follow_ups.push_back(Event::Committed { version: commit.version, aggregate });
                    for task in broken {
                        follow_ups.push_back(Event::Broken { task });
                    }
                } else {
                    executor.carry_out(now, action).map_err(DriveError::Executor)?;
                }
            }
            executor.end_turn(now, self.last_event(), self).map_err(DriveError::Executor)?;
            let Some(event) = self.next_follow_up() else { return Ok(()) };
            live = self.live();
            self.take_in(now, event)?;
        }
    }
}
