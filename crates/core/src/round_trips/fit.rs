//! The least-squares fit of (17), kept as blocks of cells with one value and repaired after new samples.
//!
//! A partition into blocks is the optimum if every block is one by itself (`region`) and no block is above one that it
//! may not exceed. So a sample affects only its own block. That block is fitted again, may split, and is then joined
//! with the blocks that it violates, fitted again, and so on until no constraint is violated. Blocks far from the new
//! samples are never visited.

use std::ops::Range;

use serde::{Deserialize, Serialize, Serializer};

use super::{
    grid::Grid,
    region::{CellRun, CellSamples, Splitter},
    saved_fit::{SavedBlock, SavedCell, SavedFit},
};

/// A block may exceed another by this share of its value before they are joined: values agree to about 1e-15, so a
/// larger difference is real, and each joining brings the fit strictly closer to the optimum.
const TOLERANCE: f64 = 1e-11;

/// No next run.
const NONE: u32 = u32::MAX;

/// A run of a block, kept at the run's first cell.
#[derive(Clone, Copy, Debug, Default)]
struct BlockLink {
    /// The number of cells in the run.
    length: u32,
    /// The first cell of the block's next run, in ascending order.
    next: u32,
}

/// The fit. Arrays run over all cells (`Grid::cell`); a block is named by its first cell.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "SavedFit")]
pub(super) struct Fit {
    grid: Grid,
    cells: Vec<CellSamples>,
    /// The fitted value; not a number where a cell takes no part, so that comparisons with it find nothing.
    values: Vec<f64>,
    blocks: Vec<u32>,
    links: Vec<BlockLink>,
    /// Whether a block, by name, has still to be compared with its neighbours.
    is_unchecked: Vec<bool>,
    unchecked: Vec<u32>,
    /// Cells whose samples changed since the last repair.
    touched: Vec<u32>,
    splitter: Splitter,
    /// Scratch: the regions still to be fitted, the present one last.
    runs: Vec<CellRun>,
    lower: Vec<CellRun>,
    upper: Vec<CellRun>,
    region_starts: Vec<usize>,
    violated: Vec<u32>,
}

impl Serialize for Fit {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.saved().serialize(serializer)
    }
}

impl TryFrom<SavedFit> for Fit {
    type Error = &'static str;

    fn try_from(saved: SavedFit) -> Result<Self, &'static str> {
        saved.check()?;
        let mut fit = Fit::new(saved.workers);
        for (position, length) in saved.rows {
            fit.grid.extend(length - 1, position);
        }
        for SavedCell { cell, sum, weight } in saved.cells {
            fit.cells[cell as usize] = CellSamples { sum, weight };
        }
        for SavedBlock { value, runs } in saved.blocks {
            fit.link(&runs, value);
        }
        fit.touched = saved.touched;
        Ok(fit)
    }
}

impl Fit {
    /// Everything but the scratch space, between two calls.
    fn saved(&self) -> SavedFit {
        let sampled = |&(_, cell): &(u32, &CellSamples)| *cell != CellSamples::default();
        let cells = (0..).zip(&self.cells).filter(sampled);
        let is_first = |&block: &u32| self.blocks[block as usize] == block;
        let runs = |block: u32| {
            let mut runs = Vec::new();
            self.visit(block, |run| runs.push(run));
            runs
        };
        let blocks = (0..self.blocks.len() as u32).filter(is_first);
        SavedFit {
            workers: self.grid.workers(),
            rows: self.grid.lengths().iter().copied().enumerate().filter(|&(_, length)| length > 0).collect(),
            cells: cells.map(|(cell, &CellSamples { sum, weight })| SavedCell { cell, sum, weight }).collect(),
            blocks: blocks.map(|block| SavedBlock { value: self.values[block as usize], runs: runs(block) }).collect(),
            touched: self.touched.clone(),
        }
    }

    pub(super) fn new(workers: usize) -> Self {
        let cells = workers * workers;
        Self {
            grid: Grid::new(workers),
            cells: vec![CellSamples::default(); cells],
            values: vec![f64::NAN; cells],
            blocks: vec![NONE; cells],
            links: vec![BlockLink::default(); cells],
            is_unchecked: vec![false; cells],
            unchecked: Vec::new(),
            touched: Vec::new(),
            splitter: Splitter::new(workers),
            runs: Vec::new(),
            lower: Vec::new(),
            upper: Vec::new(),
            region_starts: Vec::new(),
            violated: Vec::new(),
        }
    }

