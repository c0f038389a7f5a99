//! The data of one run on the page.

use std::path::Path;

use paceline_core::StepKind;
use paceline_runtime::{EVENTS, EventLogHeader, Summary, open_events, read_events, read_header, read_metrics};
use paceline_spec::read_text;
use serde::{Deserialize, Serialize};

use crate::error::{ReportError, at, in_log};
use crate::plot::{RGBColor, colour_of};
use crate::view::{Kept, RunView, ViewData, ViewLimits};

/// One run: what is seen of it, and what is known beside that.
#[derive(Debug, Serialize, Deserialize)]
pub struct PageRun {
    pub(crate) name: String,
    /// The colour of its scheme.
    colour: String,
    /// What the scheme's steps are made of.
    pub(super) step_kind: StepKind,
    /// Whether its time is a simulation's.
    virtual_time: bool,
    batch: u32,
    /// How many workers it started with.
    pub(crate) expected: usize,
    pub(super) configuration: String,
    /// A run that goes on, or was killed, has none.
    pub(crate) summary: Option<Summary>,
    pub(crate) view: ViewData,
}

impl PageRun {
    /// A run that is described by the header of its event log.
    pub fn new(name: String, header: &EventLogHeader, configuration: String, view: ViewData) -> Self {
        let RGBColor(red, green, blue) = colour_of(&header.scheme.to_string());
        let colour = format!("#{red:02x}{green:02x}{blue:02x}");
        let &EventLogHeader { batch, workers: expected, virtual_time, .. } = header;
        let step_kind = header.scheme.step_kind();
        PageRun { name, colour, step_kind, virtual_time, batch, expected, configuration, summary: None, view }
    }

    /// Reads a run folder. The page has `runs` runs in all, and of each the oldest or the newest is kept.
    ///
    /// # Errors
    /// If its event log or metrics can't be read.
    pub fn read(folder: &Path, name: String, runs: usize, kept: Kept) -> Result<Self, ReportError> {
        let path = folder.join(EVENTS);
        let open = || open_events(folder).map_err(at(&path));
        let header = read_header(open()?).map_err(in_log(&path))?;
        let mut view = RunView::new(&header, ViewLimits::new(header.workers, runs, kept));
        read_events(open()?, &mut view).map_err(in_log(&path))?;
        for row in read_metrics(folder)? {
            view.add_iteration(row.iteration, row.time, row.waited_for, row.loss, row.accuracy);
        }
        view.finish_timeline();
        // A run that was killed has no summary; the page shows the rest.
        let summary = read_text(&folder.join("summary.json")).ok();
        let summary: Option<Summary> = summary.and_then(|text| serde_json::from_str(&text).ok());
        summary.iter().for_each(|summary| view.end(summary));
        let configuration = read_text(&folder.join("config.toml")).unwrap_or_default();
        // The view says how each worker spent its time.
        let summary = summary.map(|summary| Summary { worker_times: Vec::new(), ..summary });
        Ok(PageRun { summary, ..PageRun::new(name, &header, configuration, view.whole(view.time())) })
    }

    /// A setting, as its configuration has it.
    pub(super) fn setting(&self, name: &str) -> Option<&str> {
        let settings = self.configuration.lines().filter_map(|line| line.split_once(" = "));
        settings.into_iter().find(|(key, _)| *key == name).map(|(_, value)| value)
    }

    /// Its held-out accuracy over time.
    pub(super) fn accuracy(&self) -> &[(f64, f64)] {
        self.view.curve("held-out accuracy")
    }

    /// Whether the run has ended.
    pub fn has_ended(&self) -> bool {
        self.view.has_ended()
    }

    /// The place of the run among several: first those that reached their target, the fastest first; then the others, the
    /// most accurate first.
    pub(crate) fn rank(&self) -> (bool, f64, f64) {
        let Some(summary) = &self.summary else { return (true, f64::INFINITY, 0.0) };
        let reached = summary.time_to_target.filter(|_| summary.reached);
        (reached.is_none(), reached.unwrap_or(f64::INFINITY), -summary.accuracy.unwrap_or(0.0))
    }
}
