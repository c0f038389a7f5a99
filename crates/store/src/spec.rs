//! The one grammar of optimizers and schedules: `name`, `name:value` or `name:key=value,key,…`.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// Why the text of an optimizer or a schedule was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// The part before the colon names nothing.
    #[error("unknown name `{name}`; there are {allowed}")]
    Name {
        /// The name given.
        name: String,
        /// The names that exist.
        allowed: String,
    },
    /// A key that the name does not take.
    #[error("`{name}` has no `{key}`; it takes {allowed}")]
    Key {
        /// The optimizer or schedule.
        name: String,
        /// The key given.
        key: String,
        /// The keys that exist.
        allowed: String,
    },
    /// A key that occurs more than once.
    #[error("`{name}` is given `{key}` twice")]
    Twice {
        /// The optimizer or schedule.
        name: String,
        /// The key.
        key: String,
    },
    /// A key without a default is missing.
    #[error("`{name}` needs `{key}=…`: {allowed}")]
    Missing {
        /// The optimizer or schedule.
        name: String,
        /// The missing key.
        key: &'static str,
        /// Which values are allowed.
        allowed: &'static str,
    },
    /// A value that cannot be read or is out of range.
    #[error("`{name}`: `{key}={value}` must be {allowed}")]
    Value {
        /// The optimizer or schedule.
        name: String,
        /// The key.
        key: &'static str,
        /// The value given.
        value: String,
        /// Which values are allowed.
        allowed: &'static str,
    },
}

/// One name and what it takes.
pub(crate) struct Form {
    pub name: &'static str,
    /// The key of a value that stands alone. Without it, a key may stand alone and means `true`.
    pub main: Option<&'static str>,
    pub keys: &'static [&'static str],
}

/// A text that fits one of the allowed forms.
pub(crate) struct Spec<'a> {
    pub name: &'static str,
    values: BTreeMap<&'static str, &'a str>,
}

impl<'a> Spec<'a> {
    pub fn parse(text: &'a str, forms: &[Form]) -> Result<Self, SpecError> {
        let (given, rest) = text.split_once(':').unwrap_or((text, ""));
        let Some(&Form { name, main, keys }) = forms.iter().find(|form| form.name == given) else {
            let names: Vec<_> = forms.iter().map(|form| form.name).collect();
            return Err(SpecError::Name { name: given.to_string(), allowed: names.join(", ") });
        };
        let mut values = BTreeMap::new();
        for part in rest.split(',').filter(|part| !part.is_empty()) {
            let (given, value) = match (part.split_once('='), main) {
                (Some(pair), _) => pair,
                (None, Some(main)) => (main, part),
                (None, None) => (part, "true"),
            };
            let Some(&key) = keys.iter().find(|key| **key == given) else {
                return Err(SpecError::Key {
                    name: name.to_string(),
                    key: given.to_string(),
                    allowed: keys.join(", "),
                });
            };
            if values.insert(key, value).is_some() {
                let (name, key) = (name.to_string(), key.to_string());
                return Err(SpecError::Twice { name, key });
            }
        }
        Ok(Spec { name, values })
    }

    /// The value of `key` if it is given; `allowed` says in words what `accept` takes.
    pub fn value<T: FromStr>(
        &self,
        key: &'static str,
        allowed: &'static str,
        accept: impl Fn(&T) -> bool,
    ) -> Result<Option<T>, SpecError> {
        let Some(&text) = self.values.get(key) else {
            return Ok(None);
        };
        match text.parse() {
            Ok(value) if accept(&value) => Ok(Some(value)),
            _ => Err(SpecError::Value { name: self.name.to_string(), key, value: text.to_string(), allowed }),
        }
    }

    /// As [`Spec::value`], for a key that has no default.
    pub fn required<T: FromStr>(
        &self,
        key: &'static str,
        allowed: &'static str,
        accept: impl Fn(&T) -> bool,
    ) -> Result<T, SpecError> {
        self.value(key, allowed, accept)?.ok_or_else(|| SpecError::Missing {
            name: self.name.to_string(),
            key,
            allowed,
        })
    }
}

/// Writes `name:part,part,…` with the parts that are there.
pub(crate) fn write<const N: usize>(
    formatter: &mut fmt::Formatter<'_>,
    name: &str,
    parts: [Option<String>; N],
) -> fmt::Result {
    formatter.write_str(name)?;
    let separators = std::iter::once(':').chain(std::iter::repeat(','));
    for (part, separator) in parts.into_iter().flatten().zip(separators) {
        write!(formatter, "{separator}{part}")?;
    }
    Ok(())
}

/// `key=value`, unless that is the default.
pub(crate) fn pair<T: PartialEq + fmt::Display>(key: &str, value: T, default: T) -> Option<String> {
    (value != default).then(|| format!("{key}={value}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMS: &[Form] = &[
        Form { name: "plain", main: None, keys: &["size", "flag"] },
        Form { name: "short", main: Some("size"), keys: &["size"] },
    ];

    fn size(text: &str) -> Result<u32, String> {
        Spec::parse(text, FORMS)
            .and_then(|spec| spec.required("size", "an even number", |size| size % 2 == 0))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn values_stand_alone_or_behind_their_key() {
        assert_eq!(size("plain:size=2"), Ok(2));
        assert_eq!(size("plain:flag,size=4"), Ok(4));
        assert_eq!(size("short:6"), Ok(6));
    }

    #[test]
    fn refusals_name_the_value_and_what_is_allowed() {
        let refused = |text: &str| size(text).expect_err(text);
        assert_eq!(refused("long"), "unknown name `long`; there are plain, short");
        assert_eq!(refused("plain:3"), "`plain` has no `3`; it takes size, flag");
        assert_eq!(refused("short:2,size=4"), "`short` is given `size` twice");
        assert_eq!(refused("plain:flag"), "`plain` needs `size=…`: an even number");
        assert_eq!(refused("short:3"), "`short`: `size=3` must be an even number");
        assert_eq!(refused("short:x"), "`short`: `size=x` must be an even number");
    }
}
