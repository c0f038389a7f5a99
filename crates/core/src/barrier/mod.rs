//! Plans the next barrier: given every worker's predicted finish times, choose one time per worker so that the worker
//! that finishes first has the shortest wait for the worker that finishes last (ZipLine, Problem 1).
//!
//! - [`PredictedTimes`] is the input, one row of times per worker. [`Progression`] is the special case that a scheme
//!   predicts, a next time and an interval per worker.
//! - [`Planner`] is the planner of the schemes: exact, the fastest of all algorithms, and without allocation once warm.
//! - [`plan`] runs any [`Algorithm`]: our own, and those of the paper for comparison.
//!
//! Times are whole numbers in any unit and from any origin. Nanoseconds since 1970 are exact.

mod algorithm;
mod matrix;
mod paper;
mod parse;
mod planner;
mod progressions;
mod scan;
mod time_slice;
mod times;

pub use algorithm::{Algorithm, TooManyCandidates, plan};
pub use planner::Planner;
pub use times::{PredictedTimes, PredictedTimesError, Progression, ProgressionError};

/// A planned barrier, which opens at [`at`](Self::at). Each worker arrives after its own number of iterations.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize)]
pub struct Barrier {
    /// How long the worker that finishes first waits for the last, in the unit of the times (the paper's `d_Z`).
    pub wait: u64,
    /// When the last worker finishes and the barrier opens (the paper's `t_sync`).
    pub at: u64,
    /// For each worker the predicted iteration, counted from 1, after which it waits: its latest that ends by `at`.
    pub iterations: Vec<u32>,
}

/// The shortest window found so far that contains a time of every worker. Searches offer windows in the order of their
/// starts and replace it only by a strictly shorter one, so the earliest of several optima is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Window {
    wait: u64,
    at: u64,
}

impl Window {
    /// No window yet. Every window is shorter, since no start lies before 0.
    const NONE: Self = Self { wait: u64::MAX, at: u64::MAX };

    /// Whether a window from `start` to `end` is shorter than this one.
    fn improved_by(&self, start: u64, end: u64) -> bool {
        end.saturating_sub(start) < self.wait
    }

    /// The barrier at the end of this window.
    fn barrier(self, times: &PredictedTimes) -> Barrier {
        Barrier { wait: self.wait, at: self.at, iterations: self.iterations(times).collect() }
    }

    /// For each worker its latest iteration, counted from 1, that ends within the window. They are looked up, since a
    /// search may not have passed all of several equal times at the window's end.
    fn iterations(self, times: &PredictedTimes) -> impl Iterator<Item = u32> {
        times.rows().map(move |row| row.partition_point(|&time| time <= self.at) as u32)
    }
}
