//! The contest as it goes on, a line per scheme.

use std::sync::{Mutex, MutexGuard, PoisonError};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use paceline_core::SchemeSpec;
use paceline_report::numbers::{self, number};
use paceline_report::progress::bars;
use paceline_runtime::{Iteration, Monitor, Observer, Summary};

/// How often a line is written anew, in iterations.
const EVERY: u64 = 8;

/// A table on standard error with a line per scheme; where no one can watch it, a line when a scheme is done.
pub struct LiveTable {
    bars: MultiProgress,
    /// Kept, since a line vanishes with its bar.
    _names: ProgressBar,
    lines: Vec<Mutex<SchemeLine>>,
}

struct SchemeLine {
    bar: ProgressBar,
    scheme: String,
    done: usize,
    runs: usize,
}

impl LiveTable {
    /// A table of these schemes, each of which is run so many times.
    pub fn new(schemes: &[SchemeSpec], runs: usize) -> Self {
        let bars = bars();
        let width = schemes.iter().map(|scheme| scheme.to_string().len()).max().unwrap_or(0);
        let line = |text: String| {
            let style = ProgressStyle::with_template("{msg}").unwrap_or_else(|_| ProgressStyle::default_bar());
            let bar = bars.add(ProgressBar::new_spinner().with_style(style));
            bar.set_message(text);
            bar
        };
        let names = line(format!(
            "{:<width$}  {:>5}  {:>11}  {:>8}  {:>8}  {:>8}",
            "scheme", "runs", "time", "updates", "loss", "accuracy"
        ));
        let lines = schemes.iter().map(|scheme| {
            let scheme = format!("{:<width$}", scheme.to_string());
            let bar = line(format!("{scheme}  {:>5}", format!("0/{runs}")));
            Mutex::new(SchemeLine { bar, scheme, done: 0, runs })
        });
        LiveTable { lines: lines.collect(), _names: names, bars }
    }

    /// Shows a run as it goes.
    pub fn watch(&self, scheme: usize) -> LiveObserver<'_> {
        LiveObserver { table: self, scheme, updates: 0 }
    }

    /// Shows where a run of a scheme stands.
    pub fn show(&self, scheme: usize, row: &LiveRow) {
        let line = self.line(scheme);
        line.bar.set_message(line.text(row));
    }

    /// Takes note of a run that is done.
    pub fn done(&self, scheme: usize, summary: &Summary) {
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
        // What is left to see is the result. If the terminal is gone, nobody misses it.
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

/// Where a run stands.
#[derive(Debug, Clone, Copy)]
pub struct LiveRow {
    /// Seconds since it began.
    pub time: f64,
    /// Updates in the model.
    pub updates: u64,
    /// The training loss.
    pub loss: Option<f64>,
    /// The held-out accuracy.
    pub accuracy: Option<f64>,
}

/// Follows one run.
pub struct LiveObserver<'a> {
    table: &'a LiveTable,
    scheme: usize,
    updates: u64,
}

impl Observer for LiveObserver<'_> {
    fn on_iteration(&mut self, iteration: &Iteration, monitor: &Monitor) {
        self.updates += iteration.waited_for as u64;
        if iteration.iteration.is_multiple_of(EVERY) && !self.table.bars.is_hidden() {
            let accuracy = monitor.evaluation().map(|found| found.accuracy);
            let row = LiveRow { time: iteration.time, updates: self.updates, loss: monitor.loss(), accuracy };
            self.table.show(self.scheme, &row);
        }
    }
}
