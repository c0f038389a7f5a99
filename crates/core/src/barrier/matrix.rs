//! The search in any matrix of times: one sweep over the timeline, slice by slice.

use super::Window;
use super::time_slice::TimeSlice;
use super::times::PredictedTimes;

/// The average number of times per worker in a slice: two cache lines, so that reading a few times from each row uses
/// whole cache lines.
const TIMES_PER_SLICE: usize = 16;

/// The shortest window, the earliest of equals. `cursors` is a scratch buffer.
pub(super) fn shortest(times: &PredictedTimes, slice: &mut TimeSlice, cursors: &mut Vec<usize>) -> Window {
    let bounds = times.bounds();
    let slices = times.horizon().div_ceil(TIMES_PER_SLICE);
    let length = (bounds.latest_start - bounds.earliest_start) / slices as u64;
    let expected = times.workers().saturating_mul(times.horizon().min(TIMES_PER_SLICE));
    cursors.clear();
    cursors.resize(times.workers(), 0);

    let mut best = Window::NONE;
    let mut reach = bounds.earliest_end;
    let mut start = bounds.earliest_start;
    loop {
        let last = start.saturating_add(length).min(bounds.latest_start);
        slice.open(start, last, expected);
        for (row, cursor) in times.rows().zip(&mut *cursors) {
            while let Some(&time) = row.get(*cursor).filter(|&&time| time <= last) {
                *cursor += 1;
                // No window starts after a worker's last time.
                slice.push(time, row.get(*cursor).copied().unwrap_or(u64::MAX));
            }
        }
        reach = slice.scan(reach, &mut best, |best, start, end| *best = Window { wait: end - start, at: end });
        if last == bounds.latest_start {
            return best;
        }
        start = last + 1;
    }
}
