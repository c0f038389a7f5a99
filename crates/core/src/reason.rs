//! The reasons for a scheme's decisions.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Deserializer, Serialize};

use crate::{Span, Time, WorkerId};

/// The reason for one decision.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "why", rename_all = "kebab-case")]
pub enum Reason {
    /// The worker joined and gets its first assignment.
    Joined,
    /// The quorum is reached.
    Quorum {
        /// The quorum: how many gradients were waited for.
        waited_for: u32,
        /// The number of workers.
        workers: u32,
    },
    /// The quorum is reached, and an estimator had chosen it.
    Chosen {
        /// The quorum: how many gradients were waited for.
        waited_for: u32,
        /// The number of workers.
        workers: u32,
        /// Why this quorum was chosen.
        choice: QuorumChoice,
        /// The estimate it was chosen by; `None` before enough is measured.
        estimate: Option<Estimate>,
    },
    /// The quorum is reached, and it follows from the loss.
    LossLevel {
        /// The quorum: how many gradients were waited for.
        waited_for: u32,
        /// The number of workers.
        workers: u32,
        /// The loss as a share of the first loss.
        #[serde(with = "crate::number")]
        level: f64,
    },
    /// A new version of the model is available.
    NewVersion,
    /// The worker is idle and the present version needs more gradients.
    Free,
    /// The worker's update for this version has arrived; the quorum is not reached yet.
    Contributed,
    /// The update was computed with an older version.
    Stale {
        /// The staleness in versions.
        behind: u64,
    },
    /// The task's version is no longer the newest, so its update would be stale.
    Superseded,
    /// The update is applied as it arrives.
    OnArrival,
    /// With this number of samples the worker finishes together with the others.
    Balanced {
        /// The expected finish time, in seconds from the start of the iteration.
        #[serde(with = "crate::number")]
        seconds: f64,
    },
    /// The worker's device is measured with this number of samples.
    Profiling,
    /// A speed predictor is trained while the workers compute.
    Training,
    /// The worker is within its staleness bound.
    WithinBound {
        /// How many iterations the worker is ahead of the slowest.
        lead: u64,
        /// The largest lead allowed.
        bound: u64,
    },
    /// The worker is beyond its staleness bound.
    TooFarAhead {
        /// How many iterations the worker is ahead of the slowest.
        lead: u64,
        /// The largest lead allowed.
        bound: u64,
        /// The slowest worker, or one of them.
        slowest: WorkerId,
    },
    /// The worker runs freely while intervals are measured for the next barrier plan.
    Monitoring {
        /// How many workers have no measured interval yet.
        unmonitored: u32,
    },
    /// The worker's speed is unknown, so it does one local iteration.
    SpeedUnknown,
    /// The fewer local iterations, the slower the worker is.
    BySpeed {
        /// The number of local iterations.
        iterations: u32,
        /// The number of the fastest worker.
        most: u32,
        /// The worker's speed as a share of the fastest one's.
        #[serde(with = "crate::number")]
        speed: f64,
    },
    /// All replicas of a round have arrived.
    Averaged {
        /// The number of replicas.
        workers: u32,
        /// The sum of their local iterations.
        iterations: u64,
    },
    /// The worker is expected to be among the last to finish an iteration, so it does not ask.
    AmongTheSlowest,
    /// One more local iteration ends before the slowest worker finishes its first.
    TimeForMore {
        /// The expected length of the iteration.
        iteration: Span,
        /// The slowest worker.
        slowest: WorkerId,
        /// How much longer the slowest worker is expected to take.
        rest: Span,
    },
    /// One more local iteration would end after the slowest worker finishes its first.
    NoTimeForMore {
        /// The expected length of the iteration.
        iteration: Span,
        /// The slowest worker.
        slowest: WorkerId,
        /// How much longer the slowest worker is expected to take.
        rest: Span,
    },
    /// Every worker has done a local iteration.
    AllReady,
    /// The worker has iterations left before the planned barrier.
    BeforeBarrier {
        /// The number of iterations left, including the one that starts now.
        iterations: u32,
        /// When the barrier is planned to open.
        at: Time,
    },
    /// The worker has done all its iterations before the planned barrier.
    AtBarrier {
        /// When the barrier is planned to open.
        at: Time,
        /// The planned wait of the first worker to arrive.
        wait: Span,
        /// How many other workers have not arrived yet.
        others: u32,
    },
    /// The timeout of a planned barrier.
    BarrierDeadline {
        /// When the barrier is planned to open.
        at: Time,
    },
    /// The round ends for the worker: one more local iteration would end further from the deadline, or after it.
    RoundDeadline {
        /// The deadline.
        at: Time,
    },
    /// Another scheme is in force from here on.
    Switched {
        /// The scheme.
        to: ReasonText,
        /// How many times as fast as the one before it is expected to be.
        #[serde(with = "crate::number")]
        gain: f64,
    },
    /// Another scheme takes over, since the present one waits for workers that are overdue.
    Overdue {
        /// The scheme.
        to: ReasonText,
        /// How many workers are overdue.
        workers: u32,
    },
    /// A reason in the words of a scheme from outside.
    Own {
        /// The words.
        text: ReasonText,
        /// A number that belongs to them.
        #[serde(default, with = "crate::number", skip_serializing_if = "Option::is_none")]
        value: Option<f64>,
    },
}