    /// Changes the number of workers. The cells that remain keep their samples, and the blocks stay as they are except
    /// where they lose cells.
    pub(super) fn resize(&mut self, workers: usize) {
        self.repair();
        let mut fit = Self::new(workers);
        fit.grid = self.grid.resized(workers);
        for (waited_for, rank, sum, weight) in self.samples() {
            if waited_for <= workers && rank <= workers {
                let cell = fit.grid.cell(rank - 1, workers - waited_for);
                fit.cells[cell] = CellSamples { sum, weight };
            }
        }
        // Positions count from the last row, so they move.
        let added = workers.saturating_sub(self.grid.workers()) as u32;
        let dropped = self.grid.workers().saturating_sub(workers) as u32;
        for block in 0..self.blocks.len() as u32 {
            if self.blocks[block as usize] != block {
                continue; // not the first cell of a block
            }
            self.gather(block);
            let kept = self.runs.iter().filter(|run| (run.column as usize) < workers && run.end > dropped);
            fit.runs.extend(kept.map(|run| CellRun {
                column: run.column,
                start: run.start.max(dropped) - dropped + added,
                end: run.end - dropped + added,
            }));
            let length = |runs: &[CellRun]| runs.iter().map(|run| run.end - run.start).sum::<u32>();
            if length(&fit.runs) == length(&self.runs) {
                fit.store(0, self.values[block as usize]);
                fit.runs.clear();
            } else if !fit.runs.is_empty() {
                fit.fit_gathered();
            }
            self.runs.clear();
        }
        fit.repair();
        *self = fit;
    }

    /// Adds to the samples of the cell (`waited_for`, `rank`), which count from 1.
    pub(super) fn add(&mut self, waited_for: usize, rank: usize, sum: f64, weight: f64) {
        let (column, position) = (rank - 1, self.grid.workers() - waited_for);
        self.join_row(column, position);
        let index = self.grid.cell(column, position);
        let cell = &mut self.cells[index];
        cell.weight += weight;
        // Removing samples leaves rounding errors, which must neither count as a sample nor make a sum negative.
        cell.sum = if cell.weight > 0.0 { (cell.sum + sum).max(0.0) } else { 0.0 };
        self.touched.push(index as u32);
        if self.touched.len() > 2 * self.cells.len() {
            // Nobody has read the fit for long.
            self.touched.sort_unstable();
            self.touched.dedup();
        }
    }

    /// Gives the new cells of a row a block of their own.
    fn join_row(&mut self, column: usize, position: usize) {
        let added = self.grid.extend(column, position);
        let block = self.grid.cell(added.start, position) as u32;
        for column in added.clone() {
            let cell = self.grid.cell(column, position);
            let next = if column + 1 < added.end { self.grid.cell(column + 1, position) as u32 } else { NONE };
            self.blocks[cell] = block;
            self.links[cell] = BlockLink { length: 1, next };
        }
    }

    /// Multiplies every weight by `factor`, a power of two. A cell that then weighs less than `least` loses its
    /// samples.
    pub(super) fn scale(&mut self, factor: f64, least: f64) {
        for (index, cell) in self.cells.iter_mut().enumerate().filter(|(_, cell)| cell.weight > 0.0) {
            cell.sum *= factor;
            cell.weight *= factor;
            if cell.weight < least {
                *cell = CellSamples::default();
                self.touched.push(index as u32);
            }
        }
    }

    /// The cells that have samples: `(waited_for, rank, sum, weight)`.
    pub(super) fn samples(&self) -> impl Iterator<Item = (usize, usize, f64, f64)> {
        let workers = self.grid.workers();
        let sampled = self.cells.iter().enumerate().filter(|(_, cell)| cell.weight > 0.0);
        sampled.map(move |(index, cell)| (workers - index % workers, index / workers + 1, cell.sum, cell.weight))
    }

    /// For each k the largest fitted value among the sampled cells that (17) puts at or below the diagonal cell (k, k):
    /// its own value if it has samples, else its lower bound, or 0 without one.
    pub(super) fn diagonal(&self, expected: &mut [f64]) {
        let mut bound = 0.0_f64;
        for (column, expected) in expected.iter_mut().enumerate() {
            // Values fall down the column, so the first sampled cell from the diagonal on is the highest.
            let mut next = self.grid.below(column, self.grid.diagonal(column) + 1);
            while let Some(position) = next {
                let cell = self.grid.cell(column, position);
                if self.cells[cell].weight > 0.0 {
                    bound = bound.max(self.values[cell]);
                    break;
                }
                next = self.grid.below(column, position);
            }
            *expected = bound;
        }
    }

