//! Stepping the model: what a commit does to the parameters.

use std::ops::Range;

use paceline_core::{Aggregate, Commit, CommitOutcome, CommitStep, Share, TaskId, UpdateNorm, Version, WorkerId};
use paceline_store::{
    BLOCK, Layout, NextState, Norms, Optimizer, OptimizerKind, OptimizerSpec, OptimizerStep, ShardNorms, Shards,
    aggregate_shard,
};

use crate::rate_control::{RateControl, RateSpec, RateState};
use crate::step_threads::StepThreads;

/// One update's part in a commit: its gradient, weight and mean training loss.
#[derive(Debug, Clone, Copy)]
pub struct Contribution<'a> {
    /// The update.
    pub task: TaskId,
    /// The gradient, as long as the layout.
    pub gradient: &'a [f32],
    /// Its weight in the sum.
    pub weight: f32,
    /// The mean loss of its samples.
    pub loss: f64,
    /// The learning rates that its worker asks for: of the tensors outside all parameter groups, then of every group.
    /// Empty if the schedule is the stepper's.
    pub rates: &'a [f64],
}

/// Steps a model whose parameters are stored elsewhere: sums gradients and applies the sum.
///
/// Both happen block by block, so that the sum of a block is applied while it is still in the processor's cache. The
/// next version is written out of place, so a step that turns out to hold a broken contribution is made again without
/// it.
#[derive(Debug)]
pub struct Stepper {
    trainable: usize,
    optimizer: Optimizer,
    next_state: NextState,
    rate: RateControl,
    /// The largest norm of a sum of gradients.
    clip: Option<f32>,
    threads: StepThreads,
}

impl Stepper {
    /// A stepper of models with this layout, on one thread.
    pub fn new(layout: &Layout, optimizer: OptimizerSpec, rate: RateSpec) -> Self {
        let optimizer = Optimizer::new(optimizer, layout);
        Stepper::resumed(layout, optimizer, rate, RateState::default())
    }

    /// A stepper that continues with an optimizer and a learning rate in this state.
    pub fn resumed(layout: &Layout, optimizer: Optimizer, rate: RateSpec, state: RateState) -> Self {
        let (trainable, rate) = (layout.trainable(), RateControl::new(rate, state));
        let (next_state, threads) = (NextState::default(), StepThreads::new(1));
        Stepper { trainable, optimizer, next_state, rate, clip: None, threads }
    }

    /// The same stepper on these threads. Their number does not change the result, bit for bit.
    pub fn threads(self, threads: StepThreads) -> Self {
        Stepper { threads, ..self }
    }

    /// For a step of this many gradients: leaves the processors alone that have other work, as many as `busy` says.
    pub fn spare_processors(&mut self, gradients: usize, busy: impl FnOnce() -> usize) {
        self.threads.spare(gradients, busy);
    }

    /// The same stepper, which scales sums of gradients down to this norm. That takes another look at every gradient.
    pub fn clipping(self, norm: Option<f32>) -> Self {
        Stepper { clip: norm, ..self }
    }

    /// The optimizer with its state.
    pub fn optimizer(&self) -> &Optimizer {
        &self.optimizer
    }

    /// What the learning rate depends on.
    pub fn rate_state(&self) -> RateState {
        self.rate.state()
    }

