//! What workers do with their samples, and what a commit does with the outcome.

use serde::{Deserialize, Serialize};

/// What comes of a task.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Work {
    /// The gradient of its samples at the assigned model.
    Gradient,
    /// The difference that iterations on a replica of the model have made to it: assigned model − replica. Every
    /// iteration takes a batch of as many samples as the assignment says, the next of the worker's stream.
    Local(LocalWork),
}

/// How a worker iterates on a replica.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LocalWork {
    /// Where the replica starts.
    pub start: ReplicaStart,
    /// How long it goes on.
    pub length: LocalLength,
}

/// Where a worker's replica starts.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReplicaStart {
    /// At the assigned model.
    Model,
    /// Where the worker's replica stood when its last update was committed, moved towards the assigned model by this
    /// share of the distance, 0 to 1. At the assigned model if there is no such replica.
    Replica {
        /// The share.
        pull: f32,
    },
}

/// How long local iterations go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LocalLength {
    /// So many of them; no questions asked.
    Iterations(u32),
    /// After each the worker [asks](crate::Event::Asked) whether to go on and waits for the answer.
    AskAndWait,
    /// After each the worker asks and goes on at once. Told to send what it has, it drops the iteration it is at.
    AskAndContinue,
}

impl LocalLength {
    pub(crate) fn asks(self) -> bool {
        !matches!(self, LocalLength::Iterations(_))
    }
}

impl Work {
    /// A number of iterations from the assigned model.
    pub fn iterations(count: u32) -> Work {
        Work::Local(LocalWork { start: ReplicaStart::Model, length: LocalLength::Iterations(count) })
    }

    /// How long local iterations go on; `None` for a gradient.
    pub fn length(self) -> Option<LocalLength> {
        if let Work::Local(local) = self { Some(local.length) } else { None }
    }

    /// How many iterations a worker may do before it hears more.
    pub(crate) fn handed_out(self) -> u32 {
        if let Some(LocalLength::Iterations(count)) = self.length() { count } else { 1 }
    }
}

/// What a commit does with the sum of its updates.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CommitStep {
    /// The optimizer steps by the sum of gradients.
    Optimizer,
    /// As `Optimizer`, after each gradient g is corrected for the steps since its version w' to λ·g·g·(w − w') + g,
    /// element by element (DC-ASGD (10)).
    Compensated {
        /// λ.
        lambda: f32,
    },
    /// The model moves against the mean of model differences, as far as the rate says: at 1, to the mean replica
    /// (ESync (8)). Statistics of batch normalization become the replicas' mean at any rate.
    Average {
        /// The global learning rate.
        rate: f32,
    },
}