    /// Restores the optimum; returns whether anything had changed.
    pub(super) fn repair(&mut self) -> bool {
        let has_changed = !self.touched.is_empty();
        while let Some(cell) = self.touched.pop() {
            let block = self.blocks[cell as usize];
            // An unchecked block was already fitted in this repair, with all new samples.
            if !self.is_unchecked[block as usize] {
                self.gather(block);
                self.fit_gathered();
            }
        }
        while let Some(block) = self.unchecked.pop() {
            if !std::mem::take(&mut self.is_unchecked[block as usize]) {
                continue; // became part of another block
            }
            self.find_violated(block);
            if !self.violated.is_empty() {
                self.gather(block);
                while let Some(violated) = self.violated.pop() {
                    self.gather(violated);
                }
                self.runs.sort_unstable();
                self.fit_gathered();
            }
        }
        has_changed
    }

    /// Appends the runs of a block to the present region.
    fn gather(&mut self, block: u32) {
        self.is_unchecked[block as usize] = false;
        let mut runs = std::mem::take(&mut self.runs);
        self.visit(block, |run| runs.push(run));
        self.runs = runs;
    }

    /// Calls `visitor` with the runs of a block, in ascending order.
    fn visit(&self, block: u32, mut visitor: impl FnMut(CellRun)) {
        let workers = self.grid.workers() as u32;
        let mut first = block;
        while first != NONE {
            let BlockLink { length, next } = self.links[first as usize];
            let (column, start) = (first / workers, first % workers);
            visitor(CellRun { column, start, end: start + length });
            first = next;
        }
    }

    /// Makes these runs a block as they are.
    fn link(&mut self, runs: &[CellRun], value: f64) {
        let workers = self.grid.workers();
        let block = runs[0].cells(workers).start as u32;
        let mut following = runs.iter().peekable();
        while let Some(run) = following.next() {
            let cells = run.cells(workers);
            let next = following.peek().map_or(NONE, |next| next.cells(workers).start as u32);
            self.links[cells.start] = BlockLink { length: cells.len() as u32, next };
            self.blocks[cells.clone()].fill(block);
            self.values[cells].fill(value);
        }
    }

    /// Fits the present region: splits it until every part is a block. Each block is then unchecked.
    fn fit_gathered(&mut self) {
        self.region_starts.push(0);
        while let Some(start) = self.region_starts.pop() {
            let value = self.splitter.split(&self.cells, &self.runs[start..], &mut self.lower, &mut self.upper);
            if let Some(value) = value {
                self.store(start, value);
                self.runs.truncate(start);
            } else {
                self.runs.truncate(start);
                self.runs.append(&mut self.lower);
                self.region_starts.extend([start, self.runs.len()]);
                self.runs.append(&mut self.upper);
            }
        }
    }

    /// Makes the runs from `start` on one block.
    fn store(&mut self, start: usize, value: f64) {
        let workers = self.grid.workers();
        let runs = &self.runs[start..];
        let block = runs[0].cells(workers).start as u32;
        let mut following = runs.iter().peekable();
        while let Some(&(mut run)) = following.next() {
            while let Some(next) = following.next_if(|next| next.column == run.column && next.start == run.end) {
                run.end = next.end;
            }
            let cells = run.cells(workers);
            let next = following.peek().map_or(NONE, |next| next.cells(workers).start as u32);
            self.links[cells.start] = BlockLink { length: cells.len() as u32, next };
            self.blocks[cells.clone()].fill(block);
            self.values[cells].fill(value);
        }
        self.is_unchecked[block as usize] = true;
        self.unchecked.push(block);
    }