    /// Sums the contributions, in the order given, and writes into `new` what a commit makes of the parameters `old`.
    /// `workers` is the number of workers. For [`Compensated`](CommitStep::Compensated), gradients are
    /// [corrected](compensate) already.
    ///
    /// A contribution is broken if a value, the sum of squares or the loss is not finite. It is left out whole, and the
    /// weights of the others are raised to the same sum. If all are broken, `new` equals `old`.
    ///
    /// # Panics
    /// If a contribution or the parameters are not as long as the layout, or the layout is empty.
    pub fn commit(
        &mut self,
        commit: &Commit,
        old: &[f32],
        new: &mut [f32],
        contributions: &[Contribution<'_>],
        workers: usize,
    ) -> CommitOutcome {
        let is_good = |&index: &usize| contributions[index].loss.is_finite();
        let mut good: Vec<usize> = (0..contributions.len()).filter(is_good).collect();
        let aggregate = loop {
            if good.is_empty() {
                new.copy_from_slice(old);
                break None;
            }
            match self.attempt(commit, old, new, &select(contributions, &good), workers) {
                Ok(aggregate) => break Some(aggregate),
                Err(broken) => broken.iter().rev().for_each(|&position| _ = good.remove(position)),
            }
        };
        match (&aggregate, commit.step) {
            (Some(aggregate), CommitStep::Optimizer | CommitStep::Compensated { .. }) => {
                self.rate.on_step(good.len(), workers, aggregate);
            }
            _ => self.rate.on_other_version(),
        }
        let is_broken = |index: &usize| good.binary_search(index).is_err();
        let broken = (0..contributions.len()).filter(is_broken).map(|index| contributions[index].task).collect();
        CommitOutcome { aggregate, broken }
    }

    /// Makes the step, unless some contributions are broken: then their positions are returned, and only `new` has
    /// changed.
    fn attempt(
        &mut self,
        commit: &Commit,
        old: &[f32],
        new: &mut [f32],
        contributions: &[Contribution<'_>],
        workers: usize,
    ) -> Result<Aggregate, Vec<usize>> {
        let (mut plain, mut no_state);
        let mut scale = 1.0;
        let mut asked = None;
        let (optimizer, next, scheduled_rate, rate) = match commit.step {
            CommitStep::Optimizer | CommitStep::Compensated { .. } => {
                if let Some(limit) = self.clip {
                    let norms = measure(self.trainable, old.len(), contributions, &self.threads);
                    scale = (f64::from(limit) / norms.mean.sqrt()).min(1.0) as f32;
                }
                let k = contributions.len();
                let (mut scheduled, mut rate) =
                    (self.rate.scheduled(), self.rate.of_step(k, workers, commit.rate_factor));
                if let Some(rates) = asked_rates(contributions, self.optimizer.spec().groups.len() + 1) {
                    let factor = self.rate.factor_of_step(k, workers, commit.rate_factor);
                    (scheduled, rate) = (rates[0] as f32, (rates[0] * factor) as f32);
                    asked = Some(rates.into_iter().map(|rate| rate * factor).collect::<Vec<f64>>());
                }
                (&mut self.optimizer, &mut self.next_state, scheduled, rate)
            }
            // The model moves against the sum of the differences by the share `rate` (ESync (8)), statistics all the
            // way. Plain SGD does that.
            CommitStep::Average { rate } => {
                plain = Optimizer::plain(OptimizerKind::Sgd { decay: 0.0 }, self.trainable);
                no_state = NextState::default();
                (&mut plain, &mut no_state, rate, rate * commit.rate_factor)
            }
        };
        let mut step = optimizer.begin(f64::from(rate), next).scaled(scale);
        if let Some(rates) = &asked {
            step = step.group_rates(rates);
        }
        let norms = apply(step, self.trainable, old, new, contributions, &self.threads);
        if !norms.broken.is_empty() {
            return Err(norms.broken);
        }
        optimizer.accept(next);
        let with_norms = || contributions.iter().zip(&norms.sources);
        Ok(Aggregate {
            loss: contributions.iter().map(|one| f64::from(one.weight) * one.loss).sum(),
            rate: f64::from(rate),
            scheduled_rate: f64::from(scheduled_rate),
            mean_square: with_norms().map(|(one, square)| f64::from(one.weight) * square).sum(),
            square_of_mean: norms.mean,
            norms: with_norms().map(|(one, &square)| UpdateNorm { task: one.task, square }).collect(),
        })
    }

    /// The learning rate of a worker's local iterations on the newest version.
    pub fn local_rate(&self) -> f32 {
        self.rate.scheduled()
    }
}

/// Corrects a gradient computed at the parameters `then` for a model that is now at `now`: DC-ASGD (10).
pub fn compensate(gradient: &mut [f32], lambda: f32, now: &[f32], then: &[f32]) {
    for ((g, now), then) in gradient.iter_mut().zip(now).zip(then) {
        *g += lambda * *g * *g * (now - then);
    }
}

/// The weighted means of the learning rates that the contributions ask for, if they ask for `count` valid ones each.
fn asked_rates(contributions: &[Contribution<'_>], count: usize) -> Option<Vec<f64>> {
    let is_valid = |one: &Contribution<'_>| {
        one.rates.len() == count && one.rates.iter().all(|rate| rate.is_finite() && *rate >= 0.0)
    };
    if !contributions.iter().all(is_valid) {
        return None;
    }
    let sum: f64 = contributions.iter().map(|one| f64::from(one.weight)).sum();
    let mean = |group: usize| contributions.iter().map(|one| f64::from(one.weight) / sum * one.rates[group]).sum();
    Some((0..count).map(mean).collect())
}

/// The contributions at the positions `good`, their weights raised to the sum of all.
fn select<'a>(contributions: &[Contribution<'a>], good: &[usize]) -> Vec<Contribution<'a>> {
    if good.len() == contributions.len() {
        return contributions.to_vec();
    }
    let sum = |contributions: &mut dyn Iterator<Item = &Contribution<'_>>| -> f64 {
        contributions.map(|one| f64::from(one.weight)).sum()
    };
    let factor = sum(&mut contributions.iter()) / sum(&mut good.iter().map(|&index| &contributions[index]));
    let scaled = |&index: &usize| {
        let one = contributions[index];
        Contribution { weight: (f64::from(one.weight) * factor) as f32, ..one }
    };
    good.iter().map(scaled).collect()
}

