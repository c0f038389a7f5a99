//! Groups of options that several commands share.

mod cluster;
mod emulation;
mod job;
mod scenario;
mod seeds;
mod training;

use std::ops::RangeInclusive;

use paceline_core::SchemeSpec;
use paceline_run::equip;

pub use cluster::Cluster;
pub use emulation::{Late, Lateness};
pub use job::JobOptions;
pub use scenario::{Model, Prepared, Scenario};
pub use seeds::Seeds;
pub use training::{DATA_SEED, Training};

/// A length of time, in seconds.
pub fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds: &f64| seconds.is_finite() && *seconds > 0.0);
    seconds.ok_or_else(|| "expected seconds, more than 0".into())
}

/// A scheme, with the file read that it may name.
pub fn scheme(text: &str) -> anyhow::Result<SchemeSpec> {
    Ok(equip(text.parse()?)?)
}

/// A whole number of a range.
pub fn whole<T: TryFrom<u64>>(range: RangeInclusive<u64>) -> impl Fn(&str) -> Result<T, String> + Clone {
    move |text| {
        let number = text.parse().ok().filter(|number| range.contains(number));
        let number = number.and_then(|number| T::try_from(number).ok());
        number.ok_or_else(|| format!("expected a whole number from {} to {}", range.start(), range.end()))
    }
}
