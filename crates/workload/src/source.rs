//! Data sources: the data to train on, as a user names it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use paceline_spec::{Form, Spec, SpecError};
use thiserror::Error;

use crate::dataset::{DatasetError, Splits};
use crate::digits::synthetic_digits;
use crate::formats::FormatError;
use crate::formats::text::{self, Text};
use crate::published::PublishedSet;

/// The maximum number of digits in a spec. A million digits take 0.8 GB of memory.
const MAX_DIGITS: usize = 1_000_000;

/// The source of the data. As text: `digits`, `digits:TRAIN,HELDOUT`, `mnist`, `fashion-mnist` or `cifar10` (from the
/// cache), `mnist:DIR` and so on (from a folder), `text:FILE`, `own`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DataSource {
    /// Synthetic digits, generated from the seed.
    Digits {
        /// Number of training samples, at least 1.
        train: usize,
        /// Number of held-out samples, at least 1.
        held_out: usize,
    },
    /// A published set of images.
    Published {
        /// The set.
        set: PublishedSet,
        /// The folder of its files. Default: [`PublishedSet::cache_folder`].
        folder: Option<PathBuf>,
    },
    /// A UTF-8 text file, plain or gzip.
    Text(PathBuf),
    /// The model has data of its own.
    Own,
}

impl DataSource {
    /// The file that is read, if it is a single one.
    pub fn file(&self) -> Option<&Path> {
        if let DataSource::Text(path) = self { Some(path) } else { None }
    }
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
    /// The model has data of its own.
    Own,
}

impl Data {
    /// The kind, in a word.
    pub fn kind(&self) -> &'static str {
        match self {
            Data::Images(_) => "images",
            Data::Text(_) => "text",
            Data::Own => "its own",
        }
    }
}

/// Why a [`DataSource`] cannot be loaded.
#[derive(Debug, Error)]
pub enum SourceError {
    /// A published set is not in the cache.
    #[error("{set} is not in {}: run 'paceline data get {set}', or name a folder with '{set}:DIR'", folder.display())]
    NotDownloaded {
        /// The set.
        set: PublishedSet,
        /// The folder of the set in the cache.
        folder: PathBuf,
    },
    /// No environment variable names a cache folder.
    #[error("no cache folder for {set}: set PACELINE_DATA, XDG_CACHE_HOME or HOME, or name a folder with '{set}:DIR'")]
    NoCache {
        /// The set.
        set: PublishedSet,
    },
    /// A file is missing or has unexpected content.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The requested digits do not form a data set.
    #[error(transparent)]
    Dataset(#[from] DatasetError),
}

impl DataSource {
    /// Reads the files, or generates the synthetic digits from `seed`, which is not used otherwise.
    ///
    /// # Errors
    /// If a set is not downloaded, or a file is missing, cannot be read or has unexpected content.
    pub fn load(&self, seed: u64) -> Result<Data, SourceError> {
        match self {
            DataSource::Digits { train, held_out } => Ok(Data::Images(synthetic_digits(seed, *train, *held_out)?)),
            DataSource::Published { set, folder: Some(folder) } => Ok(Data::Images(set.load(folder)?)),
            DataSource::Published { set, folder: None } => Ok(Data::Images(cached(*set, set.cache_folder())?)),
            DataSource::Text(path) => Ok(Data::Text(text::load(path)?)),
            DataSource::Own => Ok(Data::Own),
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
            DataSource::Own => write!(formatter, "own"),
        }
    }
}

impl FromStr for DataSource {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        const NAMES: [&str; 6] = ["digits", "mnist", "fashion-mnist", "cifar10", "text", "own"];
        let (name, argument) = match text.split_once(':') {
            Some((name, argument)) => (name, Some(argument)),
            None => (text, None),
        };
        // Except for digits, the text after the colon is a path, which may contain commas and equals signs.
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
            ("own", None) => Ok(DataSource::Own),
            ("own", _) => Err(SpecError::malformed("data", text, "own")),
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
    fn sources_round_trip_through_text() {
        for text in ["digits:50,20", "own", "mnist", "fashion-mnist:some/folder", "cifar10:C:\\data", "text:a:b.txt"] {
            assert_eq!(text.parse::<DataSource>().unwrap().to_string(), text);
        }
        assert_eq!("digits".parse(), Ok(DataSource::default()));
    }

    #[test]
    fn errors_name_what_is_expected() {
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
    fn a_source_loads_its_data() {
        let loaded = "digits:30,10".parse::<DataSource>().unwrap().load(3).unwrap();
        let Data::Images(splits) = loaded else { panic!("digits are images") };
        assert_eq!((splits.train().len(), splits.held_out().len()), (30, 10));
        let absent = DataSource::Text("missing/file".into()).load(0).unwrap_err().to_string();
        assert!(absent.contains("missing/file"));
        let absent = cached(PublishedSet::Cifar10, Some("no/cache".into())).unwrap_err().to_string();
        assert!(absent.contains("cifar10 is not in no/cache: run 'paceline data get cifar10'"));
    }
}
