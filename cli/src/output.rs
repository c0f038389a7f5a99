//! What people and machines see of runs.

use std::fmt::Display;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use paceline_core::{Decision, Event, Time};
use paceline_run::{Goals, Iteration, Monitor, Observer, Summary, WorkerTimes};

use crate::attendance::Attendance;
use crate::numerals::{number, time};

/// How often the line of a real run is written anew between iterations, in seconds.
const REFRESH: f64 = 0.2;

/// How long a line of progress may be, in characters; its name; and what else stands in it beside its message and its
/// counts.
const WIDTH: usize = 99;
const NAME: usize = 32;
const BESIDE: usize = 28;

/// Writes a line, or several, to standard output. If it can't be written, the program is over: quietly, if nobody
/// reads on, as behind `| head`.
pub fn say(line: impl Display) {
    written(writeln!(io::stdout(), "{line}"));
}

/// Ends the program if standard output could not be written.
pub fn written(outcome: io::Result<()>) {
    match outcome {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(0),
        Err(error) => {
            eprintln!("error: can't write to standard output: {error}");
            std::process::exit(1);
        }
    }
}

/// Progress bars on standard error, where there is someone to look at them.
pub fn bars() -> MultiProgress {
    let bars = MultiProgress::new();
    if !io::stderr().is_terminal() {
        bars.set_draw_target(ProgressDrawTarget::hidden());
    }
    bars
}

/// A bar that follows one run.
pub struct Progress {
    bar: ProgressBar,
    /// How wide a message may be.
    room: usize,
    /// How things stood at the end of the last iteration.
    standing: Vec<String>,
    /// Who works, and when that was last shown; only where time is real.
    live: Option<(Attendance, f64)>,
}

impl Progress {
    /// A bar up to the number of iterations, where that is known.
    pub fn new(bars: &MultiProgress, name: String, goals: &Goals) -> Self {
        let bar = match goals.iteration_limit() {
            Some(limit) => ProgressBar::new(limit).with_style(style("{prefix} {bar:12} {pos}/{len} {msg} [{elapsed}]")),
            None => {
                ProgressBar::new_spinner().with_style(style("{prefix} {spinner} {pos} iterations {msg} [{elapsed}]"))
            }
        };
        let name = shortened(name, NAME);
        let digits = goals.iteration_limit().map_or(8, |limit| limit.to_string().len());
        let room = WIDTH.saturating_sub(name.chars().count() + 2 * digits + BESIDE);
        let bar = bars.add(bar.with_prefix(name));
        bar.enable_steady_tick(Duration::from_millis(200));
        Progress { bar, room, standing: Vec::new(), live: None }
    }

    /// A bar that also says, between iterations, who is waited for: where time is real.
    pub fn live(bars: &MultiProgress, name: String, goals: &Goals) -> Self {
        let mut progress = Progress::new(bars, name, goals);
        progress.live = Some((Attendance::default(), 0.0));
        progress
    }
}

/// As many of the parts, with commas, as there is room for.
fn fitting(parts: impl IntoIterator<Item = String>, room: usize) -> String {
    let mut text = String::new();
    for part in parts {
        let longer = if text.is_empty() { part } else { format!("{text}, {part}") };
        if longer.chars().count() > room {
            break;
        }
        text = longer;
    }
    text
}

