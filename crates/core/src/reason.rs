//! Why a scheme did what it did.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Span, Time, WorkerId};

/// The reason of one decision.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "why", rename_all = "kebab-case")]
pub enum Reason {
    /// A worker joined and gets its first work.
    Joined,
    /// The gradients waited for are in.
    Quorum {
        /// How many were waited for.
        waited_for: u32,
        /// How many workers there were.
        workers: u32,
    },
    /// The gradients waited for are in, as many as a dynamic rule chose.
    Chosen {
        /// How many were waited for.
        waited_for: u32,
        /// How many workers there were.
        workers: u32,
        /// What spoke for so many.
        choice: Choice,
        /// What was expected of them, once there is something to tell it from.
        estimate: Option<Estimate>,
    },
    /// The gradients waited for are in, as many as the loss called for.
    LossLevel {
        /// How many were waited for.
        waited_for: u32,
        /// How many workers there were.
        workers: u32,
        /// The loss, as a share of the first.
        level: f64,
    },
    /// There is a new model to work on.
    NewVersion,
    /// The worker was free and the present model still wants gradients.
    Free,
    /// The worker's update for this version is in; the others' are awaited.
    Contributed,
    /// The update was computed on a model that has been stepped since.
    Stale {
        /// How many versions ago.
        behind: u64,
    },
    /// The task's model has been stepped since; the work would be wasted.
    Superseded,
    /// The update is applied as it arrives.
    OnArrival,
    /// So many samples take the worker as long as the others' take them.
    Balanced {
        /// When they are to be done, in seconds from the iteration's beginning.
        seconds: f64,
    },
    /// The worker is measured with this many samples.
    Profiling,
    /// A predictor is to learn while everyone works.
    Training,
    /// The worker may run ahead this far.
    WithinBound {
        /// How many iterations the worker is ahead of the slowest.
        lead: u64,
        /// How many it may be.
        bound: u64,
    },
    /// The worker is too far ahead.
    TooFarAhead {
        /// How many iterations it is ahead of the slowest.
        lead: u64,
        /// How many it may be.
        bound: u64,
        /// A slowest one.
        slowest: WorkerId,
    },
    /// The worker runs freely while intervals are measured to plan a barrier from.
    Monitoring {
        /// How many workers' are not known yet.
        unmonitored: u32,
    },
    /// The replicas of a round are in.
    Averaged {
        /// How many there are.
        workers: u32,
        /// How many local iterations they are made of.
        iterations: u64,
    },
    /// The worker will be among the last to finish an iteration, so there is nothing to ask.
    AmongTheSlowest,
    /// One more local iteration fits in before the slowest is done with its first.
    TimeForMore {
        /// How long it takes.
        iteration: Span,
        /// The slowest.
        slowest: WorkerId,
        /// How long that one should still take.
        rest: Span,
    },
    /// One more local iteration would end after the slowest is done with its first.
    NoTimeForMore {
        /// How long it takes.
        iteration: Span,
        /// The slowest.
        slowest: WorkerId,
        /// How long that one should still take.
        rest: Span,
    },
    /// Everyone has done a local iteration.
    AllReady,
    /// The worker is to do more before the planned barrier.
    BeforeBarrier {
        /// How many iterations, with the one it starts now.
        iterations: u32,
        /// When the barrier is to open.
        at: Time,
    },
    /// The worker has done all it was to do before the planned barrier.
    AtBarrier {
        /// When the barrier is to open.
        at: Time,
        /// How long the first to arrive was to wait.
        wait: Span,
        /// How many others are not there yet.
        others: u32,
    },
    /// A planned barrier that has not opened by then is badly overdue.
    BarrierDeadline {
        /// When it is to open.
        at: Time,
    },
}

/// What an iteration was expected to bring when it began.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// By how much the loss was to fall; under `b-dbw`, how many gradients there were to be.
    pub gain: f64,
    /// How long it was to take.
    pub seconds: f64,
}

/// What spoke for a dynamic choice of k.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Choice {
    /// There is nothing to tell a better choice from: all workers.
    NothingKnown,
    /// It promised the largest gain per time.
    BestRate,
    /// No k promised a gain: all workers.
    NoGain,
    /// The loss rose, so more than the time before.
    LossRose,
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Choice::NothingKnown => "nothing is known yet",
            Choice::BestRate => "the largest gain per time",
            Choice::NoGain => "no k promised a gain",
            Choice::LossRose => "the loss rose",
        })
    }
}

impl Reason {
    /// What the iteration was expected to bring, where the scheme estimates that.
    pub fn estimate(&self) -> Option<Estimate> {
        if let Reason::Chosen { estimate, .. } = self { *estimate } else { None }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Joined => write!(f, "joined"),
            Reason::Quorum { waited_for, workers } => write!(f, "{waited_for} of {workers} gradients are in"),
            Reason::Chosen { waited_for, workers, choice, estimate } => {
                write!(f, "{waited_for} of {workers} gradients are in: {choice}")?;
                let told = |Estimate { gain, seconds }| write!(f, " (gain {gain:.3e} in {seconds:.3} s expected)");
                estimate.map_or(Ok(()), told)
            }
            Reason::LossLevel { waited_for, workers, level } => {
                write!(f, "{waited_for} of {workers} gradients are in: the loss is {level:.3} of the first")
            }
            Reason::NewVersion => write!(f, "there is a new model"),
            Reason::Free => write!(f, "free, and the model wants more gradients"),
            Reason::Contributed => write!(f, "contributed; waits for the others"),
            Reason::Stale { behind } => write!(f, "stale: {behind} versions behind"),
            Reason::Superseded => write!(f, "superseded by a new model"),
            Reason::OnArrival => write!(f, "applied on arrival"),
            Reason::Balanced { seconds } => write!(f, "to be done in {seconds:.3} s, like the others"),
            Reason::Profiling => write!(f, "measured with this many samples"),
            Reason::Training => write!(f, "a predictor learns meanwhile"),
            Reason::WithinBound { lead, bound } => write!(f, "{lead} ahead, {bound} allowed"),
            Reason::TooFarAhead { lead, bound, slowest } => {
                write!(f, "{lead} ahead of {slowest}, {bound} allowed")
            }
            Reason::Monitoring { unmonitored } => write!(f, "runs freely: {unmonitored} intervals are not known yet"),
            Reason::Averaged { workers, iterations } => {
                write!(f, "the replicas of all {workers} are in, {iterations} local iterations")
            }
            Reason::AmongTheSlowest => write!(f, "among the slowest: one iteration and no question"),
            Reason::TimeForMore { iteration, slowest, rest } => {
                write!(f, "one more takes {iteration}, {slowest} needs {rest}")
            }
            Reason::NoTimeForMore { iteration, slowest, rest } => {
                write!(f, "ready: one more takes {iteration}, {slowest} needs only {rest}")
            }
            Reason::AllReady => write!(f, "ready: all have done an iteration"),
            Reason::BeforeBarrier { iterations, at } => {
                write!(f, "iterations to the barrier at {at}: {iterations}")
            }
            Reason::AtBarrier { at, wait, others } => {
                write!(f, "waits for {others} others at the barrier planned for {at}, {wait} for the first")
            }
            Reason::BarrierDeadline { at } => write!(f, "by then the barrier planned for {at} is badly overdue"),
        }
    }
}
