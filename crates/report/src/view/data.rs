//! A view as JSON, whole or as what changed: the page's script reads both in the same way, and so does
//! [`SeenRun`](super::SeenRun).

use std::borrow::Cow;
use std::collections::HashMap;

use paceline_core::{Reason, Time};
use serde::{Deserialize, Serialize};

use super::curve::{MergedCurve, rounded};
use super::decisions::DecisionRow;
use super::headline::slowness;
use super::item_log::ItemLog;
use super::members::SampleFate;
use super::timeline::Activity;
use super::{Headline, RunView};

/// Numbered items: the number of the first one that is still known, and the items that replace those from a number on.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Items<T> {
    pub(super) first: u64,
    pub(super) from: u64,
    pub(super) items: T,
}

/// The shares of each worker's activities, from an interval on.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ShareData {
    /// The length of an interval, in seconds.
    pub(super) width: f64,
    pub(super) from: usize,
    /// By rank, five digits for each interval.
    pub(super) workers: Vec<String>,
}

/// A curve from a point on.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct CurveData {
    pub(super) chart: Cow<'static, str>,
    pub(super) name: String,
    pub(super) from: usize,
    pub(super) points: Vec<(f64, f64)>,
}

/// A worker's rank, then what it does (activity, since when, reason), its batch, how often it joined; its samples used, lost and
/// pending; samples per second, slowness; the shares of its time computing and waiting, seconds that others waited for it; its
/// last report, and whether it is late.
pub(super) type WorkerRow =
    (usize, (u8, f64, i64), (u32, u64), [u64; 3], [Option<f64>; 2], [f64; 3], (Option<f64>, bool));

/// A run, or what changed of it. Times are in seconds.
#[derive(Debug, Serialize, Deserialize)]
pub struct ViewData {
    pub(crate) scheme: String,
    pub(super) time: f64,
    pub(super) story: String,
    pub(super) ended: bool,
    pub(super) headline: Headline,
    pub(super) iterations: u64,
    /// How many workers are members.
    pub(super) present: usize,
    pub(super) samples: SampleFate,
    pub(super) loss: Option<f64>,
    pub(super) accuracy: Option<f64>,
    /// All reasons; other fields refer to them by index, -1 for none.
    pub(super) reasons: Vec<String>,
    /// Seconds per tick.
    pub(super) tick: f64,
    /// Rank and segments: the start of the first one in ticks; then for each its length in ticks, its activity and its reason.
    pub(super) segments: Vec<(usize, Items<Vec<i64>>)>,
    /// For each step of the model: the ticks since the last one, its updates and its reason.
    steps: Items<Vec<i64>>,
    pub(super) shares: ShareData,
    pub(super) workers: Vec<WorkerRow>,
    pub(super) curves: Vec<CurveData>,
    pub(super) decisions: Vec<DecisionRow>,
    pub(super) notices: Items<Vec<(f64, String)>>,
}

impl ViewData {
    /// Whether the run has ended.
    pub fn has_ended(&self) -> bool {
        self.ended
    }
}

impl ViewData {
    /// The points of the only curve of a chart; none if there is no such chart.
    pub(crate) fn curve(&self, chart: &str) -> &[(f64, f64)] {
        self.curves.iter().find(|curve| curve.chart == chart).map_or(&[], |curve| &curve.points)
    }
}

/// Which part of a view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Extent {
    Whole,
    Changes,
}

impl Extent {
    /// The number of the first item to write.
    fn of<T>(self, items: &ItemLog<T>) -> u64 {
        if self == Extent::Whole { items.first() } else { items.changed() }
    }

    fn of_curve(self, curve: &MergedCurve) -> usize {
        if self == Extent::Whole { 0 } else { curve.changed() }
    }
}

impl RunView {
    /// All of the run, as of this time.
    pub fn whole(&self, now: Time) -> ViewData {
        self.data(Extent::Whole, now)
    }

    /// What changed since the last call.
    pub fn changes(&mut self, now: Time) -> ViewData {
        let data = self.data(Extent::Changes, now);
        self.settle();
        data
    }

