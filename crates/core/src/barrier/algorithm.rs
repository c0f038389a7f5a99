//! The algorithms by name.

use std::fmt;
use std::str::FromStr;

use paceline_spec::{SpecError, one_of};
use thiserror::Error;

use super::times::PredictedTimes;
use super::{Barrier, Planner, paper, scan};

/// The most sets that naive search tries: some seconds of work.
const MAX_CANDIDATES: u64 = 1_000_000_000;

/// A way to find the barrier. All are exact except the two grid scans.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Algorithm {
    /// `zipline`: our own algorithm, as in [`Planner`]; the default.
    #[default]
    Zipline,
    /// `zipline-basic`: the paper's Algorithm 2, corrected. O(R n²).
    ZiplineBasic,
    /// `zipline-opt`: the paper's section 5.3.1, `Z` kept sorted. O(R n²) at worst.
    ZiplineOpt,
    /// `zipline-opt-bs`: the paper's section 5.3.2, `Z` searched by bisection. O(R n log n) comparisons.
    ZiplineOptBs,
    /// `full-grid-scan`: for every time of every worker the nearest times of the others. O(R² n²), and may miss the
    /// optimum.
    FullGridScan,
    /// `grid-scan`: the same for the times of one worker only. O(R² n), and often misses the optimum.
    GridScan,
    /// `naive`: every set of one time per worker. O(Rⁿ).
    Naive,
}

impl Algorithm {
    /// Every algorithm, ours first.
    pub const ALL: [Self; 7] = [
        Self::Zipline,
        Self::ZiplineBasic,
        Self::ZiplineOpt,
        Self::ZiplineOptBs,
        Self::FullGridScan,
        Self::GridScan,
        Self::Naive,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Zipline => "zipline",
            Self::ZiplineBasic => "zipline-basic",
            Self::ZiplineOpt => "zipline-opt",
            Self::ZiplineOptBs => "zipline-opt-bs",
            Self::FullGridScan => "full-grid-scan",
            Self::GridScan => "grid-scan",
            Self::Naive => "naive",
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

impl FromStr for Algorithm {
    type Err = SpecError;

    fn from_str(name: &str) -> Result<Self, SpecError> {
        one_of("barrier algorithm", name, &Self::ALL.map(|algorithm| (algorithm.name(), algorithm)))
    }
}

/// Naive search would try too many sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("naive search would try {horizon}^{workers} sets: expected at most {MAX_CANDIDATES}. Use 'zipline' instead.")]
pub struct TooManyCandidates {
    /// The number of workers.
    pub workers: usize,
    /// The number of times per worker.
    pub horizon: usize,
}

/// Plans a barrier with the given algorithm. For many plans in a row use a [`Planner`], which keeps its buffers.
///
/// # Errors
/// [`TooManyCandidates`] from [`Algorithm::Naive`] only.
pub fn plan(algorithm: Algorithm, times: &PredictedTimes) -> Result<Barrier, TooManyCandidates> {
    let window = match algorithm {
        Algorithm::Zipline => return Ok(Planner::new().plan(times).clone()),
        Algorithm::FullGridScan => return Ok(scan::full_grid_scan(times)),
        Algorithm::GridScan => return Ok(scan::grid_scan(times)),
        Algorithm::ZiplineBasic => paper::basic(times),
        Algorithm::ZiplineOpt => paper::opt(times),
        Algorithm::ZiplineOptBs => paper::opt_bs(times),
        Algorithm::Naive => {
            let (workers, horizon) = (times.workers(), times.horizon());
            let candidates = u32::try_from(workers).ok().and_then(|workers| (horizon as u64).checked_pow(workers));
            if candidates.is_none_or(|candidates| candidates > MAX_CANDIDATES) {
                return Err(TooManyCandidates { workers, horizon });
            }
            scan::naive(times)
        }
    };
    Ok(window.barrier(times))
}
