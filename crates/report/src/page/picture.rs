//! Who did what when, as a picture.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use paceline_runtime::{EVENTS, read_events};

use super::timeline::{Activity, Timeline};
use crate::error::{ReportError, at, in_log};
use crate::plot::{Figure, Mark, RGBColor, Series};

/// The states with their names and colours, those of the page.
const STATES: [(Activity, &str, RGBColor); 5] = [
    (Activity::Computing, "computing", RGBColor(0, 114, 178)),
    (Activity::Waiting, "waiting", RGBColor(240, 197, 106)),
    (Activity::Communicating, "communicating", RGBColor(143, 208, 245)),
    (Activity::Dropped, "for nothing", RGBColor(213, 94, 0)),
    (Activity::Gone, "gone", RGBColor(196, 196, 196)),
];

/// The timeline of a run folder: a bar per worker, and a square for every step of the model.
///
/// # Errors
/// If its event stream can't be read.
pub fn timeline_figure(folder: &Path) -> Result<Figure, ReportError> {
    let path = folder.join(EVENTS);
    let mut timeline = Timeline::default();
    let header =
        read_events(BufReader::new(File::open(&path).map_err(at(&path))?), &mut timeline).map_err(in_log(&path))?;
    timeline.finish();
    let of_state = |(state, name, colour): (Activity, &str, RGBColor)| {
        let stretches = (0..).zip(&timeline.workers).flat_map(|(worker, stretches): (u32, _)| {
            let these = stretches.iter().filter(move |stretch| stretch.state == state);
            these.flat_map(move |stretch| [stretch.from, stretch.to].map(|at| (at.seconds(), f64::from(worker))))
        });
        Series { name: name.into(), mark: Mark::Bars, colour, points: stretches.collect() }
    };
    let mut series: Vec<Series> = STATES.map(of_state).into();
    series.retain(|series| !series.points.is_empty());
    let above = timeline.workers.len() as f64;
    let steps = timeline.steps.iter().map(|step| (step.at.seconds(), above)).collect();
    series.push(Series { name: "the model steps".into(), mark: Mark::Dots, colour: RGBColor(0, 0, 0), points: steps });
    Ok(Figure { title: header.scheme.to_string(), x: "time (s)".into(), y: "worker".into(), shaded: None, series })
}
