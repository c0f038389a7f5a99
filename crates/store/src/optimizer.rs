//! Optimizers: how an aggregated gradient changes the parameters.

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

    /// Takes one step against `gradient` with learning rate `rate`.
    ///
    /// # Panics
    /// If the slices differ in length or are shorter than the trainable part.
    pub fn step(&mut self, parameters: &mut [f32], gradient: &[f32], rate: f32) {
        self.begin(rate).apply(parameters, gradient);
    }

    /// Begins a step with learning rate `rate`, which can be [split](OptimizerStep::split_off) and applied range by
    /// range.
    ///
    /// The step counts as taken from here on; apply it to every range.
    pub fn begin(&mut self, rate: f32) -> OptimizerStep<'_> {
        self.steps += 1;
        let state = self.state.iter_mut().map(Vec::as_mut_slice).collect();
        OptimizerStep { spec: self.spec, steps: self.steps, rate, trainable: self.trainable, state }
    }
}

/// One step of an [`Optimizer`] on a range of the vector. Ranges are independent: the result is the same in any order
/// and on any threads.
#[derive(Debug)]
pub struct OptimizerStep<'a> {
    spec: OptimizerSpec,
    steps: u64,
    rate: f32,
    trainable: usize,
    state: Vec<&'a mut [f32]>,
}

impl<'a> OptimizerStep<'a> {
    /// Splits the range: `self` keeps its first `at` values, the rest is returned.
    pub fn split_off(&mut self, at: usize) -> OptimizerStep<'a> {
        let kept = at.min(self.trainable);
        let cut = |vector: &mut &'a mut [f32]| {
            let (front, rest) = std::mem::take(vector).split_at_mut(kept);
            *vector = front;
            rest
        };
        let state = self.state.iter_mut().map(cut).collect();
        let trainable = self.trainable - kept;
        self.trainable = kept;
        OptimizerStep { spec: self.spec, steps: self.steps, rate: self.rate, trainable, state }
    }

    /// Applies the step. Both slices cover its range of the vector.
    ///
    /// # Panics
    /// If the slices differ in length or are shorter than the trainable part of the range.
    pub fn apply(mut self, parameters: &mut [f32], gradient: &[f32]) {
        assert_eq!(parameters.len(), gradient.len(), "gradient and parameters differ in length");
        let rate = self.rate;
        let (parameters, statistics) = parameters.split_at_mut(self.trainable);
        let (gradient, differences) = gradient.split_at(self.trainable);
        for (statistic, difference) in statistics.iter_mut().zip(differences) {
            *statistic -= difference;
        }
        let pairs = parameters.iter_mut().zip(gradient);
        match (self.spec, self.state.as_mut_slice()) {
            (OptimizerSpec::Sgd { decay }, _) => {
                let decay = decay as f32;
                for (p, g) in pairs {
                    *p -= rate * (g + decay * *p);
                }
            }
            (OptimizerSpec::Momentum { momentum, decay }, [velocity]) => {
                let (momentum, decay) = (momentum as f32, decay as f32);
                for ((p, g), m) in pairs.zip(velocity.iter_mut()) {
                    *m = momentum * *m + (g + decay * *p);
                    *p -= rate * *m;
                }
            }
            (OptimizerSpec::Nesterov { momentum, decay }, [velocity]) => {
                let (momentum, decay) = (momentum as f32, decay as f32);
                for ((p, g), m) in pairs.zip(velocity.iter_mut()) {
                    let g = g + decay * *p;
                    *m = momentum * *m + g;
                    *p -= rate * (g + momentum * *m);
                }
            }
            (OptimizerSpec::Adam(moments), [mean, square]) => {
                AdamStep::new(moments, rate, 0.0, self.steps).apply(parameters, gradient, mean, square);
            }
            (OptimizerSpec::AdamW { decay, moments }, [mean, square]) => {
                AdamStep::new(moments, rate, decay, self.steps).apply(parameters, gradient, mean, square);
            }
            _ => unreachable!("the state has one vector per state name"),
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

    fn apply(&self, parameters: &mut [f32], gradient: &[f32], mean: &mut [f32], square: &mut [f32]) {
        for (((p, g), m), v) in parameters.iter_mut().zip(gradient).zip(mean).zip(square) {
            *m = self.keep_mean * *m + self.add_mean * g;
            *v = self.keep_square * *v + self.add_square * g * g;
            *p = self.shrink * *p - self.size * *m / (v.sqrt() * self.root + self.epsilon);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values of p in the first three steps of minimizing f(p) = p² (gradient 2p) from p = 1 with rate 0.1.
    fn descend(text: &str) -> [f64; 3] {
        let mut optimizer = Optimizer::new(text.parse().expect("a valid optimizer"), 1);
        let mut parameters = [1.0_f32];
        std::array::from_fn(|_| {
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
    fn a_split_step_gives_the_same_bits() {
        let gradient: Vec<f32> = (0..10).map(|index| (index as f32).sin()).collect();
        for text in ["sgd", "momentum", "nesterov", "adam", "adamw"] {
            let mut whole = Optimizer::new(text.parse().expect(text), 7);
            let mut split = whole.clone();
            let (mut expected, mut parameters) = (vec![0.5; 10], vec![0.5; 10]);
            for _ in 0..3 {
                whole.step(&mut expected, &gradient, 0.1);
                let mut front = split.begin(0.1);
                let mut middle = front.split_off(3);
                let back = middle.split_off(6);
                back.apply(&mut parameters[9..], &gradient[9..]);
                middle.apply(&mut parameters[3..9], &gradient[3..9]);
                front.apply(&mut parameters[..3], &gradient[..3]);
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
