//! The ranking of schemes: which one wins, by how much, and why.

use std::cmp::Ordering;

use paceline_runtime::{Goals, Summary};
use serde::Serialize;

use super::SchemeRuns;
use crate::numbers::{number, time, time_within};
use crate::statistics::{deviation, mean};
use crate::tables::aligned;

/// The scheme that others are compared with, if it is among them.
const BASELINE: &str = "bsp";

/// A scheme's rank, with means over its runs. Times are in seconds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RankedScheme {
    /// Its rank, from 1.
    pub place: usize,
    /// The scheme, with its settings.
    pub scheme: String,
    /// Number of runs, one per seed.
    pub runs: usize,
    /// Number of runs that reached the target.
    pub reached: usize,
    /// Mean time to target of those that did.
    pub time_to_target: Option<f64>,
    /// Its standard deviation over the seeds.
    pub spread: Option<f64>,
    /// Speedup over the baseline.
    pub speedup: Option<f64>,
    /// Share of the workers' time that they were idle.
    pub idle_share: f64,
    /// Updates committed.
    pub updates: f64,
    /// Samples in them.
    pub samples_used: f64,
    /// Samples of work that was not used.
    pub samples_lost: f64,
    /// Bytes of parameters and updates sent.
    pub bytes: f64,
    /// Held-out accuracy at the end.
    pub accuracy: f64,
    /// Its standard deviation over the seeds.
    pub accuracy_spread: f64,
    /// Duration of a run.
    pub time: f64,
}

impl RankedScheme {
    fn new(scheme_runs: &SchemeRuns) -> Self {
        let column =
            |value: fn(&Summary) -> f64| scheme_runs.runs.iter().map(|run| value(&run.summary)).collect::<Vec<_>>();
        let times: Vec<f64> = scheme_runs.runs.iter().filter_map(|run| run.summary.time_to_target).collect();
        let accuracy = column(|summary| summary.accuracy.unwrap_or(f64::NAN));
        RankedScheme {
            place: 0,
            scheme: scheme_runs.scheme.to_string(),
            runs: scheme_runs.runs.len(),
            reached: times.len(),
            time_to_target: (!times.is_empty()).then(|| mean(&times)),
            spread: (!times.is_empty()).then(|| deviation(&times)),
            speedup: None,
            idle_share: mean(&column(|summary| summary.idle_share)),
            updates: mean(&column(|summary| summary.updates_committed as f64)),
            samples_used: mean(&column(|summary| summary.samples_used as f64)),
            samples_lost: mean(&column(|summary| summary.samples_lost as f64)),
            bytes: mean(&column(|summary| summary.bytes as f64)),
            accuracy: mean(&accuracy),
            accuracy_spread: deviation(&accuracy),
            time: mean(&column(|summary| summary.time)),
        }
    }

    /// Whether every run reached the target.
    pub fn finished(&self) -> bool {
        self.reached == self.runs
    }

    /// Committed samples per second.
    fn throughput(&self) -> f64 {
        self.samples_used / self.time
    }

    fn cells(&self) -> [String; 9] {
        let several = self.runs > 1;
        let reached = match (self.time_to_target, self.spread) {
            (Some(own), _) if !several => time(own),
            (Some(own), Some(spread)) if self.finished() => time_within(own, spread),
            (Some(own), _) => format!("{} in {} of {}", time(own), self.reached, self.runs),
            _ => "not reached".into(),
        };
        [
            self.scheme.clone(),
            reached,
            self.speedup.map_or("-".into(), |speedup| number(speedup, 2)),
            format!("{:.1} %", 100.0 * self.idle_share),
            format!("{:.0}", self.updates),
            format!("{:.0}", self.samples_used),
            format!("{:.0}", self.samples_lost),
            format!("{:.0}", self.bytes / 1e6),
            if several {
                format!("{:.4} ± {:.4}", self.accuracy, self.accuracy_spread)
            } else {
                format!("{:.4}", self.accuracy)
            },
        ]
    }
}

