//! The grammar of everything that a user writes as text: schemes, optimizers, schedules, times, networks, partitions, data.
//!
//! A spec is `name`, `name:value,value,…` or `name:key=value,…`. Values without a key take the keys of the [`Form`] in
//! their order: `normal:0.3,0.02` is `normal:mean=0.3,deviation=0.02`. Some specs have no
//! name: `latency=0.01,bandwidth=1e7`.
//!
//! - [`Spec`]: a text that fits one of several forms, and its values.
//! - [`SpecError`]: the one style of errors. It names the value, where it is, and what is allowed.
//! - [`one_of`]: a name out of several.
//! - [`split_parts`]: a spec of several parts, `name:key=value+name:key=value`.
//! - [`open_input`], [`read_input`], [`read_text`], [`LineLimit`]: files that a user names, which may not be endless.

mod error;
mod input_file;

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

pub use error::{Problem, SpecError};
pub use input_file::{LineLimit, open_input, read_input, read_text};

/// One name, and the keys that it takes.
#[derive(Debug, Clone, Copy)]
pub struct Form<'a> {
    /// The name; empty for a spec without one.
    pub name: &'a str,
    /// The keys, in the order of values without a key.
    pub keys: &'a [&'a str],
    /// How many of them take values without a key.
    pub positional: usize,
}

impl<'a> Form<'a> {
    /// A form of this name that takes these keys.
    pub const fn new(name: &'a str, keys: &'a [&'a str]) -> Self {
        Form { name, keys, positional: keys.len() }
    }

    /// The same form, where only the first `count` keys take values without a key.
    pub const fn positional(self, count: usize) -> Self {
        Form { positional: count, ..self }
    }
}

/// A text that fits a form: a name, and values by key in the order they were given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spec {
    kind: &'static str,
    name: String,
    values: Vec<(String, String)>,
}

