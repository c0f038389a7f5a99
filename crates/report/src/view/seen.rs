//! What a reader of a view's data knows of a run: all of it, and then what changes. The page's script does the same.

use super::data::{CurveData, Items, ShareData, ViewData, WorkerRow};
use super::timeline::{ACTIVITIES, Activity};
use super::{DecisionRow, Headline, SampleFate};
use crate::page::PageRun;

/// Workers with a higher rank are left out: no run has so many, and what another program sends must not fill the memory.
const MAX_RANK: usize = 100_000;

/// A worker, as of the last message. Times are in seconds.
#[derive(Debug, Clone, PartialEq)]
pub struct SeenWorker {
    /// Its rank.
    pub rank: usize,
    /// What it does.
    pub activity: Activity,
    /// Since when.
    pub since: f64,
    /// Why; empty if that is not known.
    pub reason: String,
    /// Samples of each iteration of its last task.
    pub batch: u32,
    /// Samples per second, of late.
    pub speed: Option<f64>,
    /// How many times the others' median it needs for a sample.
    pub slowness: Option<f64>,
    /// Seconds that others waited until it reported.
    pub waited_for: f64,
    /// What became of its samples.
    pub samples: SampleFate,
    /// When it reported last.
    pub reported: Option<f64>,
    /// Whether its task takes longer than usual.
    pub is_late: bool,
}

/// A part of a worker's time, in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
struct SeenSegment {
    from: f64,
    to: f64,
    activity: Activity,
}

/// A curve: the chart that it belongs to, its name there, and its points (seconds, value).
#[derive(Debug, Clone, PartialEq)]
pub struct SeenCurve {
    /// The heading of its chart.
    pub chart: String,
    /// Its name; empty if the chart has no other.
    pub name: String,
    /// Its points, in the order of time.
    pub points: Vec<(f64, f64)>,
}

/// What is known of a run.
#[derive(Debug, Clone)]
pub struct SeenRun {
    /// Its name.
    pub name: String,
    /// How many workers it started with.
    pub expected: usize,
    /// Its scheme.
    pub scheme: String,
    /// Its time, in seconds.
    pub time: f64,
    /// What happened, in a sentence.
    pub story: String,
    /// Whether it has ended.
    pub ended: bool,
    /// Who straggled, and what it cost.
    pub headline: Headline,
    /// Steps of the model.
    pub iterations: u64,
    /// How many workers are members.
    pub present: usize,
    /// What all samples became.
    pub samples: SampleFate,
    /// The training loss.
    pub loss: Option<f64>,
    /// The held-out accuracy.
    pub accuracy: Option<f64>,
    /// Each kind of decision with its latest reason.
    pub decisions: Vec<DecisionRow>,
    workers: Vec<Option<SeenWorker>>,
    tracks: Vec<SeenItems<SeenSegment>>,
    shares: Vec<String>,
    /// The length of an interval of the shares, in seconds.
    share_width: f64,
    curves: Vec<SeenCurve>,
    notices: SeenItems<(f64, String)>,
}

/// Items with numbers: the first one that is still known, and those from it on.
#[derive(Debug, Clone)]
struct SeenItems<T> {
    first: u64,
    items: Vec<T>,
}

impl<T> Default for SeenItems<T> {
    fn default() -> Self {
        SeenItems { first: 0, items: Vec::new() }
    }
}

impl<T> SeenItems<T> {
    /// Forgets the items before the first, and replaces those from a number on.
    fn take_in(&mut self, Items { first, from, items }: Items<Vec<T>>) {
        let index = |number: u64| usize::try_from(number.saturating_sub(self.first)).unwrap_or(usize::MAX);
        let (forgotten, kept) = (index(first), index(from));
        self.items.truncate(kept);
        self.items.drain(..forgotten.min(self.items.len()));
        self.items.extend(items);
        self.first = first;
    }
}

impl SeenRun {
    /// A run of which all is known so far.
    pub fn new(run: PageRun) -> Self {
        let PageRun { name, expected, view, .. } = run;
        let mut seen = SeenRun {
            name,
            expected,
            scheme: String::new(),
            time: 0.0,
            story: String::new(),
            ended: false,
            headline: Headline::default(),
            iterations: 0,
            present: 0,
            samples: SampleFate::default(),
            loss: None,
            accuracy: None,
            decisions: Vec::new(),
            workers: Vec::new(),
            tracks: Vec::new(),
            shares: Vec::new(),
            share_width: 0.0,
            curves: Vec::new(),
            notices: SeenItems::default(),
        };
        seen.apply(view);
        seen
    }

    /// Takes in what changed.
    pub fn apply(&mut self, view: ViewData) {
        let reasons = view.reasons;
        for (rank, items) in view.segments.into_iter().filter(|(rank, _)| *rank < MAX_RANK) {
            if rank >= self.tracks.len() {
                self.tracks.resize_with(rank + 1, SeenItems::default);
            }
            let Items { first, from, items } = items;
            self.tracks[rank].take_in(Items { first, from, items: segments(&items, view.tick) });
        }
        for row in view.workers.into_iter().filter(|row| row.0 < MAX_RANK) {
            let rank = row.0;
            if rank >= self.workers.len() {
                self.workers.resize(rank + 1, None);
            }
            self.workers[rank] = Some(worker(row, &reasons));
        }
        self.take_in_shares(view.shares);
        for CurveData { chart, name, from, points } in view.curves {
            let known = self.curves.iter().position(|curve| curve.chart == chart && curve.name == name);
            let known = known.unwrap_or_else(|| {
                self.curves.push(SeenCurve { chart: chart.into_owned(), name, points: Vec::new() });
                self.curves.len() - 1
            });
            self.curves[known].points.truncate(from);
            self.curves[known].points.extend(points);
        }
        self.notices.take_in(view.notices);
        (self.scheme, self.time, self.story, self.ended) = (view.scheme, view.time, view.story, view.ended);
        (self.headline, self.iterations, self.present) = (view.headline, view.iterations, view.present);
        (self.samples, self.loss, self.accuracy) = (view.samples, view.loss, view.accuracy);
        self.decisions = view.decisions;
    }

