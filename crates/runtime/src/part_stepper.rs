//! Steps a vector of parameters, or a part of one: sums updates and applies the sum.

use std::ops::Range;

use paceline_store::{
    BLOCK, NextState, Optimizer, OptimizerKind, OptimizerStep, ShardNorms, Shards, aggregate_shard, continue_shard,
};

use crate::step_control::StepPlan;
use crate::step_threads::StepThreads;

/// An update and its weight in the sum.
pub type WeightedValues<'a> = (&'a [f32], f32);

/// A range of the vector, and the values of the updates there.
#[derive(Debug)]
pub struct StepPiece<'a> {
    /// The range. It begins at a multiple of [`BLOCK`].
    pub range: Range<usize>,
    /// The sum of the updates before these, in the range only, if there are any.
    pub begun: Option<&'a [f32]>,
    /// The updates, in the order of the sum: in the range only.
    pub updates: Vec<WeightedValues<'a>>,
}

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
        new: &mut [f32],
        updates: &[WeightedValues<'_>],
    ) -> ShardNorms {
        ShardNorms::concat(&self.attempt_pieces(plan, old, new, self.pieces(old.len(), None, updates)))
    }

    /// The same for some pieces of the vector, in their order. Returns the norms of each.
    ///
    /// # Panics
    /// If an update does not have the length of its piece, or a piece exceeds the parameters.
    pub fn attempt_pieces(
        &mut self,
        plan: &StepPlan,
        old: &[f32],
        mut new: &mut [f32],
        pieces: Vec<StepPiece<'_>>,
    ) -> Vec<ShardNorms> {
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
        let mut step = optimizer.begin(plan.rate, next).scaled(plan.scale).statistics(plan.statistics);
        if let Some(rates) = &plan.group_rates {
            step = step.group_rates(rates);
        }
        let (mut parts, mut end) = (Vec::with_capacity(pieces.len()), 0);
        for piece in pieces {
            let StepPiece { range, .. } = &piece;
            let mut own_step = step.split_off(range.start - end);
            step = own_step.split_off(range.len());
            let (own_new, after) = new[range.start - end..].split_at_mut(range.len());
            (new, end) = (after, range.end);
            parts.push(StepPart { old: &old[range.clone()], new: own_new, trainable, step: own_step, piece });
        }
        self.threads.map(parts, StepPart::run)
    }

    /// The norms of the updates, of this length, and of their sum, without a step.
    pub fn measure(&self, length: usize, updates: &[WeightedValues<'_>]) -> ShardNorms {
        ShardNorms::concat(&self.measure_pieces(self.pieces(length, None, updates)))
    }

    /// The same for some pieces of the vector. Returns the norms of each.
    pub fn measure_pieces(&self, pieces: Vec<StepPiece<'_>>) -> Vec<ShardNorms> {
        let trainable = self.optimizer.rules().trainable();
        let measure = |piece: StepPiece<'_>| {
            let mut sum = SumBlock::new(&piece, trainable);
            let blocks =
                (0..piece.range.len()).step_by(BLOCK).map(|start| start..(start + BLOCK).min(piece.range.len()));
            ShardNorms::concat(&blocks.map(|block| sum.add_up(block).1).collect::<Vec<_>>())
        };
        self.threads.map(pieces, measure)
    }

    /// Writes the sum of the updates into `sum`, or adds them to what `is_begun` there. Returns the norms.
    pub(crate) fn add_up(&self, updates: &[WeightedValues<'_>], sum: &mut [f32], is_begun: bool) -> ShardNorms {
        let trainable = self.optimizer.rules().trainable();
        let (mut parts, mut left) = (Vec::new(), &mut *sum);
        for StepPiece { range, updates, .. } in self.pieces(left.len(), None, updates) {
            let (own, after) = left.split_at_mut(range.len());
            left = after;
            parts.push((updates, trainable.saturating_sub(range.start).min(range.len()), own));
        }
        let add = if is_begun { continue_shard } else { aggregate_shard };
        ShardNorms::concat(&self.threads.map(parts, |(updates, trainable, own)| add(&updates, trainable, own)))
    }

    /// All of a vector of this length, in as many pieces as the threads want. `begun` is the sum of the updates before these.
    pub(crate) fn pieces<'a>(
        &self,
        length: usize,
        begun: Option<&'a [f32]>,
        updates: &[WeightedValues<'a>],
    ) -> Vec<StepPiece<'a>> {
        let ranges = Shards::new(length, self.threads.parts()).ranges().filter(|range| !range.is_empty());
        let of_range = |(values, weight): &WeightedValues<'a>, range: &Range<usize>| (&values[range.clone()], *weight);
        ranges
            .map(|range| StepPiece {
                begun: begun.map(|begun| &begun[range.clone()]),
                updates: updates.iter().map(|one| of_range(one, &range)).collect(),
                range,
            })
            .collect()
    }

    /// The last attempt, made by this plan, counts.
    pub fn accept(&mut self, plan: &StepPlan) {
        if plan.uses_optimizer {
            self.optimizer.accept(&mut self.next_state);
        }
    }
}

/// The sum of the updates in one block.
struct SumBlock<'a> {
    piece: &'a StepPiece<'a>,
    /// How many values of the piece are trainable. They have norms.
    trainable: usize,
    sum: Vec<f32>,
    sources: Vec<WeightedValues<'a>>,
}

impl<'a> SumBlock<'a> {
    /// For blocks of a piece of a vector with this many trainable values.
    fn new(piece: &'a StepPiece<'a>, trainable: usize) -> Self {
        let trainable = trainable.saturating_sub(piece.range.start);
        let sum = vec![0.0; BLOCK.min(piece.range.len())];
        SumBlock { piece, trainable, sum, sources: Vec::with_capacity(piece.updates.len()) }
    }

    /// The sum in a block, which counts from the start of the piece, and its norms.
    fn add_up(&mut self, block: Range<usize>) -> (&[f32], ShardNorms) {
        let trainable = self.trainable.saturating_sub(block.start).min(block.len());
        let sum = &mut self.sum[..block.len()];
        self.sources.clear();
        self.sources.extend(self.piece.updates.iter().map(|(values, weight)| (&values[block.clone()], *weight)));
        let norms = match self.piece.begun {
            Some(begun) => {
                sum.copy_from_slice(&begun[block]);
                continue_shard(&self.sources, trainable, sum)
            }
            None => aggregate_shard(&self.sources, trainable, sum),
        };
        (sum, norms)
    }
}

/// The step of one piece.
struct StepPart<'a> {
    old: &'a [f32],
    new: &'a mut [f32],
    /// How many values of the whole vector are trainable.
    trainable: usize,
    step: OptimizerStep<'a>,
    piece: StepPiece<'a>,
}

impl StepPart<'_> {
    fn run(self) -> ShardNorms {
        let StepPart { old, new, trainable, mut step, piece } = self;
        let mut sum = SumBlock::new(&piece, trainable);
        let mut norms = Vec::with_capacity(old.len().div_ceil(BLOCK));
        for (block, (old, new)) in old.chunks(BLOCK).zip(new.chunks_mut(BLOCK)).enumerate() {
            let start = block * BLOCK;
            let (sum, block_norms) = sum.add_up(start..start + old.len());
            norms.push(block_norms);
            let after = step.split_off(old.len());
            step.apply(old, sum, new);
            step = after;
        }
        ShardNorms::concat(&norms)
    }
}
