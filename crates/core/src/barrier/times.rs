//! The input of a plan: a checked matrix of predicted times, or one arithmetic progression per worker.

use thiserror::Error;

/// Predicted finish times: one row per worker, all rows of the same length, each in ascending order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PredictedTimes {
    times: Vec<u64>,
    horizon: usize,
}

impl PredictedTimes {
    /// Checks rows of times, one per worker.
    ///
    /// # Errors
    /// [`PredictedTimesError`] if there is no row, a row has no times or the wrong length, or its times are not
    /// ascending.
    pub fn from_rows<Row: AsRef<[u64]>>(rows: impl IntoIterator<Item = Row>) -> Result<Self, PredictedTimesError> {
        let mut matrix = Self::empty();
        for (index, row) in rows.into_iter().enumerate() {
            matrix.push_row(index + 1, row.as_ref())?;
        }
        matrix.completed()
    }

    /// The first `horizon` times of every progression.
    ///
    /// # Errors
    /// [`ProgressionError`] as [`Planner::plan_progressions`](super::Planner::plan_progressions) reports it.
    pub fn from_progressions(workers: &[Progression], horizon: u32) -> Result<Self, ProgressionError> {
        Bounds::of_progressions(workers, horizon)?;
        let times =
            workers.iter().flat_map(|worker| (0..u64::from(horizon)).map(|i| worker.next + i * worker.interval));
        Ok(Self { times: times.collect(), horizon: horizon as usize })
    }

    /// The number of workers; at least 1.
    pub fn workers(&self) -> usize {
        self.times.len() / self.horizon
    }

    /// The number of predicted times per worker (the paper's `R`); at least 1.
    pub fn horizon(&self) -> usize {
        self.horizon
    }

    /// The rows in the order of the workers.
    pub fn rows(&self) -> impl ExactSizeIterator<Item = &[u64]> + Clone {
        self.times.chunks_exact(self.horizon)
    }

    /// The times of one worker, counted from 0.
    pub(super) fn row(&self, worker: usize) -> &[u64] {
        &self.times[worker * self.horizon..][..self.horizon]
    }

    /// The bounds of all windows.
    pub(super) fn bounds(&self) -> Bounds {
        let mut bounds = Bounds::NONE;
        for row in self.rows() {
            bounds.include(row[0], row[self.horizon - 1]);
        }
        bounds
    }

    /// A matrix under construction, to be checked with [`completed`](Self::completed).
    pub(super) fn empty() -> Self {
        Self { times: Vec::new(), horizon: 0 }
    }

    /// Adds a row. Errors refer to it as `number`.
    pub(super) fn push_row(&mut self, number: usize, row: &[u64]) -> Result<(), PredictedTimesError> {
        if row.is_empty() {
            return Err(PredictedTimesError::Empty);
        }
        if let Some(index) = row.windows(2).position(|pair| pair[1] < pair[0]) {
            return Err(PredictedTimesError::Falls {
                row: number,
                column: index + 2,
                before: row[index],
                after: row[index + 1],
            });
        }
        if self.times.is_empty() {
            self.horizon = row.len();
        } else if row.len() != self.horizon {
            return Err(PredictedTimesError::Ragged { row: number, found: row.len(), expected: self.horizon });
        }
        self.times.extend_from_slice(row);
        Ok(())
    }

    pub(super) fn completed(self) -> Result<Self, PredictedTimesError> {
        if self.times.is_empty() { Err(PredictedTimesError::Empty) } else { Ok(self) }
    }
}

/// One worker's predicted times: `next`, `next + interval`, `next + 2 × interval` and so on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progression {
    /// When its next iteration ends.
    pub next: u64,
    /// How long each of its iterations takes; at least 1, in the unit of `next`.
    pub interval: u64,
}

impl Progression {
    /// Its earliest time that is not before `time`, which must not be after its last.
    pub(super) fn at_or_after(&self, time: u64) -> u64 {
        if time <= self.next {
            return self.next;
        }
        match (time - self.next) % self.interval {
            0 => time,
            since => time - since + self.interval,
        }
    }

    /// Its latest time that is not after `time`, which must not be before its first.
    pub(super) fn at_or_before(&self, time: u64) -> u64 {
        time - (time - self.next) % self.interval
    }
}

/// The bounds of all windows that contain a time of every worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Bounds {
    /// The earliest time of all.
    pub earliest_start: u64,
    /// The latest of the first times: no window can end before it.
    pub earliest_end: u64,
    /// The earliest of the last times: no window can start after it.
    pub latest_start: u64,
}

impl Bounds {
    const NONE: Self = Self { earliest_start: u64::MAX, earliest_end: 0, latest_start: u64::MAX };

    fn include(&mut self, first: u64, last: u64) {
        self.earliest_start = self.earliest_start.min(first);
        self.earliest_end = self.earliest_end.max(first);
        self.latest_start = self.latest_start.min(last);
    }

