//! The laws, and what is said when one is broken.

use std::fmt;

use thiserror::Error;

use crate::{TaskId, Time, Until, Version, WorkerId};

/// A law that a scheme broke.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum Law {
    /// An update is committed or discarded exactly once, after it arrived and while its worker is there.
    #[error("{task} was settled, but no update of it is waiting to be")]
    NothingToSettle {
        /// The update.
        task: TaskId,
    },
    /// A worker that has newer work in its queue when it is done keeps what it computed: it is late.
    #[error("{task} was committed, but newer work was queued behind it, so it was never sent")]
    Withheld {
        /// The update.
        task: TaskId,
    },
    /// A version is made of updates.
    #[error("a commit without updates")]
    EmptyCommit,
    /// Work is given to workers that are there.
    #[error("{worker} was given work, but is not there")]
    AssignedToNobody {
        /// The worker.
        worker: WorkerId,
    },
    /// Work has samples.
    #[error("{worker} was given work without samples")]
    NoSamples {
        /// The worker.
        worker: WorkerId,
    },
    /// Gradients go to an optimizer, model differences into a mean.
    #[error("{task} is {}, which the commit can't take", if *local { "a model difference" } else { "a gradient" })]
    WrongStep {
        /// The update.
        task: TaskId,
        /// Whether it comes of local iterations.
        local: bool,
    },
    /// How long work that asks goes on is not known, nor which samples come after it.
    #[error("{worker} was given work while it is at local iterations that have no set end")]
    QueuedBehindQuestions {
        /// The worker.
        worker: WorkerId,
    },
    /// Local iterations are collected, or gone on with, when some are done and asked about.
    #[error("{worker} was answered, but has asked nothing")]
    NothingAsked {
        /// The worker.
        worker: WorkerId,
    },
    /// A worker that waits for an answer gets one.
    #[error("{worker} waits for an answer and was given none")]
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
    #[error("{worker} was told to wait, but is not idle")]
    HeldWhileNotIdle {
        /// The worker.
        worker: WorkerId,
    },
    /// Every live worker works or waits for something.
    #[error("{worker} is idle and was given neither work nor something to wait for")]
    Forgotten {
        /// The worker.
        worker: WorkerId,
    },
    /// What a worker waits for can still happen.
    #[error("{worker} waits for {}, which can never come", until_in_words(until))]
    WaitsForNothing {
        /// The worker.
        worker: WorkerId,
        /// What it waits for.
        until: Until,
    },
    /// Timers lie in the future.
    #[error("a timer was set for {at}, which is not after {now}")]
    TimerInThePast {
        /// When it was set for.
        at: Time,
        /// When it was set.
        now: Time,
    },
}

fn until_in_words(until: &Until) -> String {
    match until {
        Until::Commit => "a commit".into(),
        Until::Worker(worker) => worker.to_string(),
        Until::Timer => "a timer".into(),
    }
}

/// Why an event was not accepted. Nothing has changed: it cost only its sender.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum Refusal {
    /// The worker is there already.
    #[error("{0} is there already")]
    Present(WorkerId),
    /// The worker is not there.
    #[error("{0} is not there")]
    Absent(WorkerId),
    /// The task is not running: never assigned, interrupted, or reported before.
    #[error("{0} is not running")]
    NotRunning(TaskId),
    /// The task does not ask, or not after so many iterations.
    #[error("{task} asks after {iterations} iterations; {expected}")]
    NoQuestion {
        /// The task.
        task: TaskId,
        /// How many iterations it says are done.
        iterations: u32,
        /// What was expected.
        expected: &'static str,
    },
    /// The task goes on until it is told to send.
    #[error("{0} was not told to send what it has")]
    NotCollected(TaskId),
    /// A commit must be confirmed, once, before anything else happens.
    #[error("expected {expected}")]
    OutOfTurn {
        /// What was expected.
        expected: Expected,
    },
    /// Time does not run backwards.
    #[error("the event is of {now}, but it is {latest} already")]
    Past {
        /// The event's time.
        now: Time,
        /// The time of the event before.
        latest: Time,
    },
}

/// Which event a ledger was waiting for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Expected {
    /// The confirmation of this version's commit.
    Confirmation(Version),
    /// Anything but the confirmation of a commit.
    NoConfirmation,
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Expected::Confirmation(version) => write!(f, "the confirmation of {version}"),
            Expected::NoConfirmation => write!(f, "no confirmation, for nothing was committed"),
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
        write!(f, "the scheme broke a law: {}; what led to it, oldest first:", self.law)?;
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
    /// The event was wrong; go on without it.
    #[error("event refused: {0}")]
    Refused(#[from] Refusal),
    /// The scheme is wrong; the run is over.
    #[error(transparent)]
    Broken(#[from] Box<LawBroken>),
}
