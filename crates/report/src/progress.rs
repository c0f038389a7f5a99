//! Progress bars on standard error, while a run goes on.

use std::io::{self, IsTerminal};
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use paceline_core::{Decision, Event, Time};
use paceline_runtime::{Goals, Iteration, Monitor, Observer};

use crate::activity::ActivityLine;
use crate::numbers::{number, time};

/// How often the line of a real run is written anew between iterations, in seconds.
const REFRESH: f64 = 0.2;

/// How long a line of progress may be, in characters; its name; and what else stands in it beside its message and its
/// counts.
const WIDTH: usize = 99;
const NAME: usize = 32;
const BESIDE: usize = 28;

/// Progress bars on standard error, where there is someone to look at them.
pub fn bars() -> MultiProgress {
    let bars = MultiProgress::new();
    if !io::stderr().is_terminal() {
        bars.set_draw_target(ProgressDrawTarget::hidden());
    }
    bars
}

/// A bar that follows one run.
pub struct RunBar {
    bar: ProgressBar,
    /// How wide a message may be.
    room: usize,
    /// How things stood at the end of the last iteration.
    standing: Vec<String>,
    /// Who works, and when that was last shown; only where time is real.
    live: Option<(ActivityLine, f64)>,
}

impl RunBar {
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
        RunBar { bar, room, standing: Vec::new(), live: None }
    }

    /// A bar that also says, between iterations, who is waited for: where time is real.
    pub fn live(bars: &MultiProgress, name: String, goals: &Goals) -> Self {
        let mut progress = RunBar::new(bars, name, goals);
        progress.live = Some((ActivityLine::default(), 0.0));
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

impl Drop for RunBar {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

impl Observer for RunBar {
    fn on_turn(&mut self, now: Time, event: &Event, decisions: &[Decision]) {
        let Some((activity, shown)) = self.live.as_mut().filter(|_| !self.bar.is_hidden()) else { return };
        activity.observe(event, decisions);
        if now.seconds() - *shown >= REFRESH {
            *shown = now.seconds();
            let standing = self.standing.iter().cloned().chain(activity.parts(now));
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
pub struct StepBar {
    bar: ProgressBar,
}

impl StepBar {
    /// Of so many steps at most, each of which is called `name`.
    pub fn new(bars: &MultiProgress, name: &str, most: usize) -> Self {
        let bar = ProgressBar::new(most as u64).with_style(style("{prefix} {bar:24} {pos}/{len} {msg} [{elapsed}]"));
        let bar = bars.add(bar.with_prefix(name.to_string()));
        bar.enable_steady_tick(Duration::from_millis(200));
        StepBar { bar }
    }

    /// One more is done, and this is how things stand.
    pub fn step(&mut self, standing: String) {
        self.bar.inc(1);
        self.bar.set_message(standing);
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
    fn a_line_of_progress_holds_what_there_is_room_for() {
        let parts = || ["t = 1 s", "k = 3", "waiting for worker 0"].map(String::from);
        assert_eq!(fitting(parts(), 60), "t = 1 s, k = 3, waiting for worker 0");
        assert_eq!(fitting(parts(), 35), "t = 1 s, k = 3");
        assert_eq!(fitting([], 35), "");
        assert_eq!(shortened("lb-bsp:weights=1/2/3".into(), 8), "lb-bsp:…");
    }
}
