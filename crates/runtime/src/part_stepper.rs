//! Steps a vector of parameters, or a part of one: sums updates and applies the sum.

use std::ops::Range;

use paceline_store::{BLOCK, NextState, Optimizer, OptimizerKind, OptimizerStep, ShardNorms, Shards, aggregate_shard};

use crate::step_control::StepPlan;
use crate::step_threads::StepThreads;

/// An update and its weight in the sum.
pub type WeightedValues<'a> = (&'a [f32], f32);

/// Steps parameters that are stored elsewhere.
///
/// Summing and stepping happen block by block, so that the sum of a block is applied while it is still in the processor's
/// cache. The next version is written out of place, so a step that turns out to hold a broken update is made again
/// without it. A part is cut at blocks, and gives the bits of the whole.
#[derive(Debug)]
pub struct PartStepper {
    optimizer: Optimizer,
    next_state: NextState,
    threads: StepThreads,
}

impl PartStepper {
    /// A stepper with an optimizer in this state.
    pub fn new(optimizer: Optimizer, threads: StepThreads) -> Self {
        PartStepper { optimizer, next_state: NextState::default(), threads }
    }

    /// The optimizer with its state.
    pub fn optimizer(&self) -> &Optimizer {
        &self.optimizer
    }

    pub(crate) fn set_threads(&mut self, threads: StepThreads) {
        self.threads = threads;
    }

    /// For a step of this many gradients: leaves the processors alone that have other work, as many as `busy` says.
    pub fn spare_processors(&mut self, gradients: usize, busy: impl FnOnce() -> usize) {
        self.threads.spare(gradients, busy);
    }

    /// Sums the updates, in the order given, and writes into `new` what the plan makes of the parameters `old`.
    ///
    /// # Panics
    /// If an update or the parameters have another length.
    pub fn attempt(
        &mut self,
        plan: &StepPlan,
        old: &[f32],
        mut new: &mut [f32],
        updates: &[WeightedValues<'_>],
    ) -> ShardNorms {
        assert_eq!(old.len(), new.len(), "old and new parameters differ in length");
        let (plain, mut no_state);
        let trainable = self.optimizer.rules().trainable();
        let (optimizer, next) = if plan.uses_optimizer {
            (&self.optimizer, &mut self.next_state)
        } else {
            plain = Optimizer::plain(OptimizerKind::Sgd { decay: 0.0 }, trainable);
            no_state = NextState::default();
            (&plain, &mut no_state)
        };
        let mut step = optimizer.begin(plan.rate, next).scaled(plan.scale);
        if let Some(rates) = &plan.group_rates {
            step = step.group_rates(rates);
        }
        let mut parts = Vec::new();
        for range in ranges(old.len(), &self.threads) {
            let (front, rest) = new.split_at_mut(range.len());
            let after = step.split_off(range.len());
            parts.push(StepPart { start: range.start, old: &old[range], new: front, trainable, step, updates });
            (new, step) = (rest, after);
        }
        ShardNorms::concat(&self.threads.map(parts, StepPart::run).concat())
    }

    /// The norms of the updates, of this length, and of their sum, without a step.
    pub fn measure(&self, length: usize, updates: &[WeightedValues<'_>]) -> ShardNorms {
        let trainable = self.optimizer.rules().trainable();
        let measure = |range: Range<usize>| {
            let mut sum = SumBlock::new(updates, range.len());
            let blocks = range.clone().step_by(BLOCK).map(|start| start..(start + BLOCK).min(range.end));
            blocks.map(|block| sum.add_up(block, trainable).1).collect::<Vec<_>>()
        };
        ShardNorms::concat(&self.threads.map(ranges(length, &self.threads).collect(), measure).concat())
    }

    /// The last attempt, made by this plan, counts.
    pub fn accept(&mut self, plan: &StepPlan) {
        if plan.uses_optimizer {
            self.optimizer.accept(&mut self.next_state);
        }
    }
}

/// The ranges of the parts of a step.
fn ranges(length: usize, threads: &StepThreads) -> impl Iterator<Item = Range<usize>> {
    Shards::new(length, threads.parts()).ranges().filter(|range| !range.is_empty())
}

/// The sum of the updates in one block.
struct SumBlock<'a> {
    updates: &'a [WeightedValues<'a>],
    sum: Vec<f32>,
    sources: Vec<WeightedValues<'a>>,
}

impl<'a> SumBlock<'a> {
    /// For blocks of a range of this length.
    fn new(updates: &'a [WeightedValues<'a>], length: usize) -> Self {
        SumBlock { updates, sum: vec![0.0; BLOCK.min(length)], sources: Vec::with_capacity(updates.len()) }
    }

    /// The sum in the block, and its norms. The first `trainable` values of the whole vector have norms.
    fn add_up(&mut self, block: Range<usize>, trainable: usize) -> (&[f32], ShardNorms) {
        let trainable = trainable.saturating_sub(block.start).min(block.len());
        let sum = &mut self.sum[..block.len()];
        self.sources.clear();
        self.sources.extend(self.updates.iter().map(|(values, weight)| (&values[block.clone()], *weight)));
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
    updates: &'a [WeightedValues<'a>],
}

impl StepPart<'_> {
    fn run(self) -> Vec<ShardNorms> {
        let StepPart { mut start, old, new, trainable, mut step, updates } = self;
        let mut sum = SumBlock::new(updates, old.len());
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
