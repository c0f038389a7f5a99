//! A run as the page shows it.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io::BufReader;
use std::path::Path;

use paceline_core::{Action, Decision, Event, LocalLength, Reason, TaskId, Time, Work};
use paceline_runtime::{EVENTS, MetricsRow, Observer, Summary, read_events, read_metrics};
use serde::Serialize;

use super::thin::{bucketed, coarse};
use super::timeline::{Stretch, Timeline};
use crate::error::{ReportError, at, in_log};
use crate::plot;

/// Most points of a curve.
const POINTS: usize = 700;

/// A curve: name, times and values.
#[derive(Debug, Serialize)]
pub struct NamedCurve {
    name: String,
    points: Vec<(f64, f64)>,
}

/// Everything that the page shows of a run. Times are seconds.
#[derive(Debug, Serialize)]
pub struct ReportedRun {
    name: String,
    scheme: String,
    colour: String,
    duration: f64,
    summary: Option<Summary>,
    configuration: String,
    /// Every reason there is, named by its place in what follows.
    reasons: Vec<String>,
    /// How many seconds a tick of the stretches is.
    tick: f64,
    /// By worker: of each stretch its length in ticks, its state and its reason, one after another.
    workers: Vec<Vec<i64>>,
    /// Of each step of the model: the ticks since the last, its updates and its reason.
    steps: Vec<i64>,
    loss: Vec<(f64, f64)>,
    accuracy: Vec<(f64, f64)>,
    /// What the scheme sets in the course of the run, by name.
    settings: BTreeMap<&'static str, Vec<NamedCurve>>,
    /// Whether short stretches were put together to keep the page small.
    thinned: bool,
}

/// How much a page may hold of a run.
#[derive(Debug, Clone, Copy)]
pub struct PageLimits {
    /// So many stretches.
    pub stretches: usize,
    /// So many bytes of reasons; those that come later are left out.
    pub reasons: usize,
}

impl ReportedRun {
    /// Reads a run folder.
    ///
    /// # Errors
    /// If its event stream or metrics can't be read.
    pub fn read(folder: &Path, name: String, limits: PageLimits) -> Result<Self, ReportError> {
        let path = folder.join(EVENTS);
        let file = File::open(&path).map_err(at(&path))?;
        let mut reader = RunReader::default();
        let header = read_events(BufReader::new(file), &mut reader).map_err(in_log(&path))?;
        let RunReader { mut timeline, mut chosen } = reader;
        timeline.finish();
        let end = timeline.end.seconds();
        let measured = read_metrics(folder)?;
        let steps = measured.iter().map(|line| (line.time, line.waited_for as f64)).collect();
        chosen
            .by_name
            .insert("updates per step (k)", vec![NamedCurve { name: "k".into(), points: bucketed(steps, POINTS) }]);

        let all: usize = timeline.workers.iter().map(Vec::len).sum();
        let most = limits.stretches;
        let thinned = all > most;
        let mut words = ReasonTable { room: limits.reasons, ..ReasonTable::default() };
        let tick = (end / f64::from(1 << 20)).max(1e-9);
        let workers = timeline.workers.iter().map(|stretches| {
            let coarse = thinned.then(|| coarse(stretches, timeline.end, most / timeline.workers.len().max(1)));
            words.stretches(coarse.as_deref().unwrap_or(stretches), tick)
        });
        let workers = workers.collect();
        let every = timeline.steps.len().div_ceil(most / 4 + 1);
        let mut last = 0;
        let steps = timeline.steps.iter().step_by(every.max(1)).flat_map(|step| {
            let at = ticks(step.at, tick);
            let since = at - last;
            last = at;
            [since, step.updates as i64, words.of(Some(step.reason))]
        });
        let steps = steps.collect();
        let values = |value: fn(&MetricsRow) -> Option<f64>| {
            let points = measured.iter().filter_map(|line| Some((line.time, value(line)?))).collect();
            bucketed(points, POINTS)
        };
        // A run that was cut short has no summary; what there is of it is shown all the same.
        let summary = fs::read_to_string(folder.join("summary.json")).ok();
        let summary: Option<Summary> = summary.and_then(|text| serde_json::from_str(&text).ok());
        let mut accuracy = values(|line| line.accuracy);
        // The last measurement is made when the last iteration is done.
        accuracy.extend(summary.as_ref().and_then(Summary::final_accuracy));
        let scheme = header.scheme.to_string();
        let plot::RGBColor(red, green, blue) = plot::colour_of(&scheme);
        Ok(ReportedRun {
            name,
            colour: format!("#{red:02x}{green:02x}{blue:02x}"),
            scheme,
            duration: end,
            summary,
            configuration: fs::read_to_string(folder.join("config.toml")).unwrap_or_default(),
            reasons: words.reasons,
            tick,
            workers,
            steps,
            loss: values(|line| line.loss),
            accuracy,
            settings: chosen.finish(header.batch),
            thinned,
        })
    }
}

