//! `dssp`: dynamic stale synchronous parallel; the bound is chosen at run time from a range (Zhao et al., 2019).

use super::{Settings, Setup, SpecError, ssp::admit_within};
use crate::free_running::{Clocks, FreeRunning, Gate, Verdict};
use crate::{Scheme, Span, Time, WorkerId};

/// The widest range; all of it is tried whenever a worker reaches the lower bound.
const WIDEST: u64 = 10_000;

/// When a worker pushed last and how long the iteration before took.
#[derive(Debug, Clone, Copy, Default)]
struct Pace {
    last: Option<Time>,
    interval: Option<Span>,
    /// The bound this worker was granted until it is back within the lower one.
    granted: Option<u64>,
}

/// A worker that reaches the lower bound is granted as many further iterations, up to the upper bound, as make it
/// finish closest to a push of the slowest worker: there its wait will be shortest.
struct Range {
    low: u64,
    high: u64,
    paces: Vec<Pace>,
}

impl Range {
    fn pace(&mut self, worker: WorkerId) -> &mut Pace {
        if worker.index() >= self.paces.len() {
            self.paces.resize(worker.index() + 1, Pace::default());
        }
        &mut self.paces[worker.index()]
    }

    /// The number of extra iterations whose predicted end is closest to a predicted push of the slowest; the fewest of
    /// equals. Without two pushes of each there is nothing to predict from, and none is granted.
    fn extra_iterations(&mut self, worker: WorkerId, slowest: WorkerId, now: Time) -> u64 {
        let (Some(own), Some(last), Some(interval)) =
            (self.pace(worker).interval, self.pace(slowest).last, self.pace(slowest).interval)
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

impl Gate for Range {
    fn admit(&mut self, worker: WorkerId, clocks: &Clocks, now: Time) -> Verdict {
        let lead = clocks.lead(worker);
        if lead <= self.low {
            self.pace(worker).granted = None;
            return admit_within(self.low, worker, clocks);
        }
        let bound = match self.pace(worker).granted {
            Some(bound) => bound,
            None => {
                let extra = self.extra_iterations(worker, clocks.slowest_after(worker), now);
                let bound = (self.low + extra).min(self.high);
                self.pace(worker).granted = Some(bound);
                bound
            }
        };
        admit_within(bound, worker, clocks)
    }

    fn on_push(&mut self, worker: WorkerId, now: Time) {
        let pace = self.pace(worker);
        pace.interval = pace.last.map(|last| now.since(last));
        pace.last = Some(now);
    }

    fn on_joined(&mut self, worker: WorkerId) {
        *self.pace(worker) = Pace::default();
    }
}

pub(super) fn build(settings: &Settings<'_>, setup: &Setup) -> Result<Box<dyn Scheme>, SpecError> {
    let low = settings.optional("min", 3, 0..=u64::from(u32::MAX))?;
    let high = settings.optional("max", low.max(15), low..=low + WIDEST)?;
    Ok(Box::new(FreeRunning::new(Range { low, high, paces: Vec::new() }, setup.batch)))
}
