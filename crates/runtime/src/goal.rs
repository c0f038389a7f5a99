//! When a run ends.

use std::fmt;
use std::str::FromStr;

use paceline_core::{Span, Time};
use paceline_spec::SpecError;
use serde::{Deserialize, Serialize};

/// One condition that ends a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Goal {
    /// The mean training loss of the last samples, as many as five rounds have, is below this: one lucky batch is not
    /// enough.
    LossBelow(f64),
    /// The held-out accuracy, measured from time to time, is above this share twice in a row.
    AccuracyAbove(f64),
    /// This many iterations are done.
    Iterations(u64),
    /// This much time has passed.
    Time(Span),
    /// This many samples were used in committed updates.
    Samples(u64),
}

/// The progress of a run towards its goals.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GoalProgress {
    /// Iterations done.
    pub iterations: u64,
    /// Samples used in committed updates.
    pub samples: u64,
    /// The present time.
    pub now: Time,
    /// Mean training loss of the last samples, once there are enough.
    pub loss: Option<f64>,
    /// The held-out accuracy that the last two evaluations confirm, i.e. the lower one.
    pub accuracy: Option<f64>,
}

impl Goal {
    /// Whether it is a target for the model, rather than a limit of time or work.
    pub fn is_target(self) -> bool {
        matches!(self, Goal::LossBelow(_) | Goal::AccuracyAbove(_))
    }

    /// Whether a run with this progress meets it.
    pub fn is_met(self, progress: &GoalProgress) -> bool {
        match self {
            Goal::LossBelow(bound) => progress.loss.is_some_and(|loss| loss < bound),
            Goal::AccuracyAbove(bound) => progress.accuracy.is_some_and(|accuracy| accuracy > bound),
            Goal::Iterations(count) => progress.iterations >= count,
            Goal::Time(span) => progress.now >= Time::START + span,
            Goal::Samples(count) => progress.samples >= count,
        }
    }
}

/// The conditions that end a run, whichever is met first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Goals(Vec<Goal>);

impl Goals {
    /// All conditions of `several`.
    pub fn any(several: &[Goals]) -> Self {
        Goals(several.iter().flat_map(Goals::iter).collect())
    }

    /// Those that need no model: limits of time and work.
    pub fn limits(&self) -> Self {
        Goals(self.iter().filter(|goal| !goal.is_target()).collect())
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = Goal> + '_ {
        self.0.iter().copied()
    }

    /// Whether any asks for the held-out accuracy.
    pub fn need_accuracy(&self) -> bool {
        self.iter().any(|goal| matches!(goal, Goal::AccuracyAbove(_)))
    }

    /// Whether any asks what a model has learned.
    pub fn need_model(&self) -> bool {
        self.iter().any(Goal::is_target)
    }

    /// When the run ends at the latest, if there is a limit.
    pub fn time_limit(&self) -> Option<Time> {
        self.iter().filter_map(|goal| if let Goal::Time(span) = goal { Some(Time::START + span) } else { None }).min()
    }

    /// How many iterations there are at most, if there is a limit.
    pub fn iteration_limit(&self) -> Option<u64> {
        self.iter().filter_map(|goal| if let Goal::Iterations(count) = goal { Some(count) } else { None }).min()
    }

    /// The first condition that is met. Targets come before limits.
    pub fn met(&self, progress: &GoalProgress) -> Option<Goal> {
        let mut limit = None;
        for goal in self.iter().filter(|goal| goal.is_met(progress)) {
            if goal.is_target() {
                return Some(goal);
            }
            limit.get_or_insert(goal);
        }
        limit
    }
}

impl FromStr for Goal {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let error = |expected: &str| SpecError::malformed("goal", text, expected);
        let unknown = || error("loss<X, accuracy>X, iterations=N, time=SECONDS or samples=N");
        let at = text.find(['<', '>', '=']).ok_or_else(unknown)?;
        let (name, value) = (&text[..at], &text[at + 1..]);
        let number = |expected, accept: fn(f64) -> bool| {
            let number = value.parse().ok().filter(|&number: &f64| number.is_finite() && accept(number));
            number.ok_or_else(|| error(expected))
        };
        let count = |expected| value.parse().ok().filter(|&count: &u64| count > 0).ok_or_else(|| error(expected));
        match (name, text.as_bytes()[at]) {
            ("loss", b'<') => Ok(Goal::LossBelow(number("loss<X with a number X", |_| true)?)),
            ("accuracy", b'>') => {
                let accept = |share: f64| (0.0..=1.0).contains(&share);
                Ok(Goal::AccuracyAbove(number("accuracy>X with X from 0 to 1", accept)?))
            }
            ("iterations", b'=') => Ok(Goal::Iterations(count("iterations=N with a whole number N above 0")?)),
            ("time", b'=') => {
                let seconds = number("time=SECONDS with a number above 0", |seconds| seconds > 0.0)?;
                Ok(Goal::Time(Span::from_seconds(seconds)))
            }
            ("samples", b'=') => Ok(Goal::Samples(count("samples=N with a whole number N above 0")?)),
            _ => Err(unknown()),
        }
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Goal::LossBelow(bound) => write!(f, "loss<{bound}"),
            Goal::AccuracyAbove(bound) => write!(f, "accuracy>{bound}"),
            Goal::Iterations(count) => write!(f, "iterations={count}"),
            Goal::Time(span) => write!(f, "time={}", span.seconds()),
            Goal::Samples(count) => write!(f, "samples={count}"),
        }
    }
}

impl FromStr for Goals {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        text.split(',').map(Goal::from_str).collect::<Result<_, _>>().map(Goals)
    }
}

impl fmt::Display for Goals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts: Vec<String> = self.0.iter().map(Goal::to_string).collect();
        f.write_str(&texts.join(","))
    }
}

impl TryFrom<String> for Goals {
    type Error = SpecError;
    fn try_from(text: String) -> Result<Self, SpecError> {
        text.parse()
    }
}

impl From<Goals> for String {
    fn from(goals: Goals) -> String {
        goals.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goals_read_back_as_written() {
        for text in ["loss<0.2", "accuracy>0.8", "iterations=7,time=1.5", "samples=10"] {
            assert_eq!(text.parse::<Goals>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn malformed_goals_are_refused() {
        for text in ["", "loss", "loss>0.2", "loss<x", "loss<NaN", "accuracy>2", "iterations=0", "time=-1", "speed=3"] {
            assert!(text.parse::<Goals>().unwrap_err().to_string().starts_with(&format!("goal '{text}'; expected")));
        }
    }

    #[test]
    fn a_target_comes_before_a_limit() {
        let goals: Goals = "iterations=5,loss<1".parse().unwrap();
        let progress = GoalProgress { iterations: 5, samples: 0, now: Time(0), loss: Some(0.5), accuracy: None };
        assert_eq!(goals.met(&progress), Some(Goal::LossBelow(1.0)));
        assert_eq!(goals.met(&GoalProgress { loss: None, ..progress }), Some(Goal::Iterations(5)));
        assert_eq!(goals.met(&GoalProgress { loss: None, iterations: 4, ..progress }), None);
    }
}
