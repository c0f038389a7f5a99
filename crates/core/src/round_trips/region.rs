//! The exact fit of one region: decides whether a set of cells is one block, and otherwise where it splits.
//!
//! (17)'s constraints are 2-D dominance. Give cell (h, k) the coordinates X = k and Y = −h below the diagonal (k < h),
//! 0 on it, n + 1 − h above it: cell a may not exceed cell b exactly if X and Y of a are at most those of b. A set of
//! cells with mean c is one block if no upper set of it has a mean above c, that is, if all the surplus Σy − c·w of the
//! cells above c can be moved up the order to cells below c. One sweep over the columns does this greedily: surplus is
//! stored at its Y, and each deficit uses the nearest surplus below it. The surplus that remains at the end is the
//! largest gain of any upper set, and its position determines that set.

use serde::{Deserialize, Serialize};

use super::bits;

/// The samples of one cell: their sum in seconds and their weight (the count, unless samples are discounted).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct CellSamples {
    pub(super) sum: f64,
    pub(super) weight: f64,
}

/// A run of neighbouring positions `start..end` in one column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct CellRun {
    pub(super) column: u32,
    pub(super) start: u32,
    pub(super) end: u32,
}

impl CellRun {
    /// The indices of the run's cells in arrays over all cells.
    pub(super) fn cells(self, workers: usize) -> std::ops::Range<usize> {
        let column = self.column as usize * workers;
        column + self.start as usize..column + self.end as usize
    }
}

/// Gains below this share of the region's total are rounding errors. A split at a smaller gain would be harmless, but
/// could separate cells without weight, which have no mean.
const ROUNDING: f64 = 1e-13;

/// The runs of one column and the first position that belongs to the upper part.
#[derive(Clone, Copy, Debug)]
struct Column {
    first_run: usize,
    threshold: usize,
}

/// Splits regions. Contains only scratch space, sized once for the table.
#[derive(Clone, Debug)]
pub(super) struct Splitter {
    workers: usize,
    /// The stored surplus, by Y counted from 0: positions below the diagonal, the diagonal, positions above it.
    surplus: Vec<f64>,
    /// The set of Y with stored surplus.
    waiting: Vec<u64>,
    /// `waiting` after each column of the region; only the words that the region spans.
    history: Vec<u64>,
    columns: Vec<Column>,
}

impl Splitter {
    pub(super) fn new(workers: usize) -> Self {
        let heights = 2 * workers;
        Self {
            workers,
            surplus: vec![0.0; heights],
            waiting: vec![0; bits::words(heights)],
            history: Vec::new(),
            columns: Vec::new(),
        }
    }

    /// The value of the region if it is one block. Otherwise `None`, and its runs are appended to `lower` and `upper`
    /// such that fitting the two separately fits the region. `runs` are sorted and so are the parts.
    pub(super) fn split(
        &mut self,
        cells: &[CellSamples],
        runs: &[CellRun],
        lower: &mut Vec<CellRun>,
        upper: &mut Vec<CellRun>,
    ) -> Option<f64> {
        let (mut sum, mut weight) = (0.0, 0.0);
        for run in runs {
            // Summing run by run keeps rounding errors of large regions small.
            let (mut run_sum, mut run_weight) = (0.0, 0.0);
            for cell in &cells[run.cells(self.workers)] {
                run_sum += cell.sum;
                run_weight += cell.weight;
            }
            sum += run_sum;
            weight += run_weight;
        }
        // Cells without samples get 0, their lowest possible value, since durations are not negative.
        let level = if weight > 0.0 { sum / weight } else { 0.0 };

        self.columns.clear();
        let is_whole = if runs[0].column == runs[runs.len() - 1].column {
            self.is_column_whole(cells, runs, level, sum * ROUNDING)
        } else {
            self.is_whole(cells, runs, level, sum * ROUNDING)
        };
        if is_whole {
            return Some(level);
        }
        for (number, column) in self.columns.iter().enumerate() {
            let end = self.columns.get(number + 1).map_or(runs.len(), |next| next.first_run);
            for run in &runs[column.first_run..end] {
                let threshold = (column.threshold as u32).clamp(run.start, run.end);
                if run.start < threshold {
                    lower.push(CellRun { end: threshold, ..*run });
                }
                if threshold < run.end {
                    upper.push(CellRun { start: threshold, ..*run });
                }
            }
        }
        if lower.is_empty() || upper.is_empty() {
            // The gain was a rounding error: one part is empty.
            lower.clear();
            upper.clear();
            return Some(level);
        }
        None
    }

    /// For one column, whose upper sets are its upper ends.
    fn is_column_whole(&mut self, cells: &[CellSamples], runs: &[CellRun], level: f64, rounding: f64) -> bool {
        let (mut gain, mut best, mut threshold) = (0.0, rounding, 0);
        for run in runs.iter().rev() {
            for (offset, cell) in cells[run.cells(self.workers)].iter().enumerate().rev() {
                gain += cell.sum - level * cell.weight;
                if gain > best {
                    best = gain;
                    threshold = run.start as usize + offset;
                }
            }
        }
        self.columns.push(Column { first_run: 0, threshold });
        best <= rounding
    }

