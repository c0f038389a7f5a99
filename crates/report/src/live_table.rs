//! The progress of a comparison: one line per scheme.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::numbers::{self, number};
use crate::progress::bars;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use paceline_core::SchemeSpec;
use paceline_runtime::{Iteration, Monitor, Observer, Summary};

/// Iterations between two updates of a line.
const REFRESH_EVERY: u64 = 8;

/// A table on standard error with a line per scheme. If standard error is not a terminal, a line is printed when a
/// scheme's runs are done.
pub struct LiveTable {
    bars: MultiProgress,
    /// Kept because dropping the bar removes its line.
    _head: ProgressBar,
    lines: Vec<Mutex<SchemeLine>>,
}

struct SchemeLine {
    bar: ProgressBar,
    scheme: String,
    done: usize,
    runs: usize,
}

impl LiveTable {
    /// A table of these schemes, each with this number of runs.
    pub fn new(schemes: &[SchemeSpec], runs: usize) -> Self {
        let bars = bars();
        let width = schemes.iter().map(|scheme| scheme.to_string().len()).max().unwrap_or(0);
        let line = |text: String| {
            let style = ProgressStyle::with_template("{msg}").unwrap_or_else(|_| ProgressStyle::default_bar());
            let bar = bars.add(ProgressBar::new_spinner().with_style(style));
            bar.set_message(text);
            bar
        };
        let head = line(format!(
            "{:<width$}  {:>5}  {:>11}  {:>8}  {:>8}  {:>8}",
            "scheme", "runs", "time", "updates", "loss", "accuracy"
        ));
        let lines = schemes.iter().map(|scheme| {
            let scheme = format!("{:<width$}", scheme.to_string());
            let bar = line(format!("{scheme}  {:>5}", format!("0/{runs}")));
            Mutex::new(SchemeLine { bar, scheme, done: 0, runs })
        });
        LiveTable { lines: lines.collect(), _head: head, bars }
    }

    /// An observer that shows the progress of one run.
    pub fn observer(&self, scheme: usize) -> LiveObserver<'_> {
        LiveObserver { table: self, scheme, updates: 0 }
    }

    /// Shows the state of a scheme's current run.
    pub fn show(&self, scheme: usize, row: &LiveRow) {
        let line = self.line(scheme);
        line.bar.set_message(line.text(row));
    }

    /// Counts a finished run and shows its result.
    pub fn finish_run(&self, scheme: usize, summary: &Summary) {
        let mut line = self.line(scheme);
        line.done += 1;
        let row = LiveRow {
            time: summary.time,
            updates: summary.updates_committed,
            loss: summary.loss,
            accuracy: summary.accuracy,
        };
        let text = line.text(&row);
        if self.bars.is_hidden() && line.done == line.runs {
            eprintln!("{text}");
        }
        line.bar.set_message(text);
    }

    fn line(&self, scheme: usize) -> MutexGuard<'_, SchemeLine> {
        self.lines[scheme].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for LiveTable {
    fn drop(&mut self) {
        // The result replaces the table. An error means that the terminal is gone.
        let _ = self.bars.clear();
    }
}

impl SchemeLine {
    fn text(&self, row: &LiveRow) -> String {
        let or_dash = |value: Option<f64>| value.map_or("-".into(), |value| number(value, 4));
        let runs = format!("{}/{}", self.done, self.runs);
        let LiveRow { time, updates, loss, accuracy } = *row;
        let (loss, accuracy) = (or_dash(loss), or_dash(accuracy));
        format!("{}  {runs:>5}  {:>11}  {updates:>8}  {loss:>8}  {accuracy:>8}", self.scheme, numbers::time(time))
    }
}

/// The state of a run.
#[derive(Debug, Clone, Copy)]
pub struct LiveRow {
    /// Seconds since its start.
    pub time: f64,
    /// Updates committed.
    pub updates: u64,
    /// The training loss.
    pub loss: Option<f64>,
    /// The held-out accuracy.
    pub accuracy: Option<f64>,
}

/// Shows the progress of one run in a [`LiveTable`].
pub struct LiveObserver<'a> {
    table: &'a LiveTable,
    scheme: usize,
    updates: u64,
}

impl Observer for LiveObserver<'_> {
    fn on_iteration(&mut self, iteration: &Iteration, monitor: &Monitor) {
        self.updates += iteration.waited_for as u64;
        if iteration.iteration.is_multiple_of(REFRESH_EVERY) && !self.table.bars.is_hidden() {
            let accuracy = monitor.evaluation().and_then(|found| found.accuracy);
            let row = LiveRow { time: iteration.time, updates: self.updates, loss: monitor.loss(), accuracy };
            self.table.show(self.scheme, &row);
        }
    }
}
