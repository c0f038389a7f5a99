//! The event queue of a simulation: when each worker acts next.

use paceline_core::{Time, WorkerId};

/// Children per heap node. Four keep the heap shallow and the nodes close together in memory.
const ARITY: usize = 4;
const ABSENT: u32 = u32::MAX;

/// A priority queue with at most one entry per worker, so that an interrupted task leaves no entry behind.
///
/// Entries with equal times are ordered by rank.
#[derive(Debug, Default)]
pub(crate) struct EventQueue {
    heap: Vec<(Time, WorkerId)>,
    /// Each worker's index in the heap.
    positions: Vec<u32>,
}

impl EventQueue {
    /// Sets or moves the worker's entry.
    pub(crate) fn set(&mut self, worker: WorkerId, at: Time) {
        if worker.index() >= self.positions.len() {
            self.positions.resize(worker.index() + 1, ABSENT);
        }
        let position = self.positions[worker.index()];
        if position == ABSENT {
            self.heap.push((at, worker));
            self.sift_up(self.heap.len() - 1);
        } else {
            self.heap[position as usize].0 = at;
            self.reorder(position as usize);
        }
    }

    /// Removes the worker's entry, if it has one.
    pub(crate) fn remove(&mut self, worker: WorkerId) {
        let Some(&position) = self.positions.get(worker.index()).filter(|&&position| position != ABSENT) else {
            return;
        };
        self.positions[worker.index()] = ABSENT;
        let position = position as usize;
        let last = self.heap.pop();
        if let Some(last) = last.filter(|_| position < self.heap.len()) {
            self.heap[position] = last;
            self.reorder(position);
        }
    }

    /// The earliest entry.
    pub(crate) fn first(&self) -> Option<(Time, WorkerId)> {
        self.heap.first().copied()
    }

    /// Restores the heap order after an entry's time changed.
    fn reorder(&mut self, position: usize) {
        if self.sift_up(position) == position {
            self.sift_down(position);
        }
    }

    fn sift_up(&mut self, mut position: usize) -> usize {
        let entry = self.heap[position];
        while position > 0 {
            let parent = (position - 1) / ARITY;
            if self.heap[parent] <= entry {
                break;
            }
            self.put(position, self.heap[parent]);
            position = parent;
        }
        self.put(position, entry);
        position
    }

    fn sift_down(&mut self, mut position: usize) {
        let entry = self.heap[position];
        loop {
            let first = position * ARITY + 1;
            let children = first..(first + ARITY).min(self.heap.len());
            let Some(smallest) = children.min_by_key(|&child| self.heap[child]) else { break };
            if self.heap[smallest] >= entry {
                break;
            }
            self.put(position, self.heap[smallest]);
            position = smallest;
        }
        self.put(position, entry);
    }

    fn put(&mut self, position: usize, entry: (Time, WorkerId)) {
        self.heap[position] = entry;
        self.positions[entry.1.index()] = position as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn orders_like_a_sorted_map(steps in prop::collection::vec((0..20_u32, prop::option::of(0..50_u64)), 0..300)) {
            let mut queue = EventQueue::default();
            let mut model = BTreeMap::new();
            for (worker, at) in steps {
                let worker = WorkerId(worker);
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
