//! Stepping the model: what a commit does to the parameters.

use paceline_core::Aggregate;
use paceline_store::{Optimizer, OptimizerSpec, Schedule, aggregate};
use paceline_workload::Workload;

/// One update's part in a commit: its gradient, weight and mean training loss.
#[derive(Debug, Clone, Copy)]
pub struct Contribution<'a> {
    /// The gradient, as long as the layout.
    pub gradient: &'a [f32],
    /// Its weight in the sum.
    pub weight: f32,
    /// The mean loss of its samples.
    pub loss: f64,
}

/// The model under training.
#[derive(Debug)]
pub struct Trainer {
    parameters: Vec<f32>,
    gradient: Vec<f32>,
    trainable: usize,
    optimizer: Optimizer,
    schedule: Schedule,
    rate: f32,
    version: u64,
}

impl Trainer {
    /// A model that starts from the workload's own initial parameters.
    pub fn new(workload: &dyn Workload, seed: u64, optimizer: OptimizerSpec, schedule: Schedule, rate: f32) -> Self {
        let layout = workload.layout();
        Trainer {
            parameters: workload.initial(seed),
            gradient: vec![0.0; layout.len()],
            trainable: layout.trainable(),
            optimizer: Optimizer::new(optimizer, layout.trainable()),
            schedule,
            rate,
            version: 0,
        }
    }

    /// The newest parameters.
    pub fn parameters(&self) -> &[f32] {
        &self.parameters
    }

    /// Sums the contributions, in the order given, and steps the model. `workers` is how many there are.
    pub fn commit(&mut self, contributions: &[Contribution<'_>], workers: usize) -> Aggregate {
        let sources: Vec<(&[f32], f32)> =
            contributions.iter().map(|contribution| (contribution.gradient, contribution.weight)).collect();
        let norms = aggregate(&sources, self.trainable, &mut self.gradient);
        let rate = self.schedule.rate(self.rate, self.version, contributions.len(), workers);
        self.optimizer.step(&mut self.parameters, &self.gradient, rate);
        self.version += 1;
        Aggregate {
            loss: contributions.iter().map(|one| f64::from(one.weight) * one.loss).sum(),
            sum_of_squares: norms.sources.iter().sum(),
            square_of_sum: norms.mean,
        }
    }
}
