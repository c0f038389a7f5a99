//! The paper's baselines (section 5.1): naive search, which tries every choice, and the two grid scans, which try the
//! times nearest to a designated one. Neither grid scan is exact, though Table 3 credits FullGridScan with 100 %.

use super::times::PredictedTimes;
use super::{Barrier, Window};

/// Naive search over all `R^n` choices of one time per worker.
pub(super) fn naive(times: &PredictedTimes) -> Window {
    let mut choice = vec![0; times.workers()];
    let mut best = Window::NONE;
    loop {
        let chosen = times.rows().zip(&choice).map(|(row, &index)| row[index]);
        let (start, end) = chosen.fold((u64::MAX, 0), |(start, end), time| (start.min(time), end.max(time)));
        // Choices are not in the order of time, so the end is compared too to find the earliest of equals.
        if (end - start, end) < (best.wait, best.at) {
            best = Window { wait: end - start, at: end };
        }
        // Count up: the first worker with a further time takes it, and the workers before it start over.
        let Some(worker) = choice.iter().position(|&index| index + 1 < times.horizon()) else {
            return best;
        };
        choice[..worker].fill(0);
        choice[worker] += 1;
    }
}

/// Algorithm 1, GridScan: designates each time of the worker that starts first.
pub(super) fn grid_scan(times: &PredictedTimes) -> Barrier {
    // Line 4.
    let designated = (0..times.workers()).min_by_key(|&worker| times.row(worker)[0]);
    scan_from(times, designated)
}

/// FullGridScan: Algorithm 1 without line 4, once for each worker.
pub(super) fn full_grid_scan(times: &PredictedTimes) -> Barrier {
    scan_from(times, 0..times.workers())
}

/// Lines 5–16 of Algorithm 1 for each designated worker. The barrier has the iterations of the scored set `Z`.
fn scan_from(times: &PredictedTimes, designated: impl IntoIterator<Item = usize>) -> Barrier {
    let mut best = Barrier { wait: u64::MAX, at: u64::MAX, iterations: Vec::new() };
    let mut iterations = Vec::with_capacity(times.workers());
    for designated in designated {
        for (designated_index, &time) in times.row(designated).iter().enumerate() {
            iterations.clear();
            let (mut start, mut end) = (time, time);
            for (worker, row) in times.rows().enumerate() {
                let index = if worker == designated { designated_index } else { nearest(row, time) };
                start = start.min(row[index]);
                end = end.max(row[index]);
                iterations.push(index as u32 + 1);
            }
            if end - start < best.wait {
                best.wait = end - start;
                best.at = end;
                best.iterations.clone_from(&iterations);
            }
        }
    }
    best
}

/// Lines 9–10: the first of the times nearest to `time`, by a linear search.
fn nearest(row: &[u64], time: u64) -> usize {
    let mut nearest = 0;
    for (index, candidate) in row.iter().enumerate() {
        if candidate.abs_diff(time) < row[nearest].abs_diff(time) {
            nearest = index;
        }
    }
    nearest
}
