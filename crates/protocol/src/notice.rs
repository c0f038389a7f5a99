//! Notices about the members of a run, for the user.

use std::fmt;

use paceline_core::{Span, WorkerId};

use crate::payload::PayloadFormat;

/// The shards that a line lists.
const MAX_LISTED: usize = 8;

/// A change of membership, or a delay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// A worker joined.
    Joined {
        /// Its rank.
        worker: WorkerId,
        /// Its address.
        peer: String,
        /// How its slowness is emulated, if it is.
        emulated: Option<String>,
    },
    /// A worker left or was dismissed.
    Left {
        /// Its rank.
        worker: WorkerId,
        /// Why.
        reason: String,
        /// Samples of its work that are lost.
        lost: u64,
        /// How many workers remain.
        remaining: usize,
    },
    /// A connection was refused.
    Refused {
        /// Its address.
        peer: String,
        /// Why.
        reason: String,
    },
    /// A worker's task takes longer than expected. The worker sends heartbeats and stays in the run.
    Late {
        /// Its rank.
        worker: WorkerId,
        /// How long the task has taken so far.
        elapsed: Span,
        /// How long the worker's tasks of this size usually take.
        expected: Span,
    },
    /// A worker exchanges values in another format, which suits its link.
    Payload {
        /// Its rank.
        worker: WorkerId,
        /// The format.
        format: PayloadFormat,
    },
    /// The parameters are in shards.
    Sharded {
        /// The address of each, and how many values it holds.
        shards: Vec<(String, usize)>,
    },
    /// A process that holds a part of the parameters, and computes nothing, joined.
    ShardJoined {
        /// Its address.
        peer: String,
    },
    /// It left or was dismissed.
    ShardLeft {
        /// Its address.
        peer: String,
        /// Why.
        reason: String,
    },
    /// A process that evaluates the model joined.
    EvaluatorJoined {
        /// Its address.
        peer: String,
    },
    /// It left or was dismissed: the model is not evaluated until another one joins.
    EvaluatorLeft {
        /// Why.
        reason: String,
    },
    /// The run is over, and waits until its last model is evaluated.
    EvaluatingLast,
    /// The server stood still. This counts for no worker.
    Stalled {
        /// For how long.
        span: Span,
    },
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Notice::Joined { worker, peer, emulated: None } => write!(f, "{worker} joined from {peer}"),
            Notice::Joined { worker, peer, emulated: Some(how) } => {
                write!(f, "{worker} joined from {peer} (emulated: {how})")
            }
            Notice::Left { worker, reason, lost, remaining } => {
                write!(f, "{worker} left: {reason}; {lost} samples lost, {remaining} workers remain")
            }
            Notice::Refused { peer, reason } => write!(f, "{peer} refused: {reason}"),
            Notice::Late { worker, elapsed, expected } => {
                let (elapsed, expected) = (elapsed.seconds(), expected.seconds());
                write!(f, "{worker} is late: {elapsed:.1} s on a task that usually takes {expected:.1} s")
            }
            Notice::Payload { worker, format } => {
                write!(f, "{worker} exchanges values in {format}: its link is slow")
            }
            Notice::Sharded { shards } => {
                let plural = if shards.len() == 1 { "" } else { "s" };
                write!(f, "the parameters are in {} shard{plural}: ", shards.len())?;
                let all: usize = shards.iter().map(|(_, length)| length).sum();
                let percent = |length: usize| 100.0 * length as f64 / all as f64;
                for (index, (address, length)) in shards.iter().take(MAX_LISTED).enumerate() {
                    let comma = if index > 0 { ", " } else { "" };
                    write!(f, "{comma}{:.0} % at {address}", percent(*length))?;
                }
                if shards.len() > MAX_LISTED { f.write_str(", …") } else { Ok(()) }
            }
            Notice::ShardJoined { peer } => write!(f, "a shard joined from {peer}"),
            Notice::ShardLeft { peer, reason } => write!(f, "the shard from {peer} left: {reason}"),
            Notice::EvaluatorJoined { peer } => write!(f, "{} joined from {peer}", WorkerId::EVALUATOR),
            Notice::EvaluatorLeft { reason } => write!(f, "{} left: {reason}", WorkerId::EVALUATOR),
            Notice::EvaluatingLast => write!(f, "the last model is being evaluated"),
            Notice::Stalled { span } => {
                write!(f, "the server stood still for {:.1} s; this counts for no worker", span.seconds())
            }
        }
    }
}
