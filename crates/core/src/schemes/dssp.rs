//! `dssp`: dynamic stale synchronous parallel; the bound is chosen at run time from a range (Zhao et al., 2019).

use serde::{Deserialize, Serialize};

use super::ssp::admit_within;
use super::{SchemeEntry, SchemeError, Setting, SettingDefault, Settings, Setup, UpperBound};
use crate::free_running::{Admission, Clocks, FreeRunning, Gate};
use crate::{Scheme, Span, Time, Update, WorkerId};

/// The widest range; all of it is tried whenever a worker reaches the lower bound.
const MAX_WIDTH: u64 = 10_000;

/// When a worker pushed last, how long its last iteration took, and its present bound.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
struct PushTimes {
    last: Option<Time>,
    interval: Option<Span>,
    /// The bound granted to this worker, valid until its lead is within the lower bound again.
    granted: Option<u64>,
}

/// A worker that reaches the lower bound is granted extra iterations, up to the upper bound. Their number is chosen so
/// that the worker finishes closest to a push of the slowest worker, where its wait is shortest.
#[derive(Serialize, Deserialize)]
struct StalenessRange {
    low: u64,
    high: u64,
    pushes: Vec<PushTimes>,
}

impl StalenessRange {
    fn push_times(&mut self, worker: WorkerId) -> &mut PushTimes {
        if worker.index() >= self.pushes.len() {
            self.pushes.resize(worker.index() + 1, PushTimes::default());
        }
        &mut self.pushes[worker.index()]
    }

    /// The number of extra iterations whose predicted end is closest to a predicted push of the slowest; the fewest of
    /// equals. 0 before both workers have pushed twice, since their intervals are not known.
    fn extra_iterations(&mut self, worker: WorkerId, slowest: WorkerId, now: Time) -> u64 {
        let (Some(own), Some(last), Some(interval)) =
            (self.push_times(worker).interval, self.push_times(slowest).last, self.push_times(slowest).interval)
        else {
            return 0;
        };
        let interval = interval.0.max(1);
        let distance = |extra: u64| {
            let end = now.0.saturating_add(own.0.saturating_mul(extra));
            // The slowest pushes at last + j × interval, j ≥ 1; those in the past are overdue, so count as now.
            let past = end.saturating_sub(last.0);
            let before = past / interval;
            let after_gap = (before + 1).saturating_mul(interval) - past;
            if before == 0 { after_gap } else { after_gap.min(past - before * interval) }
        };
        (0..=self.high - self.low).min_by_key(|&extra| distance(extra)).unwrap_or(0)
    }
}

impl Gate for StalenessRange {
    fn admit(&mut self, worker: WorkerId, clocks: &Clocks, now: Time) -> Admission {
        let lead = clocks.lead(worker);
        if lead <= self.low {
            self.push_times(worker).granted = None;
            return admit_within(self.low, worker, clocks);
        }
        let bound = match self.push_times(worker).granted {
            Some(bound) => bound,
            None => {
                let extra = self.extra_iterations(worker, clocks.slowest_after(worker), now);
                let bound = (self.low + extra).min(self.high);
                self.push_times(worker).granted = Some(bound);
                bound
            }
        };
        admit_within(bound, worker, clocks)
    }

    fn on_push(&mut self, update: &Update, now: Time) {
        let worker = update.task.worker;
        let times = self.push_times(worker);
        times.interval = times.last.map(|last| now.since(last));
        times.last = Some(now);
    }

    fn on_joined(&mut self, worker: WorkerId) {
        *self.push_times(worker) = PushTimes::default();
    }
}

pub(super) const ENTRY: SchemeEntry = SchemeEntry::new(
    "dssp",
    "like ssp, with the bound chosen at run time for the shortest predicted wait",
    [0, 105, 170],
    build,
)
.settings(&[
    Setting::count("min", "lower end of the bound", 0, UpperBound::Value(u32::MAX as u64))
        .default(SettingDefault::Count(3)),
    Setting::count("max", "upper end of the bound, at most 10,000 above the lower", 0, UpperBound::Unbounded)
        .default(SettingDefault::Derived("15 or min, whichever is larger")),
])
.variants(&["min=0,max=3", "min=2,max=2"]);

fn build(settings: &Settings<'_>, setup: &Setup) -> Result<Box<dyn Scheme>, SchemeError> {
    let low: u64 = settings.count("min")?;
    let (high, most) = (settings.given_count("max")?.unwrap_or(low.max(15)), low + MAX_WIDTH);
    if !(low..=most).contains(&high) {
        return Err(settings.unfit("max", format!("{low} to {most}")));
    }
    Ok(Box::new(FreeRunning::new(StalenessRange { low, high, pushes: Vec::new() }, setup.batch)))
}
