//! The event queue of a simulation: when each worker acts next.

use paceline_core::{Time, WorkerId};

/// How many take part in a match. Four keep the tournament short.
const PLAYERS: usize = 4;

/// The time of a worker without an entry.
const ABSENT: Time = Time(u64::MAX);

/// A priority queue with at most one entry per worker, so that an interrupted task leaves no entry behind.
///
/// Entries with equal times are ordered by rank. It is a tournament: of every four workers the earliest goes on to the next
/// match, and the winner of the last one acts next. A change plays only the worker's own matches again.
#[derive(Debug, Default)]
pub(crate) struct EventQueue {
    /// The times of the players of each match. The last match is at 0. The players of match i are the winners of the
    /// matches 4 i + 1 to 4 i + 4, or workers.
    matches: Vec<[Time; PLAYERS]>,
    /// The number of matches that are between winners.
    inner: usize,
    /// The worker whose turn it is. Its entry is still in its place, since it often gets another one at once.
    acting: Option<WorkerId>,
}

impl EventQueue {
    /// Sets or moves the worker's entry.
    pub(crate) fn set(&mut self, worker: WorkerId, at: Time) {
        if worker.index() >= self.places() {
            self.grow(worker.index() + 1);
        }
        if self.acting == Some(worker) {
            self.acting = None;
        }
        // The last moment of all stands for none.
        self.play(worker, at.min(Time(ABSENT.0 - 1)));
    }

    /// Removes the worker's entry, if it has one.
    pub(crate) fn remove(&mut self, worker: WorkerId) {
        if worker.index() < self.places() {
            self.play(worker, ABSENT);
        }
    }

    /// Removes the earliest entry, which is that of `worker`.
    pub(crate) fn act(&mut self, worker: WorkerId) {
        self.acting = Some(worker);
    }

    /// The earliest entry.
    pub(crate) fn first(&mut self) -> Option<(Time, WorkerId)> {
        if let Some(acting) = self.acting.take() {
            self.play(acting, ABSENT);
        }
        let at = winner(self.matches.first()?);
        if at == ABSENT {
            return None;
        }
        let mut number = 0;
        loop {
            // Of equal times, the first is that of the lowest rank.
            let player = self.matches[number].iter().position(|&time| time == at)?;
            if number >= self.inner {
                return Some((at, WorkerId(((number - self.inner) * PLAYERS + player) as u32)));
            }
            number = number * PLAYERS + 1 + player;
        }
    }

    /// How many workers there is room for.
    fn places(&self) -> usize {
        (self.matches.len() - self.inner) * PLAYERS
    }

    /// Plays the worker's matches again, as far as they can have another winner.
    fn play(&mut self, worker: WorkerId, at: Time) {
        let mut time = at;
        let mut place = self.inner * PLAYERS + worker.index();
        loop {
            let number = place / PLAYERS;
            let players = &mut self.matches[number];
            let before = std::mem::replace(&mut players[place % PLAYERS], time);
            if before == time || number == 0 {
                return;
            }
            time = winner(players);
            place = number - 1;
        }
    }

    /// Makes room for this number of workers.
    fn grow(&mut self, workers: usize) {
        let times = self.matches.split_off(self.inner).concat();
        let mut outer = 1;
        self.inner = 0;
        while outer * PLAYERS < workers {
            self.inner += outer;
            outer *= PLAYERS;
        }
        self.matches = vec![[ABSENT; PLAYERS]; self.inner + outer];
        (0..).map(WorkerId).zip(times).for_each(|(worker, at)| self.play(worker, at));
    }
}

fn winner(&[a, b, c, d]: &[Time; PLAYERS]) -> Time {
    a.min(b).min(c.min(d))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn orders_like_a_sorted_map(steps in prop::collection::vec((0..70_u32, prop::option::of(0..50_u64)), 0..300)) {
            let mut queue = EventQueue::default();
            let mut model = BTreeMap::new();
            for (worker, at) in steps {
                let mut worker = WorkerId(worker);
                // The first acts; it may get another entry or none.
                if worker.0.is_multiple_of(3) && let Some((_, first)) = queue.first() {
                    queue.act(first);
                    model.remove(&first);
                    worker = if worker.0.is_multiple_of(2) { first } else { worker };
                }
                match at {
                    Some(at) => {
                        queue.set(worker, Time(at));
                        model.insert(worker, Time(at));
                    }
                    None => {
                        queue.remove(worker);
                        model.remove(&worker);
                    }
                }
                prop_assert_eq!(queue.first(), model.iter().map(|(&worker, &at)| (at, worker)).min());
            }
        }
    }
}
