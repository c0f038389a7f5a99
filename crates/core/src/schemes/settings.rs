//! How a scheme is written: `name:key=value,…`.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::{CATALOGUE, SchemeEntry, Setup};
use crate::run_times::Foresight;
use crate::{Dispatch, Pretrained, Scheme};

/// What is wrong with a scheme as written.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum SpecError {
    /// No scheme has this name.
    #[error("unknown scheme '{name}'; there are {}", names().join(", "))]
    UnknownScheme {
        /// What was asked for.
        name: String,
    },
    /// Not `key=value`.
    #[error("'{text}' in scheme '{scheme}' is not of the form key=value")]
    NotASetting {
        /// The scheme.
        scheme: String,
        /// What was written.
        text: String,
    },
    /// A key stands twice.
    #[error("'{key}' stands twice in scheme '{scheme}'")]
    Twice {
        /// The scheme.
        scheme: String,
        /// The key.
        key: String,
    },
    /// The scheme has no such setting.
    #[error("scheme '{scheme}' has no setting '{key}'; {}", allowed_keys(.scheme))]
    UnknownKey {
        /// The scheme.
        scheme: String,
        /// The key.
        key: String,
    },
    /// A setting without default is not given.
    #[error("scheme '{scheme}' needs {key}={allowed}")]
    Missing {
        /// The scheme.
        scheme: String,
        /// The key.
        key: &'static str,
        /// What it may be.
        allowed: String,
    },
    /// A value is not allowed.
    #[error("{key}={value} in scheme '{scheme}': expected {allowed}")]
    BadValue {
        /// The scheme.
        scheme: String,
        /// The key.
        key: &'static str,
        /// What was written.
        value: String,
        /// What it may be.
        allowed: String,
    },
    /// The scheme keeps more about the workers than fits for so many.
    #[error("scheme '{scheme}' can't serve {workers} workers: {most} at most")]
    TooManyWorkers {
        /// The scheme.
        scheme: String,
        /// How many there are.
        workers: usize,
        /// How many there may be.
        most: usize,
    },
    /// The scheme does not wait for k of n.
    #[error("scheme '{scheme}' does not hand out work in rounds, so dispatch {dispatch} has no meaning for it")]
    NoDispatch {
        /// The scheme.
        scheme: String,
        /// What was chosen.
        dispatch: Dispatch,
    },
}

fn names() -> Vec<&'static str> {
    CATALOGUE.iter().map(|entry| entry.name).collect()
}

fn allowed_keys(scheme: &str) -> String {
    let entry = CATALOGUE.iter().find(|entry| entry.name == scheme);
    let mut keys: Vec<&str> = entry.map_or(vec![], |entry| entry.settings.iter().map(|(key, _)| *key).collect());
    if entry.is_some_and(|entry| entry.dispatches) {
        keys.push("dispatch");
    }
    if keys.is_empty() { "it has none".into() } else { format!("it has {}", keys.join(", ")) }
}

/// What a scheme may need beside its settings and can't get by itself. It goes with the spec, but is not written.
#[derive(Clone, Default)]
pub struct BuildContext {
    /// What was learnt beforehand, where the scheme starts from such.
    pub pretrained: Option<Arc<Pretrained>>,
    /// Knowledge of the future, where there is any.
    pub foresight: Option<Arc<dyn Foresight>>,
}

impl fmt::Debug for BuildContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (pretrained, foresight) = (self.pretrained.is_some(), self.foresight.is_some());
        f.debug_struct("BuildContext").field("pretrained", &pretrained).field("foresight", &foresight).finish()
    }
}

/// A scheme as written by a user, e.g. `backup:k=8`. Names and keys are checked on reading, values on
/// [building](SchemeSpec::build).
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SchemeSpec {
    name: String,
    settings: Vec<(String, String)>,
    /// What it is built with, beside the settings.
    pub context: BuildContext,
}

/// Specs are equal if they are written alike.
impl PartialEq for SchemeSpec {
    fn eq(&self, other: &Self) -> bool {
        (&self.name, &self.settings) == (&other.name, &other.settings)
    }
}

impl Eq for SchemeSpec {}

impl SchemeSpec {
    /// The scheme's name without settings.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The file that it names of what was learnt: its setting `model`.
    pub fn model(&self) -> Option<&str> {
        self.text("model")
    }

    fn text(&self, key: &str) -> Option<&str> {
        self.settings.iter().find(|(known, _)| known == key).map(|(_, value)| value.as_str())
    }

