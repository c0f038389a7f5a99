//! Progress bars on standard error.

use std::io::{self, IsTerminal};
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use paceline_core::{Decision, Event, Time};
use paceline_runtime::{Goals, Iteration, Monitor, Observer};

use crate::activity::ActivityLine;
use crate::numbers::{number, time};

/// Seconds between two updates of a real run's line.
const REFRESH_SECONDS: f64 = 0.2;

/// Limits in characters: of a line, of the name in it, and of everything but the name, the counts and the message.
const MAX_LINE: usize = 99;
const MAX_NAME: usize = 32;
const FIXED_PARTS: usize = 28;

/// Progress bars on standard error; hidden if it is not a terminal.
pub fn bars() -> MultiProgress {
    let bars = MultiProgress::new();
    if !io::stderr().is_terminal() {
        bars.set_draw_target(ProgressDrawTarget::hidden());
    }
    bars
}

/// The progress of one run.
pub struct RunBar {
    bar: ProgressBar,
    /// Limit on the message, in characters.
    max_message: usize,
    /// State after the last iteration.
    status: Vec<String>,
    /// The workers' activity, and when it was last shown; only for real runs.
    live: Option<(ActivityLine, f64)>,
}

impl RunBar {
    /// A bar up to the iteration limit, or a spinner without one.
    pub fn new(bars: &MultiProgress, name: String, goals: &Goals) -> Self {
        let bar = match goals.iteration_limit() {
            Some(limit) => ProgressBar::new(limit).with_style(style("{prefix} {bar:12} {pos}/{len} {msg} [{elapsed}]")),
            None => {
                ProgressBar::new_spinner().with_style(style("{prefix} {spinner} {pos} iterations {msg} [{elapsed}]"))
            }
        };
        let name = shortened(name, MAX_NAME);
        let digits = goals.iteration_limit().map_or(8, |limit| limit.to_string().len());
        let max_message = MAX_LINE.saturating_sub(name.chars().count() + 2 * digits + FIXED_PARTS);
        let bar = bars.add(bar.with_prefix(name));
        bar.enable_steady_tick(Duration::from_millis(200));
        RunBar { bar, max_message, status: Vec::new(), live: None }
    }

    /// A bar for a real run, which between iterations shows the workers that others wait for.
    pub fn live(bars: &MultiProgress, name: String, goals: &Goals) -> Self {
        let mut progress = RunBar::new(bars, name, goals);
        progress.live = Some((ActivityLine::default(), 0.0));
        progress
    }
}

/// Joins the first parts that fit into `limit` characters.
fn join_within(parts: impl IntoIterator<Item = String>, limit: usize) -> String {
    let mut text = String::new();
    for part in parts {
        let longer = if text.is_empty() { part } else { format!("{text}, {part}") };
        if longer.chars().count() > limit {
            break;
        }
        text = longer;
    }
    text
}

/// The first characters of a name that is too long.
fn shortened(name: String, limit: usize) -> String {
    if name.chars().count() <= limit { name } else { name.chars().take(limit - 1).chain(['…']).collect() }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

impl Drop for RunBar {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

impl Observer for RunBar {
    fn on_turn(&mut self, now: Time, event: &Event, decisions: &[Decision]) {
        let Some((activity, updated)) = self.live.as_mut().filter(|_| !self.bar.is_hidden()) else { return };
        activity.observe(now, event, decisions);
        if now.seconds() - *updated >= REFRESH_SECONDS {
            *updated = now.seconds();
            let status = self.status.iter().cloned().chain(activity.parts(now));
            self.bar.set_message(join_within(status, self.max_message));
        }
    }

    fn on_iteration(&mut self, iteration: &Iteration, monitor: &Monitor) {
        if self.bar.is_hidden() {
            return;
        }
        self.bar.set_position(iteration.iteration);
        self.status = vec![format!("t = {}", time(iteration.time)), format!("k = {}", iteration.waited_for)];
        self.status.extend(monitor.loss().map(|loss| format!("loss {}", number(loss, 3))));
        let accuracy = monitor.evaluation().and_then(|found| found.accuracy);
        self.status.extend(accuracy.map(|accuracy| format!("accuracy {accuracy:.3}")));
        if self.live.is_none() {
            self.bar.set_message(join_within(self.status.iter().cloned(), self.max_message));
        }
    }
}

/// The progress of anything else, in steps.
pub struct StepBar {
    bar: ProgressBar,
}

impl StepBar {
    /// A bar of at most `limit` steps, each called `name`.
    pub fn new(bars: &MultiProgress, name: &str, limit: usize) -> Self {
        let bar = ProgressBar::new(limit as u64).with_style(style("{prefix} {bar:24} {pos}/{len} {msg} [{elapsed}]"));
        let bar = bars.add(bar.with_prefix(name.to_string()));
        bar.enable_steady_tick(Duration::from_millis(200));
        StepBar { bar }
    }

    /// Counts a step, and shows the status.
    pub fn step(&mut self, status: String) {
        self.bar.inc(1);
        self.bar.set_message(status);
    }
}

impl Drop for StepBar {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_holds_the_parts_that_fit() {
        let parts = || ["t = 1 s", "k = 3", "waiting for worker 0"].map(String::from);
        assert_eq!(join_within(parts(), 60), "t = 1 s, k = 3, waiting for worker 0");
        assert_eq!(join_within(parts(), 35), "t = 1 s, k = 3");
        assert_eq!(join_within([], 35), "");
        assert_eq!(shortened("lb-bsp:weights=1/2/3".into(), 8), "lb-bsp:…");
    }
}