fn ticks(at: Time, tick: f64) -> i64 {
    (at.seconds() / tick).round() as i64
}

/// Reasons in words, each once.
#[derive(Default)]
struct ReasonTable {
    reasons: Vec<String>,
    places: HashMap<String, i64>,
    /// How many bytes of new reasons are still taken.
    room: usize,
}

impl ReasonTable {
    /// The place of a reason; -1 for none.
    fn of(&mut self, reason: Option<Reason>) -> i64 {
        let Some(reason) = reason else { return -1 };
        let text = reason.to_string();
        if let Some(&place) = self.places.get(&text) {
            return place;
        }
        let Some(room) = self.room.checked_sub(text.len()) else { return -1 };
        self.room = room;
        let place = self.reasons.len() as i64;
        self.reasons.push(text.clone());
        self.places.insert(text, place);
        place
    }

    fn stretches(&mut self, stretches: &[Stretch], tick: f64) -> Vec<i64> {
        let mut told = 0;
        let mut line = Vec::with_capacity(3 * stretches.len());
        for stretch in stretches {
            let to = ticks(stretch.to, tick);
            line.extend([to - told, stretch.state as i64, self.of(stretch.reason)]);
            told = to;
        }
        line
    }
}

/// What a scheme sets in the course of a run.
#[derive(Default)]
struct SchemeChoices {
    by_name: BTreeMap<&'static str, Vec<NamedCurve>>,
    sizes: BTreeMap<u32, Vec<(f64, f64)>>,
    local: BTreeMap<u32, Vec<(f64, f64)>>,
    barriers: Vec<(f64, f64)>,
    working: HashMap<TaskId, (Work, u32)>,
}

impl SchemeChoices {
    fn reported(&mut self, task: TaskId, now: Time) {
        if let Some((Work::Local(local), asked)) = self.working.remove(&task) {
            let iterations = if let LocalLength::Iterations(count) = local.length { count } else { asked.max(1) };
            self.local.entry(task.worker.0).or_default().push((now.seconds(), f64::from(iterations)));
        }
    }

    fn decided(&mut self, now: Time, decision: &Decision) {
        if let Action::Assign(assignment) = &decision.action {
            let worker = assignment.task.worker.0;
            self.working.insert(assignment.task, (assignment.work, 0));
            self.sizes.entry(worker).or_default().push((now.seconds(), f64::from(assignment.samples)));
        }
        if let Reason::AtBarrier { at, wait, .. } = decision.reason
            && self.barriers.last().is_none_or(|&(last, _)| last != at.seconds())
        {
            self.barriers.push((at.seconds(), wait.seconds()));
        }
    }

    /// The curves of what was not always the same.
    fn finish(mut self, batch: u32) -> BTreeMap<&'static str, Vec<NamedCurve>> {
        let per_worker = |values: BTreeMap<u32, Vec<(f64, f64)>>| {
            let most = (4 * POINTS / values.len().max(1)).clamp(20, POINTS);
            let curve =
                |(worker, points)| NamedCurve { name: format!("worker {worker}"), points: bucketed(points, most) };
            values.into_iter().map(curve).collect::<Vec<_>>()
        };
        if self.sizes.values().flatten().any(|&(_, samples)| samples != f64::from(batch)) {
            self.by_name.insert("batch size (samples)", per_worker(self.sizes));
        }
        if !self.local.is_empty() {
            self.by_name.insert("local iterations per round", per_worker(self.local));
        }
        if !self.barriers.is_empty() {
            let points = bucketed(self.barriers, POINTS);
            self.by_name.insert("barriers: the wait planned for (s)", vec![NamedCurve { name: "wait".into(), points }]);
        }
        self.by_name
    }
}

/// Follows the event stream.
#[derive(Default)]
struct RunReader {
    timeline: Timeline,
    chosen: SchemeChoices,
}

impl Observer for RunReader {
    fn on_turn(&mut self, now: Time, event: &Event, decisions: &[Decision]) {
        self.timeline.on_turn(now, event, decisions);
        match event {
            Event::Asked { task, iterations, .. } => {
                self.chosen.working.entry(*task).and_modify(|(_, asked)| *asked = *iterations);
            }
            Event::Reported { task, .. } => self.chosen.reported(*task, now),
            _ => {}
        }
        decisions.iter().for_each(|decision| self.chosen.decided(now, decision));
    }
}