/// Sums the contributions and applies the optimizer's step to `old`, on several threads.
fn apply(
    mut step: OptimizerStep<'_>,
    trainable: usize,
    old: &[f32],
    mut new: &mut [f32],
    contributions: &[Contribution<'_>],
    threads: &StepThreads,
) -> Norms {
    assert_eq!(old.len(), new.len(), "old and new parameters differ in length");
    let mut parts = Vec::new();
    for range in ranges(old.len(), threads) {
        let (front, rest) = new.split_at_mut(range.len());
        let after = step.split_off(range.len());
        parts.push(StepPart { start: range.start, old: &old[range], new: front, trainable, step, contributions });
        (new, step) = (rest, after);
    }
    Norms::join(&threads.map(parts, StepPart::run).concat())
}

/// The norms of the contributions and of their sum, without a step.
fn measure(trainable: usize, length: usize, contributions: &[Contribution<'_>], threads: &StepThreads) -> Norms {
    let measure = |range: Range<usize>| {
        let mut sum = SumBlock::new(contributions, range.len());
        let blocks = range.clone().step_by(BLOCK).map(|start| start..(start + BLOCK).min(range.end));
        blocks.map(|block| sum.add_up(block, trainable).1).collect::<Vec<_>>()
    };
    Norms::join(&threads.map(ranges(length, threads).collect(), measure).concat())
}

/// The ranges of the parts of a step.
fn ranges(length: usize, threads: &StepThreads) -> impl Iterator<Item = Range<usize>> {
    Shards::new(length, threads.parts()).ranges().filter(|range| !range.is_empty())
}

/// The sum of the contributions in one block.
struct SumBlock<'a> {
    contributions: &'a [Contribution<'a>],
    sum: Vec<f32>,
    sources: Vec<(&'a [f32], f32)>,
}

impl<'a> SumBlock<'a> {
    /// For blocks of a range of this length.
    fn new(contributions: &'a [Contribution<'a>], length: usize) -> Self {
        SumBlock { contributions, sum: vec![0.0; BLOCK.min(length)], sources: Vec::with_capacity(contributions.len()) }
    }

    /// The sum in the block, and its norms. The first `trainable` values of the whole vector have norms.
    fn add_up(&mut self, block: Range<usize>, trainable: usize) -> (&[f32], ShardNorms) {
        let trainable = trainable.saturating_sub(block.start).min(block.len());
        let sum = &mut self.sum[..block.len()];
        self.sources.clear();
        self.sources.extend(self.contributions.iter().map(|one| (&one.gradient[block.clone()], one.weight)));
        let norms = aggregate_shard(&self.sources, trainable, sum);
        (sum, norms)
    }
}

