//! How good forecasts are, measured on run-times that are known.

use std::ops::Range;

use paceline_core::WorkerId;
use paceline_core::run_times::{Forecast, RunTimePredictor};

/// One iteration as it was foreseen and as it was.
#[derive(Debug, Clone)]
pub struct Foreseen {
    /// Counts from 0.
    pub iteration: usize,
    /// What was predicted.
    pub forecast: Forecast,
    /// What was observed, sorted.
    pub observed: Vec<f64>,
}

impl Foreseen {
    /// Gradients per second when waiting for so many.
    pub fn throughput(&self, cutoff: usize) -> f64 {
        cutoff as f64 / self.observed[cutoff - 1]
    }

    /// The most gradients per second that there could have been.
    pub fn largest_throughput(&self) -> f64 {
        (1..=self.observed.len()).map(|cutoff| self.throughput(cutoff)).fold(0.0, f64::max)
    }
}

/// How good forecasts were on the whole.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Assessment {
    /// How many iterations were foreseen.
    pub iterations: usize,
    /// Root mean square of the differences between order statistics predicted and observed, as a share of the mean time.
    pub error: f64,
    /// Share of the observed order statistics that were within two deviations of those predicted.
    pub covered: f64,
    /// Throughput at the cutoffs predicted, as a share of the largest possible, on the average.
    pub throughput: f64,
    /// The same when waiting for all.
    pub waiting_for_all: f64,
}

/// Has a predictor foresee each of the iterations `counted` from all that were before it.
pub fn assess(
    predictor: &mut dyn RunTimePredictor,
    rows: &[Vec<f64>],
    counted: Range<usize>,
) -> (Vec<Foreseen>, Option<Assessment>) {
    let workers: Vec<WorkerId> = (0..rows.first().map_or(0, Vec::len) as u32).map(WorkerId).collect();
    let mut all = Vec::new();
    for (iteration, row) in rows.iter().enumerate().take(counted.end) {
        if counted.contains(&iteration)
            && let Some(forecast) = predictor.predict(&workers)
        {
            let mut observed = row.clone();
            observed.sort_by(f64::total_cmp);
            all.push(Foreseen { iteration, forecast, observed });
        }
        predictor.observe(row);
    }
    let assessment = (!all.is_empty()).then(|| on_the_whole(&all));
    (all, assessment)
}

fn on_the_whole(all: &[Foreseen]) -> Assessment {
    let pairs = || all.iter().flat_map(|foreseen| foreseen.forecast.ranks.iter().zip(&foreseen.observed));
    let count = pairs().count() as f64;
    let mean = pairs().map(|(_, observed)| observed).sum::<f64>() / count;
    let squares: f64 = pairs().map(|(predicted, observed)| (predicted.mean - observed).powi(2)).sum();
    let within =
        pairs().filter(|(predicted, observed)| (predicted.mean - **observed).abs() <= 2.0 * predicted.deviation);
    let share = |cutoff: &dyn Fn(&Foreseen) -> usize| {
        let shares = all.iter().map(|foreseen| foreseen.throughput(cutoff(foreseen)) / foreseen.largest_throughput());
        shares.sum::<f64>() / all.len() as f64
    };
    Assessment {
        iterations: all.len(),
        error: (squares / count).sqrt() / mean,
        covered: within.count() as f64 / count,
        throughput: share(&|foreseen| foreseen.forecast.cutoff()),
        waiting_for_all: share(&|foreseen| foreseen.observed.len()),
    }
}

/// The factor by which deviations are to be multiplied for 95 % of order statistics to be within two of them, as they would
/// be if they were normal; `None` if there is nothing to tell it from.
pub(crate) fn spread(all: &[Foreseen]) -> Option<f64> {
    let pairs = all.iter().flat_map(|foreseen| foreseen.forecast.ranks.iter().zip(&foreseen.observed));
    let mut away: Vec<f64> =
        pairs.map(|(predicted, observed)| (predicted.mean - observed).abs() / predicted.deviation).collect();
    away.retain(|away| away.is_finite());
    away.sort_by(f64::total_cmp);
    away.get(away.len() * 19 / 20).map(|bound| bound / 2.0).filter(|&factor| factor > 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_core::run_times::{Draws, IndependentNormal};

    #[test]
    fn order_statistics_of_independent_times_are_foreseen() {
        let mut draws = Draws::at(&[1]);
        let rows: Vec<Vec<f64>> = (0..200).map(|_| (0..50).map(|_| 1.0 + 0.1 * draws.normal()).collect()).collect();
        let (all, found) = assess(&mut IndependentNormal::new(20), &rows, 50..200);
        let found = found.unwrap();
        assert_eq!((all.len(), all[0].iteration, found.iterations), (150, 50, 150));
        assert!(found.error < 0.05, "{found:?}");
        // Two deviations of a normal variable, with the deviation itself estimated.
        assert!((0.90..0.98).contains(&found.covered), "{found:?}");
        assert!(found.throughput > 0.97 && found.waiting_for_all < found.throughput, "{found:?}");
        assert_eq!(assess(&mut IndependentNormal::new(20), &rows, 0..1).1, None);
        assert_eq!(spread(&[]), None);
        let narrow: Vec<Foreseen> = all
            .into_iter()
            .map(|mut foreseen| {
                foreseen.forecast.ranks.iter_mut().for_each(|rank| rank.deviation /= 3.0);
                foreseen
            })
            .collect();
        let factor = spread(&narrow).unwrap();
        assert!((2.7..3.6).contains(&factor), "{factor}");
    }
}