    fn entry(&self) -> &'static SchemeEntry {
        let entry = CATALOGUE.iter().find(|entry| entry.name == self.name);
        entry.expect("a spec's name comes from the catalogue")
    }

    /// Makes the scheme.
    ///
    /// # Errors
    /// If a value is not allowed, or not for `setup`.
    pub fn build(&self, setup: &Setup) -> Result<Box<dyn Scheme>, SpecError> {
        let entry = self.entry();
        if let (false, Some(dispatch)) = (entry.dispatches, setup.dispatch) {
            return Err(SpecError::NoDispatch { scheme: self.name.clone(), dispatch });
        }
        (entry.build)(&Settings { spec: self }, setup)
    }
}

impl FromStr for SchemeSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let (name, rest) = text.split_once(':').unwrap_or((text, ""));
        let Some(entry) = CATALOGUE.iter().find(|entry| entry.name == name) else {
            return Err(SpecError::UnknownScheme { name: name.into() });
        };
        let mut settings: Vec<(String, String)> = Vec::new();
        for pair in rest.split(',').filter(|pair| !pair.is_empty()) {
            let Some((key, value)) = pair.split_once('=') else {
                return Err(SpecError::NotASetting { scheme: name.into(), text: pair.into() });
            };
            let known =
                entry.settings.iter().any(|(known, _)| *known == key) || (entry.dispatches && key == "dispatch");
            if !known {
                return Err(SpecError::UnknownKey { scheme: name.into(), key: key.into() });
            }
            if settings.iter().any(|(earlier, _)| earlier == key) {
                return Err(SpecError::Twice { scheme: name.into(), key: key.into() });
            }
            settings.push((key.into(), value.into()));
        }
        Ok(SchemeSpec { name: name.into(), settings, context: BuildContext::default() })
    }
}

impl fmt::Display for SchemeSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        for (position, (key, value)) in self.settings.iter().enumerate() {
            write!(f, "{}{key}={value}", if position == 0 { ':' } else { ',' })?;
        }
        Ok(())
    }
}

impl TryFrom<String> for SchemeSpec {
    type Error = SpecError;
    fn try_from(text: String) -> Result<Self, SpecError> {
        text.parse()
    }
}

impl From<SchemeSpec> for String {
    fn from(spec: SchemeSpec) -> String {
        spec.to_string()
    }
}

/// A spec's settings, read by the scheme that they are for.
pub(super) struct Settings<'a> {
    spec: &'a SchemeSpec,
}

