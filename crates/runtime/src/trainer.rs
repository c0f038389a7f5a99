//! Stepping the model: what a commit does to the parameters.

use std::panic::resume_unwind;
use std::thread;

use paceline_core::{Aggregate, CommitStep};
use paceline_store::{
    BLOCK, Layout, Norms, Optimizer, OptimizerSpec, OptimizerStep, Schedule, ShardNorms, Shards, aggregate_shard,
};
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

/// Steps a model whose parameters are stored elsewhere: sums gradients and applies the sum.
///
/// Both happen block by block, so that the sum of a block is applied while it is still in the processor's cache.
#[derive(Debug)]
pub struct Stepper {
    trainable: usize,
    optimizer: Optimizer,
    schedule: Schedule,
    rate: f32,
    version: u64,
    shards: usize,
    unusable: Vec<usize>,
}

impl Stepper {
    /// A stepper of models with this layout, on `shards` threads. Their number does not change the result, bit for bit.
    pub fn new(layout: &Layout, optimizer: OptimizerSpec, schedule: Schedule, rate: f32, shards: usize) -> Self {
        let optimizer = Optimizer::new(optimizer, layout.trainable());
        Stepper { trainable: layout.trainable(), optimizer, schedule, rate, version: 0, shards, unusable: Vec::new() }
    }

    /// A stepper that continues with an optimizer after `version` steps.
    pub fn resumed(
        optimizer: Optimizer,
        schedule: Schedule,
        rate: f32,
        shards: usize,
        version: u64,
        layout: &Layout,
    ) -> Self {
        Stepper { trainable: layout.trainable(), optimizer, schedule, rate, version, shards, unusable: Vec::new() }
    }

    /// The optimizer with its state.
    pub fn optimizer(&self) -> &Optimizer {
        &self.optimizer
    }

    /// The positions of contributions to the last commit that were not finite. They were left out of every block of the
    /// model in which they were not finite.
    pub fn unusable(&self) -> &[usize] {
        &self.unusable
    }