/// A scheme's own words for a reason: a clause such as "weighted by staleness".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct ReasonText(&'static str);

impl<'de> Deserialize<'de> for ReasonText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(|text| ReasonText::kept(&text))
    }
}

impl ReasonText {
    /// Equal texts are kept once, for as long as the process runs: a scheme has few.
    fn kept(text: &str) -> Self {
        static TEXTS: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
        let mut texts = TEXTS.lock().unwrap_or_else(PoisonError::into_inner);
        let known = texts.get(text).copied();
        ReasonText(known.unwrap_or_else(|| {
            let text = String::from(text).leak();
            texts.insert(text);
            text
        }))
    }
}

/// An iteration's gain and length as estimated at its start.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// The expected decrease of the loss. Under `b-dbw` and `cutoff`, the number of gradients.
    #[serde(with = "crate::number")]
    pub gain: f64,
    /// The expected length in seconds.
    #[serde(with = "crate::number")]
    pub seconds: f64,
}

/// Why a quorum k was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum QuorumChoice {
    /// Too little is measured for an estimate, so k is the number of workers.
    NothingKnown,
    /// k has the largest expected gain per time.
    BestRate,
    /// No k has a positive expected gain, so k is the number of workers.
    NoGain,
    /// The loss rose, so k is larger than the last one.
    LossRose,
}

impl fmt::Display for QuorumChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            QuorumChoice::NothingKnown => "no estimate yet",
            QuorumChoice::BestRate => "largest expected gain per second",
            QuorumChoice::NoGain => "no quorum has a positive expected gain",
            QuorumChoice::LossRose => "the loss rose",
        })
    }
}

impl Reason {
    /// Another scheme is in force, which is expected to be `gain` times as fast.
    pub(crate) fn switched(to: &str, gain: f64) -> Self {
        Reason::Switched { to: ReasonText::kept(to), gain }
    }

    pub(crate) fn overdue(to: &str, workers: u32) -> Self {
        Reason::Overdue { to: ReasonText::kept(to), workers }
    }

    /// A reason in a scheme's own words, such as "the worker is rested".
    pub const fn own(text: &'static str) -> Self {
        Reason::Own { text: ReasonText(text), value: None }
    }

    /// A reason with a number, such as "weighted by staleness" with 3. A number that is not finite is left out.
    pub const fn own_value(text: &'static str, value: f64) -> Self {
        Reason::Own { text: ReasonText(text), value: if value.is_finite() { Some(value) } else { None } }
    }

    /// A reason in words that are known only when the program runs. Each text is kept for as long as the process runs, so
    /// what varies belongs into the number. One that is not finite is left out.
    pub fn in_words(text: &str, value: Option<f64>) -> Self {
        Reason::Own { text: ReasonText::kept(text), value: value.filter(|value| value.is_finite()) }
    }