impl Settings<'_> {
    fn text(&self, key: &str) -> Option<&str> {
        self.spec.text(key)
    }

    /// A number within `allowed` that must be given.
    pub(super) fn required<T>(&self, key: &'static str, allowed: RangeInclusive<T>) -> Result<T, SpecError>
    where
        T: FromStr + PartialOrd + fmt::Display,
    {
        let in_words = format!("{} to {}", allowed.start(), allowed.end());
        match self.text(key) {
            None => Err(self.missing(key, &in_words)),
            Some(text) => match text.parse() {
                Ok(value) if allowed.contains(&value) => Ok(value),
                _ => Err(self.bad(key, text, in_words)),
            },
        }
    }

    /// A number within `allowed` that may be left out.
    pub(super) fn optional<T>(&self, key: &'static str, default: T, allowed: RangeInclusive<T>) -> Result<T, SpecError>
    where
        T: FromStr + PartialOrd + fmt::Display,
    {
        if self.text(key).is_some() { self.required(key, allowed) } else { Ok(default) }
    }

    /// One of several named values; the first if left out.
    pub(super) fn choice<T: Copy>(&self, key: &'static str, choices: &[(&str, T)]) -> Result<T, SpecError> {
        let Some(text) = self.text(key) else { return Ok(choices[0].1) };
        let found = choices.iter().find(|(name, _)| *name == text);
        found.map(|&(_, value)| value).ok_or_else(|| {
            let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
            self.bad(key, text, names.join(" or "))
        })
    }

    /// A value with a syntax of its own that may be left out.
    pub(super) fn parsed<T>(&self, key: &'static str, default: T) -> Result<T, SpecError>
    where
        T: FromStr<Err = &'static str>,
    {
        match self.text(key) {
            None => Ok(default),
            Some(text) => text.parse().map_err(|allowed: &str| self.bad(key, text, allowed.into())),
        }
    }

    /// The scheme can't serve so many.
    pub(super) fn too_many_workers(&self, workers: usize, most: usize) -> SpecError {
        SpecError::TooManyWorkers { scheme: self.spec.name.clone(), workers, most }
    }

    /// The global learning rate: how far the model moves towards the mean replica; 1 if left out.
    pub(super) fn global_rate(&self) -> Result<f32, SpecError> {
        self.optional("rate", 1.0, 0.001..=1000.0)
    }

    /// The value of a setting that was given does not go with the others.
    pub(super) fn unfit(&self, key: &'static str, allowed: String) -> SpecError {
        self.bad(key, self.text(key).unwrap_or(""), allowed)
    }

    /// What was learnt beforehand.
    pub(super) fn pretrained(&self) -> Option<&Pretrained> {
        self.spec.context.pretrained.as_deref()
    }

    /// A setting without default is not given.
    pub(super) fn missing(&self, key: &'static str, allowed: &str) -> SpecError {
        SpecError::Missing { scheme: self.spec.name.clone(), key, allowed: allowed.into() }
    }

    /// What is known of the future.
    pub(super) fn foresight(&self) -> Option<&Arc<dyn Foresight>> {
        self.spec.context.foresight.as_ref()
    }

    /// How work is handed out: the scheme's own setting, else the run's, else the usual way.
    pub(super) fn dispatch(&self, setup: &Setup) -> Result<Dispatch, SpecError> {
        self.dispatch_or(Dispatch::default(), setup)
    }

    /// How work is handed out: the scheme's own setting, else the run's, else `default`.
    pub(super) fn dispatch_or(&self, default: Dispatch, setup: &Setup) -> Result<Dispatch, SpecError> {
        match self.text("dispatch") {
            None => Ok(setup.dispatch.unwrap_or(default)),
            Some(text) => {
                text.parse().map_err(|_| self.bad("dispatch", text, "pull, push-wait or push-interrupt".into()))
            }
        }
    }

    fn bad(&self, key: &'static str, value: &str, allowed: String) -> SpecError {
        SpecError::BadValue { scheme: self.spec.name.clone(), key, value: value.into(), allowed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETUP: Setup = Setup { workers: 16, batch: 1, dispatch: None };

    fn error(text: &str) -> String {
        match text.parse::<SchemeSpec>() {
            Err(error) => error.to_string(),
            Ok(spec) => spec.build(&SETUP).err().map_or("no error".into(), |error| error.to_string()),
        }
    }

    #[test]
    fn specs_read_back_as_written() {
        for text in ["bsp", "backup:k=8", "dssp:min=1,max=4", "backup:k=3,dispatch=pull"] {
            let spec: SchemeSpec = text.parse().unwrap();
            assert_eq!(spec.to_string(), text);
            assert!(spec.build(&SETUP).is_ok());
        }
    }

    #[test]
    fn errors_name_the_value_and_what_is_allowed() {
        assert!(error("bspp").starts_with("unknown scheme 'bspp'; there are bsp, "));
        assert_eq!(
            error("elastic-bsp:interval=mean"),
            "interval=mean in scheme 'elastic-bsp': expected last or ema or median"
        );
        assert_eq!(error("ssp:slack=3"), "scheme 'ssp' has no setting 'slack'; it has staleness");
        assert_eq!(error("asp:x=1"), "scheme 'asp' has no setting 'x'; it has none");
        assert_eq!(error("backup"), "scheme 'backup' needs k=1 to 16");
        assert_eq!(error("backup:k=17"), "k=17 in scheme 'backup': expected 1 to 16");
        assert_eq!(error("backup:k=x"), "k=x in scheme 'backup': expected 1 to 16");
        assert_eq!(error("backup:8"), "'8' in scheme 'backup' is not of the form key=value");
        assert_eq!(error("backup:k=1,k=2"), "'k' stands twice in scheme 'backup'");
        assert_eq!(
            error("dbw:memory=window-0"),
            "memory=window-0 in scheme 'dbw': expected all, window-N (N iterations, at least 1) or discount-FACTOR (per \
             iteration, between 0 and 1)"
        );
        let dbw: SchemeSpec = "dbw".parse().unwrap();
        let refused = dbw.build(&Setup { workers: 100_000, ..SETUP }).err().unwrap();
        assert_eq!(refused.to_string(), "scheme 'dbw' can't serve 100000 workers: 4096 at most");
        assert_eq!(error("dssp:min=5,max=4"), "max=4 in scheme 'dssp': expected 5 to 10005");
        assert_eq!(
            error("backup:k=1,dispatch=throw"),
            "dispatch=throw in scheme 'backup': expected pull, push-wait or push-interrupt"
        );
        let asp: SchemeSpec = "asp".parse().unwrap();
        let refused = asp.build(&Setup { dispatch: Some(Dispatch::Pull), ..SETUP }).err().unwrap();
        assert!(refused.to_string().contains("dispatch pull has no meaning"));
    }
}
