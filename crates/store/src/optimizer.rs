//! Optimizers: how an aggregated gradient changes the parameters.
//!
//! Each computes what PyTorch's optimizer of that name computes on a processor with `foreach=False`, operation by
//! operation:
//!
//! - `sgd`, `momentum` and `nesterov` give the bits of `torch.optim.SGD`.
//! - `adam` and `adamw` give the bits of `torch.optim.Adam` and `AdamW` with a correctly rounded square root. PyTorch's
//!   builds with MKL take another root, whose last bit may differ. The moments have the same bits there too, and
//!   parameters differ by less than 1e-6 of the largest after 100 steps.
//!
//! PyTorch multiplies and adds in one operation with one rounding. So do the rules here, on any machine.

use std::array;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::Layout;
use crate::optimizer_spec::{Moments, OptimizerKind, OptimizerSpec};

/// An optimizer and its state.
///
/// The optimizer steps the first `trainable` values. Statistics (see [`Layout`](crate::Layout)) follow them; their
/// "gradient" is the difference itself, so `p −= g` at any rate.
#[derive(Debug, Clone, PartialEq)]
pub struct Optimizer {
    rules: OptimizerRules,
    steps: u64,
    state: Vec<Vec<f32>>,
}

/// An optimizer without its state: how every value of a vector, or of a part of one, is stepped.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OptimizerRules {
    spec: OptimizerSpec,
    /// Ranges of the trainable part, in order, each with its rule.
    ranges: Vec<RuleRange>,
    trainable: usize,
}

/// A range of parameters that are stepped in the same way.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct RuleRange {
    /// Where it ends. It starts where the range before ends.
    end: usize,
    kind: OptimizerKind,
    /// The learning rate is multiplied by it.
    rate: f64,
    /// Whose rate it has in [`OptimizerStep::group_rates`]: 0 outside all groups, else 1 + the index of the group.
    group: usize,
}

impl OptimizerRules {
    /// The rules for the values of a layout.
    pub fn new(spec: OptimizerSpec, layout: &Layout) -> Self {
        let mut ranges: Vec<RuleRange> = Vec::new();
        for entry in layout.trainable_entries() {
            let (group, kind, rate) = spec.rule_of(&entry.name);
            match ranges.last_mut().filter(|last| last.group == group) {
                Some(last) => last.end = entry.range.end,
                None => ranges.push(RuleRange { end: entry.range.end, kind, rate, group }),
            }
        }
        OptimizerRules { spec, ranges, trainable: layout.trainable() }
    }

    /// The rules for a part of the values.
    pub fn part(&self, part: Range<usize>) -> Self {
        let trainable = self.trainable.min(part.end).saturating_sub(part.start);
        let ranges = self.ranges.iter().filter(|range| range.end > part.start);
        let mut ranges: Vec<RuleRange> =
            ranges.map(|range| RuleRange { end: (range.end - part.start).min(trainable), ..*range }).collect();
        ranges.dedup_by_key(|range| range.end);
        OptimizerRules { spec: self.spec.clone(), ranges, trainable }
    }

    /// How many leading values are stepped.
    pub fn trainable(&self) -> usize {
        self.trainable
    }

    /// How many vectors of as many values the state has.
    pub fn state_vectors(&self) -> usize {
        self.spec.kind.state_names().len()
    }
}

impl Optimizer {
    /// An optimizer with zero state.
    pub fn new(spec: OptimizerSpec, layout: &Layout) -> Self {
        Optimizer::start(OptimizerRules::new(spec, layout))
    }

    /// An optimizer without groups and with zero state, for `trainable` leading values.
    pub fn plain(kind: OptimizerKind, trainable: usize) -> Self {
        let ranges = vec![RuleRange { end: trainable, kind, rate: 1.0, group: 0 }];
        Optimizer::start(OptimizerRules { spec: kind.into(), ranges, trainable })
    }

