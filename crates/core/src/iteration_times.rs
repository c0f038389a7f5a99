//! Fills a [`RoundTripTable`] from the arrivals of a k-of-n scheme.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::{Memory, RoundTripError, RoundTripTable, Time, Version};

/// The most workers of a table, which has a cell for each pair of workers: 4,096 workers take 700 MB.
pub(crate) const MAX_WORKERS: usize = 4096;

/// How many versions are kept. Gradients of older versions say nothing about the next iteration and are ignored.
const VERSIONS_KEPT: usize = 1024;

/// A version whose gradients may still arrive.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct OpenRound {
    /// When the version was made.
    since: Time,
    /// h: how many gradients the iteration before had waited for.
    waited_before: usize,
    /// How many of its gradients have arrived.
    arrived: usize,
}

/// Expected iteration times by k, learned from every gradient that arrives, in time or late.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct IterationTimes {
    table: RoundTripTable,
    /// The latest versions, the newest last.
    rounds: VecDeque<OpenRound>,
    /// How many versions precede the first of these.
    before: u64,
}

impl IterationTimes {
    /// Iteration times of a run that starts with `workers` workers, at most [`MAX_WORKERS`].
    pub(crate) fn new(workers: usize, memory: Memory) -> Result<Self, RoundTripError> {
        let table = RoundTripTable::new(workers, memory)?;
        Ok(IterationTimes { table, rounds: VecDeque::new(), before: 0 })
    }

    /// Opens the first version. All workers are idle, as after an iteration that waited for all of them.
    pub(crate) fn start(&mut self, now: Time) {
        self.rounds.push_back(OpenRound { since: now, waited_before: self.workers(), arrived: 0 });
    }

    /// Opens a new version for `live` workers, after an iteration that waited for `waited_for` gradients.
    pub(crate) fn advance(&mut self, now: Time, waited_for: usize, live: usize) {
        self.table.advance();
        let live = live.min(MAX_WORKERS);
        if live != self.workers() {
            self.table.resize(live).expect("MAX_WORKERS is less than a table can have");
        }
        if self.rounds.len() == VERSIONS_KEPT {
            self.rounds.pop_front();
            self.before += 1;
        }
        // Workers that have left since are not idle.
        self.rounds.push_back(OpenRound { since: now, waited_before: waited_for.min(live), arrived: 0 });
    }

    /// A gradient of `version` arrived, which is the newest if the gradient is timely. It is ignored if its cell is
    /// outside the table because workers left.
    pub(crate) fn on_arrival(&mut self, version: Version, timely: bool, now: Time) {
        if timely {
            // A scheme that starts afresh in a resumed run does not begin with version 0.
            self.before = (version.0 + 1).saturating_sub(self.rounds.len() as u64);
        }
        let index = version.0.checked_sub(self.before).and_then(|index| usize::try_from(index).ok());
        let Some(round) = index.and_then(|index| self.rounds.get_mut(index)) else { return };
        round.arrived += 1;
        let (waited_before, rank, seconds) = (round.waited_before, round.arrived, now.since(round.since).seconds());
        let fits = |count: usize| (1..=self.table.workers()).contains(&count);
        if fits(waited_before) && fits(rank) {
            self.table
                .observe(waited_before, rank, seconds)
                .expect("the cell is in the table, and a span is a duration");
        }
    }

    /// Drops all that was measured, and what is still under way: tasks take other times from now on.
    pub(crate) fn forget(&mut self) {
        self.table.clear();
        // No cell of the table has this h.
        self.rounds.iter_mut().for_each(|round| round.waited_before = 0);
    }

    /// T̂ for every k, in seconds; entry 0 is k = 1.
    pub(crate) fn expected(&mut self) -> &[f64] {
        self.table.expected_all()
    }

    fn workers(&self) -> usize {
        self.table.workers()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Span;

    fn at(seconds: f64) -> Time {
        Time::START + Span::from_seconds(seconds)
    }

    fn times(workers: usize) -> IterationTimes {
        let mut times = IterationTimes::new(workers, Memory::All).unwrap();
        times.start(Time::START);
        times
    }

    #[test]
    fn late_arrivals_count_from_their_own_version() {
        let mut times = times(3);
        for seconds in [1.0, 2.0] {
            times.on_arrival(Version(0), true, at(seconds));
        }
        times.advance(at(2.0), 2, 3);
        assert_eq!(times.expected(), [1.0, 2.0, 2.0]);
        // The third gradient of version 0 arrives 5 s after that version and 3 s after version 1.
        times.on_arrival(Version(0), false, at(5.0));
        assert_eq!(times.expected(), [1.0, 2.0, 5.0]);
        // The first of version 1 arrives after 4 s, with two workers idle at its start. With one it takes at least 4 s.
        times.on_arrival(Version(1), true, at(6.0));
        assert_eq!(times.expected(), [4.0, 4.0, 5.0]);
    }

    #[test]
    fn workers_join_and_leave() {
        let mut times = times(3);
        for seconds in [1.0, 2.0, 3.0, 4.0] {
            times.on_arrival(Version(0), true, at(seconds));
        }
        times.advance(at(3.0), 3, 2);
        // Samples of rounds that waited for three are not in the smaller table.
        assert_eq!(times.expected(), [0.0; 2]);
        times.on_arrival(Version(1), true, at(4.0));
        times.advance(at(4.0), 1, 4);
        for seconds in [5.0, 6.0, 7.0, 8.0] {
            times.on_arrival(Version(2), true, at(seconds));
        }
        times.advance(at(8.0), 4, 4);
        assert_eq!(times.expected(), [1.0; 4]);
        for rank in 1..=4 {
            times.on_arrival(Version(3), true, at(8.0 + f64::from(rank)));
        }
        assert_eq!(times.expected(), [1.0, 2.0, 3.0, 4.0]);
    }

    #[test]
    fn the_first_version_may_be_any() {
        let mut times = times(2);
        times.on_arrival(Version(1000), true, at(1.0));
        times.on_arrival(Version(999), false, at(1.5));
        times.on_arrival(Version(1000), true, at(2.0));
        times.advance(at(2.0), 2, 2);
        times.on_arrival(Version(1001), true, at(3.0));
        assert_eq!(times.expected(), [1.0, 2.0]);
    }

    #[test]
    fn gradients_of_old_or_unknown_versions_are_ignored() {
        let mut times = times(2);
        for version in 0..2 * VERSIONS_KEPT as u64 {
            times.on_arrival(Version(version), true, at(version as f64 + 1.0));
            times.advance(at(version as f64 + 1.0), 1, 2);
        }
        assert_eq!(times.expected(), [1.0, 1.0]);
        times.on_arrival(Version(0), false, at(1e6));
        times.on_arrival(Version(u64::MAX), false, at(1e6));
        assert_eq!(times.expected(), [1.0, 1.0]);
        assert_eq!(times.rounds.len(), VERSIONS_KEPT);
    }
}
