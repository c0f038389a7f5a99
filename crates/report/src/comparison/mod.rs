//! Schemes side by side: their runs under the same conditions, ranked, and the figures of a race.

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
    /// The run in numbers.
    pub summary: Summary,
    /// Time and held-out accuracy, whenever that was measured.
    pub curve: Vec<(f64, f64)>,
}