    fn start(rules: OptimizerRules) -> Self {
        let state = vec![vec![0.0; rules.trainable]; rules.state_vectors()];
        Optimizer { rules, steps: 0, state }
    }

    /// The optimizer in its state after `steps` steps, with vectors in the order of [`Optimizer::state`].
    ///
    /// # Panics
    /// If the state does not fit the rules.
    pub fn restored(rules: OptimizerRules, steps: u64, state: Vec<Vec<f32>>) -> Self {
        assert_eq!(state.len(), rules.state_vectors(), "the state has one vector per state name");
        assert!(state.iter().all(|vector| vector.len() == rules.trainable), "state is as long as the trainable part");
        Optimizer { rules, steps, state }
    }

    /// How every value is stepped.
    pub fn rules(&self) -> &OptimizerRules {
        &self.rules
    }

    /// The optimizer and its settings.
    pub fn spec(&self) -> &OptimizerSpec {
        &self.rules.spec
    }

    /// Number of steps taken.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// The state vectors by name, each of the length of the trainable part.
    pub fn state(&self) -> impl Iterator<Item = (&'static str, &[f32])> {
        let names = self.rules.spec.kind.state_names().iter().copied();
        names.zip(self.state.iter().map(Vec::as_slice))
    }

    /// Takes one step against `gradient` with learning rate `rate`, in place.
    ///
    /// # Panics
    /// If the slices differ in length or are shorter than the trainable part.
    pub fn step(&mut self, parameters: &mut [f32], gradient: &[f32], rate: f64) {
        assert_eq!(parameters.len(), gradient.len(), "gradient and parameters differ in length");
        self.steps += 1;
        let (parameters, statistics) = parameters.split_at_mut(self.rules.trainable);
        let (gradient, differences) = gradient.split_at(self.rules.trainable);
        for (statistic, difference) in statistics.iter_mut().zip(differences) {
            *statistic -= difference;
        }
        let mut start = 0;
        for range in self.rules.ranges.iter() {
            let values = start..range.end;
            let state = self.state.iter_mut().map(|vector| &mut vector[values.clone()]).collect();
            let rule = StepRule { kind: range.kind, steps: self.steps, rate: rate * range.rate };
            rule.apply(InPlace { parameters: &mut parameters[values.clone()], gradient: &gradient[values], state });
            start = range.end;
        }
    }

    /// Begins a step with learning rate `rate`, which can be [split](OptimizerStep::split_off) and applied range by
    /// range. It writes the state after the step into `next`. The optimizer changes only when the step is
    /// [accepted](Optimizer::accept).
    pub fn begin<'a>(&'a self, rate: f64, next: &'a mut NextState) -> OptimizerStep<'a> {
        next.0.resize_with(self.state.len(), || vec![0.0; self.rules.trainable]);
        OptimizerStep {
            ranges: &self.rules.ranges,
            start: 0,
            steps: self.steps + 1,
            rate,
            group_rates: None,
            scale: 1.0,
            statistics: 1.0,
            trainable: self.rules.trainable,
            old: self.state.iter().map(Vec::as_slice).collect(),
            new: next.0.iter_mut().map(Vec::as_mut_slice).collect(),
        }
    }

    /// Takes the step whose ranges were all applied. `next` holds the last state then, and can be used again.
    pub fn accept(&mut self, next: &mut NextState) {
        self.steps += 1;
        std::mem::swap(&mut self.state, &mut next.0);
    }
}

/// Where a step writes the optimizer's next state: as many vectors as the optimizer has, none for `sgd`.
#[derive(Debug, Default)]
pub struct NextState(Vec<Vec<f32>>);

