//! How a run ended, and what a shell is told about it.

use std::fmt;
use std::path::Path;

use paceline_core::{Span, Time};
use serde::{Deserialize, Serialize};

use crate::run_folder::{RunFolderError, SUMMARY};
use crate::{Goal, GoalProgress, Goals, Summary};

/// What ended a run. Its text is [`Summary::stopped_by`].
#[derive(Debug, Clone, PartialEq)]
pub enum StopReason {
    /// A goal was met.
    Goal(Goal),
    /// The user interrupted it.
    Interrupted,
    /// The model diverged.
    Diverged,
    /// The workers have done all they were started for: their script has ended.
    ScriptEnded,
    /// All workers left. The text says more, and may be empty.
    NoWorkers(String),
    /// Something else, in words.
    Other(String),
}

impl fmt::Display for StopReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StopReason::Goal(goal) => write!(f, "{goal}"),
            StopReason::Interrupted => f.write_str("interrupted"),
            StopReason::Diverged => f.write_str("the loss is no longer finite"),
            StopReason::ScriptEnded => f.write_str("the script has ended"),
            StopReason::NoWorkers(more) if more.is_empty() => f.write_str("no worker left"),
            StopReason::NoWorkers(more) => write!(f, "no worker left; {more}"),
            StopReason::Other(reason) => f.write_str(reason),
        }
    }
}

impl From<&str> for StopReason {
    fn from(reason: &str) -> Self {
        StopReason::Other(reason.into())
    }
}

/// How a run ended, for programs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RunEnding {
    /// It reached its target or, without a target, its limit.
    Reached,
    /// It reached a limit before its target.
    TargetMissed,
    /// The loss or the gradient was no longer finite.
    Diverged,
    /// No worker was left.
    NoWorkers,
    /// It was interrupted.
    Interrupted,
    /// Only the text of the summary says it: something else, or a run of an earlier version.
    #[default]
    Other,
}

impl RunEnding {
    /// How a run with these goals ended.
    pub fn new(stop: &StopReason, goals: &Goals) -> Self {
        match stop {
            StopReason::Goal(goal) if goal.is_target() => RunEnding::Reached,
            StopReason::Goal(_) | StopReason::ScriptEnded if !goals.need_model() => RunEnding::Reached,
            StopReason::Goal(_) | StopReason::ScriptEnded => RunEnding::TargetMissed,
            StopReason::Diverged => RunEnding::Diverged,
            StopReason::NoWorkers(_) => RunEnding::NoWorkers,
            StopReason::Interrupted => RunEnding::Interrupted,
            StopReason::Other(_) => RunEnding::Other,
        }
    }

    /// The exit code that tells it, as docs/exit-codes.md lists them.
    pub fn exit_code(self) -> u8 {
        match self {
            RunEnding::Reached => 0,
            RunEnding::Other => 1,
            RunEnding::TargetMissed => 3,
            RunEnding::Diverged => 4,
            RunEnding::NoWorkers => 5,
            RunEnding::Interrupted => 130,
        }
    }
}

impl fmt::Display for RunEnding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RunEnding::Reached => "the run reached its goal",
            RunEnding::TargetMissed => "the run ended before it reached its target",
            RunEnding::NoWorkers => "the run ended because no worker was left",
            RunEnding::Diverged => "the run ended because its model diverged",
            RunEnding::Interrupted => "interrupted",
            RunEnding::Other => "the run was stopped",
        })
    }
}

/// Whether the run in a folder has ended, by whatever: a run that was killed, or goes on, has not.
pub fn has_ended(folder: &Path) -> bool {
    folder.join(SUMMARY).exists()
}

/// Refuses to resume a run that ended by a goal, if the new `goals` would end it again at once. Changes nothing.
///
/// # Errors
/// If the run is over.
pub fn check_unfinished(folder: &Path, goals: &Goals) -> Result<(), RunFolderError> {
    // A run that was killed, or goes on, has no summary.
    std::fs::read(folder.join(SUMMARY)).map_or(Ok(()), |text| check_summary(folder, &text, goals))
}

