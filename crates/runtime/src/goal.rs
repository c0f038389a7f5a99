//! When a run is over.

use std::fmt;
use std::str::FromStr;

use paceline_core::{Span, Time};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// How many iterations' training losses are averaged for a loss goal: one lucky batch is no success.
pub const LOSS_WINDOW: usize = 5;

/// One condition that ends a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Goal {
    /// The mean of the last [`LOSS_WINDOW`] iterations' training losses is below this.
    LossBelow(f64),
    /// The held-out accuracy, measured now and then, is above this share.
    AccuracyAbove(f64),
    /// So many iterations are done.
    Iterations(u64),
    /// So much time has passed.
    Time(Span),
    /// So many samples were used in committed updates.
    Samples(u64),
}

/// Where a run stands, as far as goals ask.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GoalProgress {
    /// Iterations done.
    pub iterations: u64,
    /// Samples used in committed updates.
    pub samples: u64,
    /// The present time.
    pub now: Time,
    /// Mean of the last [`LOSS_WINDOW`] training losses, once there are as many.
    pub loss: Option<f64>,
    /// The held-out accuracy, if it was measured at this iteration.
    pub accuracy: Option<f64>,
}

impl Goal {
    /// Whether it is about what the model has learned, not about how much was spent.
    pub fn is_target(self) -> bool {
        matches!(self, Goal::LossBelow(_) | Goal::AccuracyAbove(_))
    }

    /// Whether a run that stands so is over.
    pub fn is_met(self, standing: &GoalProgress) -> bool {
        match self {
            Goal::LossBelow(bound) => standing.loss.is_some_and(|loss| loss < bound),
            Goal::AccuracyAbove(bound) => standing.accuracy.is_some_and(|accuracy| accuracy > bound),
            Goal::Iterations(count) => standing.iterations >= count,
            Goal::Time(span) => standing.now >= Time::START + span,
            Goal::Samples(count) => standing.samples >= count,
        }
    }
}

/// The conditions of which any ends a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Goals(Vec<Goal>);

impl Goals {
    /// The conditions of all of `several`.
    pub fn any(several: &[Goals]) -> Self {
        Goals(several.iter().flat_map(Goals::iter).collect())
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

    /// When the run is over at the latest, as far as that is known.
    pub fn time_limit(&self) -> Option<Time> {
        self.iter().filter_map(|goal| if let Goal::Time(span) = goal { Some(Time::START + span) } else { None }).min()
    }

    /// How many iterations there will be at most, as far as that is known.
    pub fn iteration_limit(&self) -> Option<u64> {
        self.iter().filter_map(|goal| if let Goal::Iterations(count) = goal { Some(count) } else { None }).min()
    }

    /// The first condition that is met. Targets come before limits.
    pub fn met(&self, standing: &GoalProgress) -> Option<Goal> {
        let met = || self.iter().filter(|goal| goal.is_met(standing));
        met().find(|goal| goal.is_target()).or_else(|| met().next())
    }
}

/// What is wrong with a goal as written.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "'{text}': expected loss<X, accuracy>X (0 to 1), iterations=N, time=SECONDS or samples=N, or several with commas"
)]
pub struct GoalError {
    /// What was written.
    pub text: String,
}

impl FromStr for Goal {
    type Err = GoalError;

    fn from_str(text: &str) -> Result<Self, GoalError> {
        let error = || GoalError { text: text.into() };
        let at = text.find(['<', '>', '=']).ok_or_else(error)?;
        let (name, value) = (&text[..at], &text[at + 1..]);
        let number = || value.parse::<f64>().ok().filter(|number| number.is_finite()).ok_or_else(error);
        let count = || value.parse::<u64>().ok().filter(|&count| count > 0).ok_or_else(error);
        match (name, text.as_bytes()[at]) {
            ("loss", b'<') => Ok(Goal::LossBelow(number()?)),
            ("accuracy", b'>') => {
                let share = number()?;
                if (0.0..=1.0).contains(&share) { Ok(Goal::AccuracyAbove(share)) } else { Err(error()) }
            }
            ("iterations", b'=') => Ok(Goal::Iterations(count()?)),
            ("time", b'=') => {
                let seconds = number()?;
                if seconds > 0.0 { Ok(Goal::Time(Span::from_seconds(seconds))) } else { Err(error()) }
            }
            ("samples", b'=') => Ok(Goal::Samples(count()?)),
            _ => Err(error()),
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
    type Err = GoalError;

    fn from_str(text: &str) -> Result<Self, GoalError> {
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
    type Error = GoalError;
    fn try_from(text: String) -> Result<Self, GoalError> {
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
    fn nonsense_is_refused() {
        for text in ["", "loss", "loss>0.2", "loss<x", "loss<NaN", "accuracy>2", "iterations=0", "time=-1", "speed=3"] {
            assert!(text.parse::<Goals>().unwrap_err().to_string().starts_with(&format!("'{text}': expected")));
        }
    }

    #[test]
    fn a_target_comes_before_a_limit() {
        let goals: Goals = "iterations=5,loss<1".parse().unwrap();
        let standing = GoalProgress { iterations: 5, samples: 0, now: Time(0), loss: Some(0.5), accuracy: None };
        assert_eq!(goals.met(&standing), Some(Goal::LossBelow(1.0)));
        assert_eq!(goals.met(&GoalProgress { loss: None, ..standing }), Some(Goal::Iterations(5)));
        assert_eq!(goals.met(&GoalProgress { loss: None, iterations: 4, ..standing }), None);
    }
}
