//! The data of one run on the page.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use paceline_core::{Action, ActivityChange, Decision, Event, Reason, Time, Work, WorkerActivities};
use paceline_runtime::{EVENTS, MetricsRow, Observer, Summary, open_events, read_events, read_metrics};
use paceline_spec::read_text;
use serde::Serialize;

use super::downsample::{bucketed, coarse};
use super::timeline::{Segment, Timeline};
use crate::error::{ReportError, at, in_log};
use crate::plot;

/// Limit on the points of a curve.
const MAX_POINTS: usize = 700;

/// A curve with its name: times and values.
#[derive(Debug, Serialize)]
pub struct NamedCurve {
    name: String,
    points: Vec<(f64, f64)>,
}

/// The data of one run. Times are in seconds.
#[derive(Debug, Serialize)]
pub struct ReportedRun {
    name: String,
    scheme: String,
    colour: String,
    duration: f64,
    summary: Option<Summary>,
    configuration: String,
    /// All reasons; the other fields refer to them by index, -1 for none.
    reasons: Vec<String>,
    /// Seconds per tick.
    tick: f64,
    /// Per worker, for each segment: its length in ticks, its activity and its reason.
    workers: Vec<Vec<i64>>,
    /// For each step of the model: the ticks since the last one, its updates and its reason.
    steps: Vec<i64>,
    loss: Vec<(f64, f64)>,
    accuracy: Vec<(f64, f64)>,
    /// What the scheme chose during the run, by name.
    settings: BTreeMap<&'static str, Vec<NamedCurve>>,
    /// Whether short segments were merged to keep the page small.
    thinned: bool,
}

/// Limits on the data of one run.
#[derive(Debug, Clone, Copy)]
pub struct PageLimits {
    /// Number of segments.
    pub segments: usize,
    /// Bytes of reasons; later reasons are left out.
    pub reason_bytes: usize,
}

impl ReportedRun {
    /// Reads a run folder.
    ///
    /// # Errors
    /// If its event log or metrics can't be read.
    pub fn read(folder: &Path, name: String, limits: PageLimits) -> Result<Self, ReportError> {
        let path = folder.join(EVENTS);
        let log = open_events(folder).map_err(at(&path))?;
        let mut reader = RunReader::default();
        let header = read_events(log, &mut reader).map_err(in_log(&path))?;
        let RunReader { mut timeline, mut choices } = reader;
        timeline.finish();
        let end = timeline.end.seconds();
        let measured = read_metrics(folder)?;
        let steps = measured.iter().map(|line| (line.time, line.waited_for as f64)).collect();
        choices
            .by_name
            .insert("updates per step (k)", vec![NamedCurve { name: "k".into(), points: bucketed(steps, MAX_POINTS) }]);

        let all: usize = timeline.workers.iter().map(Vec::len).sum();
        let thinned = all > limits.segments;
        let mut reasons = ReasonTable { bytes_left: limits.reason_bytes, ..ReasonTable::default() };
        let tick = (end / f64::from(1 << 20)).max(1e-9);
        let workers = timeline.workers.iter().map(|segments| {
            let coarse =
                thinned.then(|| coarse(segments, timeline.end, limits.segments / timeline.workers.len().max(1)));
            reasons.encode(coarse.as_deref().unwrap_or(segments), tick)
        });
        let workers = workers.collect();
        let every = timeline.steps.len().div_ceil(limits.segments / 4 + 1);
        let mut last = 0;
        let steps = timeline.steps.iter().step_by(every.max(1)).flat_map(|step| {
            let at = ticks(step.at, tick);
            let since = at - last;
            last = at;
            [since, step.updates as i64, reasons.index(Some(step.reason))]
        });
        let steps = steps.collect();
        let values = |value: fn(&MetricsRow) -> Option<f64>| {
            let points = measured.iter().filter_map(|line| Some((line.time, value(line)?))).collect();
            bucketed(points, MAX_POINTS)
        };
        // A run that was killed has no summary; the page shows the rest.
        let summary = read_text(&folder.join("summary.json")).ok();
        let summary: Option<Summary> = summary.and_then(|text| serde_json::from_str(&text).ok());
        let mut accuracy = values(|line| line.accuracy);
        // The last evaluation comes after the last iteration, so it is not in the metrics.
        accuracy.extend(summary.as_ref().and_then(Summary::final_accuracy));
        let scheme = header.scheme.to_string();
        let plot::RGBColor(red, green, blue) = plot::colour_of(&scheme);
        Ok(ReportedRun {
            name,
            colour: format!("#{red:02x}{green:02x}{blue:02x}"),
            scheme,
            duration: end,
            summary,
            configuration: read_text(&folder.join("config.toml")).unwrap_or_default(),
            reasons: reasons.reasons,
            tick,
            workers,
            steps,
            loss: values(|line| line.loss),
            accuracy,
            settings: choices.finish(header.batch),
            thinned,
        })
    }
}

