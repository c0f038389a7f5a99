//! What follows from broken updates: nothing at first, then their worker is dismissed, or the run ends.

use std::collections::BTreeMap;

use paceline_core::{CommitOutcome, Share, TaskId, WorkerId};

/// With this many broken updates in a row, a worker is dismissed.
const LIMIT: u32 = 3;

/// What to do after a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Remedy {
    /// Every worker goes on.
    Continue,
    /// The workers of these updates are dismissed: their updates are broken, those of others are fine.
    Dismiss(Vec<TaskId>),
    /// The run ends: every worker's latest update is broken, so the model is the cause.
    Diverged,
}

/// Counts each worker's broken updates in a row.
///
/// A single broken update is no harm, since its commit leaves it out: an overflow of a 16-bit payload is ordinary.
#[derive(Debug, Default)]
pub(crate) struct BrokenUpdates {
    /// The workers whose latest committed update was broken.
    streaks: BTreeMap<WorkerId, Streak>,
}

#[derive(Debug, Default)]
struct Streak {
    broken: u32,
    /// Whether another worker's update was fine in the meantime.
    others_fine: bool,
}

impl BrokenUpdates {
    /// Records what became of a commit of `updates`. `live` is the number of workers.
    pub(crate) fn settle(&mut self, updates: &[Share], outcome: &CommitOutcome, live: usize) -> Remedy {
        self.on_commit(updates.iter().map(|share| share.task), &outcome.broken, live)
    }

    /// Records a commit of the updates `all`, of which `broken` were left out. `live` is the number of workers.
    fn on_commit(&mut self, all: impl IntoIterator<Item = TaskId>, broken: &[TaskId], live: usize) -> Remedy {
        let mut some_fine = false;
        for task in all.into_iter().filter(|task| !broken.contains(task)) {
            self.streaks.remove(&task.worker);
            some_fine = true;
        }
        for task in broken {
            self.streaks.entry(task.worker).or_default().broken += 1;
        }
        self.streaks.values_mut().for_each(|streak| streak.others_fine |= some_fine);
        if self.suspect_model(live) && self.streaks.values().any(|streak| streak.broken >= LIMIT) {
            return Remedy::Diverged;
        }
        let is_out = |task: &&TaskId| {
            self.streaks.get(&task.worker).is_some_and(|streak| streak.broken >= LIMIT && streak.others_fine)
        };
        let dismissed: Vec<TaskId> = broken.iter().filter(is_out).copied().collect();
        if dismissed.is_empty() { Remedy::Continue } else { Remedy::Dismiss(dismissed) }
    }

    /// A worker left.
    pub(crate) fn on_left(&mut self, worker: WorkerId) {
        self.streaks.remove(&worker);
    }

    /// Whether the latest update of each of the `live` workers was broken. The model may be the cause, so it is not
    /// worth a checkpoint.
    pub(crate) fn suspect_model(&self, live: usize) -> bool {
        !self.streaks.is_empty() && self.streaks.len() >= live
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(worker: u32, number: u64) -> TaskId {
        TaskId { worker: WorkerId(worker), number }
    }

    /// Commits one update of each worker; those of `broken` are left out.
    fn round(updates: &mut BrokenUpdates, number: u64, workers: u32, broken: &[u32]) -> Remedy {
        let broken: Vec<TaskId> = broken.iter().map(|&worker| task(worker, number)).collect();
        updates.on_commit((0..workers).map(|worker| task(worker, number)), &broken, workers as usize)
    }

    #[test]
    fn the_third_in_a_row_dismisses_and_a_good_one_resets() {
        let mut updates = BrokenUpdates::default();
        for (number, broken) in [&[1][..], &[1], &[], &[1, 2], &[1, 2]].into_iter().enumerate() {
            assert_eq!(round(&mut updates, number as u64, 4, broken), Remedy::Continue, "{number}");
        }
        assert_eq!(round(&mut updates, 5, 4, &[1]), Remedy::Dismiss(vec![task(1, 5)]));
        updates.on_left(WorkerId(1));
        assert!(!updates.suspect_model(3));
        assert_eq!(round(&mut updates, 6, 2, &[1]), Remedy::Continue, "it rejoined and starts over");
    }

    #[test]
    fn the_model_is_the_cause_if_every_update_is_broken() {
        let mut updates = BrokenUpdates::default();
        for number in 0..2 {
            assert_eq!(round(&mut updates, number, 3, &[0, 1, 2]), Remedy::Continue);
            assert!(updates.suspect_model(3));
        }
        assert_eq!(round(&mut updates, 2, 3, &[0, 1, 2]), Remedy::Diverged);
    }

    #[test]
    fn a_worker_is_not_dismissed_before_others_have_shown_the_model_to_be_fine() {
        let mut updates = BrokenUpdates::default();
        let mut one = |worker, number, is_broken: bool| {
            let task = task(worker, number);
            updates.on_commit([task], if is_broken { std::slice::from_ref(&task) } else { &[] }, 2)
        };
        assert_eq!(one(1, 0, false), Remedy::Continue);
        // The second worker is slow: whether its next update is broken is not known yet.
        for number in 0..4 {
            assert_eq!(one(0, number, true), Remedy::Continue, "{number}");
        }
        assert_eq!(one(1, 1, true), Remedy::Diverged);
        assert_eq!(one(1, 2, false), Remedy::Continue);
        assert_eq!(one(0, 4, true), Remedy::Dismiss(vec![task(0, 4)]));
        // A worker on its own has no others.
        let mut alone = BrokenUpdates::default();
        let remedies: Vec<Remedy> = (0..3).map(|number| round(&mut alone, number, 1, &[0])).collect();
        assert_eq!(remedies, [Remedy::Continue, Remedy::Continue, Remedy::Diverged]);
    }
}
