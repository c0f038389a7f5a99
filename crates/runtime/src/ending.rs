//! How a run ended, and what a shell is told about it.

use std::fmt;
use std::path::Path;

use paceline_core::{Span, Time};

use crate::run_folder::{RunFolderError, SUMMARY};
use crate::{Goal, GoalProgress, Goals, Summary};

/// What ends a run on Ctrl-C and other signals.
pub const INTERRUPTED: &str = "interrupted";

/// What ends a run that has lost its workers starts with this.
pub const NO_WORKERS: &str = "no worker left";

/// What ends a run whose model has diverged ends with this.
const NOT_FINITE: &str = "no longer finite";

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RunEnding {
    /// It reached its target or, without a target, its limit.
    Reached,
    /// It reached a limit before its target.
    TargetMissed,
    /// No worker was left.
    NoWorkers,
    /// The loss or the gradient was no longer finite.
    Diverged,
    /// It was interrupted.
    Interrupted,
    /// Something else stopped it.
    Failed,
}

impl RunEnding {
    /// How the run of a summary ended.
    pub fn of(summary: &Summary) -> Self {
        match summary.stopped_by.as_str() {
            _ if summary.reached => RunEnding::Reached,
            INTERRUPTED => RunEnding::Interrupted,
            text if text.parse::<Goal>().is_ok() => RunEnding::TargetMissed,
            text if text.starts_with(NO_WORKERS) => RunEnding::NoWorkers,
            text if text.ends_with(NOT_FINITE) => RunEnding::Diverged,
            _ => RunEnding::Failed,
        }
    }

    /// The exit code that tells it, as docs/exit-codes.md lists them.
    pub fn exit_code(self) -> u8 {
        match self {
            RunEnding::Reached => 0,
            RunEnding::Failed => 1,
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
            RunEnding::Failed => "the run was stopped",
        })
    }
}

/// Refuses to resume a run that ended by a goal, if the new `goals` would end it again at once. Changes nothing.
///
/// # Errors
/// If the run is over.
pub fn check_unfinished(folder: &Path, goals: &Goals) -> Result<(), RunFolderError> {
    // A run that was killed, or goes on, has no summary.
    let Ok(text) = std::fs::read(folder.join(SUMMARY)) else { return Ok(()) };
    let Ok(summary) = serde_json::from_slice::<Summary>(&text) else { return Ok(()) };
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
            Err(RunFolderError::Finished { path: folder.into(), ended_by, iterations: summary.iterations, goal })
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Monitor, RunInfo};
    use paceline_core::SampleCounts;

    fn summary(goals: &str, met: Option<Goal>, otherwise: &str) -> Summary {
        let goals = goals.parse().unwrap();
        let run = RunInfo { scheme: "bsp", seed: 1, workers: 2, goals: &goals, otherwise };
        Monitor::default().summary(&run, Time(7_000_000_000), met, &SampleCounts::default(), 0)
    }

    #[test]
    fn every_way_to_end_has_its_own_exit_code() {
        let limit = Some(Goal::Iterations(5));
        let target = Some(Goal::LossBelow(1.0));
        let endings = [
            (summary("iterations=5", limit, ""), RunEnding::Reached, 0),
            (summary("loss<1,iterations=5", target, ""), RunEnding::Reached, 0),
            (summary("loss<1,iterations=5", limit, ""), RunEnding::TargetMissed, 3),
            (summary("loss<1", None, "the loss is no longer finite"), RunEnding::Diverged, 4),
            (summary("loss<1", None, "no worker left; worker 2 exited last"), RunEnding::NoWorkers, 5),
            (summary("iterations=5", None, INTERRUPTED), RunEnding::Interrupted, 130),
            (summary("iterations=5", None, "worker 1 exited before the run started"), RunEnding::Failed, 1),
        ];
        for (summary, ending, code) in endings {
            assert_eq!((RunEnding::of(&summary), ending.exit_code()), (ending, code), "{}", summary.stopped_by);
        }
    }

    #[test]
    fn only_a_run_that_ended_by_a_goal_is_over_and_only_for_goals_that_are_met() {
        let folder = tempfile::tempdir().unwrap();
        let check = |goals: &str| check_unfinished(folder.path(), &goals.parse().unwrap());
        let write = |summary: &Summary| {
            std::fs::write(folder.path().join(SUMMARY), serde_json::to_vec(summary).unwrap()).unwrap();
        };
        check("loss<1").unwrap();
        write(&summary("loss<1", None, INTERRUPTED));
        check("time=1").unwrap();
        write(&summary("loss<1", Some(Goal::LossBelow(1.0)), ""));
        for goals in ["loss<1", "iterations=9,loss<1", "time=6.5"] {
            let error = check(goals).unwrap_err().to_string();
            assert!(error.contains("is over: loss<1 ended it") && error.contains("--until"), "{error}");
        }
        check("loss<0.5,time=8").unwrap();
    }
}
