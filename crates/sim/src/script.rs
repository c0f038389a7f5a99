//! Scripts: what happens to the workers at given times.
//!
//! A line holds a time in seconds, what happens, to whom, and a number where one is needed; `#` begins a comment:
//!
//! ```text
//! 160 slow 8-15 5     # from here on, tasks that these workers start take five times as long
//! 170 link 2 3        # from here on, messages on this worker's own link take three times as long
//! 200 leave 3         # says so and is gone
//! 210 crash 4 2.5     # stops dead; noticed 2.5 s later (1 s if not given)
//! 300 join 3-4        # comes back, or comes for the first time
//! ```

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use paceline_core::{Span, Time, WorkerId};
use thiserror::Error;

use crate::ranks::{Ranks, parse_factor};

/// How long a crash stays unnoticed if the script does not say, in seconds.
const NOTICED_AFTER: f64 = 1.0;

/// What happens.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// Tasks started from now on take so many times as long.
    Slow(Ranks, f64),
    /// Messages on the workers' own links take so many times as long from now on.
    Link(Ranks, f64),
    /// The workers come.
    Join(Ranks),
    /// The workers go, and say so.
    Leave(Ranks),
    /// The workers stop dead, which is noticed so much later.
    Crash(Ranks, Span),
}

/// Changes in the order of their times.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Script {
    steps: Vec<(Time, Change)>,
}

/// What is wrong with a script.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{}{problem}", place(path, *line))]
pub struct ScriptError {
    /// The file.
    pub path: PathBuf,
    /// The line, from 1; 0 if the file can't be read at all.
    pub line: usize,
    /// What is wrong, and what is allowed.
    pub problem: String,
}

fn place(path: &Path, line: usize) -> String {
    if line == 0 { format!("{}: ", path.display()) } else { format!("{}, line {line}: ", path.display()) }
}

impl Script {
    /// Reads a script for a run that begins with `workers`.
    ///
    /// # Errors
    /// If it can't be read, a line can't be understood, or someone is to leave who is not there or join who is.
    pub fn read(path: &Path, workers: usize) -> Result<Self, ScriptError> {
        let unread = |error: std::io::Error| ScriptError { path: path.into(), line: 0, problem: error.to_string() };
        let text = std::fs::read_to_string(path).map_err(unread)?;
        Script::of(path, &text, workers)
    }

    /// Takes a script from a file that was read already.
    ///
    /// # Errors
    /// If a line can't be understood, or someone is to leave who is not there or join who is.
    pub fn of(path: &Path, text: &str, workers: usize) -> Result<Self, ScriptError> {
        Script::parse(text, workers).map_err(|(line, problem)| ScriptError { path: path.into(), line, problem })
    }

    fn parse(text: &str, workers: usize) -> Result<Self, (usize, String)> {
        let mut steps = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let words: Vec<&str> = line.split('#').next().unwrap_or("").split_whitespace().collect();
            if !words.is_empty() {
                let step = parse_step(&words).map_err(|problem| (index + 1, problem))?;
                steps.push((index + 1, step));
            }
        }
        steps.sort_by_key(|(_, (at, _))| *at);
        check_presence(&steps, workers)?;
        Ok(Script { steps: steps.into_iter().map(|(_, step)| step).collect() })
    }

    /// The changes in the order of their times.
    pub fn steps(&self) -> &[(Time, Change)] {
        &self.steps
    }
}

fn parse_step(words: &[&str]) -> Result<(Time, Change), String> {
    const FORMS: &str = "TIME slow RANKS FACTOR, TIME link RANKS FACTOR, TIME join RANKS, TIME leave RANKS or TIME crash RANKS [NOTICED_AFTER]";
    let wrong = || format!("'{}': expected {FORMS}", words.join(" "));
    let seconds = |text: &str| text.parse().ok().filter(|seconds: &f64| seconds.is_finite() && *seconds >= 0.0);
    let [time, what, ranks, rest @ ..] = words else { return Err(wrong()) };
    let at = Time::START + Span::from_seconds(seconds(time).ok_or_else(wrong)?);
    let ranks: Ranks = ranks.parse().map_err(|error| format!("{error}"))?;
    let change = match (*what, rest) {
        ("slow", [factor]) => Change::Slow(ranks, parse_factor(factor).ok_or_else(wrong)?),
        ("link", [factor]) => Change::Link(ranks, parse_factor(factor).ok_or_else(wrong)?),
        ("join", []) => Change::Join(ranks),
        ("leave", []) => Change::Leave(ranks),
        ("crash", []) => Change::Crash(ranks, Span::from_seconds(NOTICED_AFTER)),
        ("crash", [noticed]) => Change::Crash(ranks, Span::from_seconds(seconds(noticed).ok_or_else(wrong)?)),
        _ => return Err(wrong()),
    };
    Ok((at, change))
}

fn check_presence(steps: &[(usize, (Time, Change))], workers: usize) -> Result<(), (usize, String)> {
    let mut present: BTreeSet<WorkerId> = (0..workers as u32).map(WorkerId).collect();
    let mut crashed: Vec<(Time, WorkerId)> = Vec::new();
    for (line, (at, change)) in steps {
        match change {
            Change::Slow(..) | Change::Link(..) => {}
            Change::Join(ranks) => {
                for worker in ranks.workers() {
                    if crashed.iter().any(|&(noticed, who)| who == worker && noticed > *at) {
                        return Err((*line, format!("{worker} can't join before its crash is noticed")));
                    }
                    if !present.insert(worker) {
                        return Err((*line, format!("{worker} can't join: it is there")));
                    }
                }
            }
            Change::Leave(ranks) | Change::Crash(ranks, _) => {
                for worker in ranks.workers() {
                    if !present.remove(&worker) {
                        return Err((*line, format!("{worker} can't go: it is not there")));
                    }
                    if let Change::Crash(_, noticed) = change {
                        crashed.push((*at + *noticed, worker));
                    }
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_become_changes_in_order() {
        let script = Script::parse("2 leave 1 # gone\n\n1.5 slow 0-1 5\n3 join 1\n4 crash 0\n", 2).unwrap();
        let times: Vec<f64> = script.steps().iter().map(|(at, _)| at.seconds()).collect();
        assert_eq!(times, [1.5, 2.0, 3.0, 4.0]);
        assert_eq!(script.steps()[3].1, Change::Crash("0".parse().unwrap(), Span::from_seconds(1.0)));
    }

    #[test]
    fn errors_name_the_line() {
        let error = |text: &str| Script::parse(text, 2).unwrap_err();
        assert_eq!(error("1 slow 0 5\nx leave 1").0, 2);
        assert!(error("1 dance 0").1.contains("expected TIME slow"));
        assert!(error("1 slow 0 0").1.contains("expected TIME slow"));
        assert_eq!(error("1 leave 2"), (1, "worker 2 can't go: it is not there".into()));
        assert_eq!(error("1 join 1"), (1, "worker 1 can't join: it is there".into()));
        assert_eq!(error("2 join 1\n1 crash 1 5"), (1, "worker 1 can't join before its crash is noticed".into()));
    }
}