/// One step of an [`Optimizer`] on a range of the vector. Ranges are independent: the result is the same in any order
/// and on any threads.
#[derive(Debug)]
pub struct OptimizerStep<'a> {
    ranges: &'a [RuleRange],
    /// Where its range starts in the vector.
    start: usize,
    /// The number of this step, from 1.
    steps: u64,
    rate: f64,
    /// The rates of the groups, in place of `rate` times their factors.
    group_rates: Option<&'a [f64]>,
    /// The gradient is multiplied by it.
    scale: f32,
    /// The differences of statistics are multiplied by it.
    statistics: f32,
    trainable: usize,
    old: Vec<&'a [f32]>,
    new: Vec<&'a mut [f32]>,
}

impl<'a> OptimizerStep<'a> {
    /// The same step with the gradient times `scale`. Statistics are not scaled.
    pub fn scaled(self, scale: f32) -> Self {
        OptimizerStep { scale, ..self }
    }

    /// The same step with the differences of statistics times `share`.
    pub fn statistics(self, share: f32) -> Self {
        OptimizerStep { statistics: share, ..self }
    }

    /// The same step with these learning rates, whatever factors the groups have: the first for tensors outside all
    /// groups, then one for each group of the [`OptimizerSpec`], in its order.
    ///
    /// # Panics
    /// When the step is applied to a group that has no rate.
    pub fn group_rates(self, rates: &'a [f64]) -> Self {
        OptimizerStep { group_rates: Some(rates), ..self }
    }

    /// Splits the range: `self` keeps its first `at` values, the rest is returned.
    pub fn split_off(&mut self, at: usize) -> OptimizerStep<'a> {
        let kept = at.min(self.trainable);
        let old = self.old.iter_mut().map(|vector| vector.split_off(kept..).expect("state is as long as `trainable`"));
        let new = self.new.iter_mut().map(|vector| vector.split_off_mut(kept..).expect("as long as the old state"));
        let (old, new) = (old.collect(), new.collect());
        let rest = OptimizerStep { start: self.start + at, trainable: self.trainable - kept, old, new, ..*self };
        self.trainable = kept;
        rest
    }

    /// Applies the step to the parameters `old` and writes the result into `new`. All slices cover its range of the
    /// vector.
    ///
    /// # Panics
    /// If the slices differ in length or are shorter than the trainable part of the range.
    pub fn apply(self, old: &[f32], gradient: &[f32], new: &mut [f32]) {
        assert_eq!(old.len(), gradient.len(), "gradient and parameters differ in length");
        assert_eq!(old.len(), new.len(), "old and new parameters differ in length");
        let (old, old_statistics) = old.split_at(self.trainable);
        let (new, new_statistics) = new.split_at_mut(self.trainable);
        let (gradient, differences) = gradient.split_at(self.trainable);
        for ((new, old), difference) in new_statistics.iter_mut().zip(old_statistics).zip(differences) {
            *new = old - self.statistics * difference;
        }
        self.apply_rules(old, gradient, new);
    }

    /// Applies the rule of each range to its trainable parameters.
    fn apply_rules(mut self, mut old: &[f32], mut gradient: &[f32], mut new: &mut [f32]) {
        while let Some(range) = self.ranges.iter().find(|range| range.end > self.start).filter(|_| self.trainable > 0) {
            let length = (range.end - self.start).min(self.trainable);
            let rate = self.group_rates.map_or(self.rate * range.rate, |rates| rates[range.group]);
            let rule = StepRule { kind: range.kind, steps: self.steps, rate };
            let rest = self.split_off(length);
            let scale = self.scale;
            let (old_front, old_rest) = old.split_at(length);
            let (gradient_front, gradient_rest) = gradient.split_at(length);
            let (new_front, new_rest) = new.split_at_mut(length);
            rule.apply(OutOfPlace {
                old: old_front,
                new: new_front,
                gradient: gradient_front,
                scale,
                old_state: self.old,
                new_state: self.new,
            });
            (self, old, gradient, new) = (rest, old_rest, gradient_rest, new_rest);
        }
    }
}

/// How one step changes parameters.
#[derive(Debug, Clone, Copy)]
struct StepRule {
    kind: OptimizerKind,
    /// The number of this step, from 1.
    steps: u64,
    rate: f64,
}

