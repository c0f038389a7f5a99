//! The agenda of a simulation: what each worker does next, and when.

use paceline_core::{Time, WorkerId};

/// How many children a node of the heap has: four keep it shallow and its nodes close together.
const ARITY: usize = 4;
const ABSENT: u32 = u32::MAX;

/// A priority queue with at most one entry per worker, so that an interrupted task leaves nothing behind.
///
/// Entries at the same time come by rank.
#[derive(Debug, Default)]
pub(crate) struct Agenda {
    heap: Vec<(Time, WorkerId)>,
    /// Each worker's place in the heap.
    places: Vec<u32>,
}

impl Agenda {
    /// Sets or moves the worker's entry.
    pub(crate) fn set(&mut self, worker: WorkerId, at: Time) {
        if worker.index() >= self.places.len() {
            self.places.resize(worker.index() + 1, ABSENT);
        }
        let place = self.places[worker.index()];
        if place == ABSENT {
            self.heap.push((at, worker));
            self.rise(self.heap.len() - 1);
        } else {
            self.heap[place as usize].0 = at;
            self.settle(place as usize);
        }
    }

    /// Takes the worker's entry out, if there is one.
    pub(crate) fn remove(&mut self, worker: WorkerId) {
        let Some(&place) = self.places.get(worker.index()).filter(|&&place| place != ABSENT) else { return };
        self.places[worker.index()] = ABSENT;
        let place = place as usize;
        let last = self.heap.pop();
        if let Some(last) = last.filter(|_| place < self.heap.len()) {
            self.heap[place] = last;
            self.settle(place);
        }
    }

    /// The earliest entry.
    pub(crate) fn first(&self) -> Option<(Time, WorkerId)> {
        self.heap.first().copied()
    }

    /// Puts an entry that may be too early or too late where it belongs.
    fn settle(&mut self, place: usize) {
        let risen = self.rise(place);
        if risen == place {
            self.sink(place);
        }
    }

    fn rise(&mut self, mut place: usize) -> usize {
        let entry = self.heap[place];
        while place > 0 {
            let parent = (place - 1) / ARITY;
            if self.heap[parent] <= entry {
                break;
            }
            self.put(place, self.heap[parent]);
            place = parent;
        }
        self.put(place, entry);
        place
    }

    fn sink(&mut self, mut place: usize) {
        let entry = self.heap[place];
        loop {
            let first = place * ARITY + 1;
            let children = first..(first + ARITY).min(self.heap.len());
            let Some(least) = children.min_by_key(|&child| self.heap[child]) else { break };
            if self.heap[least] >= entry {
                break;
            }
            self.put(place, self.heap[least]);
            place = least;
        }
        self.put(place, entry);
    }

    fn put(&mut self, place: usize, entry: (Time, WorkerId)) {
        self.heap[place] = entry;
        self.places[entry.1.index()] = place as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn it_is_a_sorted_map(steps in prop::collection::vec((0..20_u32, prop::option::of(0..50_u64)), 0..300)) {
            let mut agenda = Agenda::default();
            let mut model = BTreeMap::new();
            for (worker, at) in steps {
                let worker = WorkerId(worker);
                match at {
                    Some(at) => {
                        agenda.set(worker, Time(at));
                        model.insert(worker, Time(at));
                    }
                    None => {
                        agenda.remove(worker);
                        model.remove(&worker);
                    }
                }
                prop_assert_eq!(agenda.first(), model.iter().map(|(&worker, &at)| (at, worker)).min());
            }
        }
    }
}
