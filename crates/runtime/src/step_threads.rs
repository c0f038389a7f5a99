//! The threads that sum updates and step the model.

use std::sync::{Mutex, MutexGuard, PoisonError};

use rayon::{ThreadPool, ThreadPoolBuilder};

/// Parts of a step per thread. A thread that starts late, or shares its processor, takes fewer of them.
const PARTS_PER_THREAD: usize = 8;

/// Threads that are kept between steps, and the one that asks them.
#[derive(Debug)]
pub(crate) struct StepThreads {
    /// All but the one that asks. `None` if there is no other, or the system has no thread to spare.
    others: Option<ThreadPool>,
    count: usize,
}

impl StepThreads {
    /// This many threads; zero count as one.
    pub(crate) fn new(count: usize) -> Self {
        let start = |count| ThreadPoolBuilder::new().num_threads(count).thread_name(|_| "step".into()).build();
        let others = (count > 1).then(|| start(count - 1).ok()).flatten();
        StepThreads { count: if others.is_some() { count } else { 1 }, others }
    }

    /// The number of parts to cut a step into.
    pub(crate) fn parts(&self) -> usize {
        if self.count > 1 { self.count * PARTS_PER_THREAD } else { 1 }
    }

    /// Calls `run` with every part. The results come in the order of the parts.
    pub(crate) fn map<P: Send, R: Send>(&self, parts: Vec<P>, run: impl Fn(P) -> R + Sync) -> Vec<R> {
        let helpers = self.count.min(parts.len()).saturating_sub(1);
        let Some(others) = self.others.as_ref().filter(|_| helpers > 0) else {
            return parts.into_iter().map(run).collect();
        };
        let results = Mutex::new(Vec::with_capacity(parts.len()));
        let left = Mutex::new(parts.into_iter().enumerate());
        let next = || lock(&left).next();
        let work = || {
            while let Some((index, part)) = next() {
                let result = run(part);
                lock(&results).push((index, result));
            }
        };
        others.in_place_scope(|scope| {
            (0..helpers).for_each(|_| scope.spawn(|_| work()));
            work();
        });
        let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
        results.sort_by_key(|(index, _)| *index);
        results.into_iter().map(|(_, result)| result).collect()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_is_done_once_and_results_are_in_order() {
        for count in [0, 1, 2, 5] {
            let threads = StepThreads::new(count);
            for parts in [0, 1, 3, 100] {
                let results = threads.map((0..parts).collect(), |part: usize| part * part);
                assert_eq!(results, (0..parts).map(|part| part * part).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    #[should_panic(expected = "part 7")]
    fn a_panic_reaches_the_one_that_asks() {
        StepThreads::new(3).map((0..20).collect(), |part| assert!(part != 7, "part {part}"));
    }
}