impl StepRule {
    fn apply(self, vectors: impl Vectors) {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            // SAFETY: the check above shows that the processor supports AVX2 and FMA.
            return unsafe { self.apply_fma(vectors) };
        }
        self.apply_with(vectors);
    }

    /// [`StepRule::apply`] with instructions for `mul_add`. The compiler targets processors without them by default,
    /// where `mul_add` is a call, which gives the same bits slowly.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma")]
    fn apply_fma(self, vectors: impl Vectors) {
        self.apply_with(vectors);
    }

    #[inline(always)]
    fn apply_with(self, vectors: impl Vectors) {
        let StepRule { kind, steps, rate } = self;
        let step = -rate as f32;
        match kind {
            OptimizerKind::Sgd { decay } => {
                let decay = decay as f32;
                vectors.change(|p, g, []| (decayed(g, p, decay).mul_add(step, p), []));
            }
            OptimizerKind::Momentum { momentum, dampening, decay } => {
                let is_first = steps == 1 || momentum == 0.0;
                let (momentum, added, decay) = (momentum as f32, (1.0 - dampening) as f32, decay as f32);
                vectors.change(|p, g, [m]| {
                    let g = decayed(g, p, decay);
                    let m = if is_first { g } else { g.mul_add(added, momentum * m) };
                    (m.mul_add(step, p), [m])
                });
            }
            OptimizerKind::Nesterov { momentum, decay } => {
                let is_first = steps == 1 || momentum == 0.0;
                let (momentum, decay) = (momentum as f32, decay as f32);
                vectors.change(|p, g, [m]| {
                    let g = decayed(g, p, decay);
                    let m = if is_first { g } else { momentum * m + g };
                    (m.mul_add(momentum, g).mul_add(step, p), [m])
                });
            }
            // Liu et al. (2024), delayed Nesterov with c = 0. The gradients are already divided by N.
            OptimizerKind::DelayedNesterov { momentum, delay, decay } => {
                let (momentum, decay) = (momentum as f32, decay as f32);
                if steps.is_multiple_of(delay) {
                    vectors.change(|p, g, [m, sum]| {
                        let g = decayed(g, p, decay);
                        let m = momentum * m + (sum + g);
                        (m.mul_add(momentum, g).mul_add(step, p), [m, 0.0])
                    });
                } else {
                    vectors.change(|p, g, [m, sum]| {
                        let g = decayed(g, p, decay);
                        (g.mul_add(step, p), [m, sum + g])
                    });
                }
            }
            OptimizerKind::Adam { decay, moments } => {
                let (adam, decay) = (AdamStep::new(moments, rate, steps), decay as f32);
                vectors.change(|p, g, state| adam.change(p, decayed(g, p, decay), state));
            }
            OptimizerKind::AdamW { decay, moments } => {
                let (adam, shrink) = (AdamStep::new(moments, rate, steps), (1.0 - rate * decay) as f32);
                vectors.change(|p, g, state| adam.change(shrink * p, g, state));
            }
        }
    }
}

/// The gradient with weight decay. Without decay it stays as it is, bit for bit.
#[inline(always)]
fn decayed(g: f32, p: f32, decay: f32) -> f32 {
    if decay == 0.0 { g } else { p.mul_add(decay, g) }
}

/// The vectors of a step: parameters, gradient and state, in one place or in two.
trait Vectors {
    /// Changes every parameter and its `N` state values by `rule`, which gets them with the gradient.
    fn change<const N: usize>(self, rule: impl Fn(f32, f32, [f32; N]) -> (f32, [f32; N]));
}

/// The state vectors cut to one length, which spares the checks of their bounds.
fn cut<const N: usize, V>(vectors: Vec<V>, to: impl Fn(V) -> V) -> [V; N] {
    let vectors: Vec<V> = vectors.into_iter().map(to).collect();
    vectors.try_into().unwrap_or_else(|_| unreachable!("the state has one vector per state name"))
}