/// One part of a step.
struct StepPart<'a> {
    /// Where it starts in the vector.
    start: usize,
    old: &'a [f32],
    new: &'a mut [f32],
    /// How many values of the whole vector are trainable.
    trainable: usize,
    step: OptimizerStep<'a>,
    contributions: &'a [Contribution<'a>],
}

impl StepPart<'_> {
    fn run(self) -> Vec<ShardNorms> {
        let StepPart { mut start, old, new, trainable, mut step, contributions } = self;
        let mut sum = SumBlock::new(contributions, old.len());
        let mut norms = Vec::with_capacity(old.len().div_ceil(BLOCK));
        for (old, new) in old.chunks(BLOCK).zip(new.chunks_mut(BLOCK)) {
            let (sum, block_norms) = sum.add_up(start..start + old.len(), trainable);
            norms.push(block_norms);
            let after = step.split_off(old.len());
            step.apply(old, sum, new);
            step = after;
            start += old.len();
        }
        norms
    }
}

/// The model under training.
#[derive(Debug)]
pub struct Trainer {
    parameters: Vec<f32>,
    /// Where the next version is written.
    next: Vec<f32>,
    stepper: Stepper,
}

impl Trainer {
    /// A model that starts from these parameters.
    pub fn new(parameters: Vec<f32>, stepper: Stepper) -> Self {
        Trainer { next: vec![0.0; parameters.len()], parameters, stepper }
    }

    /// The newest parameters.
    pub fn parameters(&self) -> &[f32] {
        &self.parameters
    }