impl Spec {
    /// Reads a spec of one of these forms. `kind` is what errors call it: a scheme, an optimizer.
    ///
    /// # Errors
    /// If no form has its name, or the form does not take one of its keys.
    pub fn parse(kind: &'static str, text: &str, forms: &[Form<'_>]) -> Result<Self, SpecError> {
        let (name, values) = text.split_once(':').unwrap_or((text, ""));
        let Some(form) = forms.iter().find(|form| form.name == name) else {
            let names: Vec<&str> = forms.iter().map(|form| form.name).collect();
            return Err(SpecError::unknown_name(kind, name, &names));
        };
        Spec::of_form(kind, *form, values)
    }

    /// Reads a spec without a name, of these keys.
    ///
    /// # Errors
    /// If it has another key.
    pub fn parse_unnamed(kind: &'static str, text: &str, keys: &[&str]) -> Result<Self, SpecError> {
        Spec::of_form(kind, Form::new("", keys), text)
    }

    fn of_form(kind: &'static str, form: Form<'_>, text: &str) -> Result<Self, SpecError> {
        let mut spec = Spec { kind, name: form.name.into(), values: Vec::new() };
        let mut without_key = form.keys.iter().take(form.positional);
        for item in text.split(',').filter(|item| !item.is_empty()) {
            let (key, value) = match item.split_once('=') {
                Some((key, value)) => (key, value),
                None if form.keys.contains(&item) => return Err(spec.error(Problem::NoValue { key: item.into() })),
                None => match without_key.next() {
                    Some(&key) => (key, item),
                    None => return Err(spec.unknown_key(item, form.keys)),
                },
            };
            if !form.keys.contains(&key) {
                return Err(spec.unknown_key(key, form.keys));
            }
            if spec.text(key).is_some() {
                return Err(spec.error(Problem::Twice { key: key.into() }));
            }
            spec.values.push((key.into(), value.into()));
        }
        Ok(spec)
    }

    fn unknown_key(&self, key: &str, keys: &[&str]) -> SpecError {
        self.error(Problem::UnknownKey { key: key.into(), expected: keys.join(", ") })
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The value of a key, as it was given.
    pub fn text(&self, key: &str) -> Option<&str> {
        self.values.iter().find(|(known, _)| known == key).map(|(_, value)| value.as_str())
    }

    /// The value of a key, if it is given. `expected` says in words what `accept` accepts.
    ///
    /// # Errors
    /// If the value can't be read or is not accepted.
    pub fn optional<T: FromStr>(
        &self,
        key: &'static str,
        expected: &str,
        accept: impl Fn(&T) -> bool,
    ) -> Result<Option<T>, SpecError> {
        let Some(text) = self.text(key) else { return Ok(None) };
        let value = text.parse().ok().filter(accept);
        value.map(Some).ok_or_else(|| self.bad_value(key, expected))
    }

    /// The value of a key that must be given.
    ///
    /// # Errors
    /// If it is missing, can't be read, or is not accepted.
    pub fn required<T: FromStr>(
        &self,
        key: &'static str,
        expected: &str,
        accept: impl Fn(&T) -> bool,
    ) -> Result<T, SpecError> {
        self.optional(key, expected, accept)?.ok_or_else(|| self.missing(key, expected))
    }

    /// A number within a range, if it is given.
    ///
    /// # Errors
    /// If it can't be read or is outside.
    pub fn within<T>(&self, key: &'static str, range: RangeInclusive<T>) -> Result<Option<T>, SpecError>
    where
        T: FromStr + PartialOrd + fmt::Display,
    {
        self.optional(key, &format!("{} to {}", range.start(), range.end()), |value| range.contains(value))
    }

    /// One of several named values, if it is given.
    ///
    /// # Errors
    /// If it is none of them.
    pub fn choice<T: Copy>(&self, key: &'static str, choices: &[(&str, T)]) -> Result<Option<T>, SpecError> {
        let Some(text) = self.text(key) else { return Ok(None) };
        let found = choices.iter().find(|(name, _)| *name == text).map(|&(_, value)| value);
        let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
        found.map(Some).ok_or_else(|| self.bad_value(key, &alternatives(&names)))
    }

    /// The value of a key is not allowed.
    pub fn bad_value(&self, key: &'static str, expected: &str) -> SpecError {
        let value = self.text(key).unwrap_or_default().to_string();
        self.error(Problem::BadValue { key, value, expected: expected.into() })
    }

    /// A key that must be given is missing.
    pub fn missing(&self, key: &'static str, expected: &str) -> SpecError {
        self.error(Problem::Missing { key, expected: expected.into() })
    }

    /// The values do not fit together; `expected` says how they do.
    pub fn unfit(&self, expected: impl Into<String>) -> SpecError {
        let text = self.to_string();
        self.error(Problem::Malformed { text, expected: expected.into() })
    }

    fn error(&self, problem: Problem) -> SpecError {
        SpecError { kind: self.kind, name: self.name.clone(), problem }
    }
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        for (position, (key, value)) in self.values.iter().enumerate() {
            let separator = match position {
                0 if self.name.is_empty() => "",
                0 => ":",
                _ => ",",
            };
            write!(f, "{separator}{key}={value}")?;
        }
        Ok(())
    }
}

/// The value of the name that `text` is.
///
/// # Errors
/// If it is none of the names.
pub fn one_of<T: Copy>(kind: &'static str, text: &str, choices: &[(&str, T)]) -> Result<T, SpecError> {
    let found = choices.iter().find(|(name, _)| *name == text).map(|&(_, value)| value);
    let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
    found.ok_or_else(|| SpecError::unknown_name(kind, text, &names))
}

/// The parts of a spec that combines several: `a:k=6+b` is `a:k=6` and `b`. A `+` begins a part if a known name follows,
/// or if it follows a name. Otherwise it belongs to a value: `a:rate=1e+5`, `a:file=x+y`.
pub fn split_parts(text: &str, is_name: impl Fn(&str) -> bool) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut start = 0;
    for (position, _) in text.match_indices('+') {
        let next = text[position + 1..].split([':', '+']).next().unwrap_or_default();
        if is_name(next) || !text[start..position].contains(':') {
            parts.push(&text[start..position]);
            start = position + 1;
        }
    }
    parts.push(&text[start..]);
    parts
}