/// Every vector is changed where it is.
struct InPlace<'a> {
    parameters: &'a mut [f32],
    gradient: &'a [f32],
    state: Vec<&'a mut [f32]>,
}

impl Vectors for InPlace<'_> {
    #[inline(always)]
    fn change<const N: usize>(self, rule: impl Fn(f32, f32, [f32; N]) -> (f32, [f32; N])) {
        let len = self.parameters.len();
        let mut state: [&mut [f32]; N] = cut(self.state, |vector| &mut vector[..len]);
        for (index, (p, g)) in self.parameters.iter_mut().zip(self.gradient).enumerate() {
            let (parameter, values) = rule(*p, *g, array::from_fn(|k| state[k][index]));
            *p = parameter;
            (0..N).for_each(|k| state[k][index] = values[k]);
        }
    }
}

/// Every vector is read in one place and written in another.
struct OutOfPlace<'a> {
    old: &'a [f32],
    new: &'a mut [f32],
    gradient: &'a [f32],
    scale: f32,
    old_state: Vec<&'a [f32]>,
    new_state: Vec<&'a mut [f32]>,
}

impl Vectors for OutOfPlace<'_> {
    #[inline(always)]
    fn change<const N: usize>(self, rule: impl Fn(f32, f32, [f32; N]) -> (f32, [f32; N])) {
        let len = self.new.len();
        let old_state: [&[f32]; N] = cut(self.old_state, |vector| &vector[..len]);
        let mut new_state: [&mut [f32]; N] = cut(self.new_state, |vector| &mut vector[..len]);
        for (index, ((new, old), g)) in self.new.iter_mut().zip(self.old).zip(self.gradient).enumerate() {
            let (parameter, values) = rule(*old, self.scale * g, array::from_fn(|k| old_state[k][index]));
            *new = parameter;
            (0..N).for_each(|k| new_state[k][index] = values[k]);
        }
    }
}

/// The factors that all parameters share in one step of Adam (Kingma & Ba, algorithm 1), as PyTorch computes them.
struct AdamStep {
    add_mean: f32,
    keep_square: f32,
    add_square: f32,
    step: f32,
    root: f32,
    epsilon: f32,
}

impl AdamStep {
    fn new(moments: Moments, rate: f64, steps: u64) -> Self {
        let Moments { beta1, beta2, epsilon } = moments;
        let steps = steps as f64;
        AdamStep {
            add_mean: (1.0 - beta1) as f32,
            keep_square: beta2 as f32,
            add_square: (1.0 - beta2) as f32,
            step: (-rate / (1.0 - beta1.powf(steps))) as f32,
            root: (1.0 - beta2.powf(steps)).sqrt() as f32,
            epsilon: epsilon as f32,
        }
    }