/// The schemes ordered by time to target: first those that reached it in every run, then those that did in some.
pub struct Ranking {
    /// The schemes, the winner first.
    pub places: Vec<RankedScheme>,
    target: String,
}

impl Ranking {
    /// Ranks the runs of all schemes by these goals.
    pub fn new(all_runs: &[SchemeRuns], goals: &Goals) -> Self {
        let mut places: Vec<RankedScheme> = all_runs.iter().map(RankedScheme::new).collect();
        let misses = |place: &RankedScheme| place.runs - place.reached;
        let time = |place: &RankedScheme| place.time_to_target.unwrap_or(f64::INFINITY);
        places.sort_by(|a, b| {
            let order = misses(a).cmp(&misses(b)).then(time(a).total_cmp(&time(b)));
            // Schemes that never reached the target are ordered by accuracy; equal ones keep their order.
            order.then(if a.reached == 0 { b.accuracy.total_cmp(&a.accuracy) } else { Ordering::Equal })
        });
        let baseline = places.iter().find(|place| place.scheme == BASELINE && place.finished());
        let baseline = baseline.and_then(|place| place.time_to_target);
        for (index, place) in places.iter_mut().enumerate() {
            place.place = index + 1;
            place.speedup = baseline.zip(place.time_to_target).map(|(baseline, own)| baseline / own);
        }
        let targets: Vec<String> = goals.iter().filter(|goal| goal.is_target()).map(|goal| goal.to_string()).collect();
        Ranking { places, target: targets.join(" or ") }
    }

    /// The first scheme, if it reached the target in every run.
    pub fn winner(&self) -> Option<&RankedScheme> {
        self.places.first().filter(|place| place.finished())
    }

    /// The ranking as a table.
    pub fn table(&self) -> String {
        let names = ["scheme", &self.target, "× bsp", "idle", "updates", "samples", "lost", "MB", "accuracy"];
        aligned(std::iter::once(names.map(String::from)).chain(self.places.iter().map(RankedScheme::cells)))
    }

    /// Which scheme wins and why, in a few sentences. The time of a run is its samples divided by samples per second: a
    /// scheme wins by needing fewer samples, or by more samples per second because it waits, loses or sends less.
    pub fn explanation(&self) -> String {
        let Some(winner) = self.winner() else {
            return format!("No scheme reached {} in every run. Set an easier target with --until.", self.target);
        };
        let own = winner.time_to_target.unwrap_or(winner.time);
        let spread = winner.spread.unwrap_or(0.0);
        let mut text = format!("{} wins: {} after {}", winner.scheme, self.target, time(own));
        let others = || self.places.iter().skip(1);
        match others().find(|place| place.scheme == BASELINE).or(others().next()) {
            Some(other) => text += &compared(winner, other),
            None => text.push('.'),
        }
        let close = others().filter(|place| place.finished()).filter(|place| {
            place.time_to_target.is_some_and(|other| other - own < spread.max(place.spread.unwrap_or(0.0)))
        });
        let close: Vec<&str> = close.map(|place| place.scheme.as_str()).collect();
        if !close.is_empty() {
            text += &format!(" Too close to distinguish with these seeds: {}.", close.join(", "));
        }
        text
    }
}

