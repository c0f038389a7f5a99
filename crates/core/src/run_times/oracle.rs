//! The true run-times, known in advance: the reference that predictors are compared with.

use std::sync::Arc;

use serde_json::value::{RawValue, to_raw_value};

use super::{Forecast, Normal, RunTimePredictor};
use crate::{Restorable, RestoreError, Span, WorkerId};

/// Knows the run-times of tasks that are not finished. The simulator implements it.
pub trait Foresight: Send + Sync {
    /// The run-time of the worker's present task from start to end; `None` if it has no task.
    fn run_time(&self, worker: WorkerId) -> Option<Span>;
}

/// Predicts the true run-times.
pub struct Oracle(pub Arc<dyn Foresight>);

/// It has no state of its own.
impl Restorable for Oracle {
    fn save(&self) -> Option<Box<RawValue>> {
        to_raw_value(&()).ok()
    }

    fn restore(&mut self, _saved: &RawValue) -> Result<(), RestoreError> {
        Ok(())
    }
}

impl RunTimePredictor for Oracle {
    fn observe(&mut self, _times: &[f64]) {}

    /// The tasks under way have their sizes.
    fn predict_multiples(&mut self, workers: &[WorkerId], _multiples: &[f64]) -> Option<Forecast> {
        let certain = |worker| self.0.run_time(worker).map(|span| Normal { mean: span.seconds(), deviation: 0.0 });
        let mut ranks: Vec<Normal> = workers.iter().map(|&worker| certain(worker)).collect::<Option<_>>()?;
        ranks.sort_by(|one, other| one.mean.total_cmp(&other.mean));
        let (last, slowest) = (workers.iter().max()?, *ranks.last()?);
        let workers = (0..=last.0).map(|rank| certain(WorkerId(rank)).unwrap_or(slowest)).collect();
        Some(Forecast { workers, ranks })
    }
}
