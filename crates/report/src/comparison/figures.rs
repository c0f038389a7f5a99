//! The figures of a comparison.

use super::{ContestantRuns, FEWEST_SEEDS, Ranking};
use crate::plot::{Figure, Mark, Series, colour_of, colours_of};
use crate::statistics::{mean, mean_interval};

/// Accuracy over time of the first seed's runs, and time to target with its interval. The fastest is at the top.
pub fn panels(ranking: &Ranking, all_runs: &[ContestantRuns]) -> [Figure; 2] {
    // In the order of the runs, so that a scheme keeps its colour wherever it is ranked.
    let colours = colours_of(all_runs.iter().map(|contestant| contestant.name.as_str()));
    let mut learning = Vec::new();
    let mut times = Vec::new();
    // The fastest is drawn last, on top.
    for (row, place) in ranking.places.iter().rev().enumerate() {
        let found = all_runs.iter().zip(&colours).find(|(contestant, _)| contestant.name == place.name);
        let Some((contestant, &colour)) = found else { continue };
        let curve = contestant.runs.first().map(|run| best_so_far(&run.curve)).unwrap_or_default();
        // A scheme on some of the workers has the colour of the scheme on all.
        let is_subset = contestant.name.contains(' ');
        let (mark, colour) = if is_subset { (Mark::Dashes, colour_of(&contestant.name)) } else { (Mark::Line, colour) };
        learning.push(Series { name: String::new(), mark, colour, points: curve });
        let points = time_interval(contestant).into_iter().map(|time| (time, row as f64)).collect();
        times.push(Series { name: place.name.clone(), mark: Mark::Intervals, colour, points });
    }
    [
        Figure {
            title: "Accuracy over time (first seed)".into(),
            x: "time (s)".into(),
            y: "best held-out accuracy so far".into(),
            shaded: None,
            series: learning,
        },
        Figure {
            title: "Time to target: mean and 95 % interval".into(),
            x: "time to target (s)".into(),
            y: String::new(),
            shaded: None,
            series: times,
        },
    ]
}

/// A contestant's mean time to target between the ends of its interval, all by logarithms. Without an interval the ends are
/// the mean; nothing if a run missed the target.
pub fn time_interval(contestant: &ContestantRuns) -> Vec<f64> {
    let logs: Vec<f64> = contestant.times().into_iter().map(f64::ln).collect();
    if logs.is_empty() || logs.len() < contestant.runs.len() {
        return Vec::new();
    }
    let middle = mean(&logs);
    let (low, high) = mean_interval(&logs).filter(|_| logs.len() >= FEWEST_SEEDS).unwrap_or((middle, middle));
    vec![low.exp(), middle.exp(), high.exp()]
}

/// The highest accuracy so far at every point, because single evaluations are noisy.
fn best_so_far(curve: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let mut best = f64::NEG_INFINITY;
    let rising = |&(time, accuracy): &(f64, f64)| {
        best = best.max(accuracy);
        (time, best)
    };
    curve.iter().map(rising).collect()
}
