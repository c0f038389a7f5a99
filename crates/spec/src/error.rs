//! What is wrong with a spec.

use std::fmt;

use thiserror::Error;

use crate::alternatives;

/// What is wrong with a spec: what kind of spec, which one, and the problem.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub struct SpecError {
    /// What it is a spec of: a scheme, an optimizer.
    pub kind: &'static str,
    /// Its name; empty if it has none.
    pub name: String,
    /// What is wrong.
    pub problem: Problem,
}

/// What can be wrong with a spec.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Problem {
    /// The name is unknown.
    UnknownName {
        /// The names that are known.
        expected: String,
    },
    /// The form does not take a key, or takes fewer values.
    UnknownKey {
        /// What was given.
        key: String,
        /// The keys that it takes.
        expected: String,
    },
    /// A key is given without a value.
    NoValue {
        /// The key.
        key: String,
    },
    /// A key is given twice.
    Twice {
        /// The key.
        key: String,
    },
    /// A key that must be given is missing.
    Missing {
        /// The key.
        key: &'static str,
        /// What is allowed.
        expected: String,
    },
    /// A value can't be read or is not allowed.
    BadValue {
        /// The key.
        key: &'static str,
        /// The value.
        value: String,
        /// What is allowed.
        expected: String,
    },
    /// The text as a whole is not allowed.
    Malformed {
        /// The text.
        text: String,
        /// What is allowed.
        expected: String,
    },
}

impl SpecError {
    /// No spec of this kind has this name.
    pub fn unknown_name(kind: &'static str, name: &str, known: &[&str]) -> Self {
        SpecError { kind, name: name.into(), problem: Problem::UnknownName { expected: alternatives(known) } }
    }

    /// The text is not a spec of this kind.
    pub fn malformed(kind: &'static str, text: &str, expected: impl Into<String>) -> Self {
        let problem = Problem::Malformed { text: text.into(), expected: expected.into() };
        SpecError { kind, name: String::new(), problem }
    }
}

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SpecError { kind, name, problem } = self;
        let subject = if name.is_empty() { (*kind).to_string() } else { format!("{kind} '{name}'") };
        match problem {
            Problem::UnknownName { expected } => write!(f, "unknown {kind} '{name}'; expected {expected}"),
            Problem::UnknownKey { key, expected } if expected.is_empty() => {
                write!(f, "{subject} has no setting '{key}'; it takes none")
            }
            Problem::UnknownKey { key, expected } => {
                write!(f, "{subject} has no setting '{key}'; expected {expected}")
            }
            Problem::NoValue { key } => write!(f, "{subject}: {key} has no value; expected {key}=VALUE"),
            Problem::Twice { key } => write!(f, "{subject}: {key} is given twice"),
            Problem::Missing { key, expected } => write!(f, "{subject}: {key} is missing; expected {expected}"),
            Problem::BadValue { key, value, expected } => write!(f, "{subject}: {key}={value}; expected {expected}"),
            Problem::Malformed { text, expected } => write!(f, "{kind} '{text}'; expected {expected}"),
        }
    }
}
