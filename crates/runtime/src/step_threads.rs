//! The threads that sum updates and step the model.

use std::num::NonZero;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::available_parallelism;

use rayon::{ThreadPool, ThreadPoolBuilder};

/// Parts of a step per thread. A thread that starts late, or shares its processor, takes fewer of them.
const PARTS_PER_THREAD: usize = 8;

/// How many values are worth another thread on an idle processor.
const VALUES_PER_IDLE_PROCESSOR: usize = 1 << 17;

/// How many values are worth another thread on a busy one: the run waits for the step.
const VALUES_PER_BUSY_PROCESSOR: usize = 1 << 21;

/// Threads that are kept between steps, and the one that asks them.
#[derive(Debug)]
pub struct StepThreads {
    /// All but the one that asks. `None` if there is no other, or the system has no thread to spare.
    others: Option<ThreadPool>,
    /// How many take part in a step.
    active: usize,
    choice: Choice,
}

/// Who chooses the number of threads.
#[derive(Debug, Clone, Copy)]
enum Choice {
    User,
    /// It depends on the length of the model, the number of gradients and the idle ones of the processors.
    Automatic {
        values: usize,
        processors: usize,
    },
}

impl StepThreads {
    /// This many threads; zero count as one.
    pub fn new(count: usize) -> Self {
        StepThreads::start(count, Choice::User)
    }

    /// As many threads as are worthwhile for a model of this length and at most this many gradients.
    pub fn automatic(values: usize, gradients: usize) -> Self {
        let processors = available_parallelism().map_or(1, NonZero::get);
        let choice = Choice::Automatic { values, processors };
        StepThreads::start(worthwhile(touched(values, gradients), processors, processors), choice)
    }

    fn start(count: usize, choice: Choice) -> Self {
        let start = |count| ThreadPoolBuilder::new().num_threads(count).thread_name(|_| "step".into()).build();
        let others = (count > 1).then(|| start(count - 1).ok()).flatten();
        StepThreads { active: if others.is_some() { count } else { 1 }, others, choice }
    }

    /// For a step of this many gradients: leaves the processors alone that have other work now, as many as `busy` says.
    pub fn spare(&mut self, gradients: usize, busy: impl FnOnce() -> usize) {
        if let Choice::Automatic { values, processors } = self.choice
            && let Some(others) = &self.others
        {
            let idle = processors.saturating_sub(busy());
            self.active =
                worthwhile(touched(values, gradients), idle, processors).min(others.current_num_threads() + 1);
        }
    }

    /// The number of parts to cut a step into.
    pub(crate) fn parts(&self) -> usize {
        if self.active > 1 { self.active * PARTS_PER_THREAD } else { 1 }
    }

    /// Calls `run` with every part. The results come in the order of the parts.
    pub(crate) fn map<P: Send, R: Send>(&self, parts: Vec<P>, run: impl Fn(P) -> R + Sync) -> Vec<R> {
        let helpers = self.active.min(parts.len()).saturating_sub(1);
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

/// The values of a step of one gradient that takes as long: it reads the gradients and the model, and writes the model.
fn touched(values: usize, gradients: usize) -> usize {
    values.saturating_mul(gradients + 2) / 3
}

/// How many threads are worth their start for a step of this many values.
fn worthwhile(values: usize, idle: usize, processors: usize) -> usize {
    let on_idle = (values / VALUES_PER_IDLE_PROCESSOR).min(idle);
    on_idle.max(values / VALUES_PER_BUSY_PROCESSOR).clamp(1, processors.max(1))
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

    #[test]
    fn large_models_get_idle_processors_and_huge_ones_busy_ones_too() {
        assert_eq!(worthwhile(100_000, 16, 16), 1);
        assert_eq!(worthwhile(1_000_000, 16, 16), 7);
        assert_eq!(worthwhile(1_000_000, 1, 16), 1);
        assert_eq!(worthwhile(25_600_000, 16, 16), 16);
        assert_eq!(worthwhile(25_600_000, 4, 16), 12);
        assert_eq!(worthwhile(25_600_000, 0, 2), 2);
        assert_eq!(worthwhile(touched(100_000, 1), 16, 16), 1);
        assert_eq!(worthwhile(touched(100_000, 8), 16, 16), 2);
    }

    #[test]
    fn what_the_user_chose_stays() {
        let mut threads = StepThreads::new(3);
        threads.spare(1, || 100);
        assert_eq!(threads.active, 3);
        let mut threads = StepThreads::start(4, Choice::Automatic { values: 1 << 20, processors: 4 });
        for (busy, active) in [(0, 4), (1, 3), (4, 1), (9, 1), (0, 4)] {
            threads.spare(1, || busy);
            assert_eq!(threads.active, active, "{busy} busy");
        }
    }
}