    /// Sums the contributions, in the order given, and changes the model as a commit says: see [`Stepper::commit`].
    pub fn commit(&mut self, commit: &Commit, contributions: &[Contribution<'_>], workers: usize) -> CommitOutcome {
        let result = self.stepper.commit(commit, &self.parameters, &mut self.next, contributions, workers);
        std::mem::swap(&mut self.parameters, &mut self.next);
        result
    }

    /// Steps the model by one gradient with this loss.
    pub fn step(&mut self, gradient: &[f32], loss: f64) -> CommitOutcome {
        let task = TaskId { worker: WorkerId(0), number: 0 };
        let updates = [Share { task, weight: 1.0 }].into();
        let commit = Commit { version: Version(0), updates, step: CommitStep::Optimizer, rate_factor: 1.0 };
        self.commit(&commit, &[Contribution { task, gradient, weight: 1.0, loss, rates: &[] }], 1)
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

    fn task(worker: u32) -> TaskId {
        TaskId { worker: WorkerId(worker), number: 0 }
    }

    fn commit(step: CommitStep) -> Commit {
        Commit { version: Version(1), updates: [].into(), step, rate_factor: 1.0 }
    }

    const OPTIMIZER: CommitStep = CommitStep::Optimizer;

    #[test]
    fn blocks_and_threads_give_the_bits_of_the_whole() {
        let (trainable, statistics) = (2 * BLOCK + 100, BLOCK);
        let layout = Layout::new([("weight", vec![trainable])], [("mean", vec![statistics])]);
        let gradients: Vec<Vec<f32>> =
            (0..5).map(|j| (0..layout.len()).map(|index| ((index * 7 + j * 13) as f32).sin()).collect()).collect();
        let one =
            |(worker, gradient)| Contribution { task: task(worker), gradient, weight: 0.2, loss: 1.5, rates: &[] };
        let contributions: Vec<Contribution<'_>> = (0..).zip(gradients.iter().map(Vec::as_slice)).map(one).collect();
        let sources: Vec<(&[f32], f32)> = gradients.iter().map(|gradient| (&gradient[..], 0.2)).collect();

        let mut sum = vec![0.0; layout.len()];
        let norms = aggregate(&sources, trainable, &mut sum);
        let mut expected = vec![1.0; layout.len()];
        let spec: OptimizerSpec = "adam".parse().unwrap();
        Optimizer::plain("adam".parse().unwrap(), trainable).step(&mut expected, &sum, 0.1);

        for threads in [0, 1, 2, 3, 9] {
            let (old, mut new) = (vec![1.0; layout.len()], vec![0.0; layout.len()]);
            let mut stepper =
                Stepper::new(&layout, spec.clone(), RateSpec::constant(0.1)).threads(StepThreads::new(threads));
            let result = stepper.commit(&commit(OPTIMIZER), &old, &mut new, &contributions, 5);
            assert_eq!(new, expected, "{threads} threads");
            let aggregate = result.aggregate.unwrap();
            assert_eq!(aggregate.square_of_mean, norms.mean);
            let squares: Vec<f64> = aggregate.norms.iter().map(|norm| norm.square).collect();
            assert_eq!(squares, norms.sources);
            let mean = squares.iter().sum::<f64>() / 5.0;
            assert!((aggregate.mean_square - mean).abs() < 1e-6 * mean);
            assert!((aggregate.loss - 1.5).abs() < 1e-6 && result.broken.is_empty());
        }
    }

    #[test]
    fn averaging_moves_parameters_by_the_rate_and_statistics_all_the_way() {
        let layout = Layout::new([("weight", vec![1])], [("mean", vec![1])]);
        let replicas = [[3.0, 8.0], [5.0, 4.0]];
        let differences = replicas.map(|replica: [f32; 2]| [2.0 - replica[0], 2.0 - replica[1]]);
        let contributions = differences.each_ref().map(|gradient| Contribution {
            task: task(0),
            gradient,
            weight: 0.5,
            loss: 1.0,
            rates: &[],
        });
        let spec: OptimizerSpec = "adam".parse().unwrap();
        let mut stepper = Stepper::new(&layout, spec, RateSpec::constant(0.1));
        for (rate, expected) in [(1.0, [4.0, 6.0]), (2.0, [6.0, 6.0])] {
            let mut new = [0.0; 2];
            stepper.commit(&commit(CommitStep::Average { rate }), &[2.0, 2.0], &mut new, &contributions, 2);
            assert_eq!(new, expected);
        }
        assert_eq!(stepper.optimizer().steps(), 0);
    }

    #[test]
    fn a_long_sum_is_scaled_to_the_limit_and_statistics_are_not() {
        let layout = Layout::new([("w", vec![BLOCK + 1])], [("mean", vec![1])]);
        // Two gradients whose mean has the norm 5: 3 at the start, 4 at the end of the trainable part.
        let mut gradients = vec![vec![0.0; layout.len()]; 2];
        for (gradient, factor) in gradients.iter_mut().zip([0.5, 1.5]) {
            (gradient[0], gradient[BLOCK], gradient[BLOCK + 1]) = (3.0 * factor, 4.0 * factor, 2.0);
        }
        let one = |worker: u32| Contribution {
            task: task(worker),
            gradient: &gradients[worker as usize],
            weight: 0.5,
            loss: 1.0,
            rates: &[],
        };
        for (limit, scale) in [(None, 1.0), (Some(10.0), 1.0), (Some(5.0), 1.0), (Some(2.5), 0.5)] {
            for threads in [1, 2] {
                let (spec, rate) = ("sgd".parse().unwrap(), RateSpec::constant(0.1));
                let mut stepper = Stepper::new(&layout, spec, rate).clipping(limit).threads(StepThreads::new(threads));
                let (old, mut new) = (vec![1.0; layout.len()], vec![0.0; layout.len()]);
                let outcome = stepper.commit(&commit(OPTIMIZER), &old, &mut new, &[one(0), one(1)], 2);
                let expected = [1.0 - 0.1 * (3.0 * scale), 1.0 - 0.1 * (4.0 * scale), -1.0];
                assert_eq!([new[0], new[BLOCK], new[BLOCK + 1]], expected, "{limit:?}");
                assert_eq!(outcome.aggregate.unwrap().square_of_mean, 25.0, "statistics are of what was sent");
            }
        }
    }

    /// Gradients of a layout of several blocks; with one value of some replaced.
    fn gradients(length: usize, count: usize, bad: &[(usize, usize, f32)]) -> Vec<Vec<f32>> {
        let value = |source: usize, index: usize| ((index * 7 + source * 13) % 101) as f32 * 0.01 - 0.4;
        let mut gradients: Vec<Vec<f32>> =
            (0..count).map(|source| (0..length).map(|index| value(source, index)).collect()).collect();
        bad.iter().for_each(|&(source, index, value)| gradients[source][index] = value);
        gradients
    }

    #[test]
    fn broken_contributions_are_left_out_whole_and_the_others_weigh_more() {
        let layout = Layout::new([("w", vec![2 * BLOCK + 3])], [("mean", vec![7])]);
        let length = layout.len();
        // A value, one whose square overflows, a statistic and a loss are broken.
        let bad = [(1, BLOCK + 1, f32::NAN), (2, 5, 1e20), (5, length - 1, f32::INFINITY)];
        let gradients = gradients(length, 6, &bad);
        let weights = [0.1, 0.2, 0.2, 0.3, 0.1, 0.1];
        let losses = [1.0, 2.0, 3.0, 4.0, f64::NAN, 5.0];
        let one = |index: usize, weight| Contribution {
            task: task(index as u32),
            gradient: &gradients[index],
            weight,
            loss: losses[index],
            rates: &[],
        };
        let all: Vec<_> = (0..6).map(|index| one(index, weights[index])).collect();
        let total: f64 = weights.iter().map(|&weight| f64::from(weight)).sum();
        let rest = f64::from(weights[0]) + f64::from(weights[3]);
        let good = [0, 3].map(|index| one(index, (f64::from(weights[index]) * (total / rest)) as f32));

        let rate = RateSpec { rule: "proportional".parse().unwrap(), ..RateSpec::constant(0.1) };
        for (optimizer, step) in [
            ("sgd", CommitStep::Optimizer),
            ("momentum", CommitStep::Optimizer),
            ("adam", CommitStep::Optimizer),
            ("adam", CommitStep::Average { rate: 0.5 }),
        ] {
            for threads in [1, 2, 3] {
                let stepper =
                    || Stepper::new(&layout, optimizer.parse().unwrap(), rate).threads(StepThreads::new(threads));
                let (mut stepper, mut expected) = (stepper(), stepper());
                let (mut old, mut new, mut other) = (vec![0.5; length], vec![0.0; length], vec![0.0; length]);
                for _ in 0..3 {
                    let result = stepper.commit(&commit(step), &old, &mut new, &all, 6);
                    assert_eq!(result.broken, [1, 2, 4, 5].map(task));
                    let without = expected.commit(&commit(step), &old, &mut other, &good, 6);
                    assert_eq!(result.aggregate, without.aggregate);
                    assert_eq!((&new, stepper.optimizer()), (&other, expected.optimizer()), "{optimizer}");
                    std::mem::swap(&mut old, &mut new);
                }
            }
        }
    }

    #[test]
    fn a_commit_of_broken_contributions_changes_nothing_but_the_version() {
        let layout = Layout::new([("w", vec![BLOCK + 3])], []);
        let bad = gradients(layout.len(), 2, &[(0, 0, f32::NAN), (1, BLOCK, f32::INFINITY)]);
        let one = |worker, gradient| Contribution { task: task(worker), gradient, weight: 0.5, loss: 1.0, rates: &[] };
        let rate = RateSpec { schedule: "cosine:10".parse().unwrap(), ..RateSpec::constant(1.0) };
        let mut stepper = Stepper::new(&layout, "momentum:0.9".parse().unwrap(), rate).threads(StepThreads::new(2));
        let (old, mut new) = (vec![0.25; layout.len()], vec![0.0; layout.len()]);
        let before = (stepper.optimizer().clone(), stepper.local_rate());
        let all = [one(0, &bad[0]), one(1, &bad[1])];
        let result = stepper.commit(&commit(OPTIMIZER), &old, &mut new, &all, 2);
        assert_eq!(result, CommitOutcome { aggregate: None, broken: vec![task(0), task(1)] });
        assert_eq!((&new, stepper.optimizer()), (&old, &before.0));
        assert!(stepper.local_rate() < before.1, "the schedule follows the version");
    }
}