    /// Collects the blocks that a block may not exceed but does, or that exceed it and may not.
    fn find_violated(&mut self, block: u32) {
        let workers = self.grid.workers();
        let value = self.values[block as usize];
        let (low, high) = (value * (1.0 - TOLERANCE), value * (1.0 + TOLERANCE));
        let (is_too_low, is_too_high) = (|other| other < low, |other| other > high);
        let mut first = block;
        while first != NONE {
            let BlockLink { length, next } = self.links[first as usize];
            let (start, end) = (first as usize, (first + length) as usize);
            let (column, bottom) = (start / workers, start % workers);
            let top = bottom + end - start - 1;
            // x[h][k] ≤ x[h][k+1]
            if column + 1 < workers {
                self.collect(start + workers..end + workers, is_too_low);
            }
            if column > 0 {
                self.collect(start - workers..end - workers, is_too_high);
            }
            // x[h+1][k] ≤ x[h][k]
            if let Some(above) = self.grid.above(column, top) {
                self.collect_one(column, above, is_too_low);
            }
            if let Some(below) = self.grid.below(column, bottom) {
                self.collect_one(column, below, is_too_high);
            }
            // x[k][k] ≤ x[k+1][k+1]
            let diagonal = self.grid.diagonal(column);
            if (bottom..=top).contains(&diagonal) {
                if let Some(next) = self.grid.next_diagonal(diagonal) {
                    self.collect_one(self.grid.diagonal(next), next, is_too_low);
                }
                if let Some(previous) = self.grid.previous_diagonal(diagonal) {
                    self.collect_one(self.grid.diagonal(previous), previous, is_too_high);
                }
            }
            first = next;
        }
        self.violated.sort_unstable();
        self.violated.dedup();
    }

    fn collect_one(&mut self, column: usize, position: usize, is_violation: impl Fn(f64) -> bool) {
        let cell = self.grid.cell(column, position);
        self.collect(cell..cell + 1, is_violation);
    }

