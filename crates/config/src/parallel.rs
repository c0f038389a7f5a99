//! Several runs at once, with results in order.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use paceline_runtime::is_interrupted;

/// The number of threads: the given one, or else one per core.
pub fn threads(given: Option<u16>) -> usize {
    given.map_or_else(|| std::thread::available_parallelism().map_or(1, usize::from), usize::from)
}

/// Runs all jobs, `at_once` at a time. Passes the results to `each` in the order of the jobs, each as soon as the
/// earlier ones are done; a job may have none. After a failure or an interrupt, no further job is started.
pub fn run<Job: Sync, Done: Send>(
    jobs: &[Job],
    at_once: usize,
    work: impl Fn(&Job) -> anyhow::Result<Option<Done>> + Sync,
    each: impl FnMut(Done) + Send,
) -> anyhow::Result<()> {
    let next = AtomicUsize::new(0);
    let queue = Mutex::new(OrderedResults { done: jobs.iter().map(|_| None).collect(), delivered: 0, each });
    let failure = Mutex::new(None);
    let run_jobs = || {
        while let Some((index, job)) = take(&next, jobs).filter(|_| !is_interrupted()) {
            match work(job) {
                Ok(None) => {}
                Ok(Some(done)) => queue.lock().unwrap_or_else(PoisonError::into_inner).put(index, done),
                Err(error) => {
                    failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                    next.store(jobs.len(), Ordering::Relaxed);
                }
            }
        }
    };
    std::thread::scope(|scope| (0..at_once).for_each(|_| drop(scope.spawn(run_jobs))));
    queue.into_inner().unwrap_or_else(PoisonError::into_inner).put_rest();
    failure.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
}

fn take<'a, Job>(next: &AtomicUsize, jobs: &'a [Job]) -> Option<(usize, &'a Job)> {
    let index = next.fetch_add(1, Ordering::Relaxed);
    Some((index, jobs.get(index)?))
}

/// Results that are kept until the earlier ones are done.
struct OrderedResults<Done, Each> {
    done: Vec<Option<Done>>,
    delivered: usize,
    each: Each,
}

impl<Done, Each: FnMut(Done)> OrderedResults<Done, Each> {
    fn put(&mut self, index: usize, done: Done) {
        self.done[index] = Some(done);
        while let Some(done) = self.done.get_mut(self.delivered).and_then(Option::take) {
            (self.each)(done);
            self.delivered += 1;
        }
    }

    /// Passes on what waits for jobs that were not done.
    fn put_rest(mut self) {
        self.done.into_iter().flatten().for_each(&mut self.each);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::bail;

    #[test]
    fn results_come_in_the_order_of_the_jobs() {
        let jobs: Vec<u64> = (0..50).collect();
        for at_once in [1, 2, 7] {
            let mut results = Vec::new();
            run(&jobs, at_once, |job| Ok(Some(job * job)), |done| results.push(done)).unwrap();
            assert_eq!(results, jobs.iter().map(|job| job * job).collect::<Vec<_>>());
        }
    }

    #[test]
    fn no_job_starts_after_a_failure() {
        let mut results = Vec::new();
        let work = |job: &u64| if *job == 3 { bail!("job 3") } else { Ok((*job > 0).then_some(*job)) };
        let error = run(&(0..50).collect::<Vec<_>>(), 1, work, |done| results.push(done)).unwrap_err();
        assert_eq!((error.to_string().as_str(), results), ("job 3", vec![1, 2]));
    }
}
