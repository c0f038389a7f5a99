//! Optimizers: how an aggregated gradient changes the parameters.

use std::array;
use std::fmt;
use std::str::FromStr;

use paceline_spec::{Form, Spec, SpecError, pair};
use serde::{Deserialize, Serialize};

/// An optimizer and its settings.
///
/// As text: `sgd`, `momentum:0.9`, `nesterov:momentum=0.9,decay=1e-4`, `adam:beta1=0.9,beta2=0.999,epsilon=1e-8`,
/// `adamw:0.01`. Omitted keys take their defaults. After `momentum`, `nesterov` and `adamw`, one value without a key
/// stands for the first key.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum OptimizerSpec {
    /// `p −= rate·g`. No state.
    Sgd {
        /// Weight decay, added to the gradient as `decay·p`; default 0.
        decay: f64,
    },
    /// `m = momentum·m + g; p −= rate·m`. One vector of state.
    Momentum {
        /// Share of the last step that is kept, at least 0 and below 1; default 0.9.
        momentum: f64,
        /// Weight decay, added to the gradient as `decay·p`; default 0.
        decay: f64,
    },
    /// `m = momentum·m + g; p −= rate·(g + momentum·m)`. One vector of state.
    Nesterov {
        /// Share of the last step that is kept, at least 0 and below 1; default 0.9.
        momentum: f64,
        /// Weight decay, added to the gradient as `decay·p`; default 0.
        decay: f64,
    },
    /// Adam with bias correction. Two vectors of state.
    Adam(Moments),
    /// Adam with decoupled weight decay: weights shrink by `rate·decay` per step. Two vectors of state.
    AdamW {
        /// Weight decay; default 0.01.
        decay: f64,
        /// The settings of Adam.
        moments: Moments,
    },
}

/// The settings of Adam.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Moments {
    /// Share of the running mean that is kept per step, at least 0 and below 1; default 0.9.
    pub beta1: f64,
    /// Share of the running mean square that is kept per step, at least 0 and below 1; default 0.999.
    pub beta2: f64,
    /// Added to the root of the mean square, which prevents division by zero; default 1e-8.
    pub epsilon: f64,
}

impl Default for Moments {
    fn default() -> Self {
        Moments { beta1: 0.9, beta2: 0.999, epsilon: 1e-8 }
    }
}

const MOMENTUM: f64 = 0.9;
const ADAMW_DECAY: f64 = 0.01;

/// A value without a key after `sgd` or `adam` is an error: it could be meant as a learning rate.
const FORMS: &[Form<'_>] = &[
    Form::new("sgd", &["decay"]).positional(0),
    Form::new("momentum", &["momentum", "decay"]).positional(1),
    Form::new("nesterov", &["momentum", "decay"]).positional(1),
    Form::new("adam", &["beta1", "beta2", "epsilon"]).positional(0),
    Form::new("adamw", &["decay", "beta1", "beta2", "epsilon"]).positional(1),
];

impl FromStr for OptimizerSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let spec = Spec::parse("optimizer", text, FORMS)?;
        let share = |key, default| {
            let accept = |value: &f64| (0.0..1.0).contains(value);
            let value = spec.optional(key, "at least 0 and below 1", accept)?;
            Ok::<_, SpecError>(value.unwrap_or(default))
        };
        let size = |key, default| {
            let accept = |value: &f64| value.is_finite() && *value >= 0.0;
            let value = spec.optional(key, "a finite number, at least 0", accept)?;
            Ok::<_, SpecError>(value.unwrap_or(default))
        };
        let moments = || {
            let Moments { beta1, beta2, epsilon } = Moments::default();
            Ok::<_, SpecError>(Moments {
                beta1: share("beta1", beta1)?,
                beta2: share("beta2", beta2)?,
                epsilon: size("epsilon", epsilon)?,
            })
        };
        Ok(match spec.name() {
            "sgd" => OptimizerSpec::Sgd { decay: size("decay", 0.0)? },
            "momentum" => {
                OptimizerSpec::Momentum { momentum: share("momentum", MOMENTUM)?, decay: size("decay", 0.0)? }
            }
            "nesterov" => {
                OptimizerSpec::Nesterov { momentum: share("momentum", MOMENTUM)?, decay: size("decay", 0.0)? }
            }
            "adam" => OptimizerSpec::Adam(moments()?),
            _ => OptimizerSpec::AdamW { decay: size("decay", ADAMW_DECAY)?, moments: moments()? },
        })
    }
}

impl fmt::Display for OptimizerSpec {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            OptimizerSpec::Sgd { decay } => paceline_spec::write(formatter, "sgd", [pair("decay", decay, 0.0)]),
            OptimizerSpec::Momentum { momentum, decay } => {
                let parts = [Some(momentum.to_string()), pair("decay", decay, 0.0)];
                paceline_spec::write(formatter, "momentum", parts)
            }
            OptimizerSpec::Nesterov { momentum, decay } => {
                let parts = [Some(momentum.to_string()), pair("decay", decay, 0.0)];
                paceline_spec::write(formatter, "nesterov", parts)
            }
            OptimizerSpec::Adam(moments) => paceline_spec::write(formatter, "adam", moments.parts()),
            OptimizerSpec::AdamW { decay, moments } => {
                let [beta1, beta2, epsilon] = moments.parts();
                let parts = [Some(decay.to_string()), beta1, beta2, epsilon];
                paceline_spec::write(formatter, "adamw", parts)
            }
        }
    }
}

