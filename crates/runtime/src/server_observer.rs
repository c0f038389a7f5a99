//! What follows a run on a server: membership, and states that can be checkpointed.

use std::sync::Arc;

use paceline_core::Ledger;
use paceline_store::{Optimizer, WrittenParts};

use crate::{LeaseLost, Monitor, Observer, RateState};

/// Processes that each hold a part of a model, and keep this version of it until it is written.
pub trait PartWriters: Send + Sync {
    /// Has all of them write their parts as this checkpoint at a place. Takes as long as that.
    ///
    /// # Errors
    /// Why one of them can't.
    fn write(&self, place: &str, checkpoint: &str) -> Result<WrittenParts, String>;
}

/// The model of a [`RunState`].
#[derive(Clone, Copy)]
pub enum ModelValues<'a> {
    /// In this process.
    Here {
        /// The parameters.
        parameters: &'a [f32],
        /// The optimizer with its state.
        optimizer: &'a Optimizer,
    },
    /// In shards, which can write it themselves.
    InShards(&'a Arc<dyn PartWriters>),
}

/// The state of a run at a moment at which no update is pending. The run can resume from it.
#[derive(Clone, Copy)]
pub struct RunState<'a> {
    /// How many times the model has been stepped.
    pub version: u64,
    /// The model.
    pub values: ModelValues<'a>,
    /// What the learning rate depends on.
    pub rate: RateState,
    /// The ledger with its scheme.
    pub ledger: &'a Ledger,
    /// The run's metrics.
    pub monitor: &'a Monitor,
}

/// Follows a run on a server.
pub trait ServerObserver: Observer {
    /// Returns when the server may decide. Called before everything that it reacts to.
    ///
    /// # Errors
    /// If another server has taken over the run.
    fn await_lease(&mut self) -> Result<(), LeaseLost> {
        Ok(())
    }

    /// Whether a checkpoint is due.
    fn wants_checkpoint(&self) -> bool {
        false
    }

    /// Whether shards can write their parts of a checkpoint themselves.
    fn takes_parts(&self) -> bool {
        false
    }

    /// The run can resume from this state. Called when a checkpoint is due, and at the end of the run
    /// if no update is pending then.
    fn on_checkpoint(&mut self, _state: &RunState<'_>) {}

    /// Training has ended. The final evaluation and the last checkpoint follow.
    fn on_end(&mut self) {}
}

impl ServerObserver for () {}
