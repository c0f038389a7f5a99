//! Whether a run still commits, measured by the pace of its own commits.

use std::time::{Duration, Instant};

/// A run without a commit for less than this is not stalled, however short its iterations are.
const SHORTEST_LIMIT: Duration = Duration::from_secs(30);

/// The model stands still after this many times the longest recent iteration.
const TOLERANCE: f64 = 20.0;

/// A long iteration is forgotten over this many commits per worker. Asynchronous workers may commit in bursts with long
/// pauses between them, so one commit per worker says little.
const MEMORY: f64 = 32.0;

/// The model stands still.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Standstill {
    /// How long there has been no commit.
    pub elapsed: Duration,
    /// How long the longest recent iteration took.
    pub longest: Duration,
}

/// Watches the commits of a run.
#[derive(Debug, Default)]
pub(crate) struct CommitWatch {
    /// The last commit, or when the first worker joined after it. `None` before the run has started.
    since: Option<Instant>,
    /// The longest recent iteration, in seconds.
    longest: Option<f64>,
}

impl CommitWatch {
    /// Whether the run has started.
    pub(crate) fn has_started(&self) -> bool {
        self.since.is_some()
    }

    /// The run starts, or continues after it had no workers.
    pub(crate) fn start(&mut self, now: Instant) {
        self.since = Some(now);
    }

    /// The model was stepped, in a run with this many workers.
    pub(crate) fn on_commit(&mut self, now: Instant, workers: usize) {
        if let Some(since) = self.since.replace(now) {
            let kept = 1.0 - 1.0 / (MEMORY * workers.max(1) as f64);
            let before = self.longest.map_or(0.0, |longest| longest * kept);
            self.longest = Some(before.max(now.saturating_duration_since(since).as_secs_f64()));
        }
    }

    /// The server itself stood still for `span` until now. This is not the model's time.
    pub(crate) fn on_server_stall(&mut self, now: Instant, span: Duration) {
        self.since = self.since.map(|since| since.checked_add(span).map_or(now, |since| since.min(now)));
    }

    /// Whether there has been no commit for too long. Before the first iteration is done, nobody knows how long one
    /// takes.
    pub(crate) fn standstill(&self, now: Instant) -> Option<Standstill> {
        let (since, longest) = (self.since?, self.longest?);
        let elapsed = now.saturating_duration_since(since);
        let limit = (longest * TOLERANCE).max(SHORTEST_LIMIT.as_secs_f64());
        (elapsed.as_secs_f64() > limit).then(|| Standstill { elapsed, longest: Duration::from_secs_f64(longest) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn second(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    #[test]
    fn the_limit_follows_the_pace_of_the_run() {
        let start = Instant::now();
        let mut watch = CommitWatch::default();
        assert_eq!(watch.standstill(start + second(10_000)), None, "it has not started");
        watch.start(start);
        assert_eq!(watch.standstill(start + second(10_000)), None, "no iteration is known");

        watch.on_commit(start + second(10), 1);
        assert_eq!(watch.standstill(start + second(210)), None);
        let found = Standstill { elapsed: second(201), longest: second(10) };
        assert_eq!(watch.standstill(start + second(211)), Some(found));

        // Many short iterations: the long one is forgotten.
        let mut now = start + second(10);
        for _ in 0..1000 {
            now += Duration::from_millis(1);
            watch.on_commit(now, 1);
        }
        assert_eq!(watch.standstill(now + second(30)), None);
        assert!(watch.standstill(now + second(31)).is_some());
        watch.on_commit(now + second(31), 1);
        assert_eq!(watch.standstill(now + second(32)), None);
    }

    #[test]
    fn bursts_of_many_workers_do_not_hide_the_pauses_between_them() {
        let mut now = Instant::now();
        let mut watch = CommitWatch::default();
        watch.start(now);
        for _ in 0..10 {
            now += second(600);
            (0..96).for_each(|_| watch.on_commit(now, 96));
        }
        assert_eq!(watch.standstill(now + second(2 * 600)), None);
    }

    #[test]
    fn the_servers_own_stalls_and_time_without_workers_do_not_count() {
        let start = Instant::now();
        let mut watch = CommitWatch::default();
        watch.start(start);
        watch.on_commit(start + second(1), 1);
        let later = start + second(101);
        assert!(watch.standstill(later).is_some());
        watch.on_server_stall(later, second(90));
        assert_eq!(watch.standstill(later), None);
        watch.on_server_stall(later, second(1_000_000));
        assert!(watch.standstill(later + second(31)).is_some(), "a stall reaches until now and no further");
        watch.start(later + second(31));
        assert_eq!(watch.standstill(later + second(61)), None);
        watch.on_commit(later + second(32), 1);
        assert!(watch.standstill(later + second(63)).is_some(), "the time without workers was no iteration");
    }
}