    /// The estimate that a quorum was chosen by; `None` for schemes without one.
    pub fn estimate(&self) -> Option<Estimate> {
        if let Reason::Chosen { estimate, .. } = self { *estimate } else { None }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Joined => write!(f, "the worker joined"),
            Reason::Quorum { waited_for, workers } => write!(f, "{waited_for} of {workers} gradients are in"),
            Reason::Chosen { waited_for, workers, choice, estimate } => {
                write!(f, "{waited_for} of {workers} gradients are in: {choice}")?;
                let expected = |Estimate { gain, seconds }| write!(f, " (expected gain {gain:.3e} in {seconds:.3} s)");
                estimate.map_or(Ok(()), expected)
            }
            Reason::LossLevel { waited_for, workers, level } => {
                write!(f, "{waited_for} of {workers} gradients are in: the loss is {level:.3} times the first loss")
            }
            Reason::NewVersion => write!(f, "a new version is available"),
            Reason::Free => write!(f, "the worker is idle and this version needs more gradients"),
            Reason::Contributed => write!(f, "the worker contributed and waits for the others"),
            Reason::Stale { behind } => {
                write!(f, "the update is stale: {behind} version{} behind", if *behind == 1 { "" } else { "s" })
            }
            Reason::Superseded => write!(f, "superseded by a new version"),
            Reason::OnArrival => write!(f, "applied on arrival"),
            Reason::Balanced { seconds } => write!(f, "all workers are expected to finish in {seconds:.3} s"),
            Reason::Profiling => write!(f, "the device is measured with this number of samples"),
            Reason::Training => write!(f, "a speed predictor is trained in the background"),
            Reason::WithinBound { lead, bound } => {
                write!(f, "within the staleness bound: {lead} ahead, {bound} allowed")
            }
            Reason::TooFarAhead { lead, bound, slowest } => {
                write!(f, "beyond the staleness bound: {lead} ahead of {slowest}, {bound} allowed")
            }
            Reason::Monitoring { unmonitored } => {
                write!(f, "monitoring: workers without a measured interval: {unmonitored}")
            }
            Reason::SpeedUnknown => write!(f, "the worker's speed is unknown: one local iteration"),
            Reason::BySpeed { iterations, most, speed } => {
                write!(f, "{iterations} of at most {most} local iterations: {speed:.3} times as fast as the fastest")
            }
            Reason::Averaged { workers, iterations } => {
                write!(f, "all {workers} replicas are in; local iterations: {iterations}")
            }
            Reason::AmongTheSlowest => write!(f, "among the slowest workers: one iteration, no question"),
            Reason::TimeForMore { iteration, slowest, rest } => {
                write!(f, "time for one more iteration: it takes {iteration}, {slowest} still needs {rest}")
            }
            Reason::NoTimeForMore { iteration, slowest, rest } => {
                write!(f, "no time for one more iteration: it takes {iteration}, {slowest} still needs {rest}")
            }
            Reason::AllReady => write!(f, "every worker has done an iteration"),
            Reason::BeforeBarrier { iterations, at } => {
                write!(f, "before the barrier planned for {at}: iterations left: {iterations}")
            }
            Reason::AtBarrier { at, wait, others } => {
                write!(f, "at the barrier planned for {at} with a wait of {wait}; workers still missing: {others}")
            }
            Reason::BarrierDeadline { at } => write!(f, "timeout of the barrier planned for {at}"),
            Reason::Switched { to: ReasonText(to), gain } => {
                write!(f, "switched to {to}: expected to be {gain:.2} times as fast as the scheme before")
            }
            Reason::Overdue { to: ReasonText(to), workers } => {
                write!(f, "switched to {to}: everybody waited for overdue workers: {workers}")
            }
            Reason::RoundDeadline { at } => write!(f, "the deadline of the round: {at}"),
            Reason::Own { text: ReasonText(text), value: None } => f.write_str(text),
            Reason::Own { text: ReasonText(text), value: Some(value) } => write!(f, "{text}: {value}"),
        }
    }
}