    fn data(&self, extent: Extent, now: Time) -> ViewData {
        let mut reasons = ReasonTable { bytes_left: self.limits.reason_bytes, ..ReasonTable::default() };
        let tick = (now.seconds() / f64::from(1 << 20)).max(1e-9);
        let all = |worker: &usize| {
            let segments = &self.timeline.workers[*worker];
            extent == Extent::Whole || extent.of(segments) < segments.next()
        };
        let segments = (0..self.timeline.workers.len()).filter(all);
        let segments = segments.map(|worker| (worker, self.segments(worker, extent, tick, &mut reasons))).collect();
        let steps = self.steps(extent, tick, &mut reasons);
        let from = if extent == Extent::Whole { 0 } else { self.timeline.shares.changed() };
        let slowness = slowness(&self.members);
        let workers = self.members.all.iter().enumerate();
        let workers = workers.filter(|(_, member)| extent == Extent::Whole || member.changed);
        let workers = workers.map(|(worker, _)| self.worker_row(worker, slowness[worker], &mut reasons)).collect();
        let notices = extent.of(&self.notices);
        ViewData {
            scheme: self.scheme.clone(),
            time: now.seconds(),
            story: self.story(now),
            ended: self.ended.is_some(),
            headline: self.headline(),
            iterations: self.iterations,
            present: self.timeline.activities().present().count(),
            samples: self.members.samples(),
            loss: self.last_loss,
            accuracy: self.last_accuracy,
            reasons: reasons.reasons,
            tick,
            segments,
            steps,
            shares: ShareData {
                width: self.timeline.shares.width(),
                from,
                workers: self.timeline.shares.encoded(from),
            },
            workers,
            curves: self.curves(extent),
            decisions: self.decisions.rows(),
            notices: Items {
                first: self.notices.first(),
                from: notices,
                items: self.notices.since(notices).cloned().collect(),
            },
        }
    }

    fn segments(&self, worker: usize, extent: Extent, tick: f64, reasons: &mut ReasonTable) -> Items<Vec<i64>> {
        let log = &self.timeline.workers[worker];
        let from = extent.of(log);
        let mut at = log.since(from).next().map_or(0, |segment| ticks(segment.from, tick));
        let mut items = vec![at];
        for segment in log.since(from) {
            let to = ticks(segment.to, tick);
            items.extend([to - at, segment.state as i64, reasons.index(segment.reason)]);
            at = to;
        }
        Items { first: log.first(), from, items }
    }

    fn steps(&self, extent: Extent, tick: f64, reasons: &mut ReasonTable) -> Items<Vec<i64>> {
        let log = &self.timeline.steps;
        let from = extent.of(log);
        let mut last = 0;
        let items = log.since(from).flat_map(|step| {
            let at = ticks(step.at, tick);
            let since = at - last;
            last = at;
            [since, step.updates as i64, reasons.index(Some(step.reason))]
        });
        Items { first: log.first(), from, items: items.collect() }
    }

    fn worker_row(&self, worker: usize, slowness: Option<f64>, reasons: &mut ReasonTable) -> WorkerRow {
        let member = &self.members.all[worker];
        let (activity, since, reason) = self.timeline.present(worker);
        let totals = &self.timeline.totals[worker];
        let present: f64 = totals.iter().sum::<f64>() - totals[Activity::Absent as usize];
        let share = |activity: Activity| rounded(totals[activity as usize] / present.max(f64::MIN_POSITIVE));
        let speed = member.pace.filter(|pace| *pace > 0.0).map(|pace| rounded(1.0 / pace));
        let samples = member.samples;
        (
            worker,
            (activity as u8, since.seconds(), reasons.index(reason)),
            (member.batch, member.joined),
            [samples.used, samples.lost, samples.pending],
            [speed, slowness.map(rounded)],
            [share(Activity::Computing), share(Activity::Waiting), rounded(member.waited_for)],
            (member.reported.map(Time::seconds), member.is_late),
        )
    }

    fn curves(&self, extent: Extent) -> Vec<CurveData> {
        let own = [
            ("training loss", &self.loss),
            ("held-out accuracy", &self.accuracy),
            ("updates per step (k)", &self.updates_per_step),
        ];
        let own = own.into_iter().map(|(chart, curve)| (chart, String::new(), curve));
        let all = own.chain(self.choices.curves());
        let data = all.map(|(chart, name, curve)| {
            let from = extent.of_curve(curve);
            CurveData { chart: chart.into(), name, from, points: curve.since(from) }
        });
        data.filter(|curve| !curve.points.is_empty()).collect()
    }

    /// What happened, in a sentence.
    fn story(&self, now: Time) -> String {
        self.ended.clone().unwrap_or_else(|| {
            let present = self.timeline.activities().present().count();
            let workers = crate::numbers::counted(present, "worker");
            format!(
                "{} with {workers}: iteration {} after {}.",
                self.scheme,
                self.iterations,
                self.duration(now.seconds())
            )
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
}
