//! The supported published data sets: their names, folders and file formats.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use paceline_spec::{SpecError, one_of};

use crate::dataset::{Normalization, Splits};
use crate::formats::{FormatError, cifar, idx};

/// A published set of labelled images, with training + held-out samples. As text: `mnist`, `fashion-mnist`, `cifar10`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PublishedSet {
    /// Handwritten digits, 28 × 28 grey, 60,000 + 10,000.
    Mnist,
    /// Pieces of clothing, 28 × 28 grey, 60,000 + 10,000.
    FashionMnist,
    /// Animals and vehicles, 32 × 32 in colour, 50,000 + 10,000.
    Cifar10,
}

impl PublishedSet {
    /// All sets.
    pub const ALL: [PublishedSet; 3] = [PublishedSet::Mnist, PublishedSet::FashionMnist, PublishedSet::Cifar10];

    /// The name on the command line, and of the folder in the cache.
    pub fn name(self) -> &'static str {
        match self {
            PublishedSet::Mnist => "mnist",
            PublishedSet::FashionMnist => "fashion-mnist",
            PublishedSet::Cifar10 => "cifar10",
        }
    }

    /// The default folder for downloads of this set: `$PACELINE_DATA/NAME`, else `$XDG_CACHE_HOME/paceline/NAME`, else
    /// `$HOME/.cache/paceline/NAME`. `None` if none of these variables is set.
    pub fn cache_folder(self) -> Option<PathBuf> {
        Some(cache(|variable| std::env::var_os(variable))?.join(self.name()))
    }

    /// Reads the files of the set, plain or gzip, from a folder.
    ///
    /// # Errors
    /// If a file is missing, cannot be read or has unexpected content.
    pub fn load(self, folder: &Path) -> Result<Splits, FormatError> {
        let channel = |mean, deviation| Normalization { mean, deviation };
        match self {
            PublishedSet::Mnist => idx::load(folder, channel(0.1307, 0.3081)),
            PublishedSet::FashionMnist => idx::load(folder, channel(0.2860, 0.3530)),
            PublishedSet::Cifar10 => {
                let red = channel(0.4914, 0.2470);
                let green = channel(0.4822, 0.2435);
                let blue = channel(0.4465, 0.2616);
                cifar::load(folder, [red, green, blue])
            }
        }
    }
}

/// The folder of all downloads, given the environment. An empty variable counts as unset.
fn cache(environment: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let variable = |name| environment(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    variable("PACELINE_DATA")
        .or_else(|| Some(variable("XDG_CACHE_HOME")?.join("paceline")))
        .or_else(|| Some(variable("HOME")?.join(".cache/paceline")))
}

impl fmt::Display for PublishedSet {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

impl FromStr for PublishedSet {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        one_of("data set", text, &PublishedSet::ALL.map(|set| (set.name(), set)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_is_the_first_folder_that_the_environment_names() {
        let cached = |set: &[(&str, &str)]| {
            let found = |name: &str| set.iter().find(|(known, _)| *known == name);
            cache(|name| found(name).map(|(_, value)| value.into()))
        };
        let all = [("HOME", "/h"), ("XDG_CACHE_HOME", "/x"), ("PACELINE_DATA", "/p")];
        assert_eq!(cached(&all), Some("/p".into()));
        assert_eq!(cached(&all[..2]), Some("/x/paceline".into()));
        assert_eq!(cached(&all[..1]), Some("/h/.cache/paceline".into()));
        assert_eq!(cached(&[("HOME", "/h"), ("PACELINE_DATA", "")]), Some("/h/.cache/paceline".into()));
        assert_eq!(cached(&[]), None);
    }

    #[test]
    fn names_round_trip_through_text() {
        for set in PublishedSet::ALL {
            assert_eq!(set.to_string().parse(), Ok(set));
        }
        let error = "imagenet".parse::<PublishedSet>().unwrap_err().to_string();
        assert!(error.contains("'imagenet'; expected mnist, fashion-mnist or cifar10"));
    }
}
