//! The learning rate of every step: the base rate, the schedule and the rule.

use paceline_core::{Aggregate, GradientNoise, RateRule};
use paceline_store::Schedule;
use serde::{Deserialize, Serialize};

/// What sets the learning rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RateSpec {
    /// The full rate.
    pub base: f32,
    /// How it changes during training.
    pub schedule: Schedule,
    /// How it depends on the number of gradients in a step.
    pub rule: RateRule,
}

impl RateState {
    /// How far the schedule has advanced, in steps.
    pub fn progress(&self) -> f64 {
        self.progress
    }
}

impl RateSpec {
    /// A constant rate.
    pub fn constant(base: f32) -> Self {
        RateSpec { base, schedule: Schedule::default(), rule: RateRule::FIXED }
    }
}

/// What the learning rate depends on beside its [`RateSpec`]. It is part of a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct RateState {
    /// How far the schedule has advanced, in steps.
    progress: f64,
    noise: GradientNoise,
}

/// The learning rate of the next step.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RateControl {
    spec: RateSpec,
    state: RateState,
}

impl RateControl {
    pub(crate) fn new(spec: RateSpec, state: RateState) -> Self {
        RateControl { spec, state }
    }

    pub(crate) fn state(&self) -> RateState {
        self.state
    }

    /// The rate that the schedule gives, before the rule.
    pub(crate) fn scheduled(&self) -> f32 {
        self.spec.schedule.rate(self.spec.base, self.state.progress)
    }

    /// The rate of a step of `k` gradients of `workers` workers, with a factor of the scheme.
    pub(crate) fn of_step(&self, k: usize, workers: usize, factor: f32) -> f32 {
        let RateSpec { base, schedule, .. } = self.spec;
        (f64::from(base) * schedule.share(self.state.progress) * self.factor_of_step(k, workers, factor)) as f32
    }

    /// What a rate is multiplied by in such a step.
    pub(crate) fn factor_of_step(&self, k: usize, workers: usize, factor: f32) -> f64 {
        self.factor(k, workers) * f64::from(factor)
    }

    fn factor(&self, k: usize, workers: usize) -> f64 {
        self.spec.rule.factor(k, workers, &self.state.noise)
    }

    /// The optimizer took a step of `k` gradients of `workers` workers.
    pub(crate) fn on_step(&mut self, k: usize, workers: usize, aggregate: &Aggregate) {
        self.state.progress += self.spec.rule.advance(self.factor(k, workers));
        self.state.noise.observe(aggregate);
    }

    /// The model got a new version without a step of the optimizer.
    pub(crate) fn on_other_version(&mut self) {
        self.state.progress += 1.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_core::{TaskId, UpdateNorm, WorkerId};

    /// Two gradients with this variance and a true gradient of squared norm 1.
    fn two(variance: f64) -> Aggregate {
        let task = |worker| TaskId { worker: WorkerId(worker), number: 0 };
        let norm = |worker| UpdateNorm { task: task(worker), square: 1.0 + variance };
        Aggregate {
            mean_square: 1.0 + variance,
            square_of_mean: 1.0 + variance / 2.0,
            norms: [norm(0), norm(1)].into(),
            ..Aggregate::default()
        }
    }

    fn rates(rule: &str, schedule: &str, steps: &[usize]) -> Vec<f32> {
        let (schedule, rule) = (schedule.parse().unwrap(), rule.parse().unwrap());
        let mut rate = RateControl::new(RateSpec { base: 0.8, schedule, rule }, RateState::default());
        let step = |&k: &usize| {
            let of_step = rate.of_step(k, 4, 1.0);
            rate.on_step(k, 4, &two(3.0));
            of_step
        };
        steps.iter().map(step).collect()
    }

    #[test]
    fn the_rate_follows_schedule_and_rule() {
        assert_eq!(rates("fixed", "step:every=2,factor=0.5", &[4, 1, 4, 2]), [0.8, 0.8, 0.4, 0.4]);
        assert_eq!(rates("proportional", "step:every=2,factor=0.5", &[4, 1, 4, 2]), [0.8, 0.2, 0.4, 0.2]);
        assert_eq!(rates("sqrt", "constant", &[4, 1]), [0.8, 0.4]);
    }

    #[test]
    fn under_adascale_a_schedule_advances_by_the_gain() {
        // σ² = 3, μ² = 1: gains of 1, 2, 4 gradients are 1, 4/2.5 and 4/1.75; nothing is known in the first step.
        let (two, four) = (4.0 / 2.5, 4.0 / 1.75);
        let found = rates("adascale", "constant", &[4, 4, 2, 1]);
        let expected = [0.8, 0.8, 0.8 * two / four, 0.8 / four];
        found.iter().zip(expected).for_each(|(&found, expected)| assert!((f64::from(found) - expected).abs() < 1e-6));
        // The first step counts as one, later ones of one gradient as 1/four: three of them are needed to get to two.
        assert_eq!(rates("adascale", "step:every=2,factor=0.5", &[4, 4]), [0.8, 0.8]);
        let single = rates("adascale", "step:every=2,factor=0.5", &[4, 1, 1, 1, 1]);
        let full = (0.8 / four) as f32;
        assert_eq!(single, [0.8, full, full, full, full / 2.0]);
    }

    #[test]
    fn the_scheme_has_a_factor_of_its_own() {
        let spec = RateSpec { rule: "proportional".parse().unwrap(), ..RateSpec::constant(1.0) };
        let rate = RateControl::new(spec, RateState::default());
        assert_eq!(rate.of_step(1, 4, 0.5), 0.125);
        assert_eq!(rate.scheduled(), 1.0);
    }
}