    fn take_in_shares(&mut self, ShareData { width, from, workers }: ShareData) {
        self.share_width = width;
        for (rank, digits) in workers.into_iter().take(MAX_RANK).enumerate() {
            if rank == self.shares.len() {
                self.shares.push(String::new());
            }
            let known = &mut self.shares[rank];
            // Digits are ASCII; what is not is no share.
            known.truncate(known.len().min(ACTIVITIES.saturating_mul(from)));
            known.push_str(if digits.is_ascii() { &digits } else { "" });
        }
    }

    /// The workers that ever joined, by rank.
    pub fn workers(&self) -> impl Iterator<Item = &SeenWorker> {
        self.workers.iter().flatten()
    }

    /// The curves of a chart.
    pub fn curves(&self, chart: &str) -> impl Iterator<Item = &SeenCurve> {
        self.curves.iter().filter(move |curve| curve.chart == chart)
    }

    /// What happened, the newest last: when, and what.
    pub fn notices(&self) -> &[(f64, String)] {
        &self.notices.items
    }

    /// Whether others waited for a worker, or it is slower than the others.
    pub fn is_straggler(&self, rank: usize) -> bool {
        self.headline.stragglers.contains(&rank)
    }

    /// What a worker mostly did between two times; `None` if that is not known, or has not happened yet.
    pub fn mostly(&self, rank: usize, from: f64, to: f64) -> Option<Activity> {
        let mut seconds = [0.0; ACTIVITIES];
        let to = to.min(self.time);
        let segments = self.tracks.get(rank).map_or(&[][..], |track| &track.items);
        let known_from = segments.first().map_or(f64::INFINITY, |segment| segment.from);
        if from < known_from {
            self.add_shares(rank, from, to, &mut seconds);
        } else {
            let begin = segments.partition_point(|segment| segment.to <= from);
            for segment in segments[begin..].iter().take_while(|segment| segment.from < to) {
                seconds[segment.activity as usize] += segment.to.min(to) - segment.from.max(from);
            }
        }
        // What it does now has no segment yet.
        if let Some(worker) = self.workers.get(rank).and_then(Option::as_ref).filter(|_| !self.ended) {
            let since = worker.since.max(segments.last().map_or(0.0, |segment| segment.to));
            seconds[worker.activity as usize] += (to - from.max(since)).max(0.0);
        }
        let most = Activity::ALL.into_iter().zip(seconds).max_by(|one, other| one.1.total_cmp(&other.1));
        most.filter(|(_, seconds)| *seconds > 0.0).map(|(activity, _)| activity)
    }

    fn add_shares(&self, rank: usize, from: f64, to: f64, seconds: &mut [f64; ACTIVITIES]) {
        let Some(digits) = self.shares.get(rank).filter(|_| self.share_width > 0.0 && from >= 0.0) else { return };
        let (intervals, _) = digits.as_bytes().as_chunks::<ACTIVITIES>();
        let begin = (from / self.share_width) as usize;
        for (number, interval) in intervals.iter().enumerate().skip(begin) {
            let start = number as f64 * self.share_width;
            if start >= to {
                break;
            }
            let length = (start + self.share_width).min(to) - start.max(from);
            for (sum, digit) in seconds.iter_mut().zip(interval) {
                *sum += length * f64::from(value(*digit)) / 63.0;
            }
        }
    }
}

/// The value of a digit of the shares.
fn value(digit: u8) -> u8 {
    match digit {
        b'A'..=b'Z' => digit - b'A',
        b'a'..=b'z' => digit - b'a' + 26,
        b'0'..=b'9' => digit - b'0' + 52,
        b'+' => 62,
        _ => 63,
    }
}

fn activity(index: i64) -> Activity {
    usize::try_from(index).ok().and_then(|index| Activity::ALL.get(index).copied()).unwrap_or(Activity::Absent)
}

fn segments(items: &[i64], tick: f64) -> Vec<SeenSegment> {
    let Some((&start, items)) = items.split_first() else { return Vec::new() };
    let mut at = start;
    let (triples, _) = items.as_chunks::<3>();
    let segment = |&[length, index, _]: &[i64; 3]| {
        let from = at;
        at = at.saturating_add(length);
        SeenSegment { from: from as f64 * tick, to: at as f64 * tick, activity: activity(index) }
    };
    triples.iter().map(segment).collect()
}

fn worker(row: WorkerRow, reasons: &[String]) -> SeenWorker {
    let (rank, (index, since, why), (batch, _), [used, lost, pending], [speed, slowness], times, (reported, is_late)) =
        row;
    let reason = usize::try_from(why).ok().and_then(|index| reasons.get(index));
    SeenWorker {
        rank,
        activity: activity(index.into()),
        since,
        reason: reason.cloned().unwrap_or_default(),
        batch,
        speed,
        slowness,
        waited_for: times[2],
        samples: SampleFate { used, lost, pending },
        reported,
        is_late,
    }
}
