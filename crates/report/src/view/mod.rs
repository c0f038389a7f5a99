//! What is seen of a run: one picture of it for the report, for the page that follows a run, and for whatever else shows one.
//!
//! A [`RunView`] takes in what an [`Observer`] is told, and nothing else, so that a run folder and a run that goes on give the
//! same view. Its memory is bounded, however long the run lasts. [`RunView::whole`] is all of it as JSON, and
//! [`RunView::changes`] what changed since the last time, in the same form: lists say from which number on they replace
//! what was known. A [`SeenRun`] is what a reader of the two knows.

mod choices;
mod curve;
mod data;
mod decisions;
mod headline;
mod item_log;
mod members;
mod seen;
mod shares;
mod timeline;

use paceline_core::{Decision, Event, Time};
use paceline_runtime::{EventLogHeader, Iteration, Monitor, Notice, Observer, Summary};

use crate::numbers::time;
use choices::SchemeChoices;
use curve::MergedCurve;
pub(crate) use curve::merged;
pub use data::ViewData;
use decisions::DecisionKinds;
pub use decisions::DecisionRow;
pub use headline::Headline;
use item_log::ItemLog;
pub use item_log::Kept;
use members::Members;
pub use members::SampleFate;
pub use seen::{SeenCurve, SeenRun, SeenWorker};
pub use timeline::{Activity, Timeline, TimelineLimits};

/// Limits of one page on the segments, intervals, points, steps and bytes of reasons of all its runs: it stays under 3 MB.
const MAX_SEGMENTS: usize = 100_000;
const MAX_INTERVALS: usize = 160_000;
const MAX_POINTS: usize = 4_800;
const MAX_STEPS: usize = 30_000;
const MAX_REASON_BYTES: usize = 500_000;

/// How many notices are kept.
const MAX_NOTICES: usize = 200;

/// How much of a run is kept.
#[derive(Debug, Clone, Copy)]
pub struct ViewLimits {
    timeline: TimelineLimits,
    /// Points of a curve.
    points: usize,
    /// Bytes of reasons; later reasons are left out.
    reason_bytes: usize,
}

impl ViewLimits {
    /// The limits of a run of so many workers on a page with so many runs.
    pub fn new(workers: usize, runs: usize, kept: Kept) -> Self {
        let runs = runs.max(1);
        let tracks = workers.max(1) * runs;
        let timeline = TimelineLimits {
            segments: (MAX_SEGMENTS / tracks).max(16),
            kept,
            steps: MAX_STEPS / runs,
            intervals: (MAX_INTERVALS / tracks).clamp(32, 512),
        };
        let points = (MAX_POINTS / runs).clamp(150, 700);
        ViewLimits { timeline, points, reason_bytes: MAX_REASON_BYTES / runs }
    }
}

/// What is seen of a run.
#[derive(Debug, Clone)]
pub struct RunView {
    scheme: String,
    /// Whether its time is a simulation's.
    virtual_time: bool,
    limits: ViewLimits,
    timeline: Timeline,
    members: Members,
    decisions: DecisionKinds,
    choices: SchemeChoices,
    loss: MergedCurve,
    accuracy: MergedCurve,
    updates_per_step: MergedCurve,
    /// The last values of the first two; the loss is a mean over several iterations.
    last_loss: Option<f64>,
    last_accuracy: Option<f64>,
    iterations: u64,
    notices: ItemLog<(f64, String)>,
    /// How it ended, in a sentence.
    ended: Option<String>,
}

impl RunView {
    /// A run that begins.
    pub fn new(header: &EventLogHeader, limits: ViewLimits) -> Self {
        let curve = || MergedCurve::new(limits.points);
        RunView {
            scheme: header.scheme.to_string(),
            virtual_time: header.virtual_time,
            limits,
            timeline: Timeline::new(limits.timeline),
            members: Members::default(),
            decisions: DecisionKinds::default(),
            choices: SchemeChoices::new(header.workers, header.batch, limits.points),
            loss: curve(),
            accuracy: curve(),
            updates_per_step: curve(),
            last_loss: None,
            last_accuracy: None,
            iterations: 0,
            notices: ItemLog::new(MAX_NOTICES, Kept::Newest),
            ended: None,
        }
    }

