//! Contestants compared: their runs under the same conditions, ranked, what to use, and figures of them.

mod advice;
mod figures;
mod paired;
mod ranking;
mod suite;

use paceline_core::StepKind;
use paceline_runtime::Summary;

pub use advice::{Advice, BoldAnswer, SafeAnswer, SafeGrounds};
pub use figures::{panels, time_interval};
pub use paired::{Difference, FEWEST_SEEDS, PairedRatio};
pub(crate) use ranking::BASELINE;
pub use ranking::{RankedContestant, Ranking};
pub use suite::{Suite, SuiteEntry, SuiteRace};

/// A contestant's runs, one per seed.
pub struct ContestantRuns {
    /// Its name: the scheme, and the workers if they are not all.
    pub name: String,
    /// What the scheme's steps are made of.
    pub step_kind: StepKind,
    /// Its learning rate.
    pub rate: f32,
    /// Whether that is the best at the edge of the rates that were tried; `None` if it was not tuned.
    pub at_edge: Option<bool>,
    /// Its runs, in the order of the seeds.
    pub runs: Vec<RunResult>,
}

/// The result of one run.
pub struct RunResult {
    /// The summary.
    pub summary: Summary,
    /// Time and held-out accuracy of every evaluation.
    pub curve: Vec<(f64, f64)>,
}

impl ContestantRuns {
    /// The times to target of the runs that reached it.
    fn times(&self) -> Vec<f64> {
        self.runs.iter().filter_map(|run| run.summary.time_to_target).collect()
    }

    /// The learning rate as a number with the digits that the user gave.
    fn written_rate(&self) -> f64 {
        self.rate.to_string().parse().unwrap_or(f64::NAN)
    }
}

/// A run that reached the target after this time, or missed it.
#[cfg(test)]
fn result(scheme: &str, seed: u64, time: Option<f64>) -> RunResult {
    let summary = Summary {
        scheme: scheme.into(),
        seed,
        workers: 4,
        iterations: 100,
        time: time.unwrap_or(500.0),
        reached: time.is_some(),
        time_to_target: time,
        counted: None,
        stopped_by: String::new(),
        ending: Default::default(),
        loss: Some(0.4),
        accuracy: Some(0.9),
        updates_committed: 400,
        updates_discarded: 0,
        updates_broken: 0,
        tasks_interrupted: 0,
        samples_used: 25_600,
        samples_lost: 0,
        idle_share: 0.0,
        bytes: 1_000_000,
        samples_per_second: 1.0,
        bytes_per_second: 1.0,
        goodput: 1.0,
        worker_times: Vec::new(),
    };
    RunResult { summary, curve: Vec::new() }
}