    /// For several columns: the sweep. If it returns false, `columns` contains where the best upper set begins.
    fn is_whole(&mut self, cells: &[CellSamples], runs: &[CellRun], level: f64, rounding: f64) -> bool {
        let (mut lowest, mut highest) = (usize::MAX, 0);
        for run in runs {
            lowest = lowest.min(self.height(run.column, run.start));
            highest = highest.max(self.height(run.column, run.end - 1));
        }
        let (first_word, last_word) = (lowest / 64, highest / 64);

        self.history.clear();
        let mut first_run = 0;
        for column in runs.chunk_by(|one, next| one.column == next.column) {
            self.columns.push(Column { first_run, threshold: 0 });
            first_run += column.len();
            self.sweep(cells, column, level);
            self.history.extend_from_slice(&self.waiting[first_word..=last_word]);
        }

        let mut gain = 0.0;
        for word in first_word..=last_word {
            while self.waiting[word] != 0 {
                let height = word * 64 + self.waiting[word].trailing_zeros() as usize;
                gain += std::mem::take(&mut self.surplus[height]);
                bits::remove(&mut self.waiting, height);
            }
        }
        if gain <= rounding {
            return true;
        }

        // From the last column back: the upper part begins at the lowest surplus that remains after that column, but
        // not below where it begins in the next column.
        let words = last_word - first_word + 1;
        let mut floor = 0;
        for number in (0..self.columns.len()).rev() {
            let waiting = &self.history[number * words..][..words];
            floor = bits::first_from(waiting, floor).unwrap_or(words * 64);
            let column = runs[self.columns[number].first_run].column;
            self.columns[number].threshold = self.position_at_least(column, first_word * 64 + floor);
        }
        false
    }

    /// Adds one column to the sweep, from the top down.
    fn sweep(&mut self, cells: &[CellSamples], runs: &[CellRun], level: f64) {
        let diagonal = self.workers - 1 - runs[0].column as usize;
        let mut deficit = 0.0;
        let mut done = self.surplus.len();
        for run in runs.iter().rev() {
            let (start, end) = (run.start as usize, run.end as usize);
            let column = &cells[run.cells(self.workers)];
            // Above the diagonal, on it, below it: within each, Y goes with the position.
            for (from, to) in [
                (start.max(diagonal + 1), end),
                (start.max(diagonal), end.min(diagonal + 1)),
                (start, end.min(diagonal)),
            ] {
                if from < to {
                    let bottom = self.height(run.column, from as u32);
                    self.cover(&mut deficit, bottom + to - from, done);
                    self.add(&mut deficit, &column[from - start..to - start], bottom, level);
                    done = bottom;
                }
            }
        }
        self.cover(&mut deficit, 0, done);
    }

    /// Adds neighbouring cells, the first of them at height `bottom`.
    fn add(&mut self, deficit: &mut f64, cells: &[CellSamples], bottom: usize, level: f64) {
        for (offset, cell) in cells.iter().enumerate().rev() {
            let height = bottom + offset;
            let gain = cell.sum - level * cell.weight + self.surplus[height] - *deficit;
            if gain > 0.0 {
                self.surplus[height] = gain;
                *deficit = 0.0;
                bits::insert(&mut self.waiting, height);
            } else {
                self.surplus[height] = 0.0;
                *deficit = -gain;
                bits::remove(&mut self.waiting, height);
            }
        }
    }

    /// Covers the deficit with the surplus at heights `from..to`, the nearest first.
    fn cover(&mut self, deficit: &mut f64, from: usize, to: usize) {
        while *deficit > 0.0
            && let Some(height) = bits::last_before(&self.waiting, to)
            && height >= from
        {
            if self.surplus[height] > *deficit {
                self.surplus[height] -= *deficit;
                *deficit = 0.0;
            } else {
                *deficit -= std::mem::take(&mut self.surplus[height]);
                bits::remove(&mut self.waiting, height);
            }
        }
    }

    /// Y of a cell, counted from 0.
    fn height(&self, column: u32, position: u32) -> usize {
        let (position, diagonal) = (position as usize, self.workers - 1 - column as usize);
        match position.cmp(&diagonal) {
            std::cmp::Ordering::Less => position,
            std::cmp::Ordering::Equal => self.workers - 1,
            std::cmp::Ordering::Greater => position + self.workers - 1,
        }
    }

    /// The lowest position of a column whose height is at least `height`.
    fn position_at_least(&self, column: u32, height: usize) -> usize {
        let diagonal = self.workers - 1 - column as usize;
        if height < self.workers { height.min(diagonal) } else { (height + 1 - self.workers).max(diagonal + 1) }
    }
}