    /// An iteration is done.
    pub fn add_iteration(&mut self, iteration: u64, at: f64, updates: u64, loss: Option<f64>, accuracy: Option<f64>) {
        self.iterations = iteration;
        self.updates_per_step.add(at, updates as f64);
        loss.into_iter().for_each(|loss| self.loss.add(at, loss));
        accuracy.into_iter().for_each(|accuracy| self.accuracy.add(at, accuracy));
        self.last_loss = loss.or(self.last_loss);
        self.last_accuracy = accuracy.or(self.last_accuracy);
    }

    /// The run has ended.
    pub fn end(&mut self, summary: &Summary) {
        let (iterations, seconds) = (summary.iterations, self.duration(summary.time));
        let is_target = summary.stopped_by.starts_with("loss<") || summary.stopped_by.starts_with("accuracy>");
        let scheme = &self.scheme;
        self.ended = Some(match (summary.reached, is_target) {
            (true, true) => {
                format!("{scheme} reached {} after {iterations} iterations and {seconds}.", summary.stopped_by)
            }
            (true, false) => format!("{scheme} did {iterations} iterations in {seconds}."),
            (false, _) => {
                format!("{scheme} ended after {iterations} iterations and {seconds}: {}.", summary.stopped_by)
            }
        });
        (self.last_loss, self.iterations) = (summary.loss.or(self.last_loss), summary.iterations);
        if let Some((at, accuracy)) = summary.final_accuracy() {
            self.accuracy.add(at, accuracy);
            self.last_accuracy = Some(accuracy);
        }
    }

    /// A time of the run, as text.
    fn duration(&self, seconds: f64) -> String {
        let of_what = if self.virtual_time { " of virtual time" } else { "" };
        format!("{}{of_what}", time(seconds))
    }

    /// Whether the run has ended.
    pub fn has_ended(&self) -> bool {
        self.ended.is_some()
    }

    /// There are no more events: what is under way ends with the last one.
    pub fn finish_timeline(&mut self) {
        self.timeline.finish();
    }

    /// When the last event was.
    pub fn time(&self) -> Time {
        self.timeline.end
    }

    /// Who straggled, and what it cost.
    pub fn headline(&self) -> Headline {
        Headline::new(&self.members, &self.timeline.totals)
    }

    /// All changes so far are known.
    fn settle(&mut self) {
        self.timeline.settle();
        self.members.settle();
        self.choices.settle();
        self.notices.settle();
        [&mut self.loss, &mut self.accuracy, &mut self.updates_per_step].into_iter().for_each(MergedCurve::settle);
    }
}

impl Observer for RunView {
    fn on_turn(&mut self, now: Time, event: &Event, decisions: &[Decision]) {
        let RunView { timeline, members, choices, .. } = self;
        members.on_event(now, event);
        timeline.observe(now, event, decisions, |change| {
            members.on_change(now, event, change);
            choices.on_change(now, change);
        });
        for decision in decisions {
            self.decisions.add(now, decision);
            self.members.on_decision(decision);
            self.choices.on_decision(now, decision);
        }
    }

    fn on_iteration(&mut self, iteration: &Iteration, monitor: &Monitor) {
        let accuracy = monitor.fresh_evaluation().and_then(|found| found.accuracy);
        let Iteration { iteration, time, waited_for, loss, .. } = *iteration;
        self.add_iteration(iteration, time, waited_for as u64, loss, accuracy);
    }

    fn on_notice(&mut self, notice: &Notice) {
        if let Notice::Late { worker, .. } = notice {
            self.members.on_late(*worker);
        }
        self.notices.push((self.timeline.end.seconds(), notice.to_string()));
    }
}

#[cfg(test)]
mod tests;
