//! The kinds of work that workers do, and what a commit does with the result.

use serde::{Deserialize, Serialize};

/// The kind of update that a task produces.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Work {
    /// The gradient of its samples at the assigned model.
    Gradient,
    /// The model difference after local iterations on a replica: assigned model − replica. Every iteration uses the
    /// next batch of the worker's stream, with the number of samples in the assignment.
    Local(LocalWork),
}

/// How a worker iterates on a replica.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LocalWork {
    /// Where the replica starts.
    pub start: ReplicaStart,
    /// How many iterations it does.
    pub length: LocalLength,
}

/// Where a worker's replica starts.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReplicaStart {
    /// At the assigned model.
    Model,
    /// At the worker's replica as of its last committed update, moved towards the assigned model by this share of the
    /// distance, 0 to 1. A worker without such a replica starts at the assigned model.
    Replica {
        /// The share.
        pull: f32,
    },
}

/// How many local iterations a worker does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LocalLength {
    /// This number, without a question.
    Iterations(u32),
    /// After each iteration the worker [asks](crate::Event::Asked) whether to continue and waits for the answer.
    AskAndWait,
    /// After each iteration the worker asks and continues at once. When its update is collected, it drops the iteration
    /// that it has started.
    AskAndContinue,
}

impl LocalLength {
    pub(crate) fn asks(self) -> bool {
        !matches!(self, LocalLength::Iterations(_))
    }
}

impl Work {
    /// A fixed number of iterations that start at the assigned model.
    pub fn iterations(count: u32) -> Work {
        Work::Local(LocalWork { start: ReplicaStart::Model, length: LocalLength::Iterations(count) })
    }

    /// The length of local work; `None` for a gradient.
    pub fn length(self) -> Option<LocalLength> {
        if let Work::Local(local) = self { Some(local.length) } else { None }
    }

    /// How many iterations are assigned at first; more may follow after questions.
    pub(crate) fn assigned_iterations(self) -> u32 {
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
    /// The model moves against the mean of model differences, times the rate. At rate 1 it becomes the mean replica
    /// (ESync (8)). Batch normalization statistics become the replicas' mean at any rate.
    Average {
        /// The global learning rate.
        rate: f32,
        /// How much of the mean counts, statistics included: 1 for that of all replicas, 1/n for each of n that come one by
        /// one.
        #[serde(default = "whole", skip_serializing_if = "is_whole")]
        share: f32,
    },
    /// As `Average`, but the outer optimizer, which has a state, steps by that mean with this rate. It is that of
    /// [`SchemeSpec::outer_optimizer`](crate::SchemeSpec::outer_optimizer).
    Outer {
        /// The global learning rate.
        rate: f32,
        /// As that of `Average`.
        #[serde(default = "whole", skip_serializing_if = "is_whole")]
        share: f32,
    },
}

fn whole() -> f32 {
    1.0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_whole(share: &f32) -> bool {
    *share == 1.0
}

/// The optimizer of [`CommitStep::Outer`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum OuterOptimizer {
    /// Nesterov's momentum.
    Nesterov {
        /// The share of the last step that is kept.
        momentum: f64,
    },
    /// Nesterov's momentum, once in several steps (Liu et al., 2024).
    DelayedNesterov {
        /// The share of the last step that is kept.
        momentum: f64,
        /// After how many steps it is applied.
        delay: u64,
    },
}
