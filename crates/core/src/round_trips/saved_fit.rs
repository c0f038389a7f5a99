//! The state of a fit, without its scratch space: only the cells that have samples, and the blocks.

use serde::{Deserialize, Serialize};

use super::MAX_WORKERS;
use super::region::CellRun;

/// The state of a [`Fit`](super::fit::Fit).
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SavedFit {
    pub(super) workers: usize,
    /// The rows that take part: position, and how many ranks.
    pub(super) rows: Vec<(usize, usize)>,
    pub(super) cells: Vec<SavedCell>,
    pub(super) blocks: Vec<SavedBlock>,
    /// Cells whose samples changed since the last repair.
    pub(super) touched: Vec<u32>,
}

/// A cell with samples.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SavedCell {
    pub(super) cell: u32,
    pub(super) sum: f64,
    pub(super) weight: f64,
}

/// A block of cells with one value.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SavedBlock {
    /// Not a number before the first fit.
    #[serde(with = "crate::number")]
    pub(super) value: f64,
    pub(super) runs: Vec<CellRun>,
}

impl SavedFit {
    /// Whether every cell is in the table.
    pub(super) fn check(&self) -> Result<(), &'static str> {
        let workers = self.workers;
        if workers > MAX_WORKERS {
            return Err("the table has too many workers");
        }
        let is_cell = |&cell: &u32| (cell as usize) < workers * workers;
        let is_run =
            |run: &CellRun| (run.column as usize) < workers && run.start < run.end && run.end as usize <= workers;
        let is_row = |&(position, length): &(usize, usize)| position < workers && (1..=workers).contains(&length);
        let fits = self.rows.iter().all(is_row)
            && self.cells.iter().all(|saved| is_cell(&saved.cell))
            && self.touched.iter().all(is_cell)
            && self.blocks.iter().all(|block| !block.runs.is_empty() && block.runs.iter().all(is_run));
        if fits { Ok(()) } else { Err("a cell is outside of the table") }
    }
}
