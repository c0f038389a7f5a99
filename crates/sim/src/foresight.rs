//! What the simulator knows of tasks that are under way.

use std::sync::{Mutex, PoisonError};

use paceline_core::run_times::Foresight;
use paceline_core::{Span, WorkerId};

/// How long each worker's present task takes, by rank.
#[derive(Debug, Default)]
pub(crate) struct UnderWay(Mutex<Vec<Option<Span>>>);

impl UnderWay {
    /// The worker's task takes so long.
    pub(crate) fn begun(&self, worker: WorkerId, run_time: Span) {
        let mut run_times = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if worker.index() >= run_times.len() {
            run_times.resize(worker.index() + 1, None);
        }
        run_times[worker.index()] = Some(run_time);
    }
}

impl Foresight for UnderWay {
    fn run_time(&self, worker: WorkerId) -> Option<Span> {
        let run_times = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        run_times.get(worker.index()).copied().flatten()
    }
}
