//! What follows a run on a server: membership, and states of the model that can be checkpointed.

use std::fmt;

use paceline_core::WorkerId;
use paceline_store::Optimizer;

use crate::Observer;

/// A change of membership.
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
    /// A worker left or was lost.
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
        }
    }
}

/// The state of the model at a moment at which no update is pending. A run can resume from it, given its event log.
#[derive(Debug, Clone, Copy)]
pub struct ModelState<'a> {
    /// How many times the model has been stepped.
    pub version: u64,
    /// The model.
    pub parameters: &'a [f32],
    /// The optimizer with its state.
    pub optimizer: &'a Optimizer,
}

/// Follows a run on a server.
pub trait ServerObserver: Observer {
    /// Whether a checkpoint is due.
    fn wants_checkpoint(&self) -> bool {
        false
    }

    /// The model is in a state that the run can resume from. Called when a checkpoint is due, and at the end of the run
    /// if no update is pending then.
    fn on_checkpoint(&mut self, _state: &ModelState<'_>) {}
}

impl ServerObserver for () {}
