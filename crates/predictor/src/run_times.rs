//! The run-times of a fully synchronous run, iteration by iteration.

use std::ops::Range;

use thiserror::Error;

/// Every worker's run-time in every iteration, in seconds.
#[derive(Debug, Clone, PartialEq)]
pub struct RunTimes {
    /// Iterations, each with a time per worker.
    rows: Vec<Vec<f64>>,
}

/// Why times are not those of a fully synchronous run.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RunTimesError {
    /// Workers did not do equally many tasks.
    #[error(
        "not of a fully synchronous run: worker {most} did {most_tasks} tasks, worker {least} only {least_tasks}; record \
         one with --scheme bsp"
    )]
    NotSynchronous {
        /// Who did the most.
        most: usize,
        /// How many.
        most_tasks: usize,
        /// Who did the least.
        least: usize,
        /// How many.
        least_tasks: usize,
    },
    /// There are too few iterations to learn from.
    #[error("{found} iterations are too few: {least} or more are needed to look back on {lag}")]
    TooFew {
        /// How many there are.
        found: usize,
        /// How many there should be.
        least: usize,
        /// How far is looked back.
        lag: usize,
    },
    /// There are too few workers.
    #[error("there is nothing to cut off with {found} worker: 2 or more are needed")]
    TooFewWorkers {
        /// How many there are.
        found: usize,
    },
}

impl RunTimes {
    /// The iterations of a trace with a column per worker. The last one may be incomplete, and does not count then.
    ///
    /// # Errors
    /// If workers did not all do the same number of tasks, or there is only one.
    pub fn of_columns(columns: &[Vec<f64>]) -> Result<Self, RunTimesError> {
        let ends = || columns.iter().map(Vec::len).enumerate();
        let (Some((most, most_tasks)), Some((least, least_tasks)), true) =
            (ends().max_by_key(|&(_, tasks)| tasks), ends().min_by_key(|&(_, tasks)| tasks), columns.len() > 1)
        else {
            return Err(RunTimesError::TooFewWorkers { found: columns.len() });
        };
        if most_tasks > least_tasks + 1 {
            return Err(RunTimesError::NotSynchronous { most, most_tasks, least, least_tasks });
        }
        let row = |iteration: usize| columns.iter().map(|column| column[iteration]).collect();
        Ok(RunTimes { rows: (0..least_tasks).map(row).collect() })
    }

    /// How many workers there are.
    pub fn workers(&self) -> usize {
        self.rows.first().map_or(0, Vec::len)
    }

    /// The iterations.
    pub fn rows(&self) -> &[Vec<f64>] {
        &self.rows
    }

    /// Cuts the last fifth off, to validate by, and the first iteration where it took far longer than the second: workers warm
    /// up. Both parts are long enough to look back on `lag` iterations.
    ///
    /// # Errors
    /// If there are too few iterations.
    pub(crate) fn split(&self, lag: usize) -> Result<(Range<usize>, Range<usize>), RunTimesError> {
        let least = 10 * lag;
        let found = self.rows.len();
        if found < least {
            return Err(RunTimesError::TooFew { found, least, lag });
        }
        let cut = found - found / 5;
        let total = |iteration: usize| self.rows[iteration].iter().sum::<f64>();
        let start = usize::from(total(0) > 3.0 * total(1));
        Ok((start..cut, cut..found))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_synchronous_runs_are_taken() {
        let times = RunTimes::of_columns(&[vec![1.0, 2.0, 3.0], vec![4.0, 5.0]]).unwrap();
        assert_eq!(times.rows(), [[1.0, 4.0], [2.0, 5.0]]);
        let refused = RunTimes::of_columns(&[vec![1.0; 9], vec![1.0; 12], vec![1.0; 3]]).unwrap_err().to_string();
        assert!(refused.contains("worker 1 did 12 tasks, worker 2 only 3"), "{refused}");
        assert_eq!(RunTimes::of_columns(&[vec![1.0]]), Err(RunTimesError::TooFewWorkers { found: 1 }));
        assert_eq!(times.split(20), Err(RunTimesError::TooFew { found: 2, least: 200, lag: 20 }));
        let long = RunTimes::of_columns(&vec![vec![1.0; 203]; 2]).unwrap();
        assert_eq!(long.split(20), Ok((0..163, 163..203)));
        let column: Vec<f64> = (0..203).map(|iteration| if iteration == 0 { 9.0 } else { 1.0 }).collect();
        let slow_start = RunTimes::of_columns(&[column.clone(), column]).unwrap();
        assert_eq!(slow_start.split(20), Ok((1..163, 163..203)));
    }
}
