//! The workload trait: what the simulator and real workers need to train a model.

use paceline_store::Layout;

use crate::progress::Progress;

/// The samples of one gradient: a section of one worker's endless sample stream.
///
/// The stream is a pure function of the seed and the worker, so equal draws give equal samples on every machine and at
/// any time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Draw {
    /// Rank of the worker whose stream is used.
    pub worker: u32,
    /// Number of samples of the stream before this draw.
    pub offset: u64,
    /// Number of samples in this draw.
    pub samples: u32,
}

/// The result of evaluating parameters on the held-out set.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Evaluation {
    /// Mean loss, in the unit of the model's loss (nats for cross-entropy).
    pub loss: f64,
    /// Share of correct predictions, 0 to 1; `None` if the model does not classify.
    pub accuracy: Option<f64>,
}

/// A model with its data: it takes flat parameters and gives a loss and a flat gradient.
pub trait Workload: Send + Sync {
    /// The layout of the flat parameter vector. Checkpoints use its names.
    fn layout(&self) -> &Layout;

    /// The initial parameters, a function of the seed.
    fn initial(&self, seed: u64) -> Vec<f32>;

    /// Whether its [evaluations](Replica::evaluate) have an accuracy.
    fn has_accuracy(&self) -> bool {
        true
    }

    /// A new replica, which computes gradients on one thread. Every replica of a workload gives the same bits.
    fn replica(&self) -> Box<dyn Replica>;
}

/// Computes gradients of a [`Workload`] on one thread.
pub trait Replica: Send {
    /// Writes the mean gradient over the samples of `draw` into `gradient` and returns their mean loss.
    ///
    /// Statistics (see [`Layout`]) are reported as `old − new`. Both slices have the length of the layout.
    fn gradient(&mut self, parameters: &[f32], draw: Draw, gradient: &mut [f32]) -> f64;

    /// Loss and accuracy on the held-out set.
    fn evaluate(&mut self, parameters: &[f32]) -> Evaluation;

    /// From now on, the replica counts the steps of its computations in `progress`, as often as it can: every layer,
    /// every few samples. A worker whose count does not move for very long is taken to be stuck. A replica that does
    /// not count should compute a gradient in minutes, not hours.
    fn track(&mut self, _progress: Progress) {}
}
