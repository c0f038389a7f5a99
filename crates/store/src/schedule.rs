//! Schedules: how the learning rate changes during training.

use std::f64::consts::PI;
use std::fmt;
use std::str::FromStr;

use paceline_spec::{Form, Spec, SpecError, pair};

/// The learning rate as a function of the model version and of the number of updates in a commit.
///
/// As text: a shape (`constant`, `step:every=30,factor=0.1`, `cosine:over=1000,floor=0.01`), with the optional settings
/// `warmup=100` and `proportional`: `cosine:over=1000,warmup=50,proportional`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Schedule {
    /// How the rate falls after the warm-up.
    pub shape: ScheduleShape,
    /// Number of versions over which the rate rises, in equal steps, to the full rate; default 0. The shape starts at
    /// the end of the warm-up.
    pub warmup: u64,
    /// Whether the rate is multiplied by committed / workers, so that a commit of few updates takes a small step;
    /// default false.
    pub proportional: bool,
}

/// How the learning rate falls.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ScheduleShape {
    /// The full rate throughout.
    Constant,
    /// Multiplied by `factor` after every `every` versions.
    Step {
        /// Versions between reductions, at least 1.
        every: u64,
        /// Factor of each reduction, above 0 and at most 1; default 0.1.
        factor: f64,
    },
    /// Half a cosine from the full rate down to `floor` times the full rate, then constant.
    Cosine {
        /// Versions until the floor is reached, at least 1.
        over: u64,
        /// Share of the full rate that remains, 0 to 1; default 0.
        floor: f64,
    },
}

const STEP_FACTOR: f64 = 0.1;

impl Default for Schedule {
    /// A constant rate.
    fn default() -> Self {
        Schedule { shape: ScheduleShape::Constant, warmup: 0, proportional: false }
    }
}

impl Schedule {
    /// The learning rate of the step from `version` to the next. `base` is the full rate, `committed` the number of
    /// updates in that step, `workers` the number of participating workers.
    pub fn rate(&self, base: f32, version: u64, committed: usize, workers: usize) -> f32 {
        let factor = if version < self.warmup {
            (version + 1) as f64 / self.warmup as f64
        } else {
            self.shape.factor(version - self.warmup)
        };
        let share = if self.proportional { committed as f64 / workers.max(1) as f64 } else { 1.0 };
        (f64::from(base) * factor * share) as f32
    }
}

impl ScheduleShape {
    fn factor(self, version: u64) -> f64 {
        match self {
            ScheduleShape::Constant => 1.0,
            ScheduleShape::Step { every, factor } => factor.powf((version / every) as f64),
            ScheduleShape::Cosine { over, floor } => {
                let progress = (version as f64 / over as f64).min(1.0);
                floor + (1.0 - floor) * (1.0 + (PI * progress).cos()) / 2.0
            }
        }
    }
}

const FORMS: &[Form<'_>] = &[
    Form::new("constant", &["warmup", "proportional"]),
    Form::new("step", &["every", "factor", "warmup", "proportional"]),
    Form::new("cosine", &["over", "floor", "warmup", "proportional"]),
];

impl FromStr for Schedule {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let spec = Spec::parse("schedule", text, FORMS)?;
        let period = |key| spec.required(key, "a whole number, at least 1", |&value: &u64| value > 0);
        let shape = match spec.name() {
            "constant" => ScheduleShape::Constant,
            "step" => {
                let accept = |&value: &f64| value > 0.0 && value <= 1.0;
                let factor = spec.optional("factor", "above 0 and at most 1", accept)?;
                ScheduleShape::Step { every: period("every")?, factor: factor.unwrap_or(STEP_FACTOR) }
            }
            _ => {
                let accept = |value: &f64| (0.0..=1.0).contains(value);
                let floor = spec.optional("floor", "from 0 to 1", accept)?;
                ScheduleShape::Cosine { over: period("over")?, floor: floor.unwrap_or(0.0) }
            }
        };
        let warmup = spec.optional("warmup", "a whole number", |_| true)?;
        let proportional = spec.optional("proportional", "true or false", |_| true)?;
        Ok(Schedule { shape, warmup: warmup.unwrap_or(0), proportional: proportional.unwrap_or(false) })
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, first, second) = match self.shape {
            ScheduleShape::Constant => ("constant", None, None),
            ScheduleShape::Step { every, factor } => {
                ("step", Some(format!("every={every}")), Some(format!("factor={factor}")))
            }
            ScheduleShape::Cosine { over, floor } => {
                ("cosine", Some(format!("over={over}")), pair("floor", floor, 0.0))
            }
        };
        let warmup = pair("warmup", self.warmup, 0);
        let proportional = self.proportional.then(|| "proportional".to_string());
        paceline_spec::write(formatter, name, [first, second, warmup, proportional])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(text: &str, versions: &[u64]) -> Vec<f32> {
        let schedule: Schedule = text.parse().expect(text);
        let rate = |&version: &u64| schedule.rate(1.0, version, 3, 4);
        versions.iter().map(rate).collect()
    }

    #[test]
    fn each_shape_has_its_rates() {
        assert_eq!(rates("constant", &[0, 1_000_000]), [1.0, 1.0]);
        assert_eq!(rates("step:every=2,factor=0.5", &[0, 1, 2, 4]), [1.0, 1.0, 0.5, 0.25]);
        assert_eq!(rates("cosine:over=10,floor=0.2", &[0, 5, 10, 99]), [1.0, 0.6, 0.2, 0.2]);
    }

    #[test]
    fn the_shape_starts_after_the_warm_up() {
        assert_eq!(rates("step:every=1,factor=0.5,warmup=4", &[0, 1, 3, 4, 5]), [0.25, 0.5, 1.0, 1.0, 0.5]);
    }

    #[test]
    fn a_proportional_rate_scales_with_the_committed_share() {
        assert_eq!(rates("constant:proportional", &[7]), [0.75]);
        assert_eq!(rates("constant:warmup=2,proportional", &[0]), [0.375]);
    }

    #[test]
    fn schedules_round_trip_through_text() {
        for text in [
            "constant",
            "constant:proportional",
            "step:every=30,factor=0.1",
            "cosine:over=1000,floor=0.01,warmup=5,proportional",
        ] {
            let schedule: Schedule = text.parse().expect(text);
            assert_eq!(schedule.to_string(), text);
        }
    }

    #[test]
    fn impossible_schedules_are_rejected() {
        for text in ["step", "step:every=0", "cosine:over=3,floor=2", "constant:every=3", "linear"] {
            assert!(text.parse::<Schedule>().is_err(), "{text}");
        }
    }
}