    /// Checks the progressions and returns the bounds for `horizon` iterations of each.
    pub fn of_progressions(workers: &[Progression], horizon: u32) -> Result<Self, ProgressionError> {
        if workers.is_empty() || horizon == 0 {
            return Err(ProgressionError::Empty { workers: workers.len(), horizon });
        }
        let mut bounds = Self::NONE;
        for (worker, &Progression { next, interval }) in workers.iter().enumerate() {
            if interval == 0 {
                return Err(ProgressionError::NoInterval { worker });
            }
            let length = interval.checked_mul(u64::from(horizon));
            let beyond = length.and_then(|length| next.checked_add(length));
            let beyond = beyond.ok_or(ProgressionError::TooLate { worker, next, interval, horizon })?;
            bounds.include(next, beyond - interval);
        }
        Ok(bounds)
    }
}

/// Why rows of times, or a text of them, are not valid [`PredictedTimes`]. Rows and columns count from 1. In a text, a
/// row's number is its line number.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PredictedTimesError {
    /// There are no rows, or a row has no times.
    #[error("no times: expected one row of whole numbers per worker")]
    Empty,
    /// A row is longer or shorter than the first.
    #[error("row {row} has {found} times: expected {expected}, as in the first row")]
    Ragged {
        /// The row.
        row: usize,
        /// The number of its times.
        found: usize,
        /// The number of times in the first row.
        expected: usize,
    },
    /// A time is smaller than the one before it.
    #[error("row {row}, column {column}: {after} follows {before}: expected times in ascending order")]
    Falls {
        /// The row.
        row: usize,
        /// The position of the smaller time.
        column: usize,
        /// The time before it.
        before: u64,
        /// The smaller time.
        after: u64,
    },
    /// A field is not a whole number.
    #[error("row {row}, column {column}: '{text}': expected a whole number")]
    NotANumber {
        /// The row.
        row: usize,
        /// The field's position.
        column: usize,
        /// The field.
        text: String,
    },
    /// A field is a negative number.
    #[error("row {row}, column {column}: {text} is negative: expected 0 or more")]
    Negative {
        /// The row.
        row: usize,
        /// The field's position.
        column: usize,
        /// The field.
        text: String,
    },
    /// A field is a whole number of more than 64 bits.
    #[error("row {row}, column {column}: {text} is too large: expected at most {}", u64::MAX)]
    TooLarge {
        /// The row.
        row: usize,
        /// The field's position.
        column: usize,
        /// The field.
        text: String,
    },
}

/// Why progressions are invalid. Workers count from 0, as in the slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ProgressionError {
    /// There are no workers or no iterations.
    #[error("nothing to plan for {workers} workers with {horizon} iterations each: expected at least 1 of both")]
    Empty {
        /// The number of workers.
        workers: usize,
        /// The number of iterations.
        horizon: u32,
    },
    /// A worker's interval is zero.
    #[error("worker {worker} has interval 0: expected at least 1")]
    NoInterval {
        /// The worker.
        worker: usize,
    },
    /// A worker's times, or the one that would follow them, do not fit into 64 bits.
    #[error("worker {worker}: {next} plus {horizon} iterations of {interval}: expected at most {}", u64::MAX)]
    TooLate {
        /// The worker.
        worker: usize,
        /// Its next time.
        next: u64,
        /// Its interval.
        interval: u64,
        /// The number of iterations.
        horizon: u32,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_checked() {
        let falls = PredictedTimes::from_rows([vec![1, 2], vec![3, 2]]);
        assert_eq!(falls, Err(PredictedTimesError::Falls { row: 2, column: 2, before: 3, after: 2 }));
        let ragged = PredictedTimes::from_rows([vec![1, 2], vec![3]]);
        assert_eq!(ragged, Err(PredictedTimesError::Ragged { row: 2, found: 1, expected: 2 }));
        assert_eq!(PredictedTimes::from_rows([[]; 2]), Err(PredictedTimesError::Empty));
        assert_eq!(PredictedTimes::from_rows([[]; 0]), Err(PredictedTimesError::Empty));
    }

    #[test]
    fn progressions_are_checked() {
        let worker = Progression { next: u64::MAX - 10, interval: 5 };
        assert!(PredictedTimes::from_progressions(&[worker], 2).is_ok());
        let too_late = ProgressionError::TooLate { worker: 0, next: worker.next, interval: 5, horizon: 3 };
        assert_eq!(PredictedTimes::from_progressions(&[worker], 3), Err(too_late));
        let still = Progression { next: 1, interval: 0 };
        assert_eq!(Bounds::of_progressions(&[worker, still], 1), Err(ProgressionError::NoInterval { worker: 1 }));
        assert_eq!(Bounds::of_progressions(&[], 3), Err(ProgressionError::Empty { workers: 0, horizon: 3 }));
        assert_eq!(Bounds::of_progressions(&[worker], 0), Err(ProgressionError::Empty { workers: 1, horizon: 0 }));
    }
}