/// The same for a summary that was read from `path`.
pub(crate) fn check_summary(path: &Path, text: &[u8], goals: &Goals) -> Result<(), RunFolderError> {
    let Ok(summary) = serde_json::from_slice::<Summary>(text) else { return Ok(()) };
    let Ok(ended_by) = summary.stopped_by.parse::<Goal>() else { return Ok(()) };
    let progress = GoalProgress {
        iterations: summary.iterations,
        samples: summary.samples_used,
        now: Time::START + Span::from_seconds(summary.time),
        loss: summary.loss,
        accuracy: summary.accuracy,
    };
    let met = goals.iter().find(|&goal| goal == ended_by).or_else(|| goals.met(&progress));
    match met {
        Some(goal) => {
            Err(RunFolderError::Finished { path: path.into(), ended_by, iterations: summary.iterations, goal })
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Monitor, RunInfo};
    use paceline_core::SampleCounts;

    fn summary(goals: &str, stop: &StopReason) -> Summary {
        let goals = goals.parse().unwrap();
        let run = RunInfo { scheme: "bsp", seed: 1, workers: 2, goals: &goals };
        Monitor::default().summary(&run, Time(7_000_000_000), stop, &SampleCounts::default(), 0, None)
    }

    #[test]
    fn every_way_to_end_has_its_own_key_and_exit_code() {
        let limit = StopReason::Goal(Goal::Iterations(5));
        let target = StopReason::Goal(Goal::LossBelow(1.0));
        let last = StopReason::NoWorkers("worker 2 exited".into());
        let endings = [
            ("iterations=5", limit.clone(), "reached", 0, "iterations=5"),
            ("loss<1,iterations=5", target, "reached", 0, "loss<1"),
            ("loss<1,iterations=5", limit, "target-missed", 3, "iterations=5"),
            ("loss<1", StopReason::Diverged, "diverged", 4, "the loss is no longer finite"),
            ("loss<1", last, "no-workers", 5, "no worker left; worker 2 exited"),
            ("iterations=5", StopReason::Interrupted, "interrupted", 130, "interrupted"),
            (
                "iterations=5",
                "worker 1 exited before the run started".into(),
                "other",
                1,
                "worker 1 exited before the run started",
            ),
        ];
        for (goals, stop, key, code, text) in endings {
            let summary = summary(goals, &stop);
            assert_eq!((summary.ending.exit_code(), summary.stopped_by.as_str()), (code, text));
            assert_eq!(summary.reached, code == 0);
            assert_eq!(serde_json::to_value(&summary).unwrap()["ending"], key);
        }
    }

    #[test]
    fn a_summary_of_an_earlier_version_is_read() {
        let mut old = serde_json::to_value(summary("iterations=5", &StopReason::Interrupted)).unwrap();
        old.as_object_mut().unwrap().remove("ending");
        let read: Summary = serde_json::from_value(old).unwrap();
        assert_eq!((read.ending, read.stopped_by.as_str()), (RunEnding::Other, "interrupted"));
    }

    #[test]
    fn only_a_run_that_ended_by_a_goal_is_over_and_only_for_goals_that_are_met() {
        let folder = tempfile::tempdir().unwrap();
        let check = |goals: &str| check_unfinished(folder.path(), &goals.parse().unwrap());
        let write = |summary: &Summary| {
            std::fs::write(folder.path().join(SUMMARY), serde_json::to_vec(summary).unwrap()).unwrap();
        };
        check("loss<1").unwrap();
        write(&summary("loss<1", &StopReason::Interrupted));
        check("time=1").unwrap();
        write(&summary("loss<1", &StopReason::Goal(Goal::LossBelow(1.0))));
        for goals in ["loss<1", "iterations=9,loss<1", "time=6.5"] {
            let error = check(goals).unwrap_err().to_string();
            assert!(error.contains("is over: loss<1 ended it") && error.contains("--until"), "{error}");
        }
        check("loss<0.5,time=8").unwrap();
    }
}