impl Moments {
    fn parts(self) -> [Option<String>; 3] {
        let default = Moments::default();
        [
            pair("beta1", self.beta1, default.beta1),
            pair("beta2", self.beta2, default.beta2),
            pair("epsilon", self.epsilon, default.epsilon),
        ]
    }
}

impl OptimizerSpec {
    /// Names of the state vectors, each of the length of the trainable part.
    pub(crate) fn state_names(self) -> &'static [&'static str] {
        match self {
            OptimizerSpec::Sgd { .. } => &[],
            OptimizerSpec::Momentum { .. } | OptimizerSpec::Nesterov { .. } => &["momentum"],
            OptimizerSpec::Adam(_) | OptimizerSpec::AdamW { .. } => &["mean", "mean_square"],
        }
    }
}

/// An optimizer and its state.
///
/// The optimizer steps the first `trainable` values. Statistics (see [`Layout`](crate::Layout)) follow them; their
/// "gradient" is the difference itself, so `p −= g` at any rate.
#[derive(Debug, Clone, PartialEq)]
pub struct Optimizer {
    spec: OptimizerSpec,
    steps: u64,
    state: Vec<Vec<f32>>,
    trainable: usize,
}

impl Optimizer {
    /// An optimizer with zero state, for `trainable` leading values.
    pub fn new(spec: OptimizerSpec, trainable: usize) -> Self {
        let state = vec![vec![0.0; trainable]; spec.state_names().len()];
        Optimizer { spec, steps: 0, state, trainable }
    }

    /// The optimizer of a checkpoint: its state after `steps` steps, with vectors in the order of [`Optimizer::state`].
    pub(crate) fn restored(spec: OptimizerSpec, trainable: usize, steps: u64, state: Vec<Vec<f32>>) -> Self {
        Optimizer { spec, steps, state, trainable }
    }

    /// The optimizer and its settings.
    pub fn spec(&self) -> OptimizerSpec {
        self.spec
    }

    /// Number of steps taken.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// The state vectors by name, each of the length of the trainable part.
    pub fn state(&self) -> impl Iterator<Item = (&'static str, &[f32])> {
        let names = self.spec.state_names().iter().copied();
        names.zip(self.state.iter().map(Vec::as_slice))
    }

    /// Takes one step against `gradient` with learning rate `rate`, in place.
    ///
    /// # Panics
    /// If the slices differ in length or are shorter than the trainable part.
    pub fn step(&mut self, parameters: &mut [f32], gradient: &[f32], rate: f32) {
        assert_eq!(parameters.len(), gradient.len(), "gradient and parameters differ in length");
        self.steps += 1;
        let (parameters, statistics) = parameters.split_at_mut(self.trainable);
        let (gradient, differences) = gradient.split_at(self.trainable);
        for (statistic, difference) in statistics.iter_mut().zip(differences) {
            *statistic -= difference;
        }
        let state = self.state.iter_mut().map(Vec::as_mut_slice).collect();
        let step = StepRule { spec: self.spec, steps: self.steps, rate };
        step.apply(InPlace { parameters, gradient, state });
    }

    /// Begins a step with learning rate `rate`, which can be [split](OptimizerStep::split_off) and applied range by
    /// range. It writes the state after the step into `next`. The optimizer changes only when the step is
    /// [accepted](Optimizer::accept).
    pub fn begin<'a>(&'a self, rate: f32, next: &'a mut NextState) -> OptimizerStep<'a> {
        next.0.resize_with(self.state.len(), || vec![0.0; self.trainable]);
        OptimizerStep {
            rule: StepRule { spec: self.spec, steps: self.steps + 1, rate },
            scale: 1.0,
            trainable: self.trainable,
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
    rule: StepRule,
    /// The gradient is multiplied by it.
    scale: f32,
    trainable: usize,
    old: Vec<&'a [f32]>,
    new: Vec<&'a mut [f32]>,
}

impl<'a> OptimizerStep<'a> {
    /// The same step with the gradient times `scale`. Statistics are not scaled.
    pub fn scaled(self, scale: f32) -> Self {
        OptimizerStep { scale, ..self }
    }

    /// Splits the range: `self` keeps its first `at` values, the rest is returned.
    pub fn split_off(&mut self, at: usize) -> OptimizerStep<'a> {
        let kept = at.min(self.trainable);
        let old = self.old.iter_mut().map(|vector| vector.split_off(kept..).expect("state is as long as `trainable`"));
        let new = self.new.iter_mut().map(|vector| vector.split_off_mut(kept..).expect("as long as the old state"));
        let (rule, scale, trainable) = (self.rule, self.scale, self.trainable - kept);
        let rest = OptimizerStep { rule, scale, trainable, old: old.collect(), new: new.collect() };
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
            *new = old - difference;
        }
        let scale = self.scale;
        self.rule.apply(OutOfPlace { old, new, gradient, scale, old_state: self.old, new_state: self.new });
    }
}

