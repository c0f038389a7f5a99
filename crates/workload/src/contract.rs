//! What a driver needs of something that can be trained.

use paceline_store::Layout;

/// Which samples a gradient is computed on: a stretch of one worker's endless sample stream.
///
/// The stream is a pure function of the seed and the worker, so equal draws give equal samples wherever and
/// whenever they are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Draw {
    /// Whose stream.
    pub worker: u32,
    /// How many samples of the stream come before this draw.
    pub offset: u64,
    /// How many samples to take.
    pub samples: u32,
}

/// How well parameters do on the held-out set.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Evaluation {
    /// Mean loss.
    pub loss: f64,
    /// Share of correct predictions, 0 to 1.
    pub accuracy: f64,
}

/// A model with its data: flat parameters in, loss and flat gradient out.
pub trait Workload: Send + Sync {
    /// What lies where in the flat parameter vector; the names are those of checkpoints.
    fn layout(&self) -> &Layout;

    /// The parameters that training starts from.
    fn initial(&self, seed: u64) -> Vec<f32>;

    /// Something that computes gradients on one thread. Every replica of a workload gives the same bits.
    fn replica(&self) -> Box<dyn Replica>;
}

/// One thread's means of computing gradients of a [`Workload`].
pub trait Replica: Send {
    /// Writes the mean gradient over the samples of `draw` into `gradient` and returns their mean loss.
    ///
    /// Statistics (see [`Layout`]) are reported as `old − new`. Both slices are as long as the layout.
    fn gradient(&mut self, parameters: &[f32], draw: Draw, gradient: &mut [f32]) -> f64;

    /// Loss and accuracy on the held-out set.
    fn evaluate(&mut self, parameters: &[f32]) -> Evaluation;
}
