//! Stepping the model: what a commit does to the parameters.

use std::convert::Infallible;

use paceline_core::{Commit, CommitOutcome, CommitStep, OuterOptimizer, SchemeSpec, Share, TaskId, Version, WorkerId};
use paceline_store::{Layout, Norms, Optimizer, OptimizerKind, OptimizerSpec, ShardNorms};

use crate::early_sum::EarlySum;
use crate::part_stepper::{PartStepper, StepPiece, WeightedValues};
use crate::rate_control::{RateSpec, RateState};
use crate::step_control::{StepControl, StepPlan, StepValues, Summands, UpdateInfo};
use crate::step_threads::StepThreads;
use crate::summed_workers::SummedWorkers;

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

impl<'a> Contribution<'a> {
    fn info(&self) -> UpdateInfo<'a> {
        let Contribution { task, weight, loss, rates, .. } = *self;
        UpdateInfo { task, weight, loss, rates }
    }
}

/// Steps a model whose parameters are stored elsewhere, but in this process.
#[derive(Debug)]
pub struct Stepper {
    control: StepControl,
    part: PartStepper,
    summed: SummedWorkers<WorkerId>,
    early: EarlySum,
}

impl Stepper {
    /// A stepper of models with this layout, on one thread.
    pub fn new(layout: &Layout, optimizer: OptimizerSpec, rate: RateSpec) -> Self {
        Stepper::resumed(Optimizer::new(optimizer, layout), rate, RateState::default())
    }

    /// A stepper that continues with an optimizer and a learning rate in this state.
    pub fn resumed(optimizer: Optimizer, rate: RateSpec, state: RateState) -> Self {
        let control = StepControl::new(optimizer.spec().groups.len(), rate, state);
        let part = PartStepper::new(optimizer, StepThreads::new(1));
        Stepper { control, part, summed: SummedWorkers::default(), early: EarlySum::default() }
    }

    /// The same stepper on these threads. Their number does not change the result, bit for bit.
    pub fn threads(mut self, threads: StepThreads) -> Self {
        self.part.set_threads(threads);
        self
    }

    /// For a step of this many gradients: leaves the processors alone that have other work, as many as `busy` says.
    pub fn spare_processors(&mut self, gradients: usize, busy: impl FnOnce() -> usize) {
        self.part.spare_processors(gradients, busy);
    }

    /// The same stepper, which scales sums of gradients down to this norm. That takes another look at every gradient.
    pub fn clipping(self, norm: Option<f32>) -> Self {
        Stepper { control: self.control.clipping(norm), ..self }
    }

    /// The optimizer with its state.
    pub fn optimizer(&self) -> &Optimizer {
        self.part.optimizer()
    }

    /// What the learning rate depends on.
    pub fn rate_state(&self) -> RateState {
        self.control.rate_state()
    }

    /// Sums the contributions, in the order given, and writes into `new` what a commit makes of the parameters `old`: see
    /// [`StepControl::commit`]. For [`Compensated`](CommitStep::Compensated), gradients are [corrected](compensate) already.
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
        let updates: Vec<UpdateInfo<'_>> = contributions.iter().map(Contribution::info).collect();
        let foresees = !matches!(commit.step, CommitStep::Compensated { .. });
        let Stepper { part, summed, early, .. } = self;
        let mut values = LocalValues { part, summed, early, foresees, old, new, contributions };
        let Ok(outcome) = self.control.commit(commit, &updates, workers, &mut values);
        self.early.clear();
        outcome
    }

    /// Adds up the first updates of the next step, as far as they are there and more are awaited: `arrived` has the update
    /// of a worker. It does so if the next step can be foreseen; if it turns out to be another one, only work is lost.
    pub fn add_up_early<'a>(&mut self, arrived: impl Fn(WorkerId) -> Option<(TaskId, &'a [f32])>) {
        let Some((_, members)) = self.summed.expected().and_then(<[_]>::split_last) else { return };
        let next = members.iter().skip(self.early.len());
        let next = next.map_while(|&(worker, weight)| arrived(worker).map(|(task, values)| (task, (values, weight))));
        self.early.extend(&self.part, &next.collect::<Vec<_>>());
    }

    /// The learning rate of a worker's local iterations on the newest version.
    pub fn local_rate(&self) -> f32 {
        self.control.local_rate()
    }
}

