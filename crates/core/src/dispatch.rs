//! How a k-of-n scheme dispatches work.

use std::fmt;
use std::str::FromStr;

use paceline_spec::{SpecError, one_of};
use serde::{Deserialize, Serialize};

/// What happens to the workers when a new version is made (DBW, section 2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Dispatch {
    /// A worker that becomes idle is assigned the newest version. It is assigned the same version again only while
    /// fewer than k gradients of it have arrived or are assigned. (TensorFlow's queue of n tokens would also start
    /// gradients that can't be used.)
    Pull,
    /// Every worker is sent the new version and starts on it when its present task is done.
    #[default]
    PushWait,
    /// Every worker is sent the new version and drops its present task for it.
    PushInterrupt,
}

impl Dispatch {
    /// Every dispatch with its name.
    pub const NAMES: [(&'static str, Dispatch); 3] =
        [("pull", Dispatch::Pull), ("push-wait", Dispatch::PushWait), ("push-interrupt", Dispatch::PushInterrupt)];
}

impl FromStr for Dispatch {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        one_of("dispatch", text, &Dispatch::NAMES)
    }
}

impl fmt::Display for Dispatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = Dispatch::NAMES.iter().find(|(_, dispatch)| dispatch == self);
        f.write_str(found.map_or("", |(name, _)| name))
    }
}
