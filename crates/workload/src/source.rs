//! Data by name: what a user writes to say what to train on.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use paceline_spec::{Form, Spec, SpecError};
use thiserror::Error;

use crate::dataset::{DatasetError, Splits};
use crate::digits::synthetic_digits;
use crate::formats::FormatError;
use crate::formats::text::{self, Text};
use crate::published::PublishedSet;

/// The most digits that text may ask for; a million take 0.8 GB.
const MAX_DIGITS: usize = 1_000_000;

/// Where data come from. As text: `digits`, `digits:TRAIN,HELDOUT`, `mnist`, `fashion-mnist` or `cifar10` (from the
/// cache), `mnist:DIR` and so on (from a folder), `text:FILE`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DataSource {
    /// Synthetic digits, drawn anew from the seed.
    Digits {
        /// How many to train on, at least 1.
        train: usize,
        /// How many to measure on, at least 1.
        held_out: usize,
    },
    /// A published set of images.
    Published {
        /// Which.
        set: PublishedSet,
        /// Where its files lie; if not given, [`PublishedSet::cache_folder`].
        folder: Option<PathBuf>,
    },
    /// A UTF-8 text file, plain or gzip.
    Text(PathBuf),
}

impl Default for DataSource {
    /// 12,000 + 2,000 synthetic digits.
    fn default() -> Self {
        DataSource::Digits { train: 12_000, held_out: 2_000 }
    }
}

/// Data in memory, by kind.
#[derive(Debug, Clone)]
pub enum Data {
    /// Labelled images.
    Images(Splits),
    /// Characters.
    Text(Text),
}

/// Why a [`DataSource`] cannot be loaded.
#[derive(Debug, Error)]
pub enum SourceError {
    /// A published set is not in the cache.
    #[error("{set} is not in {}: run `paceline data get {set}`, or name a folder with `{set}:DIR`", folder.display())]
    NotDownloaded {
        /// Which set.
        set: PublishedSet,
        /// Its folder in the cache.
        folder: PathBuf,
    },
    /// There is no cache to look in.
    #[error("no cache folder for {set}: set PACELINE_DATA, XDG_CACHE_HOME or HOME, or name a folder with `{set}:DIR`")]
    NoCache {
        /// Which set.
        set: PublishedSet,
    },
    /// A file is not as it should be.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The digits asked for make no data set.
    #[error(transparent)]
    Dataset(#[from] DatasetError),
}

impl DataSource {
    /// Reads or draws the data; `seed` decides only what the synthetic digits look like.
    pub fn load(&self, seed: u64) -> Result<Data, SourceError> {
        match self {
            DataSource::Digits { train, held_out } => Ok(Data::Images(synthetic_digits(seed, *train, *held_out)?)),
            DataSource::Published { set, folder: Some(folder) } => Ok(Data::Images(set.load(folder)?)),
            DataSource::Published { set, folder: None } => Ok(Data::Images(cached(*set, set.cache_folder())?)),
            DataSource::Text(path) => Ok(Data::Text(text::load(path)?)),
        }
    }
}

fn cached(set: PublishedSet, folder: Option<PathBuf>) -> Result<Splits, SourceError> {
    let folder = folder.ok_or(SourceError::NoCache { set })?;
    match set.load(&folder) {
        Err(FormatError::Missing { .. }) => Err(SourceError::NotDownloaded { set, folder }),
        loaded => Ok(loaded?),
    }
}

impl fmt::Display for DataSource {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DataSource::Digits { train, held_out } => write!(formatter, "digits:{train},{held_out}"),
            DataSource::Published { set, folder: None } => write!(formatter, "{set}"),
            DataSource::Published { set, folder: Some(folder) } => write!(formatter, "{set}:{}", folder.display()),
            DataSource::Text(path) => write!(formatter, "text:{}", path.display()),
        }
    }
}

impl FromStr for DataSource {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        const NAMES: [&str; 5] = ["digits", "mnist", "fashion-mnist", "cifar10", "text"];
        let (name, argument) = match text.split_once(':') {
            Some((name, argument)) => (name, Some(argument)),
            None => (text, None),
        };
        // What follows the colon is a path, which may contain commas and equals signs, except for digits.
        match (name, argument) {
            ("digits", _) => {
                let spec = Spec::parse("data", text, &[Form::new("digits", &["train", "held-out"])])?;
                match (spec.within("train", 1..=MAX_DIGITS)?, spec.within("held-out", 1..=MAX_DIGITS)?) {
                    (Some(train), Some(held_out)) => Ok(DataSource::Digits { train, held_out }),
                    (None, None) if argument.is_none() => Ok(DataSource::default()),
                    (None, _) => Err(spec.missing("train", &format!("1 to {MAX_DIGITS}"))),
                    (_, None) => Err(spec.missing("held-out", &format!("1 to {MAX_DIGITS}"))),
                }
            }
            ("text", Some(path)) if !path.is_empty() => Ok(DataSource::Text(path.into())),
            ("text", _) => Err(SpecError::malformed("data", text, "text:FILE")),
            (_, Some("")) => Err(SpecError::malformed("data", text, format!("{name} or {name}:DIR"))),
            _ => {
                let set = name.parse().map_err(|_| SpecError::unknown_name("data", name, &NAMES))?;
                Ok(DataSource::Published { set, folder: argument.map(PathBuf::from) })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_and_written_back() {
        for text in ["digits:50,20", "mnist", "fashion-mnist:some/folder", "cifar10:C:\\data", "text:a:b.txt"] {
            assert_eq!(text.parse::<DataSource>().unwrap().to_string(), text);
        }
        assert_eq!("digits".parse(), Ok(DataSource::default()));
    }

    #[test]
    fn refusals_say_what_is_allowed() {
        for (text, expected) in [
            ("imagenet", "unknown data 'imagenet'; expected digits, mnist"),
            ("text", "data 'text'; expected text:FILE"),
            ("text:", "data 'text:'; expected text:FILE"),
            ("mnist:", "data 'mnist:'; expected mnist or mnist:DIR"),
            ("digits:", "data 'digits': train is missing; expected 1 to 1000000"),
            ("digits:10", "data 'digits': held-out is missing"),
            ("digits:0,5", "data 'digits': train=0; expected 1 to 1000000"),
            ("digits:10,99999999999999999999", "expected 1 to 1000000"),
        ] {
            let error = text.parse::<DataSource>().unwrap_err().to_string();
            assert!(error.contains(expected), "{error}\nlacks {expected}");
        }
    }

    #[test]
    fn loads_what_it_names() {
        let loaded = "digits:30,10".parse::<DataSource>().unwrap().load(3).unwrap();
        let Data::Images(splits) = loaded else { panic!("digits are images") };
        assert_eq!((splits.train().len(), splits.held_out().len()), (30, 10));
        let absent = DataSource::Text("no/such/file".into()).load(0).unwrap_err().to_string();
        assert!(absent.contains("no/such/file"));
        let absent = cached(PublishedSet::Cifar10, Some("no/cache".into())).unwrap_err().to_string();
        assert!(absent.contains("cifar10 is not in no/cache: run `paceline data get cifar10`"));
    }
}
