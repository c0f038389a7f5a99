//! The search among arithmetic progressions, which sweeps only the slow workers.
//!
//! A worker whose interval is at most `d` has a time in every window of length `d` that ends after its first time and
//! starts before its last. So only workers slower than the best window so far can rule out a shorter one. A sweep over
//! these workers rules out most starts, and the few that remain are checked against all workers. As the best window
//! shrinks, the sweep includes more workers. With many workers they remain a small share of all.

use std::cmp::Reverse;

use super::Window;
use super::time_slice::TimeSlice;
use super::times::{Bounds, Progression};

/// The fewest expected events of a slice, so that few workers don't give many nearly empty slices.
const EVENTS_PER_SLICE: usize = 128;

/// A reusable search.
#[derive(Debug, Default)]
pub(super) struct ProgressionSearch {
    /// The slowest first.
    workers: Vec<Progression>,
    /// The next times of the workers that the sweep follows, the first ones of `workers`.
    next: Vec<u64>,
}

impl ProgressionSearch {
    /// The shortest window, the earliest of equals, for workers within `bounds`.
    pub fn shortest(&mut self, workers: &[Progression], bounds: Bounds, slice: &mut TimeSlice) -> Window {
        self.workers.clear();
        self.workers.extend_from_slice(workers);
        self.workers.sort_unstable_by_key(|worker| Reverse(worker.interval));
        self.next.clear();
        self.next.reserve(workers.len());
        slice.reserve(workers.len().max(EVENTS_PER_SLICE));
        let Self { workers, next } = self;

        let mut best = Window::NONE;
        let mut reach = bounds.earliest_end;
        improve(&mut best, workers, bounds, reach, bounds.earliest_start);
        let mut start = bounds.earliest_start;
        let mut length = 0;
        while best.wait > 0 {
            // Skip starts that can't improve if they fill a slice.
            let useful = first_useful_start(&best, reach);
            if useful > start.saturating_add(length) {
                start = useful;
                next.clear();
            }
            if start > bounds.latest_start {
                break;
            }
            // Include every worker that could rule out a shorter window, and at least one.
            while next.is_empty() || workers.get(next.len()).is_some_and(|worker| worker.interval > best.wait) {
                let time = workers[next.len()].at_or_after(start);
                reach = reach.max(time);
                next.push(time);
            }
            // One interval of the fastest included worker, more if they are few: no worker has more than `times` times.
            let times = (EVENTS_PER_SLICE / next.len()).max(1) as u64;
            length = workers[next.len() - 1].interval.saturating_mul(times);
            let last = bounds.latest_start.min(start.saturating_add(length - 1));
            slice.open(start, last, next.len() * times as usize);
            for (worker, next) in workers.iter().zip(&mut *next) {
                while *next <= last {
                    let after = *next + worker.interval;
                    slice.push(*next, after);
                    *next = after;
                }
            }
            reach = slice.scan(reach, &mut best, |best, start, reach| improve(best, workers, bounds, reach, start));
            // The scan visited the times of the included workers only. A window may start at a later time of another.
            improve(&mut best, workers, bounds, reach, last);
            if last == bounds.latest_start {
                break;
            }
            start = last + 1;
        }
        best
    }
}

/// The first start from which a window that ends at `reach` or later can be shorter than `best`.
fn first_useful_start(best: &Window, reach: u64) -> u64 {
    reach.checked_sub(best.wait).map_or(0, |useless| useless.saturating_add(1))
}

/// Replaces `best` by the shortest window that starts by `latest_start` and ends at `reach` or later, if one is
/// shorter.
fn improve(best: &mut Window, workers: &[Progression], bounds: Bounds, reach: u64, latest_start: u64) {
    let mut start = first_useful_start(best, reach);
    while start <= latest_start && best.wait > 0 {
        let end = earliest_end(workers, bounds, start, best.wait);
        if best.improved_by(start, end) {
            let latest_start = latest_start_before(workers, bounds, end);
            *best = Window { wait: end - latest_start, at: end };
            start = latest_start.saturating_add(1);
        } else {
            // Later starts end no earlier: up to this one they can't improve either.
            start = first_useful_start(best, end);
        }
    }
}

/// The end of the shortest window from `start`, or any end that makes the window at least `limit` long.
fn earliest_end(workers: &[Progression], bounds: Bounds, start: u64, limit: u64) -> u64 {
    let mut end = bounds.earliest_end.max(start);
    for worker in workers {
        // This one and the faster ones that follow have a time in the window.
        if worker.interval - 1 <= end - start || end - start >= limit {
            break;
        }
        end = end.max(worker.at_or_after(start));
    }
    end
}

/// The start of the shortest window that ends at `end`.
fn latest_start_before(workers: &[Progression], bounds: Bounds, end: u64) -> u64 {
    let mut start = bounds.latest_start.min(end);
    for worker in workers {
        if worker.interval - 1 <= end - start {
            break;
        }
        start = start.min(worker.at_or_before(end));
    }
    start
}
