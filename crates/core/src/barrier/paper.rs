//! The paper's three ZipLine algorithms (sections 5.2 and 5.3), with two corrections.
//!
//! Algorithm 2 as printed scores a set after *every* point it takes (lines 20–23 are inside the loop of line 15), also
//! while one worker is missing: on the workers \[1, 10\] and \[5, 6\] it reports a wait of 0, that of worker 2 alone,
//! where the best is 4. Here a set is scored only when it contains all n workers, and the search ends when Ω is empty
//! inside that loop. With the strict `<` of line 21 the earliest of several optima is kept.

use super::Window;
use super::times::PredictedTimes;

/// `e_i^p`: ordered by time, then by worker, as ZipLineOptBS needs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct FinishTime {
    time: u64,
    worker: u32,
    index: u32,
}

/// Ω: all points in ascending order (lines 2–3).
fn omega(times: &PredictedTimes) -> Vec<FinishTime> {
    let rows = (0..).zip(times.rows());
    let mut omega: Vec<FinishTime> = rows
        .flat_map(|(worker, row)| (0..).zip(row).map(move |(index, &time)| FinishTime { time, worker, index }))
        .collect();
    omega.sort_unstable();
    omega
}

/// Algorithm 2, ZipLine: `Z` is unsorted and searched throughout for a worker's point and for the smallest.
pub(super) fn basic(times: &PredictedTimes) -> Window {
    let mut set: Vec<FinishTime> = Vec::with_capacity(times.workers());
    let mut best = Window::NONE;
    for point in omega(times) {
        if let Some(same) = set.iter().position(|other| other.worker == point.worker) {
            set.swap_remove(same);
        }
        set.push(point);
        if set.len() == times.workers() {
            let first = (0..set.len()).min_by_key(|&index| set[index]).expect("a matrix has at least one worker");
            let start = set[first].time;
            if best.improved_by(start, point.time) {
                best = Window { wait: point.time - start, at: point.time };
            }
            set.swap_remove(first);
        }
    }
    best
}

/// Section 5.3.1, ZipLineOpt: `Z` is sorted, and scored only when its oldest point is replaced (Theorem 3). Another
/// worker's point is found by walking along `Z`.
pub(super) fn opt(times: &PredictedTimes) -> Window {
    sorted_search(times, |set, point| set.iter().position(|other| other.worker == point.worker))
}

/// Section 5.3.2, ZipLineOptBS: as ZipLineOpt, but the worker's previous point is looked up in the matrix and found by
/// binary search.
pub(super) fn opt_bs(times: &PredictedTimes) -> Window {
    sorted_search(times, |set, point| {
        let index = point.index.checked_sub(1)?;
        let previous = FinishTime { time: times.row(point.worker as usize)[index as usize], index, ..point };
        set.binary_search(&previous).ok()
    })
}

/// The search of both. `find` returns the index in the sorted `Z` of the previous point of the same worker.
fn sorted_search(times: &PredictedTimes, find: impl Fn(&[FinishTime], FinishTime) -> Option<usize>) -> Window {
    let omega = omega(times);
    // Z is `set[first..]`: dropping the oldest point increments `first`.
    let mut set: Vec<FinishTime> = Vec::with_capacity(omega.len());
    let mut first = 0;
    let mut best = Window::NONE;
    for point in omega {
        let oldest_goes = set.get(first).is_some_and(|oldest| oldest.worker == point.worker);
        if oldest_goes {
            first += 1;
        } else if let Some(same) = find(&set[first..], point) {
            set.remove(first + same);
        }
        set.push(point);
        // The first complete set is scored too, no matter which worker completes it.
        let complete = set.len() - first == times.workers();
        if complete && (oldest_goes || best == Window::NONE) && best.improved_by(set[first].time, point.time) {
            best = Window { wait: point.time - set[first].time, at: point.time };
        }
    }
    best
}
