//! The progress of a comparison: one line per contestant.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::numbers::{self, number};
use crate::progress::bars;
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use paceline_runtime::{Iteration, Monitor, Observer, Summary};

/// Iterations between two updates of a line.
const REFRESH_EVERY: u64 = 8;

/// A table on standard error with a line per contestant. If standard error is not a terminal, a line is printed when a
/// contestant's runs are done.
pub struct LiveTable {
    bars: MultiProgress,
    /// Whether a line is printed when a contestant's runs are done.
    prints: bool,
    /// Kept because dropping the bar removes its line.
    _head: ProgressBar,
    lines: Vec<Mutex<ContestantLine>>,
    /// The line of each contestant.
    line_of: Vec<usize>,
}

struct ContestantLine {
    bar: ProgressBar,
    name: String,
    done: usize,
    runs: usize,
}

impl LiveTable {
    /// A table of these contestants, each with this number of runs. Those of the same name share a line.
    pub fn new(names: &[String], runs: usize) -> Self {
        let bars = bars();
        let prints = bars.is_hidden();
        LiveTable::with(bars, prints, names, runs)
    }

    /// A table that shows nothing.
    pub fn silent(names: &[String], runs: usize) -> Self {
        LiveTable::with(MultiProgress::with_draw_target(ProgressDrawTarget::hidden()), false, names, runs)
    }

    fn with(bars: MultiProgress, prints: bool, names: &[String], runs: usize) -> Self {
        let mut unique: Vec<&String> = Vec::new();
        names.iter().for_each(|name| {
            if !unique.contains(&name) {
                unique.push(name)
            }
        });
        let line_of: Vec<usize> =
            names.iter().filter_map(|name| unique.iter().position(|line| *line == name)).collect();
        let width = unique.iter().map(|name| name.chars().count()).max().unwrap_or(0);
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
        let lines = unique.iter().enumerate().map(|(index, name)| {
            let runs = runs * line_of.iter().filter(|&&line| line == index).count();
            let name = format!("{name:<width$}");
            let bar = line(format!("{name}  {:>5}", format!("0/{runs}")));
            Mutex::new(ContestantLine { bar, name, done: 0, runs })
        });
        LiveTable { lines: lines.collect(), line_of, _head: head, bars, prints }
    }

    /// An observer that shows the progress of one run.
    pub fn observer(&self, contestant: usize) -> LiveObserver<'_> {
        LiveObserver { table: self, contestant, updates: 0 }
    }

    /// Shows the state of a contestant's current run.
    pub fn show(&self, contestant: usize, row: &LiveRow) {
        let line = self.line(contestant);
        line.bar.set_message(line.text(row));
    }

    /// Counts a finished run and shows its result.
    pub fn finish_run(&self, contestant: usize, summary: &Summary) {
        let mut line = self.line(contestant);
        line.done += 1;
        let row = LiveRow {
            time: summary.time,
            updates: summary.updates_committed,
            loss: summary.loss,
            accuracy: summary.accuracy,
        };
        let text = line.text(&row);
        if self.prints && line.done == line.runs {
            eprintln!("{text}");
        }
        line.bar.set_message(text);
    }

    fn line(&self, contestant: usize) -> MutexGuard<'_, ContestantLine> {
        self.lines[self.line_of[contestant]].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for LiveTable {
    fn drop(&mut self) {
        // The result replaces the table. An error means that the terminal is gone.
        let _ = self.bars.clear();
    }
}

impl ContestantLine {
    fn text(&self, row: &LiveRow) -> String {
        let or_dash = |value: Option<f64>| value.map_or("-".into(), |value| number(value, 4));
        let runs = format!("{}/{}", self.done, self.runs);
        let LiveRow { time, updates, loss, accuracy } = *row;
        let (loss, accuracy) = (or_dash(loss), or_dash(accuracy));
        format!("{}  {runs:>5}  {:>11}  {updates:>8}  {loss:>8}  {accuracy:>8}", self.name, numbers::time(time))
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
    contestant: usize,
    updates: u64,
}

impl Observer for LiveObserver<'_> {
    fn on_iteration(&mut self, iteration: &Iteration, monitor: &Monitor) {
        self.updates += iteration.waited_for as u64;
        if iteration.iteration.is_multiple_of(REFRESH_EVERY) && !self.table.bars.is_hidden() {
            let accuracy = monitor.evaluation().and_then(|found| found.accuracy);
            let row = LiveRow { time: iteration.time, updates: self.updates, loss: monitor.loss(), accuracy };
            self.table.show(self.contestant, &row);
        }
    }
}
