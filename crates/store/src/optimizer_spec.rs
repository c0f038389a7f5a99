//! Optimizers and their settings, as text.

use std::fmt;
use std::str::FromStr;

use paceline_spec::{Form, Spec, SpecError, pair};
use serde::{Deserialize, Serialize};

use crate::Layout;
use crate::parameter_group::ParameterGroup;

/// An optimizer, its settings, and groups of parameters with other settings.
///
/// As text: the optimizer, then groups after semicolons: `adamw:0.01;*bias:decay=0;*norm*:decay=0`. A tensor belongs to the
/// first group that matches its name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OptimizerSpec {
    /// The optimizer.
    pub kind: OptimizerKind,
    /// The groups.
    pub groups: Vec<ParameterGroup>,
}

/// A group that no tensor belongs to.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("parameter group '{group}' matches no tensor; the model has {tensors}")]
pub struct EmptyGroup {
    /// The group.
    group: String,
    /// The names of the tensors.
    tensors: String,
}

impl OptimizerSpec {
    /// Checks that every group has a tensor.
    ///
    /// # Errors
    /// If one has none.
    pub fn check(&self, layout: &Layout) -> Result<(), EmptyGroup> {
        let names = || layout.trainable_entries().map(|entry| entry.name.as_str());
        match self.groups.iter().find(|group| !names().any(|name| group.contains(name))) {
            None => Ok(()),
            Some(group) => {
                Err(EmptyGroup { group: group.to_string(), tensors: names().collect::<Vec<_>>().join(", ") })
            }
        }
    }

    /// How a tensor is stepped: 0 outside all groups or 1 + the index of its group, the rule, and the factor on the
    /// learning rate.
    pub(crate) fn rule_of(&self, name: &str) -> (usize, OptimizerKind, f64) {
        let Some(index) = self.groups.iter().position(|group| group.contains(name)) else {
            return (0, self.kind, 1.0);
        };
        let ParameterGroup { rate, decay, .. } = self.groups[index];
        (index + 1, decay.map_or(self.kind, |decay| self.kind.with_decay(decay)), rate)
    }
}

impl From<OptimizerKind> for OptimizerSpec {
    fn from(kind: OptimizerKind) -> Self {
        OptimizerSpec { kind, groups: Vec::new() }
    }
}

impl FromStr for OptimizerSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let mut parts = text.split(';');
        let kind: OptimizerKind = parts.next().unwrap_or_default().parse()?;
        let groups = parts.map(str::parse).collect::<Result<Vec<ParameterGroup>, _>>()?;
        Ok(OptimizerSpec { kind, groups })
    }
}

impl fmt::Display for OptimizerSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.kind)?;
        self.groups.iter().try_for_each(|group| write!(f, ";{group}"))
    }
}

/// The rule of an optimizer and its settings.
///
/// As text: `sgd`, `momentum:0.9,dampening=0.1`, `nesterov:momentum=0.9,decay=1e-4`, `delayed-nesterov:0.9,delay=8`,
/// `adam:decay=1e-4,beta1=0.9,beta2=0.999,epsilon=1e-8`, `adamw:0.01`. Omitted keys take their defaults. After
/// `momentum`, `nesterov`, `delayed-nesterov` and `adamw`, one value without a key stands for the first key.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum OptimizerKind {
    /// `p −= rate·g`. No state.
    Sgd {
        /// Weight decay, added to the gradient as `decay·p`; default 0.
        decay: f64,
    },
    /// `m = momentum·m + (1 − dampening)·g; p −= rate·m`. The first step has `m = g`. One vector of state.
    Momentum {
        /// Share of the last step that is kept, at least 0 and below 1; default 0.9. With 0 there is no dampening.
        momentum: f64,
        /// Share of the gradient that is left out after the first step, at least 0 and below 1; default 0.
        dampening: f64,
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
    /// `p −= rate·g`; after every `delay` steps `m = momentum·m + Σg; p −= rate·momentum·m`, where Σg is the sum of
    /// their gradients. So `delay` steps lead as far as one of `nesterov` by that sum. Two vectors of state.
    DelayedNesterov {
        /// Share of the last momentum that is kept, at least 0 and below 1; default 0.9.
        momentum: f64,
        /// After how many steps the momentum is applied, at least 1, which is `nesterov`.
        delay: u64,
        /// Weight decay, added to the gradient as `decay·p`; default 0.
        decay: f64,
    },
    /// Adam with bias correction. Two vectors of state.
    Adam {
        /// Weight decay, added to the gradient as `decay·p`; default 0.
        decay: f64,
        /// The settings of both kinds of Adam.
        moments: Moments,
    },
    /// Adam with decoupled weight decay: weights shrink by `rate·decay` per step. Two vectors of state.
    AdamW {
        /// Weight decay; default 0.01.
        decay: f64,
        /// The settings of both kinds of Adam.
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
    Form::new("momentum", &["momentum", "dampening", "decay"]).positional(1),
    Form::new("nesterov", &["momentum", "decay"]).positional(1),
    Form::new("delayed-nesterov", &["momentum", "delay", "decay"]).positional(1),
    Form::new("adam", &["decay", "beta1", "beta2", "epsilon"]).positional(0),
    Form::new("adamw", &["decay", "beta1", "beta2", "epsilon"]).positional(1),
];

impl FromStr for OptimizerKind {
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
            "sgd" => OptimizerKind::Sgd { decay: size("decay", 0.0)? },
            "momentum" => OptimizerKind::Momentum {
                momentum: share("momentum", MOMENTUM)?,
                dampening: share("dampening", 0.0)?,
                decay: size("decay", 0.0)?,
            },
            "nesterov" => {
                OptimizerKind::Nesterov { momentum: share("momentum", MOMENTUM)?, decay: size("decay", 0.0)? }
            }
            "delayed-nesterov" => OptimizerKind::DelayedNesterov {
                momentum: share("momentum", MOMENTUM)?,
                delay: spec.required("delay", "a whole number from 1", |&delay: &u64| delay > 0)?,
                decay: size("decay", 0.0)?,
            },
            "adam" => OptimizerKind::Adam { decay: size("decay", 0.0)?, moments: moments()? },
            _ => OptimizerKind::AdamW { decay: size("decay", ADAMW_DECAY)?, moments: moments()? },
        })
    }
}

