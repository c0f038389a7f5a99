//! Who won, by how much, and why.

use std::cmp::Ordering;

use paceline_runtime::{Goals, Summary};
use serde::Serialize;

use super::SchemeRuns;
use crate::numbers::{number, time, time_within};
use crate::statistics::{deviation, mean};
use crate::tables::aligned;

/// What every scheme is compared with, where it takes part.
const BASELINE: &str = "bsp";

/// A scheme's place, with means over its runs. Times are seconds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RankedScheme {
    /// Counts from 1.
    pub place: usize,
    /// The scheme as written.
    pub scheme: String,
    /// How many runs there were, one per seed.
    pub runs: usize,
    /// How many of them reached the target.
    pub reached: usize,
    /// When they did.
    pub time_to_target: Option<f64>,
    /// The standard deviation of that over the seeds.
    pub spread: Option<f64>,
    /// How many times as fast as under the baseline.
    pub speedup: Option<f64>,
    /// Share of the workers' time in which they had nothing to do.
    pub idle_share: f64,
    /// Updates that entered the model.
    pub updates: f64,
    /// Samples in them.
    pub samples_used: f64,
    /// Samples worked on for nothing.
    pub samples_lost: f64,
    /// Parameters and gradients moved.
    pub bytes: f64,
    /// Held-out accuracy at the end.
    pub accuracy: f64,
    /// The standard deviation of that over the seeds.
    pub accuracy_spread: f64,
    /// How long a run took.
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

    /// Samples that entered the model per second.
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

/// The schemes by their time to the target: first those that reached it in every run, then those that did in some.
pub struct Ranking {
    /// All of them, the winner first.
    pub places: Vec<RankedScheme>,
    target: String,
}

impl Ranking {
    /// Ranks what was shown on the way to these goals.
    pub fn new(all_runs: &[SchemeRuns], goals: &Goals) -> Self {
        let mut places: Vec<RankedScheme> = all_runs.iter().map(RankedScheme::new).collect();
        let misses = |place: &RankedScheme| place.runs - place.reached;
        let time = |place: &RankedScheme| place.time_to_target.unwrap_or(f64::INFINITY);
        places.sort_by(|a, b| {
            let order = misses(a).cmp(&misses(b)).then(time(a).total_cmp(&time(b)));
            // Who never got there is placed by how close it came; of equals the simpler scheme is named first.
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

    /// The first, if it reached the target in every run.
    pub fn winner(&self) -> Option<&RankedScheme> {
        self.places.first().filter(|place| place.finished())
    }

    /// All places as a table.
    pub fn table(&self) -> String {
        let names = ["scheme", &self.target, "× bsp", "idle", "updates", "samples", "lost", "MB", "accuracy"];
        aligned(std::iter::once(names.map(String::from)).chain(self.places.iter().map(RankedScheme::cells)))
    }

    /// Who won and why, in a few sentences. A run's time is samples over samples per second: a scheme wins by needing
    /// fewer or by getting through them faster, and the latter because it waits, discards or moves less.
    pub fn verdict(&self) -> String {
        let Some(winner) = self.winner() else {
            return format!("No scheme reached {} in every run: aim lower with --until.", self.target);
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
            text += &format!(" Too close to tell over these seeds: {}.", close.join(", "));
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
        ". Why: it got through {} times as many samples a second (its workers waited for {:.0} % of the time, under {} \
         for {:.0} %",
        number(winner.throughput() / other.throughput(), 1),
        100.0 * winner.idle_share,
        other.scheme,
        100.0 * other.idle_share
    );
    let moved = (winner.bytes / winner.samples_used) / (other.bytes / other.samples_used);
    let lost = winner.samples_lost / (winner.samples_used + winner.samples_lost);
    if moved < 0.7 {
        text += &format!("; it moved {moved:.1} times the bytes per sample");
    }
    if lost > 0.005 {
        text += &format!("; {:.0} % of its samples were for nothing", 100.0 * lost);
    }
    text + &format!("), and needed {:.1} times as many.", winner.samples_used / other.samples_used)
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
            stopped_by: String::new(),
            loss: Some(0.4),
            accuracy: Some(0.9),
            updates_committed: 400,
            updates_discarded: 0,
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
    fn the_fastest_of_those_that_always_get_there() {
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
        let verdict = ranking.verdict();
        assert!(
            verdict.starts_with("dssp wins: accuracy>0.9 after 50.5 s, 2.0 times as fast as bsp. Why: "),
            "{verdict}"
        );
        assert!(verdict.contains("waited for 5 % of the time, under bsp for 50 %"), "{verdict}");
        assert!(verdict.ends_with("Too close to tell over these seeds: dbw."), "{verdict}");
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
    fn nobody_may_win() {
        let ranking = Ranking::new(&[scheme_runs("bsp", [Some(1.0), None], 0.5)], &"loss<0.1".parse().unwrap());
        assert!(ranking.winner().is_none());
        assert!(ranking.verdict().starts_with("No scheme reached loss<0.1 in every run"), "{}", ranking.verdict());
    }
}
