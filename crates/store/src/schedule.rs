//! Schedules: how the learning rate changes during training.

use std::f64::consts::PI;
use std::fmt;
use std::str::FromStr;

use paceline_spec::{Form, Spec, SpecError, pair};

/// The learning rate as a function of the steps taken.
///
/// As text: a shape (`constant`, `step:every=30,factor=0.1`, `cosine:over=1000,floor=0.01`), with the optional setting
/// `warmup=100`: `cosine:over=1000,warmup=50`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Schedule {
    /// How the rate falls after the warm-up.
    pub shape: ScheduleShape,
    /// Number of steps over which the rate rises, equally with each, to the full rate; default 0. The shape starts at
    /// the end of the warm-up.
    pub warmup: u64,
}

/// How the learning rate falls.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ScheduleShape {
    /// The full rate throughout.
    Constant,
    /// Multiplied by `factor` after every `every` steps.
    Step {
        /// Steps between reductions, at least 1.
        every: u64,
        /// Factor of each reduction, above 0 and at most 1; default 0.1.
        factor: f64,
    },
    /// Half a cosine from the full rate down to `floor` times the full rate, then constant.
    Cosine {
        /// Steps until the floor is reached, at least 1.
        over: u64,
        /// Share of the full rate that remains, 0 to 1; default 0.
        floor: f64,
    },
}

const STEP_FACTOR: f64 = 0.1;

impl Default for Schedule {
    /// A constant rate.
    fn default() -> Self {
        Schedule { shape: ScheduleShape::Constant, warmup: 0 }
    }
}

impl Schedule {
    /// The learning rate of the step after `progress` steps. `base` is the full rate.
    pub fn rate(&self, base: f32, progress: f64) -> f32 {
        (f64::from(base) * self.share(progress)) as f32
    }

    /// The share of the full rate in the step after `progress` steps, which need not be a whole number.
    pub fn share(&self, progress: f64) -> f64 {
        let warmup = self.warmup as f64;
        if progress < warmup { ((progress + 1.0) / warmup).min(1.0) } else { self.shape.share(progress - warmup) }
    }
}

impl ScheduleShape {
    fn share(self, progress: f64) -> f64 {
        match self {
            ScheduleShape::Constant => 1.0,
            ScheduleShape::Step { every, factor } => factor.powf((progress / every as f64).floor()),
            ScheduleShape::Cosine { over, floor } => {
                let done = (progress / over as f64).min(1.0);
                floor + (1.0 - floor) * (1.0 + (PI * done).cos()) / 2.0
            }
        }
    }
}

const FORMS: &[Form<'_>] = &[
    Form::new("constant", &["warmup"]),
    Form::new("step", &["every", "factor", "warmup"]),
    Form::new("cosine", &["over", "floor", "warmup"]),
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
        Ok(Schedule { shape, warmup: warmup.unwrap_or(0) })
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
        paceline_spec::write(formatter, name, [first, second, warmup])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(text: &str, steps: &[f64]) -> Vec<f32> {
        let schedule: Schedule = text.parse().expect(text);
        steps.iter().map(|&progress| schedule.rate(1.0, progress)).collect()
    }

    #[test]
    fn each_shape_has_its_rates() {
        assert_eq!(rates("constant", &[0.0, 1e6]), [1.0, 1.0]);
        assert_eq!(rates("step:every=2,factor=0.5", &[0.0, 1.9, 2.0, 4.0]), [1.0, 1.0, 0.5, 0.25]);
        assert_eq!(rates("cosine:over=10,floor=0.2", &[0.0, 5.0, 10.0, 99.0]), [1.0, 0.6, 0.2, 0.2]);
    }

    #[test]
    fn the_shape_starts_after_the_warm_up() {
        let steps = [0.0, 1.0, 3.0, 3.5, 4.0, 5.0];
        assert_eq!(rates("step:every=1,factor=0.5,warmup=4", &steps), [0.25, 0.5, 1.0, 1.0, 1.0, 0.5]);
    }

    #[test]
    fn schedules_round_trip_through_text() {
        for text in
            ["constant", "constant:warmup=3", "step:every=30,factor=0.1", "cosine:over=1000,floor=0.01,warmup=5"]
        {
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
