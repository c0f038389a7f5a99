//! Scripts: changes to the workers at given times.
//!
//! A line holds a time in seconds, a change, the ranks of the workers, and a number for some changes; `#` starts a
//! comment:
//!
//! ```text
//! 160 slow 8-15 5     # tasks that these workers start from now on take five times as long
//! 170 link 2 3        # messages on this worker's own link take three times as long from now on
//! 200 leave 3         # leaves; the server is notified
//! 210 crash 4 2.5     # crashes; the server notices it 2.5 s later (default 1 s)
//! 300 join 3-4        # joins, or rejoins
//! ```

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use paceline_core::{Span, Time, WorkerId};
use paceline_spec::read_text;
use thiserror::Error;

use crate::ranks::{Ranks, parse_factor};
use crate::subset::RankSet;

/// Default time until a crash is noticed, in seconds.
const NOTICED_AFTER: f64 = 1.0;

/// A change to some workers.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// Multiplies the time of tasks started from now on by a factor. It replaces an earlier factor.
    Slow(Ranks, f64),
    /// Multiplies the time of messages on the workers' own links by a factor. It replaces an earlier factor.
    Link(Ranks, f64),
    /// The workers join or rejoin.
    Join(Ranks),
    /// The workers leave; the server is notified.
    Leave(Ranks),
    /// The workers crash; the server notices it after this time.
    Crash(Ranks, Span),
}

impl Change {
    fn ranks(&self) -> &Ranks {
        match self {
            Change::Slow(ranks, _)
            | Change::Link(ranks, _)
            | Change::Join(ranks)
            | Change::Leave(ranks)
            | Change::Crash(ranks, _) => ranks,
        }
    }

    /// The same change to other workers.
    fn with_ranks(&self, ranks: Ranks) -> Self {
        match *self {
            Change::Slow(_, factor) => Change::Slow(ranks, factor),
            Change::Link(_, factor) => Change::Link(ranks, factor),
            Change::Join(_) => Change::Join(ranks),
            Change::Leave(_) => Change::Leave(ranks),
            Change::Crash(_, noticed) => Change::Crash(ranks, noticed),
        }
    }
}

/// Changes ordered by time.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Script {
    steps: Vec<(Time, Change)>,
}

/// An error in a script.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{}{problem}", place(path, *line))]
pub struct ScriptError {
    /// The file.
    pub path: PathBuf,
    /// The line, from 1; 0 if the file can't be read.
    pub line: usize,
    /// The error, and what is expected.
    pub problem: String,
}

fn place(path: &Path, line: usize) -> String {
    if line == 0 { format!("{}: ", path.display()) } else { format!("{}, line {line}: ", path.display()) }
}

impl Script {
    /// From the start on, a message on the workers' own links takes as many times as long as usual, by rank.
    pub(crate) fn of_links(factors: impl Iterator<Item = f64>) -> Self {
        let step = |(rank, factor): (u32, f64)| (Time::START, Change::Link(Ranks::one(WorkerId(rank)), factor));
        Script { steps: (0..).zip(factors).map(step).collect() }
    }

    /// Reads a script for a run that starts with `workers` workers.
    ///
    /// # Errors
    /// If the file can't be read, a line is malformed, an absent worker leaves or crashes, or a present worker joins.
    pub fn read(path: &Path, workers: usize) -> Result<Self, ScriptError> {
        let io_error = |error: std::io::Error| ScriptError { path: path.into(), line: 0, problem: error.to_string() };
        let text = read_text(path).map_err(io_error)?;
        Script::of(path, &text, workers)
    }

    /// Parses the text of a script. `path` is named in errors.
    ///
    /// # Errors
    /// If a line is malformed, an absent worker leaves or crashes, or a present worker joins.
    pub fn of(path: &Path, text: &str, workers: usize) -> Result<Self, ScriptError> {
        Script::parse(text, workers).map_err(|(line, problem)| ScriptError { path: path.into(), line, problem })
    }

    pub(crate) fn parse(text: &str, workers: usize) -> Result<Self, (usize, String)> {
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

    /// The changes to some of the workers, by their ranks among these.
    pub(crate) fn restricted_to(&self, subset: &RankSet) -> Self {
        let of_step = |(at, change): &(Time, Change)| {
            let own = change.ranks().restricted_to(subset).into_iter().map(|ranks| change.with_ranks(ranks));
            own.map(|change| (*at, change)).collect::<Vec<_>>()
        };
        Script { steps: self.steps.iter().flat_map(of_step).collect() }
    }

    /// The changes, ordered by time.
    pub fn steps(&self) -> &[(Time, Change)] {
        &self.steps
    }
}

fn parse_step(words: &[&str]) -> Result<(Time, Change), String> {
    const FORMS: &str = "TIME slow RANKS FACTOR, TIME link RANKS FACTOR, TIME join RANKS, TIME leave RANKS or TIME crash RANKS [NOTICED_AFTER]";
    let malformed = || format!("'{}': expected {FORMS}", words.join(" "));
    let seconds = |text: &str| text.parse().ok().filter(|seconds: &f64| seconds.is_finite() && *seconds >= 0.0);
    let [time, what, ranks, rest @ ..] = words else { return Err(malformed()) };
    let at = Time::START + Span::from_seconds(seconds(time).ok_or_else(malformed)?);
    let ranks: Ranks = ranks.parse().map_err(|error| format!("{error}"))?;
    let change = match (*what, rest) {
        ("slow", [factor]) => Change::Slow(ranks, parse_factor(factor).ok_or_else(malformed)?),
        ("link", [factor]) => Change::Link(ranks, parse_factor(factor).ok_or_else(malformed)?),
        ("join", []) => Change::Join(ranks),
        ("leave", []) => Change::Leave(ranks),
        ("crash", []) => Change::Crash(ranks, Span::from_seconds(NOTICED_AFTER)),
        ("crash", [noticed]) => Change::Crash(ranks, Span::from_seconds(seconds(noticed).ok_or_else(malformed)?)),
        _ => return Err(malformed()),
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
                    if crashed.iter().any(|&(noticed, lost)| lost == worker && noticed > *at) {
                        return Err((*line, format!("{worker} can't join before its crash is noticed")));
                    }
                    if !present.insert(worker) {
                        return Err((*line, format!("{worker} can't join: it is already in the run")));
                    }
                }
            }
            Change::Leave(ranks) | Change::Crash(ranks, _) => {
                for worker in ranks.workers() {
                    if !present.remove(&worker) {
                        return Err((*line, format!("{worker} can't leave or crash: it is not in the run")));
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
    fn changes_are_ordered_by_time() {
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
        assert_eq!(error("1 leave 2"), (1, "worker 2 can't leave or crash: it is not in the run".into()));
        assert_eq!(error("1 join 1"), (1, "worker 1 can't join: it is already in the run".into()));
        assert_eq!(error("2 join 1\n1 crash 1 5"), (1, "worker 1 can't join before its crash is noticed".into()));
    }
}
