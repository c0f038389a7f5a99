//! Schemes compared: their runs under the same conditions, ranked, and figures of them.

mod figures;
mod ranking;

use paceline_core::SchemeSpec;
use paceline_runtime::Summary;

pub use figures::panels;
pub use ranking::{RankedScheme, Ranking};

/// A scheme's runs, one per seed.
pub struct SchemeRuns {
    /// The scheme.
    pub scheme: SchemeSpec,
    /// Its runs, in the order of the seeds.
    pub runs: Vec<RunResult>,
}

/// The result of one run.
pub struct RunResult {
    /// The summary.
    pub summary: Summary,
    /// Time and held-out accuracy of every evaluation.
    pub curve: Vec<(f64, f64)>,
}