/// `a, b or c`.
pub fn alternatives(names: &[&str]) -> String {
    match names {
        [] => String::new(),
        [only] => (*only).into(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}

/// Writes `name:part,part,…` with the parts that are given.
///
/// # Errors
/// If the formatter fails.
pub fn write<const N: usize>(f: &mut fmt::Formatter<'_>, name: &str, parts: [Option<String>; N]) -> fmt::Result {
    f.write_str(name)?;
    let separators = std::iter::once(':').chain(std::iter::repeat(','));
    for (part, separator) in parts.into_iter().flatten().zip(separators) {
        write!(f, "{separator}{part}")?;
    }
    Ok(())
}

/// `key=value`, unless the value is the default.
pub fn pair<T: PartialEq + fmt::Display>(key: &str, value: T, default: T) -> Option<String> {
    (value != default).then(|| format!("{key}={value}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMS: &[Form<'_>] =
        &[Form::new("plain", &["size", "flag"]), Form::new("empty", &[]), Form::new("keyed", &["size"]).positional(0)];

    fn parse(text: &str) -> Result<Spec, String> {
        Spec::parse("thing", text, FORMS).map_err(|error| error.to_string())
    }

    fn size(text: &str) -> Result<u32, String> {
        let spec = parse(text)?;
        spec.required("size", "an even number", |size| size % 2 == 0).map_err(|error| error.to_string())
    }

    #[test]
    fn values_are_given_by_key_or_by_order() {
        assert_eq!(size("plain:size=2"), Ok(2));
        assert_eq!(size("plain:4"), Ok(4));
        assert_eq!(size("plain:8,flag=false"), Ok(8));
        assert_eq!(parse("empty").unwrap().to_string(), "empty");
        let unnamed = Spec::parse_unnamed("network", "latency=1,2", &["bandwidth", "latency"]).unwrap();
        assert_eq!((unnamed.text("bandwidth"), unnamed.to_string().as_str()), (Some("2"), "latency=1,bandwidth=2"));
    }

    #[test]
    fn parts_are_split_at_names() {
        let split = |text| split_parts(text, |name| ["a", "b"].contains(&name));
        assert_eq!(split("a"), ["a"]);
        assert_eq!(split("a:k=6+b"), ["a:k=6", "b"]);
        assert_eq!(split("a+b:x=1,y=2+a"), ["a", "b:x=1,y=2", "a"]);
        assert_eq!(split("a:1e+5+b:file=x+y"), ["a:1e+5", "b:file=x+y"]);
        assert_eq!(split("a+c:k=2"), ["a", "c:k=2"], "an unknown name, which is reported");
        assert_eq!(split("+a+"), ["", "a", ""]);
    }

    #[test]
    fn errors_name_the_value_and_what_is_allowed() {
        let error = |text: &str| size(text).expect_err(text);
        assert_eq!(error("long"), "unknown thing 'long'; expected plain, empty or keyed");
        assert_eq!(error("plain:weight=3"), "thing 'plain' has no setting 'weight'; expected size, flag");
        assert_eq!(error("empty:3"), "thing 'empty' has no setting '3'; it takes none");
        assert_eq!(error("plain:2,true,7"), "thing 'plain' has no setting '7'; expected size, flag");
        assert_eq!(error("keyed:2"), "thing 'keyed' has no setting '2'; expected size");
        assert_eq!(error("plain:2,size=4"), "thing 'plain': size is given twice");
        assert_eq!(error("plain:flag=3"), "thing 'plain': size is missing; expected an even number");
        assert_eq!(error("plain:3"), "thing 'plain': size=3; expected an even number");
        assert_eq!(error("plain:8,flag"), "thing 'plain': flag has no value; expected flag=VALUE");
        assert_eq!(error("plain:x"), "thing 'plain': size=x; expected an even number");
        let spec = parse("plain:30,maybe").unwrap();
        let choice = spec.choice("flag", &[("yes", true), ("no", false)]).unwrap_err();
        assert_eq!(choice.to_string(), "thing 'plain': flag=maybe; expected yes or no");
        assert_eq!(spec.within("size", 1..=9).unwrap_err().to_string(), "thing 'plain': size=30; expected 1 to 9");
        let unfit = spec.unfit("a smaller size");
        assert_eq!(unfit.to_string(), "thing 'plain:size=30,flag=maybe'; expected a smaller size");
        assert_eq!(
            one_of("colour", "red", &[("blue", 1)]).unwrap_err().to_string(),
            "unknown colour 'red'; expected blue"
        );
        let unnamed = Spec::parse_unnamed("network", "speed=1", &["latency"]).unwrap_err();
        assert_eq!(unnamed.to_string(), "network has no setting 'speed'; expected latency");
    }
}
