//! From arrivals to iteration times: what a k-of-n scheme must note to fill a [`RoundTripTable`].

use std::collections::VecDeque;

use crate::{Memory, RoundTripError, RoundTripTable, Time, Version};

/// A table has a cell for each pair of workers; so many take 700 MB.
pub(crate) const MOST_WORKERS: usize = 4096;

/// How many versions back arrivals still count. Who is later than that says nothing about the next iteration.
const VERSIONS_KEPT: usize = 1024;

/// A version that was handed out.
#[derive(Debug, Clone, Copy)]
struct Opened {
    /// When it was made.
    since: Time,
    /// h: how many gradients the iteration before had waited for.
    waited_before: usize,
    /// How many of its gradients have come.
    arrived: usize,
}

/// Expected iteration times by k, learned from every gradient that arrives, timely or late.
#[derive(Debug)]
pub(crate) struct IterationTimes {
    table: RoundTripTable,
    /// The latest versions, the newest last.
    opened: VecDeque<Opened>,
    /// How many versions came before the first of these.
    before: u64,
}

impl IterationTimes {
    /// For a run that starts with `workers`, of whom there may be [`MOST_WORKERS`].
    pub(crate) fn new(workers: usize, memory: Memory) -> Result<Self, RoundTripError> {
        let table = RoundTripTable::new(workers, memory)?;
        Ok(IterationTimes { table, opened: VecDeque::new(), before: 0 })
    }

    /// The first version is there. All workers are idle, as after an iteration that waited for all of them.
    pub(crate) fn start(&mut self, now: Time) {
        self.opened.push_back(Opened { since: now, waited_before: self.workers(), arrived: 0 });
    }

    /// An iteration of `waited_for` gradients ended with a new version, to be worked on by `live` workers.
    pub(crate) fn advance(&mut self, now: Time, waited_for: usize, live: usize) {
        self.table.advance();
        let live = live.min(MOST_WORKERS);
        if live != self.workers() {
            self.table.resize(live).expect("MOST_WORKERS is less than a table can have");
        }
        if self.opened.len() == VERSIONS_KEPT {
            self.opened.pop_front();
            self.before += 1;
        }
        // Of those who have gone since, none is idle.
        self.opened.push_back(Opened { since: now, waited_before: waited_for.min(live), arrived: 0 });
    }

    /// A gradient of `version` came. What does not fit into the table, because workers came or went, is not noted.
    pub(crate) fn on_arrival(&mut self, version: Version, now: Time) {
        let index = version.0.checked_sub(self.before).and_then(|index| usize::try_from(index).ok());
        let Some(opened) = index.and_then(|index| self.opened.get_mut(index)) else { return };
        opened.arrived += 1;
        let (waited_before, rank, seconds) = (opened.waited_before, opened.arrived, now.since(opened.since).seconds());
        let fits = |count: usize| (1..=self.table.workers()).contains(&count);
        if fits(waited_before) && fits(rank) {
            self.table.observe(waited_before, rank, seconds).expect("the cell is there, and a span is a duration");
        }
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
            times.on_arrival(Version(0), at(seconds));
        }
        times.advance(at(2.0), 2, 3);
        assert_eq!(times.expected(), [1.0, 2.0, 2.0]);
        // The third gradient of version 0, 5 s after it was made, while version 1 has been there for 3 s.
        times.on_arrival(Version(0), at(5.0));
        assert_eq!(times.expected(), [1.0, 2.0, 5.0]);
        // The first of version 1 after 4 s, with two idle at its start: with one it would have taken no less.
        times.on_arrival(Version(1), at(6.0));
        assert_eq!(times.expected(), [4.0, 4.0, 5.0]);
    }

    #[test]
    fn workers_come_and_go() {
        let mut times = times(3);
        for seconds in [1.0, 2.0, 3.0, 4.0] {
            times.on_arrival(Version(0), at(seconds));
        }
        times.advance(at(3.0), 3, 2);
        // What had waited for three is of a table that is gone.
        assert_eq!(times.expected(), [0.0; 2]);
        times.on_arrival(Version(1), at(4.0));
        times.advance(at(4.0), 1, 4);
        for seconds in [5.0, 6.0, 7.0, 8.0] {
            times.on_arrival(Version(2), at(seconds));
        }
        times.advance(at(8.0), 4, 4);
        assert_eq!(times.expected(), [1.0; 4]);
        for rank in 1..=4 {
            times.on_arrival(Version(3), at(8.0 + f64::from(rank)));
        }
        assert_eq!(times.expected(), [1.0, 2.0, 3.0, 4.0]);
    }

    #[test]
    fn the_very_late_and_the_unknown_do_not_count() {
        let mut times = times(2);
        for version in 0..2 * VERSIONS_KEPT as u64 {
            times.on_arrival(Version(version), at(version as f64 + 1.0));
            times.advance(at(version as f64 + 1.0), 1, 2);
        }
        assert_eq!(times.expected(), [1.0, 1.0]);
        times.on_arrival(Version(0), at(1e6));
        times.on_arrival(Version(u64::MAX), at(1e6));
        assert_eq!(times.expected(), [1.0, 1.0]);
        assert_eq!(times.opened.len(), VERSIONS_KEPT);
    }
}
