//! The laws of a scheme, and the errors of a ledger.

use std::fmt;

use thiserror::Error;

use crate::{TaskId, Time, Until, Version, WorkerId};

/// A law that a scheme broke.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum Law {
    /// An update is committed or discarded exactly once, after it has arrived and while its worker is joined.
    #[error("the update of {task} was committed or discarded, but no such update is pending")]
    NothingToSettle {
        /// The update.
        task: TaskId,
    },
    /// A worker that has a newer version queued when it finishes a task does not send that task's update: it is late.
    #[error("the update of {task} was committed, but a newer version was queued behind it, so it was never sent")]
    Withheld {
        /// The update.
        task: TaskId,
    },
    /// A commit has at least one update.
    #[error("a commit has no updates")]
    EmptyCommit,
    /// Weights are finite and above 0, also as a share of their sum.
    #[error("the update of {task} has the weight {weight}: expected a finite number above 0")]
    BadWeight {
        /// The update.
        task: TaskId,
        /// Its weight.
        weight: f64,
    },
    /// The factor on the learning rate is finite and above 0.
    #[error("a commit multiplies the learning rate by {rate_factor}: expected a finite number above 0")]
    BadRateFactor {
        /// The factor.
        rate_factor: f32,
    },
    /// Work is assigned to joined workers only.
    #[error("work was assigned to {worker}, which has not joined")]
    AssignedToAbsent {
        /// The worker.
        worker: WorkerId,
    },
    /// An assignment has at least one sample and one iteration.
    #[error("work without samples was assigned to {worker}")]
    NoSamples {
        /// The worker.
        worker: WorkerId,
    },
    /// Gradients are committed with an optimizer step, model differences with an average.
    #[error(
        "the update of {task} is {}, which does not fit the commit's step",
        if *local { "a model difference" } else { "a gradient" }
    )]
    WrongStep {
        /// The update.
        task: TaskId,
        /// Whether it is the result of local iterations.
        local: bool,
    },
    /// Nothing is queued behind work that asks: its length, and so the offset of the next samples, is not known.
    #[error("work was queued for {worker} behind local iterations of unknown length")]
    QueuedBehindQuestions {
        /// The worker.
        worker: WorkerId,
    },
    /// Local iterations are continued or collected only after a question.
    #[error("{worker} was answered, but has not asked")]
    NothingAsked {
        /// The worker.
        worker: WorkerId,
    },
    /// A worker that waits for an answer gets one in the same turn.
    #[error("{worker} waits for an answer and got none")]
    Unanswered {
        /// The worker.
        worker: WorkerId,
    },
    /// Only a running task can be interrupted.
    #[error("{worker} was interrupted, but is not working")]
    NothingToInterrupt {
        /// The worker.
        worker: WorkerId,
    },
    /// Only an idle worker can be held.
    #[error("{worker} was held, but is not idle")]
    HeldWhileNotIdle {
        /// The worker.
        worker: WorkerId,
    },
    /// Every joined worker works or waits for something.
    #[error("{worker} was left idle, with neither work nor something to wait for")]
    LeftIdle {
        /// The worker.
        worker: WorkerId,
    },
    /// What a worker waits for can still happen.
    #[error("{worker} waits for {}, which can never happen", describe(until))]
    WaitsForNothing {
        /// The worker.
        worker: WorkerId,
        /// What it waits for.
        until: Until,
    },
    /// Timers lie in the future.
    #[error("a timer was set for {at}: expected a time after {now}")]
    TimerInThePast {
        /// The time of the timer.
        at: Time,
        /// The present time.
        now: Time,
    },
}

fn describe(until: &Until) -> String {
    match until {
        Until::Commit => "a commit".into(),
        Until::Worker(worker) => format!("a report of {worker}"),
        Until::Timer => "a timer".into(),
    }
}

/// Why an event was refused. The ledger is unchanged.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum Refusal {
    /// The worker has already joined.
    #[error("{0} has already joined")]
    AlreadyJoined(WorkerId),
    /// The worker has not joined, or has left.
    #[error("{0} has not joined")]
    NotJoined(WorkerId),
    /// The task is not running: never assigned, interrupted, or reported before.
    #[error("{0} is not running")]
    NotRunning(TaskId),
    /// The task does not ask, or not after this number of iterations.
    #[error("{task} asked after {iterations} iterations: expected {expected}")]
    UnexpectedQuestion {
        /// The task.
        task: TaskId,
        /// The number of iterations in the question.
        iterations: u32,
        /// What was expected.
        expected: &'static str,
    },
    /// The update is not part of the last confirmed commit, or was left out of it already.
    #[error("the update of {0} is not part of the last commit")]
    NotCommitted(TaskId),
    /// A task that asks reports only after its update is collected.
    #[error("{0} reported before its update was collected")]
    NotCollected(TaskId),
    /// A commit must be confirmed, once, before any other event.
    #[error("expected {expected}")]
    OutOfTurn {
        /// What was expected.
        expected: ExpectedEvent,
    },
    /// The scheme has not asked for a plan.
    #[error("no plan was requested")]
    NothingToPlan,
    /// Time does not run backwards.
    #[error("the event is at {now}: expected {latest} or later, the time of the last event")]
    OutOfOrder {
        /// The event's time.
        now: Time,
        /// The time of the event before.
        latest: Time,
    },
}

/// The event that a ledger expected.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ExpectedEvent {
    /// The confirmation of this version's commit.
    Confirmation(Version),
    /// Any event except the confirmation of a commit.
    NoConfirmation,
}

impl fmt::Display for ExpectedEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ExpectedEvent::Confirmation(version) => write!(f, "the confirmation of {version}"),
            ExpectedEvent::NoConfirmation => write!(f, "no confirmation, since no commit is pending"),
        }
    }
}

/// A broken law with the history that led to it.
#[derive(Debug, Clone, PartialEq)]
pub struct LawBroken {
    /// The law.
    pub law: Law,
    /// The latest events and decisions, oldest first.
    pub history: Vec<String>,
}

impl fmt::Display for LawBroken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the scheme broke a law: {}. The latest events and decisions, oldest first:", self.law)?;
        for line in &self.history {
            write!(f, "\n  {line}")?;
        }
        Ok(())
    }
}

impl std::error::Error for LawBroken {}

/// Why a [`Ledger`](crate::Ledger) returned no decisions.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum LedgerError {
    /// The event was invalid. The ledger is unchanged and can be used further.
    #[error("event refused: {0}")]
    Refused(#[from] Refusal),
    /// The scheme broke a law. The ledger must not be used further.
    #[error(transparent)]
    Broken(#[from] Box<LawBroken>),
}