    #[inline(always)]
    fn change(&self, p: f32, g: f32, [m, v]: [f32; 2]) -> (f32, [f32; 2]) {
        let difference = g - m;
        // From the nearer end, as PyTorch's `lerp`.
        let m = if self.add_mean < 0.5 {
            difference.mul_add(self.add_mean, m)
        } else {
            difference.mul_add(self.add_mean - 1.0, g)
        };
        let v = (self.add_square * g).mul_add(g, self.keep_square * v);
        (p + self.step * m / (v.sqrt() / self.root + self.epsilon), [m, v])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values of p in the first three steps of minimizing f(p) = p² (gradient 2p) from p = 1 with rate 0.1.
    fn descend(text: &str) -> [f64; 3] {
        let mut optimizer = Optimizer::plain(text.parse().expect("a valid optimizer"), 1);
        let mut parameters = [1.0_f32];
        array::from_fn(|_| {
            let gradient = [2.0 * parameters[0]];
            optimizer.step(&mut parameters, &gradient, 0.1);
            f64::from(parameters[0])
        })
    }

    fn assert_close(actual: [f64; 3], expected: [f64; 3]) {
        for (actual, expected) in actual.iter().zip(expected) {
            assert!((actual - expected).abs() < 2e-6, "{actual} is not {expected}");
        }
    }

    #[test]
    fn sgd_matches_hand_computation() {
        assert_close(descend("sgd"), [0.8, 0.64, 0.512]);
        // g = 2p + 0.5p, so p shrinks to three quarters.
        assert_close(descend("sgd:decay=0.5"), [0.75, 0.5625, 0.421875]);
    }

    #[test]
    fn momentum_matches_hand_computation() {
        // m = 2, 3.4, 3.98; p = 1 − 0.2 − 0.34 − 0.398.
        assert_close(descend("momentum:0.9"), [0.8, 0.46, 0.062]);
        // g = 2, 1.24, 0.4448; m = 2, 3.04, 3.1808; steps of 0.1·(g + 0.9·m) = 0.38, 0.3976, 0.330752.
        assert_close(descend("nesterov:0.9"), [0.62, 0.2224, -0.108352]);
    }

    /// The delayed Nesterov update of Liu et al. (2024) with c = 0, which divides by N itself: the values of θ after every
    /// arrival.
    fn delayed_nesterov(start: f64, arrivals: &[f64], rate: f64, beta: f64, n: usize) -> Vec<f64> {
        let (mut theta, mut m, mut buffer) = (start, 0.0, 0.0);
        let mut values = Vec::new();
        for (t, g) in arrivals.iter().enumerate() {
            buffer += g;
            let mut direction = g / n as f64;
            if (t + 1) % n == 0 {
                m = beta * m + buffer / n as f64;
                direction += beta * m;
                buffer = 0.0;
            }
            theta -= rate * direction;
            values.push(theta);
        }
        values
    }

    #[test]
    fn delayed_nesterov_is_the_algorithm_of_its_paper() {
        let arrivals: Vec<f64> = (0..40).map(|t| (f64::from(t) * 0.7).sin() + 0.1).collect();
        for (n, beta, rate) in [(1, 0.9, 0.7), (2, 0.5, 1.0), (3, 0.9, 0.7), (8, 0.95, 0.3), (50, 0.9, 0.7)] {
            let kind = OptimizerKind::DelayedNesterov { momentum: beta, delay: n, decay: 0.0 };
            let (mut optimizer, mut parameters) = (Optimizer::plain(kind, 1), [2.0_f32]);
            let expected = delayed_nesterov(2.0, &arrivals, rate, beta, n as usize);
            for (t, (arrival, expected)) in arrivals.iter().zip(expected).enumerate() {
                optimizer.step(&mut parameters, &[(arrival / n as f64) as f32], rate);
                let found = f64::from(parameters[0]);
                assert!((found - expected).abs() < 1e-5, "n = {n}, arrival {t}: {found} is not {expected}");
            }
        }
    }

    #[test]
    fn delayed_nesterov_without_delay_gives_the_bits_of_nesterov() {
        let gradient: Vec<f32> = (1..8).map(|index| (index as f32).sin()).collect();
        let mut kinds = ["nesterov:0.9,decay=0.1", "delayed-nesterov:0.9,delay=1,decay=0.1"]
            .map(|text| (Optimizer::plain(text.parse().expect(text), 7), vec![0.5_f32; 7]));
        for _ in 0..20 {
            for (optimizer, parameters) in &mut kinds {
                let gradient: Vec<f32> = gradient.iter().zip(&*parameters).map(|(g, p)| g * p).collect();
                optimizer.step(parameters, &gradient, 0.1);
            }
            assert_eq!(kinds[0].1, kinds[1].1);
        }
    }

    #[test]
    fn the_first_step_has_no_dampening() {
        // g = 2, 1.6, 1.18; m = 2, then 0.9·m + 0.5·g: 2.6, 2.88.
        assert_close(descend("momentum:0.9,dampening=0.5"), [0.8, 0.54, 0.252]);
        assert_eq!(descend("momentum:0,dampening=0.5"), descend("sgd"));
    }

    #[test]
    fn adam_matches_hand_computation() {
        // First step: m̂ = g and v̂ = g², so it is the rate. Second, with g = 1.8: m = 0.36, v = 0.007236,
        // m̂ = 0.36 / 0.19, √v̂ = √(0.007236 / 0.001999); third likewise.
        let second = 0.9 - 0.1 * (0.36 / 0.19) / (0.007236_f64 / 0.001999).sqrt();
        let g = 2.0 * second;
        let (m, v) = (0.9 * 0.36 + 0.1 * g, 0.999 * 0.007236 + 0.001 * g * g);
        let bias = (1.0 - 0.9_f64.powi(3), 1.0 - 0.999_f64.powi(3));
        let third = second - 0.1 * (m / bias.0) / (v / bias.1).sqrt();
        assert_close(descend("adam"), [0.9, second, third]);
    }

    #[test]
    fn adamw_decay_does_not_pass_through_the_moments() {
        // p·(1 − 0.1·0.5) − 0.1 in the first step.
        let [first, ..] = descend("adamw:0.5");
        assert!((first - 0.85).abs() < 1e-6, "{first}");
        assert_eq!(descend("adamw:0"), descend("adam"));
        // The decay of Adam scales a gradient of 2p, which its first step does not depend on.
        let [first, second, _] = descend("adam:decay=0.5");
        assert!((first - 0.9).abs() < 1e-6 && (second - descend("adam")[1]).abs() < 1e-6, "{first} {second}");
    }

    #[test]
    fn statistics_do_not_depend_on_the_rate() {
        for text in ["sgd", "momentum", "nesterov", "delayed-nesterov:delay=2", "adam", "adamw"] {
            let mut optimizer = Optimizer::plain(text.parse().expect(text), 1);
            let mut parameters = [1.0, 5.0];
            optimizer.step(&mut parameters, &[1.0, 2.0], 0.001);
            assert_eq!(parameters[1], 3.0, "{text}");
            assert!(optimizer.state().all(|(_, values)| values.len() == 1));
        }
    }

    #[test]
    fn groups_have_their_own_rate_and_decay() {
        let layout =
            Layout::new([("a.weight", vec![2]), ("a.bias", vec![1]), ("b.weight", vec![2])], [("mean", vec![1])]);
        let spec = "sgd:decay=0.5;*bias:decay=0;b.*:rate=2".parse().expect("valid");
        let mut optimizer = Optimizer::new(spec, &layout);
        let (old, gradient) = ([1.0; 6], [1.0; 6]);
        // p − rate·(g + decay·p)
        let expected = [0.85, 0.85, 0.9, 0.7, 0.7, 0.0];
        let mut parameters = old;
        optimizer.step(&mut parameters, &gradient, 0.1);
        assert_eq!(parameters, expected);
        // In parts that do not end where groups do.
        for at in 0..6 {
            let (mut new, mut next) = ([0.0; 6], NextState::default());
            let mut front = optimizer.begin(0.1, &mut next);
            let back = front.split_off(at);
            front.apply(&old[..at], &gradient[..at], &mut new[..at]);
            back.apply(&old[at..], &gradient[at..], &mut new[at..]);
            assert_eq!(new, expected, "{at}");
        }
    }

    #[test]
    fn an_optimizer_of_a_part_steps_as_the_whole() {
        let layout = Layout::new([("a.weight", vec![3]), ("a.bias", vec![1]), ("b", vec![2])], [("mean", vec![2])]);
        let rules = OptimizerRules::new("adam;*bias:rate=0.5;b:decay=0.5".parse().expect("valid"), &layout);
        let delayed = OptimizerRules::new("delayed-nesterov:delay=2;b:decay=0.5".parse().expect("valid"), &layout);
        let gradient: [f32; 8] = array::from_fn(|index| (index as f32).cos());
        for rules in [rules, delayed] {
            let (mut whole, mut expected) = (Optimizer::start(rules.clone()), [1.0; 8]);
            for edges in [[0, 8, 8], [0, 2, 8], [0, 4, 5], [0, 6, 8], [0, 7, 8]] {
                let parts = [edges[0]..edges[1], edges[1]..edges[2], edges[2]..8];
                let mut stepped = expected;
                for part in parts {
                    let values = part.start.min(6)..part.end.min(6);
                    let state = whole.state().map(|(_, vector)| vector[values.clone()].to_vec()).collect();
                    let mut optimizer = Optimizer::restored(rules.part(part.clone()), whole.steps(), state);
                    optimizer.step(&mut stepped[part.clone()], &gradient[part], 0.1);
                }
                whole.step(&mut expected, &gradient, 0.1);
                assert_eq!(stepped, expected, "{edges:?}");
            }
        }
    }

    #[test]
    fn a_share_of_the_statistics_may_count() {
        let (mut new, mut next) = ([0.0; 3], NextState::default());
        let optimizer = Optimizer::plain("sgd".parse().expect("valid"), 1);
        let mut step = optimizer.begin(0.5, &mut next).scaled(0.5).statistics(0.25);
        let back = step.split_off(2);
        step.apply(&[1.0; 2], &[1.0; 2], &mut new[..2]);
        back.apply(&[1.0], &[2.0], &mut new[2..]);
        assert_eq!(new, [0.75, 0.75, 0.5]);
    }

    #[test]
    fn a_step_may_have_a_rate_for_every_group() {
        let shape = || vec![2];
        let layout = Layout::new([("a", shape()), ("b", shape()), ("c", shape()), ("d", shape())], []);
        // The groups differ in nothing but their rates in the step.
        let optimizer = Optimizer::new("sgd;b:rate=3;c:rate=3".parse().expect("valid"), &layout);
        let rates = [0.25, 0.5, 1.0];
        for at in 0..=8 {
            let (mut new, mut next) = ([0.0; 8], NextState::default());
            let mut front = optimizer.begin(9.0, &mut next).group_rates(&rates);
            let back = front.split_off(at);
            front.apply(&[1.0; 8][..at], &[1.0; 8][..at], &mut new[..at]);
            back.apply(&[1.0; 8][at..], &[1.0; 8][at..], &mut new[at..]);
            assert_eq!(new, [0.75, 0.75, 0.5, 0.5, 0.0, 0.0, 0.75, 0.75], "{at}");
        }
    }

    #[test]
    fn a_step_in_parts_out_of_place_gives_the_bits_of_one_in_place() {
        let gradient: Vec<f32> = (0..10).map(|index| (index as f32).sin()).collect();
        for text in ["sgd", "momentum", "nesterov", "delayed-nesterov:delay=2", "adam", "adamw"] {
            let mut whole = Optimizer::plain(text.parse().expect(text), 7);
            let mut split = whole.clone();
            let mut next = NextState::default();
            let (mut expected, mut parameters) = (vec![0.5; 10], vec![0.5; 10]);
            for _ in 0..3 {
                whole.step(&mut expected, &gradient, 0.1);
                let (old, before) = (parameters.clone(), split.clone());
                let mut front = split.begin(0.1, &mut next);
                let mut middle = front.split_off(3);
                let back = middle.split_off(6);
                back.apply(&old[9..], &gradient[9..], &mut parameters[9..]);
                middle.apply(&old[3..9], &gradient[3..9], &mut parameters[3..9]);
                front.apply(&old[..3], &gradient[..3], &mut parameters[..3]);
                assert_eq!(split, before, "nothing changes before the step is accepted");
                split.accept(&mut next);
            }
            assert_eq!(parameters, expected, "{text}");
            assert_eq!(split, whole, "{text}");
        }
    }
}
