//! Where to put the next barrier: given every worker's predicted finishing times, pick one time per worker so that the
//! worker who finishes first waits least for the one who finishes last (ZipLine, Problem 1).
//!
//! - [`PredictedTimes`] is the input, one row of times per worker; [`Progression`] is the special case that a scheme
//!   predicts, a next time and an interval per worker.
//! - [`Planner`] is what a scheme calls: exact, the fastest here, and free of allocation once warm.
//! - [`plan`] runs any [`Algorithm`] by name: ours, and those of the paper for comparison.
//!
//! Times are whole numbers in whatever unit the caller chooses, from any origin; nanoseconds since 1970 keep every digit.

mod algorithm;
mod matrix;
mod paper;
mod parse;
mod planner;
mod progressions;
mod scan;
mod time_slice;
mod times;

pub use algorithm::{Algorithm, TooManyCandidates, UnknownAlgorithm, plan};
pub use planner::Planner;
pub use times::{PredictedTimes, PredictedTimesError, Progression, ProgressionError};

/// A planned barrier: all workers meet at [`at`](Self::at), each after its own number of iterations.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize)]
pub struct Barrier {
    /// How long the worker that finishes first waits for the last, in the unit of the times (the paper's `d_Z`).
    pub wait: u64,
    /// When the last worker finishes and the barrier opens (the paper's `t_sync`).
    pub at: u64,
    /// For each worker the predicted iteration, counted from 1, after which it waits: its latest that ends by `at`.
    pub iterations: Vec<u32>,
}

/// The shortest window found so far that holds a time of every worker. Searches offer windows in the order of their
/// starts and replace it only by a strictly shorter one, so the earliest of several optima stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Window {
    wait: u64,
    at: u64,
}

impl Window {
    /// No window yet: every other one is shorter, since no start lies before 0.
    const NONE: Self = Self { wait: u64::MAX, at: u64::MAX };

    /// Whether a window from `start` to `end` is shorter than this one.
    fn improved_by(&self, start: u64, end: u64) -> bool {
        end.saturating_sub(start) < self.wait
    }

    /// The barrier at the end of this window.
    fn barrier(self, times: &PredictedTimes) -> Barrier {
        Barrier { wait: self.wait, at: self.at, iterations: self.iterations(times).collect() }
    }

    /// For each worker its latest iteration, counted from 1, that ends within the window. With several times at the
    /// window's end a search may not have passed all of them, so they are looked up.
    fn iterations(self, times: &PredictedTimes) -> impl Iterator<Item = u32> {
        times.rows().map(move |row| row.partition_point(|&time| time <= self.at) as u32)
    }
}