fn ticks(at: Time, tick: f64) -> i64 {
    (at.seconds() / tick).round() as i64
}

/// Reasons as text, without duplicates.
#[derive(Default)]
struct ReasonTable {
    reasons: Vec<String>,
    indices: HashMap<String, i64>,
    /// Bytes that new reasons may still take.
    bytes_left: usize,
}

impl ReasonTable {
    /// The index of a reason; -1 for none.
    fn index(&mut self, reason: Option<Reason>) -> i64 {
        let Some(reason) = reason else { return -1 };
        let text = reason.to_string();
        if let Some(&index) = self.indices.get(&text) {
            return index;
        }
        let Some(bytes_left) = self.bytes_left.checked_sub(text.len()) else { return -1 };
        self.bytes_left = bytes_left;
        let index = self.reasons.len() as i64;
        self.reasons.push(text.clone());
        self.indices.insert(text, index);
        index
    }

    /// Length, activity and reason of each segment.
    fn encode(&mut self, segments: &[Segment], tick: f64) -> Vec<i64> {
        let mut from = 0;
        let mut numbers = Vec::with_capacity(3 * segments.len());
        for segment in segments {
            let to = ticks(segment.to, tick);
            numbers.extend([to - from, segment.state as i64, self.index(segment.reason)]);
            from = to;
        }
        numbers
    }
}

/// What a scheme chose during a run.
#[derive(Default)]
struct SchemeChoices {
    by_name: BTreeMap<&'static str, Vec<NamedCurve>>,
    sizes: BTreeMap<u32, Vec<(f64, f64)>>,
    local: BTreeMap<u32, Vec<(f64, f64)>>,
    barriers: Vec<(f64, f64)>,
    activities: WorkerActivities,
}

impl SchemeChoices {
    fn on_turn(&mut self, now: Time, event: &Event, decisions: &[Decision]) {
        self.activities.observe(now, event, decisions, |change| {
            if let ActivityChange::Reported(task) = change
                && matches!(task.assignment.work, Work::Local(_))
            {
                let iterations = f64::from(task.reported_iterations().max(1));
                self.local.entry(task.assignment.task.worker.0).or_default().push((now.seconds(), iterations));
            }
        });
        decisions.iter().for_each(|decision| self.on_decision(now, decision));
    }

    fn on_decision(&mut self, now: Time, decision: &Decision) {
        if let Action::Assign(assignment) = &decision.action {
            let worker = assignment.task.worker.0;
            self.sizes.entry(worker).or_default().push((now.seconds(), f64::from(assignment.samples)));
        }
        if let Reason::AtBarrier { at, wait, .. } = decision.reason
            && self.barriers.last().is_none_or(|&(last, _)| last != at.seconds())
        {
            self.barriers.push((at.seconds(), wait.seconds()));
        }
    }

    /// The curves of what changed during the run.
    fn finish(mut self, batch: u32) -> BTreeMap<&'static str, Vec<NamedCurve>> {
        let per_worker = |values: BTreeMap<u32, Vec<(f64, f64)>>| {
            let limit = (4 * MAX_POINTS / values.len().max(1)).clamp(20, MAX_POINTS);
            let curve =
                |(worker, points)| NamedCurve { name: format!("worker {worker}"), points: bucketed(points, limit) };
            values.into_iter().map(curve).collect::<Vec<_>>()
        };
        if self.sizes.values().flatten().any(|&(_, samples)| samples != f64::from(batch)) {
            self.by_name.insert("batch size (samples)", per_worker(self.sizes));
        }
        if !self.local.is_empty() {
            self.by_name.insert("local iterations per round", per_worker(self.local));
        }
        if !self.barriers.is_empty() {
            let points = bucketed(self.barriers, MAX_POINTS);
            self.by_name.insert("barriers: planned wait (s)", vec![NamedCurve { name: "wait".into(), points }]);
        }
        self.by_name
    }
}

/// Reads the event log.
#[derive(Default)]
struct RunReader {
    timeline: Timeline,
    choices: SchemeChoices,
}

impl Observer for RunReader {
    fn on_turn(&mut self, now: Time, event: &Event, decisions: &[Decision]) {
        self.timeline.on_turn(now, event, decisions);
        self.choices.on_turn(now, event, decisions);
    }
}
