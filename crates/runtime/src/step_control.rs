//! What a commit does to the model, decided without touching a value: the rates, the scale, and which updates count.

use paceline_core::{Aggregate, Commit, CommitOutcome, CommitStep, TaskId, UpdateNorm};
use paceline_store::Norms;
use serde::{Deserialize, Serialize};

use crate::rate_control::{RateControl, RateSpec, RateState};

/// What a report says about an update of a commit, beside its values.
#[derive(Debug, Clone, Copy)]
pub struct UpdateInfo<'a> {
    /// The update.
    pub task: TaskId,
    /// Its weight in the sum.
    pub weight: f32,
    /// The mean loss of its samples.
    pub loss: f64,
    /// The learning rates that its worker asks for: of the tensors outside all parameter groups, then of every group.
    /// Empty if the schedule is the server's.
    pub rates: &'a [f64],
}

/// How the values are stepped by a sum of updates. The same for every part of the vector.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepPlan {
    /// Whether the optimizer steps. Else the model moves against the sum as with plain SGD.
    pub uses_optimizer: bool,
    /// The learning rate.
    pub rate: f64,
    /// The rates of the groups, in place of `rate` times their factors.
    pub group_rates: Option<Vec<f64>>,
    /// The sum is multiplied by it, except for statistics.
    pub scale: f32,
    /// The sum of statistics is multiplied by it.
    pub statistics: f32,
}

/// The updates that are summed, in order: the position of each in the commit, and its weight.
pub type Summands = [(usize, f32)];

/// Who has the values of the model and of the updates of a commit.
pub trait StepValues {
    /// Why the values could not be stepped.
    type Error;

    /// The norms of the updates and of their sum.
    ///
    /// # Errors
    /// If the values can't be reached.
    fn measure(&mut self, updates: &Summands) -> Result<Norms, Self::Error>;

    /// Sums the updates and writes the next version beside the present one. Returns the norms.
    ///
    /// # Errors
    /// If the values can't be reached.
    fn attempt(&mut self, plan: &StepPlan, updates: &Summands) -> Result<Norms, Self::Error>;

    /// What the last attempt has written is the next version.
    ///
    /// # Errors
    /// If the values can't be reached.
    fn accept(&mut self, plan: &StepPlan) -> Result<(), Self::Error>;

    /// The next version has the values of the present one.
    ///
    /// # Errors
    /// If the values can't be reached.
    fn keep(&mut self) -> Result<(), Self::Error>;

    /// How the next step will be made if it is as the last, for those who can begin before they are asked.
    ///
    /// # Errors
    /// If the values can't be reached.
    fn forecast(&mut self, _plan: &StepPlan) -> Result<(), Self::Error> {
        Ok(())
    }
}

/// Decides the steps of a run.
#[derive(Debug)]
pub struct StepControl {
    rate: RateControl,
    /// The largest norm of a sum of gradients.
    clip: Option<f32>,
    /// The rates of an optimizer: one for the tensors outside all groups, and one for every group. `None` for one that is
    /// not known here, which may have any number.
    rates: Option<usize>,
}

impl StepControl {
    /// The control of steps of an optimizer with this many parameter groups, with the learning rate in this state.
    pub fn new(groups: usize, rate: RateSpec, state: RateState) -> Self {
        StepControl { rate: RateControl::new(rate, state), clip: None, rates: Some(groups + 1) }
    }

    /// The same control, for an optimizer that steps elsewhere and has any parameter groups.
    pub fn of_any_optimizer(self) -> Self {
        StepControl { rates: None, ..self }
    }

    /// The same control, which scales sums of gradients down to this norm. That takes another look at every gradient.
    pub fn clipping(self, norm: Option<f32>) -> Self {
        StepControl { clip: norm, ..self }
    }

    /// What the learning rate depends on.
    pub fn rate_state(&self) -> RateState {
        self.rate.state()
    }

    /// The learning rate of a worker's local iterations on the newest version.
    pub fn local_rate(&self) -> f32 {
        self.rate.scheduled()
    }

