//! How many iterations each worker has completed.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::WorkerId;

/// How many iterations each joined worker has completed.
///
/// A worker that joins starts with the count of the slowest, so that it neither holds the others back nor starts ahead.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(from = "SavedClocks", into = "SavedClocks")]
pub struct Clocks {
    /// By rank; `None` for a worker that has not joined.
    of: Vec<Option<u64>>,
    /// The least of the counts.
    slowest: u64,
    /// The workers with that count, a bit for each rank.
    slowest_ranks: Vec<u64>,
    /// How many they are; 0 only if nobody has joined.
    slowest_count: usize,
}

/// Clocks as they are saved.
#[derive(Serialize, Deserialize)]
struct SavedClocks {
    /// By rank; 0 for a worker that never joined.
    of: Vec<u64>,
    /// The joined workers, the slowest first.
    order: BTreeSet<(u64, WorkerId)>,
}

impl From<SavedClocks> for Clocks {
    fn from(SavedClocks { of, order }: SavedClocks) -> Self {
        let slowest_ranks = vec![0; of.len().div_ceil(BITS)];
        let mut clocks = Clocks { of: vec![None; of.len()], slowest_ranks, ..Clocks::default() };
        for (clock, worker) in order {
            clocks.insert(worker, clock);
        }
        clocks.find_slowest();
        clocks
    }
}

impl From<Clocks> for SavedClocks {
    fn from(clocks: Clocks) -> Self {
        let order = (0..).map(WorkerId).zip(&clocks.of).filter_map(|(worker, clock)| Some(((*clock)?, worker)));
        SavedClocks { order: order.collect(), of: clocks.of.iter().map(|clock| clock.unwrap_or(0)).collect() }
    }
}

const BITS: usize = u64::BITS as usize;

impl Clocks {
    pub(crate) fn join(&mut self, worker: WorkerId) {
        self.insert(worker, self.slowest);
        self.slowest_ranks[worker.index() / BITS] |= 1 << (worker.index() % BITS);
        self.slowest_count += 1;
    }

    fn insert(&mut self, worker: WorkerId, clock: u64) {
        if worker.index() >= self.of.len() {
            self.of.resize(worker.index() + 1, None);
            self.slowest_ranks.resize(self.of.len().div_ceil(BITS), 0);
        }
        self.of[worker.index()] = Some(clock);
    }

    pub(crate) fn leave(&mut self, worker: WorkerId) {
        if let Some(clock) = self.of[worker.index()].take() {
            self.passed(worker, clock);
        }
    }

    pub(crate) fn tick(&mut self, worker: WorkerId) {
        if let Some(clock) = &mut self.of[worker.index()] {
            let before = *clock;
            *clock += 1;
            self.passed(worker, before);
        }
    }

    /// The worker no longer has this count.
    fn passed(&mut self, worker: WorkerId, clock: u64) {
        if clock == self.slowest {
            self.slowest_ranks[worker.index() / BITS] &= !(1 << (worker.index() % BITS));
            self.slowest_count -= 1;
            if self.slowest_count == 0 {
                self.find_slowest();
            }
        }
    }

    /// Looks at all workers, which happens once in as many iterations at least.
    fn find_slowest(&mut self) {
        self.slowest = self.of.iter().flatten().copied().min().unwrap_or(0);
        self.slowest_count = 0;
        for (word, clocks) in self.slowest_ranks.iter_mut().zip(self.of.chunks(BITS)) {
            let bit = |(rank, clock): (usize, &Option<u64>)| u64::from(*clock == Some(self.slowest)) << rank;
            *word = clocks.iter().enumerate().map(bit).sum();
            self.slowest_count += word.count_ones() as usize;
        }
    }

    /// How many iterations the worker is ahead of the slowest.
    pub fn lead(&self, worker: WorkerId) -> u64 {
        self.of[worker.index()].map_or(0, |clock| clock - self.slowest)
    }

    /// One of the slowest workers: the first from `worker` on in rank, cyclically. Waiting workers are spread over the
    /// slowest ones, which keeps the wake-ups of a round at n log n instead of n².
    pub fn slowest_after(&self, worker: WorkerId) -> WorkerId {
        let words = &self.slowest_ranks;
        let first = worker.index() / BITS;
        let own = words.get(first).map_or(0, |word| word & (u64::MAX << (worker.index() % BITS)));
        let from = |index: usize, word: u64| (word != 0).then(|| index * BITS + word.trailing_zeros() as usize);
        let after = || (first + 1..words.len()).chain(0..=first).find_map(|index| from(index, *words.get(index)?));
        from(first, own).or_else(after).map_or(worker, |rank| WorkerId(rank as u32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn clocks_are_those_of_a_sorted_set(steps in prop::collection::vec((0..150_u32, 0..8_u8), 0..400)) {
            let mut clocks = Clocks::default();
            let mut of = std::collections::BTreeMap::new();
            for (rank, step) in steps {
                let worker = WorkerId(rank);
                match (step, of.get(&worker).copied()) {
                    (0, Some(_)) => {
                        clocks.leave(worker);
                        of.remove(&worker);
                    }
                    (_, Some(clock)) => {
                        clocks.tick(worker);
                        of.insert(worker, clock + 1);
                    }
                    (_, None) => {
                        clocks.join(worker);
                        of.insert(worker, of.values().copied().min().unwrap_or(0));
                    }
                }
                let order: BTreeSet<(u64, WorkerId)> = of.iter().map(|(&worker, &clock)| (clock, worker)).collect();
                let slowest = order.first().map_or(0, |&(clock, _)| clock);
                for &(clock, worker) in &order {
                    prop_assert_eq!(clocks.lead(worker), clock - slowest);
                }
                for rank in 0..150 {
                    let ranks = || order.iter().filter(|(clock, _)| *clock == slowest).map(|&(_, worker)| worker);
                    let expected = ranks().find(|slow| slow.0 >= rank).or(ranks().next()).unwrap_or(WorkerId(rank));
                    prop_assert_eq!(clocks.slowest_after(WorkerId(rank)), expected);
                }
                let text = serde_json::to_string(&clocks).unwrap();
                let read: Clocks = serde_json::from_str(&text).unwrap();
                prop_assert_eq!(serde_json::to_string(&read).unwrap(), text);
            }
        }
    }
}
