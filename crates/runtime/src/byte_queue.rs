//! A queue between two threads, bounded by the bytes in it.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// A queue of items, each of some bytes.
#[derive(Debug)]
pub(crate) struct ByteQueue<T> {
    state: Mutex<QueueState<T>>,
    changed: Condvar,
    limit: usize,
}

#[derive(Debug)]
struct QueueState<T> {
    items: VecDeque<(T, usize)>,
    bytes: usize,
    closed: bool,
}

impl<T> ByteQueue<T> {
    /// An empty queue that takes items up to about this number of bytes in all.
    pub(crate) fn new(limit: usize) -> Self {
        let state = QueueState { items: VecDeque::new(), bytes: 0, closed: false };
        ByteQueue { state: Mutex::new(state), changed: Condvar::new(), limit }
    }

    fn lock(&self) -> MutexGuard<'_, QueueState<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an item. Waits while the queue is full. An item that is added after the end is dropped.
    pub(crate) fn push(&self, item: T, bytes: usize) {
        let state = self.lock();
        let full = |state: &mut QueueState<T>| state.bytes >= self.limit && !state.closed;
        let mut state = self.changed.wait_while(state, full).unwrap_or_else(PoisonError::into_inner);
        if !state.closed {
            state.items.push_back((item, bytes));
            state.bytes += bytes;
            self.changed.notify_all();
        }
    }

    /// The next item, when there is one; `None` after the last.
    pub(crate) fn pop(&self) -> Option<T> {
        let state = self.lock();
        let empty = |state: &mut QueueState<T>| state.items.is_empty() && !state.closed;
        let mut state = self.changed.wait_while(state, empty).unwrap_or_else(PoisonError::into_inner);
        let (item, bytes) = state.items.pop_front()?;
        let was_full = state.bytes >= self.limit;
        state.bytes -= bytes;
        if was_full {
            self.changed.notify_all();
        }
        Some(item)
    }

    /// No item follows. Those in the queue can still be taken.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn all_items_arrive_in_order_within_the_limit() {
        let queue = ByteQueue::new(10);
        thread::scope(|scope| {
            scope.spawn(|| {
                (0..1000).for_each(|number| queue.push(number, number % 7));
                queue.close();
                queue.push(0, 1);
            });
            let mut next = 0;
            while let Some(number) = queue.pop() {
                assert_eq!(number, next);
                assert!(queue.lock().bytes <= 10 + 6);
                next += 1;
            }
            assert_eq!(next, 1000);
        });
        assert_eq!(queue.pop(), None);
    }
}