fn compared(winner: &RankedScheme, other: &RankedScheme) -> String {
    let mut text = match (winner.time_to_target, other.time_to_target.filter(|_| other.finished())) {
        (Some(own), Some(theirs)) => format!(", {} times as fast as {}", number(theirs / own, 1), other.scheme),
        _ => format!(", which {} did not reach in every run", other.scheme),
    };
    text += &format!(
        ". Why: it processed {} times as many samples per second (workers waited {:.0} % of the time, under {} {:.0} %",
        number(winner.throughput() / other.throughput(), 1),
        100.0 * winner.idle_share,
        other.scheme,
        100.0 * other.idle_share
    );
    let moved = (winner.bytes / winner.samples_used) / (other.bytes / other.samples_used);
    let lost = winner.samples_lost / (winner.samples_used + winner.samples_lost);
    if moved < 0.7 {
        text += &format!("; it sent {:.0} % as many bytes per sample", 100.0 * moved);
    }
    if lost > 0.005 {
        text += &format!("; {:.0} % of its samples were lost", 100.0 * lost);
    }
    text + &format!("), and needed {:.0} % as many samples.", 100.0 * winner.samples_used / other.samples_used)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comparison::RunResult;

    fn result(scheme: &str, seed: u64, time: f64, reached: bool, idle_share: f64) -> RunResult {
        let summary = Summary {
            scheme: scheme.into(),
            seed,
            workers: 4,
            iterations: 100,
            time,
            reached,
            time_to_target: reached.then_some(time),
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
            idle_share,
            bytes: 1_000_000,
            samples_per_second: 1.0,
            bytes_per_second: 1.0,
            worker_times: Vec::new(),
        };
        RunResult { summary, curve: Vec::new() }
    }

    fn scheme_runs(scheme: &str, times: [Option<f64>; 2], idle: f64) -> SchemeRuns {
        let run = |(seed, time): (u64, Option<f64>)| result(scheme, seed, time.unwrap_or(500.0), time.is_some(), idle);
        SchemeRuns { scheme: scheme.parse().unwrap(), runs: (1..).zip(times).map(run).collect() }
    }

    #[test]
    fn the_fastest_scheme_that_always_reaches_the_target_wins() {
        let all_runs = [
            scheme_runs("bsp", [Some(100.0), Some(102.0)], 0.5),
            scheme_runs("asp", [Some(10.0), None], 0.0),
            scheme_runs("ssp", [None, None], 0.1),
            scheme_runs("dssp", [Some(50.0), Some(51.0)], 0.05),
            scheme_runs("dbw", [Some(50.0), Some(51.5)], 0.05),
        ];
        let ranking = Ranking::new(&all_runs, &"accuracy>0.9,samples=1000".parse().unwrap());
        let order: Vec<&str> = ranking.places.iter().map(|place| place.scheme.as_str()).collect();
        assert_eq!(order, ["dssp", "dbw", "bsp", "asp", "ssp"]);
        assert_eq!(ranking.places[0].speedup, Some(2.0));
        let explanation = ranking.explanation();
        assert!(
            explanation.starts_with("dssp wins: accuracy>0.9 after 50.5 s, 2.0 times as fast as bsp. Why: "),
            "{explanation}"
        );
        assert!(
            explanation.contains("workers waited 5 % of the time, under bsp 50 %), and needed 100 % as many samples."),
            "{explanation}"
        );
        assert!(explanation.ends_with("Too close to distinguish with these seeds: dbw."), "{explanation}");
        let table = ranking.table();
        assert!(table.contains("50.5 ± 0.7 s"), "{table}");
        assert!(table.contains("10.0 s in 1 of 2") && table.contains("not reached"), "{table}");
    }

    #[test]
    fn one_run_has_no_spread() {
        let alone = SchemeRuns { scheme: "bsp".parse().unwrap(), runs: vec![result("bsp", 1, 0.0123, true, 0.5)] };
        let table = Ranking::new(&[alone], &"accuracy>0.9".parse().unwrap()).table();
        assert!(table.contains("12.3 ms") && !table.contains('±'), "{table}");
    }

    #[test]
    fn without_a_scheme_that_always_reaches_the_target_none_wins() {
        let ranking = Ranking::new(&[scheme_runs("bsp", [Some(1.0), None], 0.5)], &"loss<0.1".parse().unwrap());
        assert!(ranking.winner().is_none());
        let explanation = ranking.explanation();
        assert!(explanation.starts_with("No scheme reached loss<0.1 in every run"), "{explanation}");
    }
}