/// The values of a commit in this process.
struct LocalValues<'a> {
    part: &'a mut PartStepper,
    summed: &'a mut SummedWorkers<WorkerId>,
    early: &'a EarlySum,
    /// Whether such a step can be foreseen.
    foresees: bool,
    old: &'a [f32],
    new: &'a mut [f32],
    contributions: &'a [Contribution<'a>],
}

impl<'a> LocalValues<'a> {
    /// Has the sum of these updates made, in pieces. It goes on from the early sum if it begins with the same.
    fn sum(
        &mut self,
        summands: &Summands,
        make: impl FnOnce(&mut Self, Vec<StepPiece<'a>>) -> Vec<ShardNorms>,
    ) -> Norms {
        let contribution = |&(position, weight): &(usize, f32)| (&self.contributions[position], weight);
        let begun = self.early.of(summands.iter().map(contribution).map(|(one, weight)| (one.task, weight)));
        let left = summands[begun.map_or(0, |_| self.early.len())..].iter().map(contribution);
        let left: Vec<WeightedValues<'a>> = left.map(|(one, weight)| (one.gradient, weight)).collect();
        let pieces = self.part.pieces(self.old.len(), begun, &left);
        let norms = ShardNorms::concat(&make(self, pieces));
        Norms::join(&[if begun.is_some() { self.early.complete(&norms) } else { norms }])
    }
}

impl StepValues for LocalValues<'_> {
    type Error = Infallible;

    fn measure(&mut self, updates: &Summands) -> Result<Norms, Infallible> {
        Ok(self.sum(updates, |values, pieces| values.part.measure_pieces(pieces)))
    }

    fn attempt(&mut self, plan: &StepPlan, updates: &Summands) -> Result<Norms, Infallible> {
        let member = |&(position, weight): &(usize, f32)| (self.contributions[position].task.worker, weight);
        self.summed.attempt(updates.iter().filter(|_| self.foresees).map(member).collect());
        Ok(self.sum(updates, |values, pieces| values.part.attempt_pieces(plan, values.old, values.new, pieces)))
    }

    fn accept(&mut self, plan: &StepPlan) -> Result<(), Infallible> {
        self.part.accept(plan);
        self.summed.accept();
        Ok(())
    }

    fn keep(&mut self) -> Result<(), Infallible> {
        self.new.copy_from_slice(self.old);
        Ok(())
    }
}

/// The optimizer that the server of a run of this many workers steps with: the scheme's outer one if it has one. The workers' local iterations
/// use `optimizer` then.
pub fn server_optimizer(scheme: &SchemeSpec, workers: usize, optimizer: &OptimizerSpec) -> OptimizerSpec {
    let decay = 0.0;
    match scheme.outer_optimizer(workers) {
        None => optimizer.clone(),
        Some(OuterOptimizer::Nesterov { momentum }) => OptimizerKind::Nesterov { momentum, decay }.into(),
        Some(OuterOptimizer::DelayedNesterov { momentum, delay }) => {
            OptimizerKind::DelayedNesterov { momentum, delay, decay }.into()
        }
    }
}

