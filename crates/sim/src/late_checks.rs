//! When running tasks become late, for schemes that watch for it.

use std::collections::BTreeSet;

use paceline_core::{Lateness, Ledger, Span, TaskId, Time};

/// The tasks to look at, by the time when they are late.
pub(crate) struct LateChecks {
    pub(crate) lateness: Lateness,
    checks: BTreeSet<(Time, TaskId)>,
}

impl Default for LateChecks {
    fn default() -> Self {
        // Workers of a simulation are never stuck.
        LateChecks { lateness: Lateness::new(Span(u64::MAX)), checks: BTreeSet::new() }
    }
}

impl LateChecks {
    pub(crate) fn next(&self) -> Option<(Time, TaskId)> {
        self.checks.first().copied()
    }

    /// A turn is over.
    pub(crate) fn settle(&mut self, now: Time, ledger: &Ledger) {
        for worker in self.lateness.settle(now, ledger) {
            if let (Some((task, elapsed)), Some(late_after)) =
                (self.lateness.running(worker, now), self.lateness.late_after(worker))
            {
                self.checks.insert((now + (late_after - elapsed), task));
            }
        }
    }

    /// Takes the next check, whose time has come. Returns whether its task is late.
    pub(crate) fn check(&mut self, now: Time) -> bool {
        let Some((_, task)) = self.checks.pop_first() else { return false };
        let running = self.lateness.running(task.worker, now);
        // It may be over, or have asked since.
        let elapsed = running.filter(|(running, _)| *running == task).map(|(_, elapsed)| elapsed);
        elapsed.zip(self.lateness.late_after(task.worker)).is_some_and(|(elapsed, late_after)| elapsed >= late_after)
    }
}
