//! A run's timeline as a picture.

use std::path::Path;

use paceline_runtime::{EVENTS, open_events, read_events};

use crate::error::{ReportError, at, in_log};
use crate::plot::{Figure, Mark, RGBColor, Series};
use crate::view::{Activity, Timeline, TimelineLimits};

/// The activities with their names and colours, as on the page.
const STATES: [(Activity, &str, RGBColor); 5] = [
    (Activity::Computing, "computing", RGBColor(0, 114, 178)),
    (Activity::Waiting, "waiting", RGBColor(240, 197, 106)),
    (Activity::Communicating, "communicating", RGBColor(143, 208, 245)),
    (Activity::Dropped, "dropped", RGBColor(213, 94, 0)),
    (Activity::Absent, "absent", RGBColor(196, 196, 196)),
];

/// The timeline of a run folder: a bar per worker, and a dot for every step of the model.
///
/// # Errors
/// If its event log can't be read.
pub fn timeline_figure(folder: &Path) -> Result<Figure, ReportError> {
    let path = folder.join(EVENTS);
    let mut timeline = Timeline::new(TimelineLimits::default());
    let header = read_events(open_events(folder).map_err(at(&path))?, &mut timeline).map_err(in_log(&path))?;
    timeline.finish();
    let of_state = |(state, name, colour): (Activity, &str, RGBColor)| {
        let segments = (0..).zip(&timeline.workers).flat_map(|(worker, segments): (u32, _)| {
            let these = segments.iter().filter(move |segment| segment.state == state);
            these.flat_map(move |segment| [segment.from, segment.to].map(|at| (at.seconds(), f64::from(worker))))
        });
        Series { name: name.into(), mark: Mark::Bars, colour, points: segments.collect() }
    };
    let mut series: Vec<Series> = STATES.map(of_state).into();
    series.retain(|series| !series.points.is_empty());
    let above = timeline.workers.len() as f64;
    let steps = timeline.steps.iter().map(|step| (step.at.seconds(), above)).collect();
    series.push(Series {
        name: "step of the model".into(),
        mark: Mark::Dots,
        colour: RGBColor(0, 0, 0),
        points: steps,
    });
    Ok(Figure { title: header.scheme.to_string(), x: "time (s)".into(), y: "worker".into(), shaded: None, series })
}