    /// Appends the blocks of those cells whose value is a violation.
    fn collect(&mut self, cells: Range<usize>, is_violation: impl Fn(f64) -> bool) {
        let chunks = self.values[cells.clone()].chunks(16).zip(self.blocks[cells].chunks(16));
        for (values, blocks) in chunks {
            // Violations are rare: first test without branches whether there is any, then find it.
            if values.iter().fold(false, |any, &value| any | is_violation(value)) {
                let violations = values.iter().zip(blocks).filter(|(value, _)| is_violation(**value));
                self.violated.extend(violations.map(|(_, block)| *block));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand::{RngExt, SeedableRng};
    use rand_xoshiro::Xoshiro256PlusPlus;

    use super::*;
    use crate::round_trips::oracle;

    /// Sums and weights row by row, the input of the oracles.
    struct SampleTable {
        workers: usize,
        sums: Vec<f64>,
        weights: Vec<f64>,
    }

    impl SampleTable {
        fn of(fit: &Fit) -> Self {
            let workers = fit.grid.workers();
            let (mut sums, mut weights) = (vec![0.0; workers * workers], vec![0.0; workers * workers]);
            for (waited_for, rank, sum, weight) in fit.samples() {
                sums[(waited_for - 1) * workers + rank - 1] = sum;
                weights[(waited_for - 1) * workers + rank - 1] = weight;
            }
            Self { workers, sums, weights }
        }

        fn sampled(&self) -> Vec<usize> {
            (0..self.sums.len()).filter(|&cell| self.weights[cell] > 0.0).collect()
        }

        /// The weighted squared distance of a fit from the cells' means: (17)'s objective up to a constant.
        fn distance(&self, fitted: &[f64]) -> f64 {
            let cells = self.sampled().into_iter();
            cells.map(|cell| self.weights[cell] * (self.sums[cell] / self.weights[cell] - fitted[cell]).powi(2)).sum()
        }

        /// The range that (17) leaves to each diagonal cell, given the values of the sampled ones.
        fn diagonal_ranges(&self, fitted: &[f64]) -> Vec<(f64, f64)> {
            let (mut low, mut high) = (vec![0.0_f64; self.sums.len()], vec![f64::INFINITY; self.sums.len()]);
            for cell in self.sampled() {
                (low[cell], high[cell]) = (fitted[cell], fitted[cell]);
            }
            let constraints = oracle::constraints(self.workers);
            for _ in 0..2 * self.workers {
                for &(smaller, larger) in &constraints {
                    low[larger] = low[larger].max(low[smaller]);
                    high[smaller] = high[smaller].min(high[larger]);
                }
            }
            (0..self.workers).map(|k| k * self.workers + k).map(|cell| (low[cell], high[cell])).collect()
        }

        /// The fit of the given cells by the max–min formula: the maximum over the upper sets that contain a cell of
        /// the minimum over the lower sets that contain it of the mean of their intersection. 0 for a cell without
        /// samples.
        fn enumerate(&self, cells: &[usize]) -> Vec<f64> {
            let mut order: Vec<u32> = (0..self.sums.len()).map(|cell| 1 << cell).collect();
            for _ in 0..2 * self.workers {
                for (smaller, larger) in oracle::constraints(self.workers) {
                    order[smaller] |= order[larger];
                }
            }
            let chosen = cells.iter().fold(0_u32, |set, cell| set | 1 << cell);
            let mut upper_sets = Vec::new();
            let mut set = 0_u32;
            loop {
                if cells.iter().all(|&cell| set >> cell & 1 == 0 || order[cell] & chosen & !set == 0) {
                    upper_sets.push(set);
                }
                set = set.wrapping_sub(chosen) & chosen; // the next subset
                if set == 0 {
                    break;
                }
            }
            let mut fitted = vec![0.0_f64; self.sums.len()];
            for upper in &upper_sets {
                let mut least = vec![f64::INFINITY; self.sums.len()];
                for lower in upper_sets.iter().map(|set| chosen & !set) {
                    let shared = || cells.iter().copied().filter(|cell| (upper & lower) >> cell & 1 == 1);
                    let weight: f64 = shared().map(|cell| self.weights[cell]).sum();
                    let mean = shared().map(|cell| self.sums[cell]).sum::<f64>() / weight;
                    if weight > 0.0 {
                        shared().for_each(|cell| least[cell] = least[cell].min(mean));
                    }
                }
                for &cell in cells.iter().filter(|&cell| upper >> cell & 1 == 1 && self.weights[*cell] > 0.0) {
                    fitted[cell] = fitted[cell].max(least[cell]);
                }
            }
            fitted
        }
    }

    /// The values row by row, 0 where there is no sample.
    fn fitted(fit: &Fit) -> Vec<f64> {
        let workers = fit.grid.workers();
        let mut values = vec![0.0; workers * workers];
        for (waited_for, rank, ..) in fit.samples() {
            values[(waited_for - 1) * workers + rank - 1] = fit.values[fit.grid.cell(rank - 1, workers - waited_for)];
        }
        values
    }

    /// The fit of all cells as one region, from scratch.
    fn fitted_cold(fit: &Fit) -> Vec<f64> {
        let mut cold = fit.clone();
        let takes_part = |cell: &usize| !fit.values[*cell].is_nan();
        cold.runs.extend((0..fit.values.len()).filter(takes_part).map(|cell| {
            let (column, start) = (cell / fit.grid.workers(), (cell % fit.grid.workers()) as u32);
            CellRun { column: column as u32, start, end: start + 1 }
        }));
        if !cold.runs.is_empty() {
            cold.fit_gathered();
        }
        fitted(&cold)
    }

    fn diagonal(fit: &Fit) -> Vec<f64> {
        let mut expected = vec![0.0; fit.grid.workers()];
        fit.diagonal(&mut expected);
        expected
    }

    fn assert_close(one: &[f64], other: &[f64], tolerance: f64) {
        for (cell, (one, other)) in one.iter().zip(other).enumerate() {
            assert!(
                (one - other).abs() <= tolerance * one.abs().max(other.abs()),
                "cell {cell}: {one} against {other}"
            );
        }
    }

    /// Durations that collide often, and ones that never do.
    fn duration() -> impl Strategy<Value = f64> {
        prop_oneof![(0_u32..6).prop_map(|tenths| f64::from(tenths) * 0.1), 0.0..2.0]
    }

    proptest! {
        #[test]
        fn small_tables_match_enumeration(
            workers in 1_usize..=4,
            samples in prop::collection::vec((0_usize..4, 0_usize..4, duration(), 1_u8..4), 1..14),
        ) {
            let mut fit = Fit::new(workers);
            for (row, column, seconds, weight) in samples {
                let weight = f64::from(weight);
                fit.add(row % workers + 1, column % workers + 1, seconds * weight, weight);
            }
            fit.repair();
            let samples = SampleTable::of(&fit);
            let all: Vec<usize> = (0..workers * workers).collect();
            let exact = samples.enumerate(&all);
            assert_close(&fitted(&fit), &exact, 1e-9);
            // Cells without samples change nothing.
            assert_close(&samples.enumerate(&samples.sampled()), &exact, 1e-9);
            // A diagonal cell without samples is at its lower bound.
            let (low, high): (Vec<f64>, Vec<f64>) = samples.diagonal_ranges(&exact).into_iter().unzip();
            assert_close(&diagonal(&fit), &low, 1e-9);
            prop_assert!(low.iter().zip(&high).all(|(low, high)| *low <= high * (1.0 + 1e-9)));
        }

        #[test]
        fn repaired_fits_equal_cold_ones(
            workers in 1_usize..=9,
            samples in prop::collection::vec((0_usize..9, 0_usize..9, duration(), 0_usize..4), 1..80),
        ) {
            let mut fit = Fit::new(workers);
            let mut kept = Vec::new();
            for (row, column, seconds, ends) in samples {
                let (waited_for, rank) = (row % workers + 1, column % workers + 1);
                fit.add(waited_for, rank, seconds, 1.0);
                kept.push((waited_for, rank, seconds));
                // Samples are also removed, down to none.
                for _ in 0..if ends == 0 { kept.len().min(3) } else { 0 } {
                    let (waited_for, rank, seconds) = kept.remove(0);
                    fit.add(waited_for, rank, -seconds, -1.0);
                }
                fit.repair();
                assert_close(&fitted(&fit), &fitted_cold(&fit), 1e-9);
            }
        }

        #[test]
        fn resized_fits_equal_cold_ones(
            before in 0_usize..=8,
            after in 0_usize..=8,
            samples in prop::collection::vec((0_usize..8, 0_usize..8, duration()), 0..60),
        ) {
            let mut fit = Fit::new(before);
            for &(row, column, seconds) in samples.iter().filter(|_| before > 0) {
                fit.add(row % before + 1, column % before + 1, seconds, 1.0);
            }
            let remain = |(waited_for, rank, ..): &(usize, usize, f64, f64)| *waited_for <= after && *rank <= after;
            let remaining: Vec<_> = fit.samples().filter(remain).collect();
            fit.resize(after);
            assert_close(&fitted(&fit), &fitted_cold(&fit), 1e-9);
            prop_assert!(fit.samples().eq(remaining));
            for &(row, column, seconds) in samples.iter().rev().filter(|_| after > 0) {
                fit.add(column % after + 1, row % after + 1, seconds, 1.0);
                fit.repair();
                assert_close(&fitted(&fit), &fitted_cold(&fit), 1e-9);
            }
        }
    }

    /// Adds the arrivals of random iterations: one row each, sorted, up to a random rank.
    fn train(fit: &mut Fit, iterations: usize, random: &mut Xoshiro256PlusPlus) {
        let workers = fit.grid.workers();
        for _ in 0..iterations {
            let waited_for = random.random_range(1..=workers);
            let mut arrivals: Vec<f64> = (0..workers)
                .map(|worker| if worker < waited_for { 0.3 } else { 0.6 } - (1.0 - random.random::<f64>()).ln())
                .collect();
            arrivals.sort_unstable_by(f64::total_cmp);
            arrivals.truncate(random.random_range(1..=workers));
            for (rank, seconds) in (1..).zip(arrivals) {
                fit.add(waited_for, rank, seconds, 1.0);
            }
            fit.repair();
        }
    }

    #[test]
    fn larger_tables_match_a_quadratic_program() {
        for (workers, iterations) in [(6, 9), (9, 40), (16, 12), (16, 300), (32, 60), (64, 40), (64, 1000)] {
            let mut fit = Fit::new(workers);
            train(&mut fit, iterations, &mut Xoshiro256PlusPlus::seed_from_u64(7));
            assert_close(&fitted(&fit), &fitted_cold(&fit), 1e-9);

            let samples = SampleTable::of(&fit);
            let solution = oracle::solve(workers, &samples.sums, &samples.weights).expect("the solver converges");
            let (ours, theirs) = (samples.distance(&fitted(&fit)), samples.distance(&solution));
            assert!((ours - theirs).abs() <= 1e-6 * theirs, "{workers} workers: {ours} against {theirs}");
            for (expected, (low, high)) in diagonal(&fit).into_iter().zip(samples.diagonal_ranges(&solution)) {
                assert!(low * (1.0 - 1e-3) <= expected && expected <= high * (1.0 + 1e-3), "{low} {expected} {high}");
            }
        }
    }
}
