//! Measures forecasts against known run-times.

use std::ops::Range;

use paceline_core::WorkerId;
use paceline_core::run_times::{Forecast, RunTimePredictor};

/// One iteration: its forecast and its observed run-times.
#[derive(Debug, Clone)]
pub struct PredictedIteration {
    /// The iteration, from 0.
    pub iteration: usize,
    /// The prediction.
    pub forecast: Forecast,
    /// The observed run-times in seconds, ascending.
    pub observed: Vec<f64>,
}

impl PredictedIteration {
    /// Gradients per second if the server waits for the fastest `cutoff` workers.
    ///
    /// # Panics
    /// If `cutoff` is 0 or exceeds the number of workers.
    pub fn throughput(&self, cutoff: usize) -> f64 {
        cutoff as f64 / self.observed[cutoff - 1]
    }

    /// Gradients per second at the best cutoff.
    pub fn largest_throughput(&self) -> f64 {
        (1..=self.observed.len()).map(|cutoff| self.throughput(cutoff)).fold(0.0, f64::max)
    }
}

/// The quality of a predictor over several iterations.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Assessment {
    /// Number of predicted iterations.
    pub iterations: usize,
    /// Root mean square difference between predicted and observed order statistics, relative to the mean time.
    pub error: f64,
    /// Share of the observed order statistics within two deviations of the predicted ones, 0 to 1.
    pub covered: f64,
    /// Mean throughput at the predicted cutoffs, relative to that at the best cutoffs, 0 to 1.
    pub throughput: f64,
    /// The same if the server waits for all workers.
    pub waiting_for_all: f64,
}

/// Predicts each iteration of the range `iterations` from all iterations before it.
///
/// Returns the predicted iterations and their assessment, which is `None` if there are no predictions.
pub fn assess(
    predictor: &mut dyn RunTimePredictor,
    rows: &[Vec<f64>],
    iterations: Range<usize>,
) -> (Vec<PredictedIteration>, Option<Assessment>) {
    let workers: Vec<WorkerId> = (0..rows.first().map_or(0, Vec::len) as u32).map(WorkerId).collect();
    let mut all = Vec::new();
    for (iteration, row) in rows.iter().enumerate().take(iterations.end) {
        if iterations.contains(&iteration)
            && let Some(forecast) = predictor.predict(&workers)
        {
            let mut observed = row.clone();
            observed.sort_by(f64::total_cmp);
            all.push(PredictedIteration { iteration, forecast, observed });
        }
        predictor.observe(row);
    }
    let assessment = (!all.is_empty()).then(|| summarize(&all));
    (all, assessment)
}

fn summarize(all: &[PredictedIteration]) -> Assessment {
    let pairs = || all.iter().flat_map(|one| one.forecast.ranks.iter().zip(&one.observed));
    let count = pairs().count() as f64;
    let mean = pairs().map(|(_, observed)| observed).sum::<f64>() / count;
    let squares: f64 = pairs().map(|(predicted, observed)| (predicted.mean - observed).powi(2)).sum();
    let within =
        pairs().filter(|(predicted, observed)| (predicted.mean - **observed).abs() <= 2.0 * predicted.deviation);
    let share = |cutoff: &dyn Fn(&PredictedIteration) -> usize| {
        let shares = all.iter().map(|one| one.throughput(cutoff(one)) / one.largest_throughput());
        shares.sum::<f64>() / all.len() as f64
    };
    Assessment {
        iterations: all.len(),
        error: (squares / count).sqrt() / mean,
        covered: within.count() as f64 / count,
        throughput: share(&|one| one.forecast.cutoff()),
        waiting_for_all: share(&|one| one.observed.len()),
    }
}

/// The factor by which predicted deviations must be multiplied so that 95 % of the order statistics are within two
/// deviations, as for a normal distribution. `None` without predictions.
pub(crate) fn spread(all: &[PredictedIteration]) -> Option<f64> {
    let pairs = all.iter().flat_map(|one| one.forecast.ranks.iter().zip(&one.observed));
    let mut errors: Vec<f64> =
        pairs.map(|(predicted, observed)| (predicted.mean - observed).abs() / predicted.deviation).collect();
    errors.retain(|error| error.is_finite());
    errors.sort_by(f64::total_cmp);
    errors.get(errors.len() * 19 / 20).map(|bound| bound / 2.0).filter(|&factor| factor > 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_core::run_times::{Draws, IndependentNormal};

    #[test]
    fn order_statistics_of_independent_times_are_predicted() {
        let mut draws = Draws::at(&[1]);
        let rows: Vec<Vec<f64>> = (0..200).map(|_| (0..50).map(|_| 1.0 + 0.1 * draws.normal()).collect()).collect();
        let (all, found) = assess(&mut IndependentNormal::new(20), &rows, 50..200);
        let found = found.unwrap();
        assert_eq!((all.len(), all[0].iteration, found.iterations), (150, 50, 150));
        assert!(found.error < 0.05, "{found:?}");
        // Two deviations of a normal variable; the deviation itself is estimated.
        assert!((0.90..0.98).contains(&found.covered), "{found:?}");
        assert!(found.throughput > 0.97 && found.waiting_for_all < found.throughput, "{found:?}");
        assert_eq!(assess(&mut IndependentNormal::new(20), &rows, 0..1).1, None);
        assert_eq!(spread(&[]), None);
        let narrow: Vec<PredictedIteration> = all
            .into_iter()
            .map(|mut one| {
                one.forecast.ranks.iter_mut().for_each(|rank| rank.deviation /= 3.0);
                one
            })
            .collect();
        let factor = spread(&narrow).unwrap();
        assert!((2.7..3.6).contains(&factor), "{factor}");
    }
}
