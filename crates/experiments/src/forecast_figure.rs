//! Predicted and observed order statistics (Cutoff SGD, fig. 3).

use paceline_predictor::PredictedIteration;
use paceline_report::plot::{Figure, Mark, Series, colour_of};
use plotters::style::RGBColor;

const OBSERVED: RGBColor = RGBColor(86, 180, 233);
const CUTOFF: RGBColor = RGBColor(213, 94, 0);

/// One iteration: the predicted run-times ± two standard deviations, the observed ones, and the cutoff.
pub fn forecast_figure(predicted: &PredictedIteration) -> Figure {
    let ranks = &predicted.forecast.ranks;
    let line = |deviations: f64| {
        let time = move |(index, time): (usize, &paceline_core::run_times::Normal)| {
            ((index + 1) as f64, time.mean + deviations * time.deviation)
        };
        ranks.iter().enumerate().map(time)
    };
    let band = line(-2.0).chain(line(2.0).collect::<Vec<_>>().into_iter().rev()).collect();
    let observed: Vec<(f64, f64)> =
        predicted.observed.iter().enumerate().map(|(index, &time)| ((index + 1) as f64, time)).collect();
    let cutoff = predicted.forecast.cutoff() as f64;
    let highest = observed.iter().map(|point| point.1).chain(line(2.0).map(|point| point.1)).fold(0.0, f64::max);
    let colour = colour_of("cutoff");
    let series = |name: &str, mark, colour, points| Series { name: name.into(), mark, colour, points };
    Figure {
        title: format!("iteration {}", predicted.iteration + 1),
        x: "workers, in order of run-time".into(),
        y: "run-time (s)".into(),
        shaded: None,
        series: vec![
            series("", Mark::Area, colour, band),
            series("observed", Mark::Dots, OBSERVED, observed),
            series("predicted, ±2 s.d.", Mark::Line, colour, line(0.0).collect()),
            series("cutoff", Mark::Line, CUTOFF, vec![(cutoff, 0.0), (cutoff, highest)]),
        ],
    }
}
