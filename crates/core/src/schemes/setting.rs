//! The settings of a scheme, declared once: reading, errors, help and tables are derived from the declaration.

use std::fmt;

use super::Setup;

/// A setting, as its scheme declares it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Setting {
    /// The key.
    pub key: &'static str,
    /// What it means, in a line.
    pub meaning: &'static str,
    /// The values that it takes.
    pub kind: SettingKind,
    /// What holds without it.
    pub default: SettingDefault,
}

/// The values that a setting takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum SettingKind {
    /// A whole number, from and to.
    Count(u64, UpperBound),
    /// A number, from and to.
    Number(f64, f64),
    /// One of these names.
    Choice(&'static [&'static str]),
    /// A text with a form of its own, which is described here. The scheme checks it.
    Text(&'static str),
}

/// The largest value of a whole number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UpperBound {
    /// This value.
    Value(u64),
    /// The number of workers.
    Workers,
    /// None.
    Unbounded,
}

/// What holds without a setting.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum SettingDefault {
    /// It must be given.
    Required,
    /// A whole number.
    Count(u64),
    /// A number.
    Number(f64),
    /// A name or a text.
    Text(&'static str),
    /// Something that depends on the run or on other settings, which is described here.
    Derived(&'static str),
}

impl Setting {
    const fn new(key: &'static str, meaning: &'static str, kind: SettingKind) -> Self {
        Setting { key, meaning, kind, default: SettingDefault::Required }
    }

    /// A whole number, from and to. It is required unless a default follows.
    pub const fn count(key: &'static str, meaning: &'static str, from: u64, to: UpperBound) -> Self {
        Setting::new(key, meaning, SettingKind::Count(from, to))
    }

    /// A number, from and to. It is required unless a default follows.
    pub const fn number(key: &'static str, meaning: &'static str, from: f64, to: f64) -> Self {
        Setting::new(key, meaning, SettingKind::Number(from, to))
    }

    /// One of several names; the first is the default.
    pub const fn choice(key: &'static str, meaning: &'static str, names: &'static [&'static str]) -> Self {
        Setting { default: SettingDefault::Text(names[0]), ..Setting::new(key, meaning, SettingKind::Choice(names)) }
    }

    /// A text with a form of its own. It is required unless a default follows.
    pub const fn text(key: &'static str, meaning: &'static str, form: &'static str) -> Self {
        Setting::new(key, meaning, SettingKind::Text(form))
    }

    /// The same with a default.
    pub const fn default(self, default: SettingDefault) -> Self {
        Setting { default, ..self }
    }

    /// Whether it must be given.
    pub fn is_required(&self) -> bool {
        self.default == SettingDefault::Required
    }

    /// The values that are allowed in a run, in words.
    pub(super) fn allowed(&self, setup: &Setup) -> String {
        match self.kind {
            SettingKind::Count(from, UpperBound::Workers) => format!("{from} to {}", setup.workers),
            _ => self.values(),
        }
    }

    /// The values that are allowed, in words.
    pub fn values(&self) -> String {
        match self.kind {
            SettingKind::Count(from, UpperBound::Value(to)) => format!("{from} to {to}"),
            SettingKind::Count(from, UpperBound::Workers) => format!("{from} to the number of workers"),
            SettingKind::Count(from, UpperBound::Unbounded) => format!("a whole number from {from}"),
            SettingKind::Number(from, to) => format!("{from} to {to}"),
            SettingKind::Choice([names @ .., last]) if !names.is_empty() => format!("{} or {last}", names.join(", ")),
            SettingKind::Choice(names) => names.join(", "),
            SettingKind::Text(form) => form.into(),
        }
    }

    /// A value that is allowed in a run of this many workers, if the setting is required.
    pub(super) fn required_value(&self, workers: usize) -> Option<String> {
        if !self.is_required() {
            return None;
        }
        Some(match self.kind {
            SettingKind::Count(from, UpperBound::Workers) => (workers as u64 * 2).div_ceil(3).max(from).to_string(),
            SettingKind::Count(from, UpperBound::Value(to)) => 3.clamp(from, to).to_string(),
            SettingKind::Count(from, UpperBound::Unbounded) => from.max(3).to_string(),
            SettingKind::Number(from, to) => ((from + to) / 2.0).to_string(),
            SettingKind::Choice(names) => names[0].into(),
            SettingKind::Text(form) => form.into(),
        })
    }
}

impl fmt::Display for SettingDefault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SettingDefault::Required => f.write_str("required"),
            SettingDefault::Count(count) => write!(f, "default {count}"),
            SettingDefault::Number(number) => write!(f, "default {number}"),
            SettingDefault::Text(text) => write!(f, "default {text}"),
            SettingDefault::Derived(description) => write!(f, "default {description}"),
        }
    }
}

/// Meaning, values and default in a line.
impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; {}; {}", self.key, self.meaning, self.values(), self.default)
    }
}
