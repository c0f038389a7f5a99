//! Run times of the tasks under way, for the oracle predictor.

use std::sync::{Mutex, PoisonError};

use paceline_core::run_times::Foresight;
use paceline_core::{Span, WorkerId};

/// The run time of each worker's current task, by rank.
#[derive(Debug, Default)]
pub(crate) struct TasksUnderWay(Mutex<Vec<Option<Span>>>);

impl TasksUnderWay {
    /// Records the run time of the task that the worker starts.
    pub(crate) fn start(&self, worker: WorkerId, run_time: Span) {
        let mut run_times = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if worker.index() >= run_times.len() {
            run_times.resize(worker.index() + 1, None);
        }
        run_times[worker.index()] = Some(run_time);
    }
}

impl Foresight for TasksUnderWay {
    fn run_time(&self, worker: WorkerId) -> Option<Span> {
        let run_times = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        run_times.get(worker.index()).copied().flatten()
    }
}
