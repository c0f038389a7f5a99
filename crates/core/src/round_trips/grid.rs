//! The memory layout of the table, and which of its cells take part in the fit.
//!
//! A cell (h, k) is stored at column k − 1 and *position* n − h, one column after another. Positions inside a column
//! ascend in the order of (17), since x falls as h rises. Cells are pooled because of noise between rows, so pooled
//! cells are neighbours in memory.
//!
//! A row takes part once it has a sample. It then takes part from rank 1 up to its highest sampled rank or its diagonal
//! cell, whichever is further. Cells in between without samples have no weight. With rows of that shape (17)'s
//! constraints on the sampled cells are exactly those between direct neighbours: in the row, in the column, and along
//! the diagonal of the rows that take part. Any two cells that (17) orders are connected by such steps.

use std::ops::Range;

use super::bits;

/// The shape of the fit: which rows take part, and how far.
#[derive(Clone, Debug)]
pub(super) struct Grid {
    workers: usize,
    /// How many ranks of each row take part, by position.
    lengths: Vec<usize>,
    /// The rows that take part, by position.
    rows: Vec<u64>,
    /// The positions that take part, column by column.
    columns: Vec<u64>,
}

impl Grid {
    /// A grid of `workers` rows and columns in which no cell takes part yet.
    pub(super) fn new(workers: usize) -> Self {
        let words = bits::words(workers);
        Self { workers, lengths: vec![0; workers], rows: vec![0; words], columns: vec![0; words * workers] }
    }

    /// How many ranks of each row take part, by position.
    pub(super) fn lengths(&self) -> &[usize] {
        &self.lengths
    }

    /// The number of rows and columns.
    pub(super) fn workers(&self) -> usize {
        self.workers
    }

    /// The index of a cell in arrays over all cells.
    pub(super) fn cell(&self, column: usize, position: usize) -> usize {
        column * self.workers + position
    }

    /// The position of the diagonal cell in `column`.
    pub(super) fn diagonal(&self, column: usize) -> usize {
        self.workers - 1 - column
    }

    /// Extends the row at `position` at least up to `column`. Returns the new columns.
    pub(super) fn extend(&mut self, column: usize, position: usize) -> Range<usize> {
        let diagonal = self.workers - 1 - position;
        let before = self.lengths[position];
        let after = before.max(column.max(diagonal) + 1);
        bits::insert(&mut self.rows, position);
        self.lengths[position] = after;
        for column in before..after {
            let words = self.rows.len();
            bits::insert(&mut self.columns[column * words..][..words], position);
        }
        before..after
    }

    /// This grid for another number of workers. Rows in both grids take part up to the columns in both.
    pub(super) fn resized(&self, workers: usize) -> Self {
        let mut grid = Self::new(workers);
        for (position, &length) in self.lengths.iter().enumerate() {
            let waited_for = self.workers - position;
            if length > 0 && waited_for <= workers {
                grid.extend(length.min(workers) - 1, workers - waited_for);
            }
        }
        grid
    }

    fn column(&self, column: usize) -> &[u64] {
        let words = self.rows.len();
        &self.columns[column * words..][..words]
    }

    /// The next position up the column, whose cell may not be lower.
    pub(super) fn above(&self, column: usize, position: usize) -> Option<usize> {
        bits::first_from(self.column(column), position + 1)
    }

    /// The next position down the column, whose cell may not be higher.
    pub(super) fn below(&self, column: usize, position: usize) -> Option<usize> {
        bits::last_before(self.column(column), position)
    }

    /// The row (by position) whose diagonal cell comes next up the diagonal.
    pub(super) fn next_diagonal(&self, position: usize) -> Option<usize> {
        bits::last_before(&self.rows, position)
    }

    /// The row (by position) whose diagonal cell comes next down the diagonal.
    pub(super) fn previous_diagonal(&self, position: usize) -> Option<usize> {
        bits::first_from(&self.rows, position + 1)
    }
}
