//! Data by name: what a user writes to say what to train on.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use thiserror::Error;

use crate::dataset::{DatasetError, Splits};
use crate::digits::synthetic_digits;
use crate::formats::FormatError;
use crate::formats::text::{self, Text};
use crate::published::PublishedSet;

/// The most digits that text may ask for; a million take 0.8 GB.
const MOST_DIGITS: usize = 1_000_000;

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

/// Why text names no [`DataSource`].
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ParseDataSourceError {
    /// It begins with no kind of source.
    #[error(
        "unknown data `{found}`: expected digits, digits:TRAIN,HELDOUT, mnist[:DIR], fashion-mnist[:DIR], cifar10[:DIR] or text:FILE"
    )]
    Kind {
        /// What was given.
        found: String,
    },
    /// The numbers of digits are not two numbers in range.
    #[error("digits:`{found}`: expected TRAIN,HELDOUT, each from 1 to {MOST_DIGITS}")]
    Counts {
        /// What was given.
        found: String,
    },
    /// A path is announced but empty.
    #[error("`{kind}:` needs a path after the colon")]
    Path {
        /// What came before the colon.
        kind: String,
    },
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
    type Err = ParseDataSourceError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (kind, argument) = match text.split_once(':') {
            Some((kind, argument)) => (kind, Some(argument)),
            None => (text, None),
        };
        let path = match argument {
            Some("") => Err(ParseDataSourceError::Path { kind: kind.to_owned() }),
            given => Ok(given.map(PathBuf::from)),
        };
        let unknown = || ParseDataSourceError::Kind { found: text.to_owned() };
        match (kind, argument) {
            ("digits", None) => Ok(DataSource::default()),
            ("digits", Some(counts)) => {
                digit_counts(counts).ok_or_else(|| ParseDataSourceError::Counts { found: counts.to_owned() })
            }
            ("text", _) => path?.map(DataSource::Text).ok_or_else(unknown),
            _ => {
                let set = kind.parse().map_err(|_| unknown())?;
                Ok(DataSource::Published { set, folder: path? })
            }
        }
    }
}

fn digit_counts(text: &str) -> Option<DataSource> {
    let count = |text: &str| text.parse().ok().filter(|count| (1..=MOST_DIGITS).contains(count));
    let (train, held_out) = text.split_once(',')?;
    Some(DataSource::Digits { train: count(train)?, held_out: count(held_out)? })
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
            ("imagenet", "unknown data `imagenet`: expected digits"),
            ("text", "text:FILE"),
            ("text:", "`text:` needs a path"),
            ("mnist:", "`mnist:` needs a path"),
            ("digits:", "expected TRAIN,HELDOUT"),
            ("digits:10", "expected TRAIN,HELDOUT"),
            ("digits:0,5", "each from 1 to 1000000"),
            ("digits:10,99999999999999999999", "each from 1 to 1000000"),
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
