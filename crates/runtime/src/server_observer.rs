//! What follows a run on a server: membership, and states of the model that can be checkpointed.

use paceline_store::Optimizer;

use crate::{Observer, RateState};

/// The state of the model at a moment at which no update is pending. A run can resume from it, given its event log.
#[derive(Debug, Clone, Copy)]
pub struct ModelState<'a> {
    /// How many times the model has been stepped.
    pub version: u64,
    /// The model.
    pub parameters: &'a [f32],
    /// The optimizer with its state.
    pub optimizer: &'a Optimizer,
    /// What the learning rate depends on.
    pub rate: RateState,
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

    /// Training has ended. The final evaluation and the last checkpoint follow.
    fn on_end(&mut self) {}
}

impl ServerObserver for () {}