    /// Sums the contributions, in the order given, and changes `parameters` as a commit says. `workers` is the number of
    /// workers. For [`Compensated`](CommitStep::Compensated), gradients are [corrected](compensate) already.
    ///
    /// # Panics
    /// If a contribution or the parameters are not as long as the layout, or the layout is empty.
    pub fn commit(
        &mut self,
        commit: CommitStep,
        parameters: &mut [f32],
        contributions: &[Contribution<'_>],
        workers: usize,
    ) -> Aggregate {
        match commit {
            CommitStep::Optimizer | CommitStep::Compensated { .. } => self.step(parameters, contributions, workers),
            CommitStep::Average { rate } => self.average(parameters, contributions, rate),
        }
    }

    /// Steps `parameters` by the optimizer.
    fn step(&mut self, parameters: &mut [f32], contributions: &[Contribution<'_>], workers: usize) -> Aggregate {
        let rate = self.schedule.rate(self.rate, self.version, contributions.len(), workers);
        self.version += 1;
        let norms = apply(self.optimizer.begin(rate), self.trainable, parameters, contributions, self.shards);
        self.aggregate(norms, rate, contributions)
    }

    /// Moves `parameters` against the sum of the contributions, which are model differences, by the share `rate`
    /// (ESync (8)). Statistics move all the way.
    fn average(&mut self, parameters: &mut [f32], contributions: &[Contribution<'_>], rate: f32) -> Aggregate {
        self.version += 1;
        let mut plain = Optimizer::new(OptimizerSpec::Sgd { decay: 0.0 }, self.trainable);
        let norms = apply(plain.begin(rate), self.trainable, parameters, contributions, self.shards);
        self.aggregate(norms, rate, contributions)
    }

    /// What aggregating a commit showed. Records which contributions were unusable.
    fn aggregate(&mut self, norms: Norms, rate: f32, contributions: &[Contribution<'_>]) -> Aggregate {
        self.unusable = norms.left_out;
        Aggregate {
            loss: contributions.iter().map(|one| f64::from(one.weight) * one.loss).sum(),
            rate: f64::from(rate),
            sum_of_squares: norms.sources.iter().sum(),
            square_of_sum: norms.mean,
        }
    }

    /// The learning rate of a worker's local iterations on the newest version.
    pub fn local_rate(&self) -> f32 {
        self.schedule.rate(self.rate, self.version, 1, 1)
    }
}

/// Corrects a gradient computed at the parameters `then` for a model that is now at `now`: DC-ASGD (10).
pub fn compensate(gradient: &mut [f32], lambda: f32, now: &[f32], then: &[f32]) {
    for ((g, now), then) in gradient.iter_mut().zip(now).zip(then) {
        *g += lambda * *g * *g * (now - then);
    }
}

/// Sums the contributions and applies the optimizer's step, on several threads.
fn apply(
    mut step: OptimizerStep<'_>,
    trainable: usize,
    mut parameters: &mut [f32],
    contributions: &[Contribution<'_>],
    shards: usize,
) -> Norms {
    let mut parts = Vec::new();
    for range in Shards::new(parameters.len(), shards).ranges().filter(|range| !range.is_empty()) {
        let (front, rest) = parameters.split_at_mut(range.len());
        let after = step.split_off(range.len());
        let trainable = trainable.saturating_sub(range.start).min(range.len());
        parts.push(Shard { start: range.start, parameters: front, trainable, step, contributions });
        (parameters, step) = (rest, after);
    }
    Norms::join(&in_parallel(parts))
}

/// One thread's part of a step.
struct Shard<'a> {
    /// Where it starts in the vector.
    start: usize,
    parameters: &'a mut [f32],
    trainable: usize,
    step: OptimizerStep<'a>,
    contributions: &'a [Contribution<'a>],
}

impl Shard<'_> {
    fn run(self) -> Vec<ShardNorms> {
        let Shard { start, parameters, trainable, mut step, contributions } = self;
        let mut sum = vec![0.0; BLOCK.min(parameters.len())];
        let mut norms = Vec::with_capacity(parameters.len().div_ceil(BLOCK));
        let mut sources = Vec::with_capacity(contributions.len());
        for (index, parameters) in parameters.chunks_mut(BLOCK).enumerate() {
            let (offset, length) = (index * BLOCK, parameters.len());
            sources.clear();
            let part = start + offset..start + offset + length;
            sources.extend(contributions.iter().map(|one| (&one.gradient[part.clone()], one.weight)));
            let trainable = trainable.saturating_sub(offset).min(length);
            norms.push(aggregate_shard(&sources, trainable, &mut sum[..length]));
            let after = step.split_off(length);
            step.apply(parameters, &sum[..length]);
            step = after;
        }
        norms
    }
}

/// Runs each shard on a thread, the first on this one.
fn in_parallel(shards: Vec<Shard<'_>>) -> Vec<ShardNorms> {
    let mut shards = shards.into_iter();
    thread::scope(|scope| {
        let first = shards.next();
        let others: Vec<_> = shards.map(|shard| scope.spawn(|| shard.run())).collect();
        let mut norms = first.map_or(Vec::new(), Shard::run);
        for other in others {
            norms.extend(other.join().unwrap_or_else(|panic| resume_unwind(panic)));
        }
        norms
    })
}

/// The model under training.
#[derive(Debug)]
pub struct Trainer {
    parameters: Vec<f32>,
    stepper: Stepper,
}

impl Trainer {
    /// A model that starts from the workload's own initial parameters.
    pub fn new(workload: &dyn Workload, seed: u64, optimizer: OptimizerSpec, schedule: Schedule, rate: f32) -> Self {
        let stepper = Stepper::new(workload.layout(), optimizer, schedule, rate, 1);
        Trainer { parameters: workload.initial(seed), stepper }
    }

    /// The newest parameters.
    pub fn parameters(&self) -> &[f32] {
        &self.parameters
    }

    /// Sums the contributions, in the order given, and changes the model as a commit says: see [`Stepper::commit`].
    pub fn commit(&mut self, commit: CommitStep, contributions: &[Contribution<'_>], workers: usize) -> Aggregate {
        self.stepper.commit(commit, &mut self.parameters, contributions, workers)
    }

    /// The learning rate of a worker's local iterations on the newest model.
    pub fn local_rate(&self) -> f32 {
        self.stepper.local_rate()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_store::aggregate;

    #[test]
    fn blocks_and_shards_give_the_bits_of_the_whole() {
        let (trainable, statistics) = (2 * BLOCK + 100, BLOCK);
        let layout = Layout::new([("weight", vec![trainable])], [("mean", vec![statistics])]);
        let gradients: Vec<Vec<f32>> =
            (0..5).map(|j| (0..layout.len()).map(|index| ((index * 7 + j * 13) as f32).sin()).collect()).collect();
        let contributions: Vec<Contribution<'_>> =
            gradients.iter().map(|gradient| Contribution { gradient, weight: 0.2, loss: 1.5 }).collect();
        let sources: Vec<(&[f32], f32)> = gradients.iter().map(|gradient| (&gradient[..], 0.2)).collect();

        let mut sum = vec![0.0; layout.len()];
        let norms = aggregate(&sources, trainable, &mut sum);
        let mut expected = vec![1.0; layout.len()];
        let spec = "adam".parse().unwrap();
        Optimizer::new(spec, trainable).step(&mut expected, &sum, 0.1);

        let constant = "constant".parse().unwrap();
        for shards in [0, 1, 2, 3, 9] {
            let mut parameters = vec![1.0; layout.len()];
            let aggregate = Stepper::new(&layout, spec, constant, 0.1, shards).step(&mut parameters, &contributions, 5);
            assert_eq!(parameters, expected, "{shards} shards");
            assert_eq!(aggregate.square_of_sum, norms.mean);
            assert_eq!(aggregate.sum_of_squares, norms.sources.iter().sum::<f64>());
            assert!((aggregate.loss - 1.5).abs() < 1e-6);
        }
    }

    #[test]
    fn averaging_moves_parameters_by_the_rate_and_statistics_all_the_way() {
        let layout = Layout::new([("weight", vec![1])], [("mean", vec![1])]);
        let replicas = [[3.0, 8.0], [5.0, 4.0]];
        let differences = replicas.map(|replica: [f32; 2]| [2.0 - replica[0], 2.0 - replica[1]]);
        let contributions = differences.each_ref().map(|gradient| Contribution { gradient, weight: 0.5, loss: 1.0 });
        let spec = "adam".parse().unwrap();
        let mut stepper = Stepper::new(&layout, spec, "constant".parse().unwrap(), 0.1, 1);
        let mut parameters = [2.0, 2.0];
        stepper.average(&mut parameters, &contributions, 1.0);
        assert_eq!(parameters, [4.0, 6.0]);
        let mut parameters = [2.0, 2.0];
        stepper.average(&mut parameters, &contributions, 2.0);
        assert_eq!(parameters, [6.0, 6.0]);
    }

    #[test]
    fn blocks_that_are_not_finite_are_left_out_and_reported() {
        let layout = Layout::new([("w", vec![BLOCK + 3])], []);
        let good = vec![1.0; layout.len()];
        let mut bad = good.clone();
        bad[BLOCK + 1] = f32::NAN;
        let spec: OptimizerSpec = "momentum:0.9".parse().unwrap();
        let one = |gradient| Contribution { gradient, weight: 0.5, loss: 1.0 };
        let mut stepper = Stepper::new(&layout, spec, "constant".parse().unwrap(), 1.0, 2);
        let mut parameters = vec![0.0; layout.len()];
        let aggregate = stepper.step(&mut parameters, &[one(&good), one(&bad)], 2);
        assert_eq!(stepper.unusable(), [1]);
        assert_eq!(aggregate.sum_of_squares, (good.len() + BLOCK) as f64);
        // Its finite block counts, the other does not.
        assert_eq!((parameters[0], parameters[BLOCK + 1]), (-1.0, -0.5));

        // Alone, too: nothing that is not finite enters the model.
        stepper.step(&mut parameters, &[one(&bad)], 2);
        assert_eq!(stepper.unusable(), [0]);
        assert!(parameters.iter().all(|value| value.is_finite()));
        stepper.step(&mut parameters, &[one(&good), one(&good)], 2);
        assert!(stepper.unusable().is_empty());
    }
}
