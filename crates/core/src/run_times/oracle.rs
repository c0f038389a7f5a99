//! What is to come, known exactly: the standard that predictors are measured by.

use std::sync::Arc;

use super::{Forecast, Normal, RunTimePredictor};
use crate::{Span, WorkerId};

/// Knows how long tasks will take that are under way. The simulator does.
pub trait Foresight: Send + Sync {
    /// How long the worker's present task takes from its beginning to its end; `None` if it has none.
    fn run_time(&self, worker: WorkerId) -> Option<Span>;
}

/// Predicts what will be.
pub struct Oracle(pub Arc<dyn Foresight>);

impl RunTimePredictor for Oracle {
    fn observe(&mut self, _times: &[f64]) {}

    fn predict(&mut self, workers: &[WorkerId]) -> Option<Forecast> {
        let certain = |worker| self.0.run_time(worker).map(|span| Normal { mean: span.seconds(), deviation: 0.0 });
        let mut ranks: Vec<Normal> = workers.iter().map(|&worker| certain(worker)).collect::<Option<_>>()?;
        ranks.sort_by(|one, other| one.mean.total_cmp(&other.mean));
        let (last, slowest) = (workers.iter().max()?, *ranks.last()?);
        let workers = (0..=last.0).map(|rank| certain(WorkerId(rank)).unwrap_or(slowest)).collect();
        Some(Forecast { workers, ranks })
    }
}