    /// Has a commit carried out on the values. `workers` is the number of workers.
    ///
    /// An update is broken if a value, the sum of squares or the loss is not finite. It is left out whole, and the weights
    /// of the others are raised to the same sum. If all are broken, the model stays as it is.
    ///
    /// # Errors
    /// If the values can't be reached.
    pub fn commit<V: StepValues>(
        &mut self,
        commit: &Commit,
        updates: &[UpdateInfo<'_>],
        workers: usize,
        values: &mut V,
    ) -> Result<CommitOutcome, V::Error> {
        let mut good: Vec<usize> = (0..updates.len()).filter(|&index| updates[index].loss.is_finite()).collect();
        let aggregate = loop {
            if good.is_empty() {
                values.keep()?;
                break None;
            }
            match self.attempt(commit, &select(updates, &good), &good, workers, values)? {
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
        if good.len() == updates.len() && aggregate.is_some() {
            values.forecast(&self.plan(commit, updates, workers, 1.0).0)?;
        }
        let is_broken = |index: &usize| good.binary_search(index).is_err();
        let broken = (0..updates.len()).filter(is_broken).map(|index| updates[index].task).collect();
        Ok(CommitOutcome { aggregate, broken })
    }

    /// How a step is made whose sum of updates is multiplied by `scale`; and the learning rate that the schedule gives.
    fn plan(&self, commit: &Commit, updates: &[UpdateInfo<'_>], workers: usize, scale: f32) -> (StepPlan, f32) {
        let mut plan = StepPlan { uses_optimizer: true, rate: 0.0, group_rates: None, scale, statistics: 1.0 };
        let (scheduled_rate, rate) = match commit.step {
            CommitStep::Optimizer | CommitStep::Compensated { .. } => {
                let k = updates.len();
                match asked_rates(updates, self.rates) {
                    Some(rates) => {
                        let factor = self.rate.factor_of_step(k, workers, commit.rate_factor);
                        let first = rates[0];
                        plan.group_rates = Some(rates.into_iter().map(|rate| rate * factor).collect());
                        (first as f32, (first * factor) as f32)
                    }
                    None => (self.rate.scheduled(), self.rate.of_step(k, workers, commit.rate_factor)),
                }
            }
            // The model moves against the sum of the differences by the share `rate` (ESync (8)), statistics all the
            // way. Plain SGD does that.
            CommitStep::Average { rate, share } | CommitStep::Outer { rate, share } => {
                plan.uses_optimizer = matches!(commit.step, CommitStep::Outer { .. });
                (plan.scale, plan.statistics) = (share, share);
                (rate, rate * commit.rate_factor)
            }
        };
        plan.rate = f64::from(rate);
        (plan, scheduled_rate)
    }

    /// Makes the step, unless some updates are broken: then their positions are returned, and the model is as before.
    fn attempt<V: StepValues>(
        &self,
        commit: &Commit,
        updates: &[UpdateInfo<'_>],
        positions: &[usize],
        workers: usize,
        values: &mut V,
    ) -> Result<Result<Aggregate, Vec<usize>>, V::Error> {
        let summands: Vec<_> = positions.iter().zip(updates).map(|(&position, one)| (position, one.weight)).collect();
        let clipped = match (commit.step, self.clip) {
            (CommitStep::Optimizer | CommitStep::Compensated { .. }, Some(limit)) => {
                let norms = values.measure(&summands)?;
                (f64::from(limit) / norms.mean.sqrt()).min(1.0) as f32
            }
            _ => 1.0,
        };
        let (plan, scheduled_rate) = self.plan(commit, updates, workers, clipped);
        let norms = values.attempt(&plan, &summands)?;
        if !norms.broken.is_empty() {
            return Ok(Err(norms.broken));
        }
        values.accept(&plan)?;
        let with_norms = || updates.iter().zip(&norms.sources);
        Ok(Ok(Aggregate {
            loss: updates.iter().map(|one| f64::from(one.weight) * one.loss).sum(),
            rate: plan.rate,
            scheduled_rate: f64::from(scheduled_rate),
            mean_square: with_norms().map(|(one, square)| f64::from(one.weight) * square).sum(),
            square_of_mean: norms.mean,
            norms: with_norms().map(|(one, &square)| UpdateNorm { task: one.task, square }).collect(),
        }))
    }
}

/// The weighted means of the learning rates that the updates ask for, if they ask for `count` valid ones each; for any
/// number, the same for all, if that is `None`.
fn asked_rates(updates: &[UpdateInfo<'_>], count: Option<usize>) -> Option<Vec<f64>> {
    let count = count.or_else(|| updates.first().map(|one| one.rates.len()).filter(|&count| count > 0))?;
    let is_valid = |one: &UpdateInfo<'_>| {
        one.rates.len() == count && one.rates.iter().all(|rate| rate.is_finite() && *rate >= 0.0)
    };
    if !updates.iter().all(is_valid) {
        return None;
    }
    let sum: f64 = updates.iter().map(|one| f64::from(one.weight)).sum();
    let mean = |group: usize| updates.iter().map(|one| f64::from(one.weight) / sum * one.rates[group]).sum();
    Some((0..count).map(mean).collect())
}

/// The updates at the positions `good`, their weights raised to the sum of all.
fn select<'a>(updates: &[UpdateInfo<'a>], good: &[usize]) -> Vec<UpdateInfo<'a>> {
    if good.len() == updates.len() {
        return updates.to_vec();
    }
    let sum =
        |updates: &mut dyn Iterator<Item = &UpdateInfo<'_>>| -> f64 { updates.map(|one| f64::from(one.weight)).sum() };
    let factor = sum(&mut updates.iter()) / sum(&mut good.iter().map(|&index| &updates[index]));
    let scaled = |&index: &usize| {
        let one = updates[index];
        UpdateInfo { weight: (f64::from(one.weight) * factor) as f32, ..one }
    };
    good.iter().map(scaled).collect()
}
