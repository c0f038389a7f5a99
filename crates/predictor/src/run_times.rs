//! The run-times of a fully synchronous run, by iteration.

use std::ops::Range;

use thiserror::Error;

/// The run-time of every worker in every iteration, in seconds.
#[derive(Debug, Clone, PartialEq)]
pub struct RunTimes {
    /// One row per iteration, with one time per worker.
    rows: Vec<Vec<f64>>,
}

/// Why a predictor cannot be trained on a trace.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RunTimesError {
    /// The workers completed different numbers of tasks.
    #[error(
        "not of a fully synchronous run: worker {max_worker} completed {max_tasks} tasks, worker {min_worker} only \
         {min_tasks}. Record a run with --scheme bsp."
    )]
    NotSynchronous {
        /// The worker with the most tasks.
        max_worker: usize,
        /// Its number of tasks.
        max_tasks: usize,
        /// The worker with the fewest tasks.
        min_worker: usize,
        /// Its number of tasks.
        min_tasks: usize,
    },
    /// The run has too few iterations to train on.
    #[error("{found} iterations; expected at least {minimum} for a lag of {lag}. Record a longer run.")]
    TooFew {
        /// Number of iterations.
        found: usize,
        /// The required number of iterations.
        minimum: usize,
        /// The number of iterations that the model looks back on.
        lag: usize,
    },
    /// The run has too few workers for a cutoff.
    #[error("the number of workers is {found}; expected at least 2")]
    TooFewWorkers {
        /// Number of workers.
        found: usize,
    },
}

impl RunTimes {
    /// The iterations of a trace with one column per worker, in seconds. An incomplete last iteration is ignored.
    ///
    /// # Errors
    /// If the workers completed different numbers of tasks, or there are fewer than two workers.
    pub fn of_columns(columns: &[Vec<f64>]) -> Result<Self, RunTimesError> {
        let ends = || columns.iter().map(Vec::len).enumerate();
        let (Some((max_worker, max_tasks)), Some((min_worker, min_tasks)), true) =
            (ends().max_by_key(|&(_, tasks)| tasks), ends().min_by_key(|&(_, tasks)| tasks), columns.len() > 1)
        else {
            return Err(RunTimesError::TooFewWorkers { found: columns.len() });
        };
        if max_tasks > min_tasks + 1 {
            return Err(RunTimesError::NotSynchronous { max_worker, max_tasks, min_worker, min_tasks });
        }
        let row = |iteration: usize| columns.iter().map(|column| column[iteration]).collect();
        Ok(RunTimes { rows: (0..min_tasks).map(row).collect() })
    }

    /// The number of workers.
    pub fn workers(&self) -> usize {
        self.rows.first().map_or(0, Vec::len)
    }

    /// One row per iteration, with the time of each worker in seconds.
    pub fn rows(&self) -> &[Vec<f64>] {
        &self.rows
    }

    /// The iterations to train on and the iterations to validate on, which are the last fifth. The first iteration is
    /// left out if its times sum to more than three times those of the second, because workers warm up. Both parts are
    /// longer than `lag`.
    ///
    /// # Errors
    /// If there are too few iterations.
    pub(crate) fn split(&self, lag: usize) -> Result<(Range<usize>, Range<usize>), RunTimesError> {
        let minimum = 10 * lag;
        let found = self.rows.len();
        if found < minimum {
            return Err(RunTimesError::TooFew { found, minimum, lag });
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
    fn only_synchronous_runs_are_accepted() {
        let times = RunTimes::of_columns(&[vec![1.0, 2.0, 3.0], vec![4.0, 5.0]]).unwrap();
        assert_eq!(times.rows(), [[1.0, 4.0], [2.0, 5.0]]);
        let error = RunTimes::of_columns(&[vec![1.0; 9], vec![1.0; 12], vec![1.0; 3]]).unwrap_err().to_string();
        assert!(error.contains("worker 1 completed 12 tasks, worker 2 only 3"), "{error}");
        assert_eq!(RunTimes::of_columns(&[vec![1.0]]), Err(RunTimesError::TooFewWorkers { found: 1 }));
        assert_eq!(times.split(20), Err(RunTimesError::TooFew { found: 2, minimum: 200, lag: 20 }));
        let long = RunTimes::of_columns(&vec![vec![1.0; 203]; 2]).unwrap();
        assert_eq!(long.split(20), Ok((0..163, 163..203)));
        let column: Vec<f64> = (0..203).map(|iteration| if iteration == 0 { 9.0 } else { 1.0 }).collect();
        let slow_start = RunTimes::of_columns(&[column.clone(), column]).unwrap();
        assert_eq!(slow_start.split(20), Ok((1..163, 163..203)));
    }
}