impl fmt::Display for OptimizerKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            OptimizerKind::Sgd { decay } => paceline_spec::write(formatter, "sgd", [pair("decay", decay, 0.0)]),
            OptimizerKind::Momentum { momentum, dampening, decay } => {
                let parts = [Some(momentum.to_string()), pair("dampening", dampening, 0.0), pair("decay", decay, 0.0)];
                paceline_spec::write(formatter, "momentum", parts)
            }
            OptimizerKind::Nesterov { momentum, decay } => {
                let parts = [Some(momentum.to_string()), pair("decay", decay, 0.0)];
                paceline_spec::write(formatter, "nesterov", parts)
            }
            OptimizerKind::DelayedNesterov { momentum, delay, decay } => {
                let parts = [Some(momentum.to_string()), Some(format!("delay={delay}")), pair("decay", decay, 0.0)];
                paceline_spec::write(formatter, "delayed-nesterov", parts)
            }
            OptimizerKind::Adam { decay, moments } => {
                let [beta1, beta2, epsilon] = moments.parts();
                let parts = [pair("decay", decay, 0.0), beta1, beta2, epsilon];
                paceline_spec::write(formatter, "adam", parts)
            }
            OptimizerKind::AdamW { decay, moments } => {
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

impl OptimizerKind {
    fn with_decay(mut self, new: f64) -> Self {
        match &mut self {
            OptimizerKind::Sgd { decay }
            | OptimizerKind::Momentum { decay, .. }
            | OptimizerKind::Nesterov { decay, .. }
            | OptimizerKind::DelayedNesterov { decay, .. }
            | OptimizerKind::Adam { decay, .. }
            | OptimizerKind::AdamW { decay, .. } => *decay = new,
        }
        self
    }

    /// Names of the state vectors, each of the length of the trainable part.
    pub(crate) fn state_names(self) -> &'static [&'static str] {
        match self {
            OptimizerKind::Sgd { .. } => &[],
            OptimizerKind::Momentum { .. } | OptimizerKind::Nesterov { .. } => &["momentum"],
            OptimizerKind::DelayedNesterov { .. } => &["momentum", "sum"],
            OptimizerKind::Adam { .. } | OptimizerKind::AdamW { .. } => &["mean", "mean_square"],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specs_round_trip_through_text() {
        for text in [
            "sgd",
            "sgd:decay=0.0001",
            "momentum:0.9",
            "momentum:0.9,dampening=0.5,decay=0.1",
            "nesterov:0.5,decay=0.01",
            "delayed-nesterov:0.5,delay=8",
            "delayed-nesterov:0.5,delay=2,decay=0.01",
            "adam",
            "adam:decay=0.1,beta1=0.5",
        ] {
            let spec: OptimizerKind = text.parse().expect(text);
            assert_eq!(spec.to_string(), text);
        }
        let spec: OptimizerKind = "adamw:beta2=0.99,epsilon=1e-7".parse().expect("valid");
        assert_eq!(spec.to_string(), "adamw:0.01,beta2=0.99,epsilon=0.0000001");
        assert_eq!(spec.to_string().parse(), Ok(spec));
        assert_eq!("momentum".parse(), "momentum:0.9".parse::<OptimizerKind>());
    }

    #[test]
    fn settings_out_of_range_are_rejected() {
        for text in [
            "momentum:1",
            "momentum:dampening=1",
            "nesterov:dampening=0.1",
            "delayed-nesterov:0.9",
            "delayed-nesterov:delay=0",
            "sgd:decay=-1",
            "adam:epsilon=nan",
            "adam:0.1",
            "adamw:beta1=1.5",
            "sgd:0.1",
        ] {
            assert!(text.parse::<OptimizerKind>().is_err(), "{text}");
        }
    }

    #[test]
    fn groups_follow_the_optimizer() {
        let text = "adamw:0.01;*bias:decay=0;head.*:rate=10,decay=0.5";
        let spec: OptimizerSpec = text.parse().expect(text);
        assert_eq!(spec.to_string(), text);
        let decay = |name: &str| match spec.rule_of(name) {
            (group, OptimizerKind::AdamW { decay, .. }, rate) => (group, decay, rate),
            other => panic!("{other:?}"),
        };
        assert_eq!(decay("conv.weight"), (0, 0.01, 1.0));
        assert_eq!(decay("head.bias"), (1, 0.0, 1.0), "the first group counts");
        assert_eq!(decay("head.weight"), (2, 0.5, 10.0));
        let layout = Layout::new([("conv.weight", vec![2]), ("conv.bias", vec![1])], [("head.mean", vec![1])]);
        let error = spec.check(&layout).unwrap_err().to_string();
        assert_eq!(
            error,
            "parameter group 'head.*:rate=10,decay=0.5' matches no tensor; the model has conv.weight, conv.bias"
        );
    }
}