/// How one step changes parameters.
#[derive(Debug, Clone, Copy)]
struct StepRule {
    spec: OptimizerSpec,
    /// The number of this step, from 1.
    steps: u64,
    rate: f32,
}

impl StepRule {
    fn apply(self, vectors: impl Vectors) {
        let StepRule { spec, steps, rate } = self;
        match spec {
            OptimizerSpec::Sgd { decay } => {
                let decay = decay as f32;
                vectors.change(|p, g, []| (p - rate * (g + decay * p), []));
            }
            OptimizerSpec::Momentum { momentum, decay } => {
                let (momentum, decay) = (momentum as f32, decay as f32);
                vectors.change(|p, g, [m]| {
                    let m = momentum * m + (g + decay * p);
                    (p - rate * m, [m])
                });
            }
            OptimizerSpec::Nesterov { momentum, decay } => {
                let (momentum, decay) = (momentum as f32, decay as f32);
                vectors.change(|p, g, [m]| {
                    let g = g + decay * p;
                    let m = momentum * m + g;
                    (p - rate * (g + momentum * m), [m])
                });
            }
            OptimizerSpec::Adam(moments) => AdamStep::new(moments, rate, 0.0, steps).apply(vectors),
            OptimizerSpec::AdamW { decay, moments } => AdamStep::new(moments, rate, decay, steps).apply(vectors),
        }
    }
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

/// The factors that all parameters share in one step of Adam (Kingma & Ba, algorithm 1, last remark of section 2).
struct AdamStep {
    keep_mean: f32,
    add_mean: f32,
    keep_square: f32,
    add_square: f32,
    shrink: f32,
    size: f32,
    root: f32,
    epsilon: f32,
}

impl AdamStep {
    fn new(moments: Moments, rate: f32, decay: f64, steps: u64) -> Self {
        let Moments { beta1, beta2, epsilon } = moments;
        let rate = f64::from(rate);
        let steps = steps as f64;
        AdamStep {
            keep_mean: beta1 as f32,
            add_mean: (1.0 - beta1) as f32,
            keep_square: beta2 as f32,
            add_square: (1.0 - beta2) as f32,
            shrink: (1.0 - rate * decay) as f32,
            size: (rate / (1.0 - beta1.powf(steps))) as f32,
            root: (1.0 / (1.0 - beta2.powf(steps)).sqrt()) as f32,
            epsilon: epsilon as f32,
        }
    }

    fn apply(&self, vectors: impl Vectors) {
        vectors.change(|p, g, [m, v]| {
            let m = self.keep_mean * m + self.add_mean * g;
            let v = self.keep_square * v + self.add_square * g * g;
            (self.shrink * p - self.size * m / (v.sqrt() * self.root + self.epsilon), [m, v])
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values of p in the first three steps of minimizing f(p) = p² (gradient 2p) from p = 1 with rate 0.1.
    fn descend(text: &str) -> [f64; 3] {
        let mut optimizer = Optimizer::new(text.parse().expect("a valid optimizer"), 1);
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
    }

    #[test]
    fn statistics_do_not_depend_on_the_rate() {
        for text in ["sgd", "momentum", "nesterov", "adam", "adamw"] {
            let mut optimizer = Optimizer::new(text.parse().expect(text), 1);
            let mut parameters = [1.0, 5.0];
            optimizer.step(&mut parameters, &[1.0, 2.0], 0.001);
            assert_eq!(parameters[1], 3.0, "{text}");
            assert!(optimizer.state().all(|(_, values)| values.len() == 1));
        }
    }

    #[test]
    fn a_step_in_parts_out_of_place_gives_the_bits_of_one_in_place() {
        let gradient: Vec<f32> = (0..10).map(|index| (index as f32).sin()).collect();
        for text in ["sgd", "momentum", "nesterov", "adam", "adamw"] {
            let mut whole = Optimizer::new(text.parse().expect(text), 7);
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

    #[test]
    fn specs_round_trip_through_text() {
        for text in ["sgd", "sgd:decay=0.0001", "momentum:0.9", "nesterov:0.5,decay=0.01", "adam"] {
            let spec: OptimizerSpec = text.parse().expect(text);
            assert_eq!(spec.to_string(), text);
        }
        let spec: OptimizerSpec = "adamw:beta2=0.99,epsilon=1e-7".parse().expect("valid");
        assert_eq!(spec.to_string(), "adamw:0.01,beta2=0.99,epsilon=0.0000001");
        assert_eq!(spec.to_string().parse(), Ok(spec));
        assert_eq!("momentum".parse(), "momentum:0.9".parse::<OptimizerSpec>());
    }

    #[test]
    fn settings_out_of_range_are_rejected() {
        for text in ["momentum:1", "sgd:decay=-1", "adam:epsilon=nan", "adamw:beta1=1.5", "sgd:0.1"] {
            assert!(text.parse::<OptimizerSpec>().is_err(), "{text}");
        }
    }
}
