//! The event queue of a simulation: when each worker acts next.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use paceline_core::{Time, WorkerId};

/// The time of a worker without an entry.
const ABSENT: Time = Time(u64::MAX);

/// A priority queue with at most one entry per worker. Entries with equal times are ordered by rank.
///
/// What is moved or removed stays in the heap until it is the first, or until half of the heap is outdated.
#[derive(Debug, Default)]
pub(crate) struct EventQueue {
    /// When each worker acts, by rank.
    times: Vec<Time>,
    /// An element is outdated unless its time is that of its worker.
    heap: BinaryHeap<Reverse<u128>>,
}

/// The time, then the rank: one number, which is compared faster than two.
fn number(at: Time, worker: WorkerId) -> u128 {
    u128::from(at.0) << 64 | u128::from(worker.0)
}

fn entry(number: u128) -> (Time, WorkerId) {
    (Time((number >> 64) as u64), WorkerId(number as u32))
}

impl EventQueue {
    /// Sets or moves the worker's entry.
    pub(crate) fn set(&mut self, worker: WorkerId, at: Time) {
        // The last moment of all stands for none.
        let at = at.min(Time(ABSENT.0 - 1));
        if worker.index() >= self.times.len() {
            self.times.resize(worker.index() + 1, ABSENT);
        }
        self.times[worker.index()] = at;
        if self.heap.len() >= 2 * self.times.len() {
            self.drop_outdated();
        }
        self.heap.push(Reverse(number(at, worker)));
    }

    #[cold]
    fn drop_outdated(&mut self) {
        self.heap.retain(|&Reverse(number)| {
            let (at, worker) = entry(number);
            self.times[worker.index()] == at
        });
    }

    /// Removes the worker's entry, if it has one.
    pub(crate) fn remove(&mut self, worker: WorkerId) {
        if let Some(time) = self.times.get_mut(worker.index()) {
            *time = ABSENT;
        }
    }

    /// The earliest entry.
    pub(crate) fn first(&mut self) -> Option<(Time, WorkerId)> {
        while let Some(&Reverse(number)) = self.heap.peek() {
            let (at, worker) = entry(number);
            if self.times[worker.index()] == at {
                return Some((at, worker));
            }
            self.heap.pop();
        }
        None
    }
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
                    queue.remove(first);
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