/// The beginning of a name that is too long.
fn shortened(name: String, most: usize) -> String {
    if name.chars().count() <= most { name } else { name.chars().take(most - 1).chain(['…']).collect() }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

impl Observer for Progress {
    fn on_turn(&mut self, now: Time, event: &Event, decisions: &[Decision]) {
        let Some((attendance, shown)) = self.live.as_mut().filter(|_| !self.bar.is_hidden()) else { return };
        attendance.observe(event, decisions);
        if now.seconds() - *shown >= REFRESH {
            *shown = now.seconds();
            let standing = self.standing.iter().cloned().chain(attendance.parts(now));
            self.bar.set_message(fitting(standing, self.room));
        }
    }

    fn on_iteration(&mut self, iteration: &Iteration, monitor: &Monitor) {
        if self.bar.is_hidden() {
            return;
        }
        self.bar.set_position(iteration.iteration);
        self.standing = vec![format!("t = {}", time(iteration.time)), format!("k = {}", iteration.waited_for)];
        self.standing.extend(monitor.loss().map(|loss| format!("loss {}", number(loss, 3))));
        self.standing.extend(monitor.evaluation().map(|found| format!("accuracy {:.3}", found.accuracy)));
        if self.live.is_none() {
            self.bar.set_message(fitting(self.standing.iter().cloned(), self.room));
        }
    }
}

/// A bar that counts steps of anything else.
pub struct Steps {
    bar: ProgressBar,
}

impl Steps {
    /// Of so many steps at most, each of which is called `name`.
    pub fn new(bars: &MultiProgress, name: &str, most: usize) -> Self {
        let bar = ProgressBar::new(most as u64).with_style(style("{prefix} {bar:24} {pos}/{len} {msg} [{elapsed}]"));
        let bar = bars.add(bar.with_prefix(name.to_string()));
        bar.enable_steady_tick(Duration::from_millis(200));
        Steps { bar }
    }

    /// One more is done, and this is how things stand.
    pub fn step(&mut self, standing: String) {
        self.bar.inc(1);
        self.bar.set_message(standing);
    }
}

impl Drop for Steps {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Finished runs as a table.
pub fn table(summaries: &[Summary]) -> String {
    let names = ["scheme", "seed", "iterations", "time", "reached", "loss", "accuracy", "idle", "lost", "MB"];
    aligned(std::iter::once(names.map(String::from)).chain(summaries.iter().map(row)))
}

/// What the workers of a run did with their time, as a table.
pub fn workers_table(workers: &[WorkerTimes]) -> String {
    let head = ["worker", "computing", "querying", "communicating", "waiting", "samples/s"].map(String::from);
    let row = |times: &WorkerTimes| {
        let share = |seconds: f64| format!("{:.1} %", 100.0 * seconds / times.total().max(f64::MIN_POSITIVE));
        [
            times.worker.to_string(),
            share(times.computing),
            share(times.querying),
            share(times.communicating),
            share(times.waiting),
            format!("{:.0}", times.samples_per_second),
        ]
    };
    aligned(std::iter::once(head).chain(workers.iter().map(row)))
}

/// Rows of equally many cells as a table, the first column to the left, the others to the right.
pub fn aligned<Row: AsRef<[String]>>(rows: impl IntoIterator<Item = Row>) -> String {
    let rows: Vec<Row> = rows.into_iter().collect();
    let columns = rows.first().map_or(0, |row| row.as_ref().len());
    let width = |column: usize| rows.iter().map(|row| row.as_ref()[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Row| {
        let padded = row.as_ref().iter().zip(&widths).enumerate().map(|(column, (cell, width))| {
            if column == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        padded.collect::<Vec<_>>().join("  ").trim_end().to_string()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn row(summary: &Summary) -> [String; 10] {
    let or_dash = |value: Option<f64>, digits: usize| value.map_or("-".into(), |value| number(value, digits));
    [
        summary.scheme.clone(),
        summary.seed.to_string(),
        summary.iterations.to_string(),
        time(summary.time),
        if summary.reached { summary.stopped_by.clone() } else { format!("no: {}", summary.stopped_by) },
        or_dash(summary.loss, 4),
        or_dash(summary.accuracy, 4),
        format!("{:.1} %", 100.0 * summary.idle_share),
        summary.samples_lost.to_string(),
        format!("{:.1}", summary.bytes as f64 / 1e6),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_progress_holds_what_there_is_room_for() {
        let parts = || ["t = 1 s", "k = 3", "waiting for worker 0"].map(String::from);
        assert_eq!(fitting(parts(), 60), "t = 1 s, k = 3, waiting for worker 0");
        assert_eq!(fitting(parts(), 35), "t = 1 s, k = 3");
        assert_eq!(fitting([], 35), "");
        assert_eq!(shortened("lb-bsp:weights=1/2/3".into(), 8), "lb-bsp:…");
    }
}
