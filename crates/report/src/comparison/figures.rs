//! The figures of a comparison.

use super::{Ranking, SchemeRuns};
use crate::plot::{Figure, Mark, Series, colours_of};

/// Accuracy over time of the first seed's runs, and time to target over idle time of all runs.
pub fn panels(ranking: &Ranking, all_runs: &[SchemeRuns]) -> [Figure; 2] {
    let names: Vec<&str> = ranking.places.iter().map(|place| place.scheme.as_str()).collect();
    let mut learning = Vec::new();
    let mut waiting = Vec::new();
    for (name, colour) in names.iter().copied().zip(colours_of(names.iter().copied())) {
        let Some(scheme_runs) = all_runs.iter().find(|scheme_runs| scheme_runs.scheme.to_string() == name) else {
            continue;
        };
        let curve = scheme_runs.runs.first().map(|run| best_so_far(&run.curve)).unwrap_or_default();
        learning.push(Series { name: String::new(), mark: Mark::Line, colour, points: curve });
        let reached = scheme_runs
            .runs
            .iter()
            .filter_map(|run| run.summary.time_to_target.map(|time| (100.0 * run.summary.idle_share, time)));
        waiting.push(Series { name: name.into(), mark: Mark::Dots, colour, points: reached.collect() });
    }
    // The winner is drawn last, on top.
    learning.reverse();
    [
        Figure {
            title: "Accuracy over time (first seed)".into(),
            x: "time (s)".into(),
            y: "best held-out accuracy so far".into(),
            shaded: None,
            series: learning,
        },
        Figure {
            title: "All runs; the winner is listed first".into(),
            x: "idle (% of the workers' time)".into(),
            y: "time to target (s)".into(),
            shaded: None,
            series: waiting,
        },
    ]
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