/// Corrects a gradient computed at the parameters `then` for a model that is now at `now`: DC-ASGD (10).
pub fn compensate(gradient: &mut [f32], lambda: f32, now: &[f32], then: &[f32]) {
    for ((g, now), then) in gradient.iter_mut().zip(now).zip(then) {
        *g += lambda * *g * *g * (now - then);
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
    use paceline_store::{BLOCK, aggregate};

    fn task(worker: u32) -> TaskId {
        TaskId { worker: WorkerId(worker), number: 0 }
    }

    fn commit(step: CommitStep) -> Commit {
        Commit { version: Version(1), updates: Default::default(), step, rate_factor: 1.0 }
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
            stepper.commit(&commit(CommitStep::Average { rate, share: 1.0 }), &[2.0, 2.0], &mut new, &contributions, 2);
            assert_eq!(new, expected);
        }
        assert_eq!(stepper.optimizer().steps(), 0);
    }

    /// DiLoCo's outer step as `torch.optim.SGD(nesterov=True)` documents it, in double precision, on a mean of differences.
    #[test]
    fn the_outer_optimizer_steps_by_the_mean_difference_with_momentum() {
        let layout = Layout::new([("weight", vec![2])], [("mean", vec![1])]);
        let scheme: SchemeSpec = "local-sgd:tau=4,outer=nesterov,momentum=0.8,rate=0.7".parse().unwrap();
        let spec = server_optimizer(&scheme, 2, &"adam".parse().unwrap());
        let mut stepper = Stepper::new(&layout, spec, RateSpec::constant(0.1)).clipping(Some(1e-3));
        let (mut model, mut momentum, mut old) = ([1.0_f64, -2.0], [0.0_f64; 2], [1.0_f32, -2.0, 0.5]);
        for round in 0..5 {
            let shift = f64::from(round);
            let differences =
                [[0.25 + shift, -0.5, 0.125], [0.75, 0.5 * shift, 0.125]].map(|one| one.map(|x| x as f32));
            let contributions = [0, 1].map(|worker: usize| Contribution {
                task: task(worker as u32),
                gradient: &differences[worker],
                weight: 0.5,
                loss: 1.0,
                rates: &[],
            });
            let mut new = [0.0; 3];
            stepper.commit(&commit(CommitStep::Outer { rate: 0.7, share: 1.0 }), &old, &mut new, &contributions, 2);
            for index in 0..2 {
                let mean = 0.5 * (f64::from(differences[0][index]) + f64::from(differences[1][index]));
                momentum[index] = 0.8 * momentum[index] + mean;
                model[index] -= 0.7 * (mean + 0.8 * momentum[index]);
                assert!((f64::from(new[index]) - model[index]).abs() < 1e-5, "{new:?} is not {model:?}");
            }
            assert_eq!(new[2], old[2] - 0.125, "statistics become the mean");
            old = new;
        }
        assert_eq!(stepper.optimizer().steps(), 5);
        assert_eq!(stepper.local_rate(), 0.1, "workers iterate at their own rate");
    }

    /// Five arrivals of three replicas: Liu et al.'s algorithm on whole differences, and plain averaging.
    #[test]
    fn differences_that_come_one_by_one_count_a_share_each() {
        let layout = Layout::new([("weight", vec![1])], [("mean", vec![1])]);
        let scheme: SchemeSpec = "async-local-sgd:tau=4,outer=delayed-nesterov,momentum=0.8".parse().unwrap();
        let spec = server_optimizer(&scheme, 3, &"adam".parse().unwrap());
        assert_eq!(spec.to_string(), "delayed-nesterov:0.8,delay=3");
        let given: SchemeSpec = "async-local-sgd:tau=4,outer=delayed-nesterov,delay=2".parse().unwrap();
        assert_eq!(server_optimizer(&given, 3, &spec).to_string(), "delayed-nesterov:0.9,delay=2");
        let average: SchemeSpec = "async-local-sgd:tau=4".parse().unwrap();
        assert_eq!(server_optimizer(&average, 3, &spec), spec, "of the local iterations");

        let (rate, share) = (0.7, 1.0 / 3.0);
        for (step, beta) in [(CommitStep::Outer { rate, share }, 0.8), (CommitStep::Average { rate, share }, 0.0)] {
            let mut stepper = Stepper::new(&layout, spec.clone(), RateSpec::constant(0.1));
            let (mut model, mut statistic, mut momentum, mut sum) = (1.0_f64, 0.5_f64, 0.0, 0.0);
            let mut old = [1.0_f32, 0.5];
            for arrival in 1..=5 {
                let difference = [0.25 * arrival as f32, 0.5];
                let (mut new, gradient) = ([0.0; 2], &difference[..]);
                let one = Contribution { task: task(0), gradient, weight: 1.0, loss: 1.0, rates: &[] };
                stepper.commit(&commit(step), &old, &mut new, &[one], 3);
                sum += f64::from(difference[0]);
                model -= 0.7 * f64::from(difference[0]) / 3.0;
                if arrival == 3 {
                    momentum = beta * momentum + sum / 3.0;
                    model -= 0.7 * beta * momentum;
                }
                statistic -= 0.5 / 3.0;
                assert!((f64::from(new[0]) - model).abs() < 1e-6, "{new:?}, expected {model}");
                assert!((f64::from(new[1]) - statistic).abs() < 1e-6, "{new:?}, expected {statistic}");
                old = new;
            }
        }
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
            ("adam", CommitStep::Average { rate: 0.5, share: 1.0 }),
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
    fn sums_that_begin_early_give_the_same_bits() {
        let layout = Layout::new([("w", vec![3 * BLOCK + 5])], [("mean", vec![9])]);
        let broken = [(1, BLOCK, f32::NAN)];
        let (good, bad) = (gradients(layout.len(), 4, &[]), gradients(layout.len(), 4, &broken));
        let last_bad = gradients(layout.len(), 4, &[(3, 2 * BLOCK, f32::NAN)]);
        let task = |worker: usize, number| TaskId { worker: WorkerId(worker as u32), number };
        for (clip, threads) in [(None, 1), (Some(0.1), 1), (None, 2), (Some(0.1), 3)] {
            let rate = RateSpec::constant(0.1);
            let stepper = || {
                let stepper = Stepper::new(&layout, "momentum".parse().unwrap(), rate).clipping(clip);
                stepper.threads(StepThreads::new(threads))
            };
            let (mut early, mut plain) = (stepper(), stepper());
            let mut old = vec![0.5; layout.len()];
            let (mut new, mut expected) = (old.clone(), old.clone());
            for number in 0..14 {
                // One step has other weights than were foreseen, one an update of another task, and two a broken one.
                let weights = if number == 4 { [0.4, 0.2, 0.2, 0.2] } else { [0.25; 4] };
                let other = |worker: usize| if number == 8 && worker == 0 { 99 } else { number };
                let gradients = match number {
                    9 => &bad,
                    12 => &last_bad,
                    _ => &good,
                };
                let one = |worker: usize| Contribution {
                    task: task(worker, number),
                    gradient: &gradients[worker],
                    weight: weights[worker],
                    loss: 1.0,
                    rates: &[],
                };
                let all = [0, 1, 2, 3].map(one);
                // They arrive one by one, in another order.
                for there in [vec![2], vec![0, 2], vec![0, 1, 2], vec![0, 1, 2, 3]] {
                    early.add_up_early(|WorkerId(worker)| {
                        let worker = worker as usize;
                        there.contains(&worker).then(|| (task(worker, other(worker)), &gradients[worker][..]))
                    });
                }
                let is_foreseen = [2, 3, 4, 7, 8, 9, 12].contains(&number);
                assert_eq!(early.early.len(), if is_foreseen { 3 } else { 0 }, "step {number}");
                let outcome = early.commit(&commit(OPTIMIZER), &old, &mut new, &all, 4);
                assert_eq!(outcome, plain.commit(&commit(OPTIMIZER), &old, &mut expected, &all, 4), "step {number}");
                assert_eq!((&new, early.optimizer()), (&expected, plain.optimizer()), "step {number}");
                std::mem::swap(&mut old, &mut new);
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
