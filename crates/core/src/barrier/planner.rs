//! Our own planner, the default: exact, and without allocation once its buffers are large enough.

use super::time_slice::TimeSlice;
use super::times::{Bounds, PredictedTimes, Progression, ProgressionError};
use super::{Barrier, Window, matrix, progressions};

/// Plans barriers, and keeps its buffers from one plan to the next. After the first plan, progressions of at most the
/// same number of workers are planned without allocation. So are matrices, unless more times than before fall into one
/// part of the timeline. A plan depends on its arguments only.
#[derive(Debug, Default)]
pub struct Planner {
    slice: TimeSlice,
    cursors: Vec<usize>,
    search: progressions::ProgressionSearch,
    barrier: Barrier,
}

impl Planner {
    /// A planner with empty buffers.
    pub fn new() -> Self {
        Self::default()
    }

    /// The barrier with the least wait for any predicted times, the earliest of equals.
    ///
    /// Takes O(nR) steps when times spread evenly over the timeline, O(nR log nR) at worst.
    pub fn plan(&mut self, times: &PredictedTimes) -> &Barrier {
        let window = matrix::shortest(times, &mut self.slice, &mut self.cursors);
        self.settle(window, window.iterations(times))
    }

    /// The barrier with the least wait when each worker's `horizon` predicted times are evenly spaced, the earliest of
    /// equals. It is the same as [`plan`](Self::plan) finds for [`PredictedTimes::from_progressions`], but with many
    /// workers several times faster, since it visits the times of slow workers only.
    ///
    /// # Errors
    /// [`ProgressionError`] if there are no workers or no iterations, an interval is 0, or a time exceeds `u64::MAX`.
    pub fn plan_progressions(&mut self, workers: &[Progression], horizon: u32) -> Result<&Barrier, ProgressionError> {
        let bounds = Bounds::of_progressions(workers, horizon)?;
        let window = self.search.shortest(workers, bounds, &mut self.slice);
        let steps = u64::from(horizon) - 1;
        let iterations =
            workers.iter().map(|worker| ((window.at - worker.next) / worker.interval).min(steps) as u32 + 1);
        Ok(self.settle(window, iterations))
    }

    fn settle(&mut self, window: Window, iterations: impl Iterator<Item = u32>) -> &Barrier {
        self.barrier.wait = window.wait;
        self.barrier.at = window.at;
        self.barrier.iterations.clear();
        self.barrier.iterations.extend(iterations);
        &self.barrier
    }
}
