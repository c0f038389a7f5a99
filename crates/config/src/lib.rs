//! Options that commands and experiments share, from flags and from TOML files.
//!
//! - [`Scenario`]: a simulation without its scheme: [`Cluster`], [`TrainingOptions`] and goals.
//! - [`SchemeList`], [`Seeds`]: the schemes and seeds to run; [`Contestant`]: a scheme with its workers and its rate;
//!   [`SchemeRate`]: the rate of one.
//! - [`WorkloadSpec`]: the workload as a server describes it to its workers.
//! - [`mod@file`]: configuration files, and the configuration that a command ran with.
//! - [`parallel`]: several runs at once, with results in order.
//! - [`ForceOption`]: the check of output files, before anything is computed.
//! - [`Failure`]: why a command fails.

#![allow(
    rustdoc::broken_intra_doc_links,
    reason = "comments on options are help texts, in which brackets are brackets"
)]

mod cluster;
mod contestant;
mod destination;
mod failure;
pub mod file;
pub mod parallel;
mod scenario;
mod scheme_list;
mod scheme_rate;
mod seeds;
mod training;
mod workload_spec;

use std::ops::RangeInclusive;

use paceline_core::SchemeSpec;
use paceline_runtime::load_pretrained;

pub use cluster::Cluster;
pub use contestant::Contestant;
pub use destination::ForceOption;
pub use failure::Failure;
pub use scenario::{ModelChoice, PreparedScenario, Scenario};
pub use scheme_list::SchemeList;
pub use scheme_rate::SchemeRate;
pub use seeds::Seeds;
pub use training::{DATA_SEED, GradientOptions, LearningRate, TrainingOptions};
pub use workload_spec::WorkloadSpec;

/// Reads a length of time, in seconds.
///
/// # Errors
/// If it is not a finite number above 0.
pub fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds: &f64| seconds.is_finite() && *seconds > 0.0);
    seconds.ok_or_else(|| "expected seconds, above 0".into())
}

/// Reads a scheme, and the pretrained file that its settings may name.
///
/// # Errors
/// If the scheme is unknown, a setting is not allowed, or the file can't be read.
pub fn scheme(text: &str) -> anyhow::Result<SchemeSpec> {
    Ok(load_pretrained(text.parse()?)?)
}

/// A parser of whole numbers within a range.
pub fn whole<T: TryFrom<u64>>(range: RangeInclusive<u64>) -> impl Fn(&str) -> Result<T, String> + Clone {
    move |text| {
        let number = text.parse().ok().filter(|number| range.contains(number));
        let number = number.and_then(|number| T::try_from(number).ok());
        number.ok_or_else(|| format!("expected a whole number from {} to {}", range.start(), range.end()))
    }
}
