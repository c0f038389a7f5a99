//! The ranking of contestants: which one wins, by how much, and why.

use std::cmp::Ordering;

use paceline_core::StepKind;
use paceline_runtime::{Goals, Summary};
use serde::Serialize;

use super::paired::written;
use super::{ContestantRuns, Difference, FEWEST_SEEDS, PairedRatio};
use crate::numbers::{listed, number, ratio, time, time_within};
use crate::statistics::{deviation, mean};
use crate::tables::aligned;

/// The scheme that others are compared with, if it is among them.
pub(crate) const BASELINE: &str = "bsp";

/// A contestant's rank, with means over its runs. Times are in seconds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RankedContestant {
    /// Its rank, from 1.
    pub place: usize,
    /// The scheme with its settings, and the workers if they are not all.
    #[serde(rename = "scheme")]
    pub name: String,
    /// What the scheme's steps are made of.
    pub step_kind: StepKind,
    /// The learning rate.
    pub rate: f64,
    /// Whether it is the best at the edge of the rates that were tried; `None` if it was not tuned.
    pub rate_at_edge: Option<bool>,
    /// Number of runs, one per seed.
    pub runs: usize,
    /// Number of runs that reached the target.
    pub reached: usize,
    /// Mean time to target of those that did.
    pub time_to_target: Option<f64>,
    /// Its standard deviation over the seeds.
    pub spread: Option<f64>,
    /// Speedup over the baseline: the geometric mean of the ratios of times with the same seed.
    pub speedup: Option<f64>,
    /// The lower end of its 95 % confidence interval.
    pub speedup_low: Option<f64>,
    /// The upper end.
    pub speedup_high: Option<f64>,
    /// Whether it differs from the baseline.
    pub difference: Difference,
    /// Share of the workers' time that they were idle.
    pub idle_share: f64,
    /// Updates committed.
    pub updates: f64,
    /// Samples in them.
    pub samples_used: f64,
    /// What a sample was worth, in samples of `bsp`, by the goodput.
    pub efficiency: f64,
    /// Samples of work that was not used.
    pub samples_lost: f64,
    /// Bytes of parameters and updates sent.
    pub bytes: f64,
    /// The loss or accuracy that counted when they reached the target.
    pub counted: Option<f64>,
    /// Held-out accuracy at the end.
    pub accuracy: f64,
    /// Its standard deviation over the seeds.
    pub accuracy_spread: f64,
    /// Duration of a run.
    pub time: f64,
}

impl RankedContestant {
    fn new(contestant: &ContestantRuns, baseline: Option<&ContestantRuns>) -> Self {
        let column =
            |value: fn(&Summary) -> f64| contestant.runs.iter().map(|run| value(&run.summary)).collect::<Vec<_>>();
        let times = contestant.times();
        let finished = times.len() == contestant.runs.len();
        let pair = baseline.filter(|_| finished).and_then(|other| PairedRatio::new(&contestant.runs, &other.runs));
        let accuracy = column(|summary| summary.accuracy.unwrap_or(f64::NAN));
        let counted: Vec<f64> = contestant.runs.iter().filter_map(|run| run.summary.counted).collect();
        RankedContestant {
            place: 0,
            name: contestant.name.clone(),
            step_kind: contestant.step_kind,
            rate: contestant.written_rate(),
            rate_at_edge: contestant.at_edge,
            runs: contestant.runs.len(),
            reached: times.len(),
            time_to_target: (!times.is_empty()).then(|| mean(&times)),
            spread: (!times.is_empty()).then(|| deviation(&times)),
            speedup: pair.map(|pair| pair.ratio),
            speedup_low: pair.and_then(|pair| pair.interval).map(|(low, _)| low),
            speedup_high: pair.and_then(|pair| pair.interval).map(|(_, high)| high),
            difference: pair.map_or(Difference::Unknown, |pair| pair.difference()),
            idle_share: mean(&column(|summary| summary.idle_share)),
            updates: mean(&column(|summary| summary.updates_committed as f64)),
            samples_used: mean(&column(|summary| summary.samples_used as f64)),
            efficiency: mean(&column(|summary| summary.goodput / summary.samples_per_second)),
            samples_lost: mean(&column(|summary| summary.samples_lost as f64)),
            bytes: mean(&column(|summary| summary.bytes as f64)),
            counted: (!counted.is_empty()).then(|| mean(&counted)),
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

    fn speedup_cell(&self) -> String {
        let Some(speedup) = self.speedup else { return "-".into() };
        if self.name == BASELINE {
            return ratio(speedup);
        }
        PairedRatio { ratio: speedup, interval: self.speedup_low.zip(self.speedup_high) }.cell()
    }

    fn rate_cell(&self) -> Option<String> {
        self.rate_at_edge.map(|at_edge| format!("{}{}", self.rate, if at_edge { " (edge)" } else { "" }))
    }

    fn cells(&self) -> Vec<String> {
        let several = self.runs > 1;
        let reached = match (self.time_to_target, self.spread) {
            (Some(own), _) if !several => time(own),
            (Some(own), Some(spread)) if self.finished() => time_within(own, spread),
            (Some(own), _) => format!("{} in {} of {}", time(own), self.reached, self.runs),
            _ => "not reached".into(),
        };
        let counted = self.counted.map_or("-".into(), |counted| format!("{counted:.4}"));
        let mut cells = vec![self.name.clone(), reached, counted, self.speedup_cell()];
        cells.extend(self.rate_cell());
        cells.extend([
            format!("{:.1} %", 100.0 * self.idle_share),
            format!("{:.0}", self.samples_used),
            format!("{:.0}", self.samples_lost),
            format!("{:.0}", self.bytes / 1e6),
            if several {
                format!("{:.4} ± {:.4}", self.accuracy, self.accuracy_spread)
            } else {
                format!("{:.4}", self.accuracy)
            },
        ]);
        cells
    }
}

/// The contestants ordered by time to target: first those that reached it in every run, then those that did in some.
pub struct Ranking {
    /// The contestants, the fastest first.
    pub places: Vec<RankedContestant>,
    /// How the first one compares with each of the others, in the order of places.
    ahead: Vec<Option<PairedRatio>>,
    target: String,
}

impl Ranking {
    /// Ranks the runs of all contestants by these goals.
    pub fn new(all_runs: &[ContestantRuns], goals: &Goals) -> Self {
        let baseline = all_runs.iter().find(|contestant| contestant.name == BASELINE);
        let ranked = |runs| (RankedContestant::new(runs, baseline), runs);
        let mut ranked: Vec<(RankedContestant, &ContestantRuns)> = all_runs.iter().map(ranked).collect();
        let misses = |place: &RankedContestant| place.runs - place.reached;
        // The mean of the logarithm, as in the ratios.
        let log_time = |runs: &ContestantRuns| {
            let logs: Vec<f64> = runs.times().into_iter().map(f64::ln).collect();
            if logs.is_empty() { f64::INFINITY } else { mean(&logs) }
        };
        ranked.sort_by(|(a, own), (b, other)| {
            let order = misses(a).cmp(&misses(b)).then(log_time(own).total_cmp(&log_time(other)));
            // Those that never reached the target are ordered by accuracy; equal ones keep their order.
            order.then(if a.reached == 0 { b.accuracy.total_cmp(&a.accuracy) } else { Ordering::Equal })
        });
        let first = ranked.first().map_or(&[][..], |(_, first)| &first.runs);
        let ahead = ranked.iter().skip(1).map(|(_, other)| PairedRatio::new(first, &other.runs)).collect();
        let mut places: Vec<RankedContestant> = ranked.into_iter().map(|(place, _)| place).collect();
        for (index, place) in places.iter_mut().enumerate() {
            place.place = index + 1;
        }
        let targets: Vec<String> = goals.iter().filter(|goal| goal.is_target()).map(|goal| goal.to_string()).collect();
        Ranking { places, ahead, target: targets.join(" or ") }
    }

    /// The one that is faster than every other; `None` if the seeds don't tell, or nobody reached the target in every run.
    pub fn winner(&self) -> Option<&RankedContestant> {
        let unclear = self.rivals().any(|(_, pair)| pair.is_none_or(|pair| pair.difference() != Difference::Faster));
        self.first().filter(|_| !unclear)
    }

    /// The fastest, and those that can't be told apart from it.
    pub fn leaders(&self) -> Vec<&RankedContestant> {
        let level = self.rivals().filter(|(_, pair)| pair.is_some_and(|pair| pair.difference() == Difference::None));
        self.first().into_iter().chain(level.map(|(place, _)| place)).collect()
    }

    /// The fastest, if it reached the target in every run.
    fn first(&self) -> Option<&RankedContestant> {
        self.places.first().filter(|place| place.finished())
    }

    /// The others that reached the target in every run, each with how the fastest compares with it.
    fn rivals(&self) -> impl Iterator<Item = (&RankedContestant, Option<PairedRatio>)> {
        let others = self.places.iter().skip(1).zip(self.ahead.iter().copied());
        others.filter(|(place, _)| place.finished())
    }

    /// The ranking as a table.
    pub fn table(&self) -> String {
        let mut names = vec!["scheme", &self.target, "counted", "× bsp"];
        names.extend(self.places.iter().any(|place| place.rate_at_edge.is_some()).then_some("rate"));
        names.extend(["idle", "samples", "lost", "MB", "accuracy"]);
        let names = names.into_iter().map(String::from).collect();
        aligned(std::iter::once(names).chain(self.places.iter().map(RankedContestant::cells)))
    }

    /// The target.
    pub fn target(&self) -> &str {
        &self.target
    }

    /// Who wins and why, in a few sentences.
    pub fn explanation(&self) -> String {
        let reasons = self.reasons();
        if reasons.is_empty() { self.verdict() } else { format!("{} {reasons}", self.verdict()) }
    }

    /// Who wins, in a sentence.
    pub fn verdict(&self) -> String {
        let Some(first) = self.first() else {
            return format!("Nobody reached {} in every run. Set an easier target with --until.", self.target);
        };
        let after = format!("{} after {}", self.target, time(first.time_to_target.unwrap_or(first.time)));
        let leaders: Vec<&str> = self.leaders().iter().map(|place| place.name.as_str()).collect();
        let mut text = match &leaders[..] {
            [only] if self.places.len() == 1 => format!("{only} ran alone: {after}"),
            [first] if self.winner().is_some() => format!("{first} wins: {after}"),
            [first] => format!("{first} was first: {after}"),
            several => {
                format!("{} lead; they can't be told apart with these seeds. {}: {after}", listed(several), several[0])
            }
        };
        text += &self.other().map_or(String::new(), |(other, pair)| compared(other, pair));
        text + "."
    }

    /// Why, in a few sentences. The time of a run is its samples divided by samples per second: a contestant wins by needing
    /// fewer samples, or by more samples per second because it waits, loses or sends less.
    pub fn reasons(&self) -> String {
        let Some(first) = self.first() else { return String::new() };
        let differs = |(other, pair): &(&RankedContestant, Option<PairedRatio>)| !is_level(other, *pair);
        let mut text = self.other().filter(differs).map_or(String::new(), |(other, _)| why(first, other));
        if self.rivals().any(|(_, pair)| pair.is_none_or(|pair| pair.difference() == Difference::Unknown)) {
            text += &format!(" Too few seeds to tell who is faster: give at least {FEWEST_SEEDS}, better more.");
        }
        text += &self.edge_note();
        text.trim_start().into()
    }

    /// Whom the first one is compared with: the baseline, or the second one.
    fn other(&self) -> Option<(&RankedContestant, Option<PairedRatio>)> {
        let others = || self.places.iter().skip(1).zip(self.ahead.iter().copied());
        others().find(|(place, _)| place.name == BASELINE).or(others().next())
    }

    /// Says whose best learning rate may lie outside the rates that were tried.
    fn edge_note(&self) -> String {
        let at_edge: Vec<&str> =
            self.places.iter().filter(|place| place.rate_at_edge == Some(true)).map(|place| &*place.name).collect();
        if at_edge.is_empty() {
            return String::new();
        }
        format!(" At the edge of the rates tried, so that a wider grid may be better: {}.", at_edge.join(", "))
    }
}

/// Whether the first one does not differ from another.
fn is_level(other: &RankedContestant, pair: Option<PairedRatio>) -> bool {
    other.finished() && pair.is_some_and(|pair| pair.difference() == Difference::None)
}

/// How the first one compares with another, as the end of a sentence.
fn compared(other: &RankedContestant, pair: Option<PairedRatio>) -> String {
    let text = match pair.filter(|_| other.finished()) {
        Some(pair) => {
            let ends = pair.interval.map_or(String::new(), |ends| format!(" ({})", written(ends)));
            format!(", {} times as fast as {}{ends}", ratio(pair.ratio), other.name)
        }
        None => format!(", which {} did not reach in every run", other.name),
    };
    if is_level(other, pair) { text + ", which is no difference" } else { text }
}

/// Why the first one is faster than another.
fn why(first: &RankedContestant, other: &RankedContestant) -> String {
    let mut text = format!(
        "Why: it processed {} times as many samples per second (workers waited {:.0} % of the time, under {} {:.0} %",
        number(first.throughput() / other.throughput(), 1),
        100.0 * first.idle_share,
        other.name,
        100.0 * other.idle_share
    );
    let moved = (first.bytes / first.samples_used) / (other.bytes / other.samples_used);
    let lost = first.samples_lost / (first.samples_used + first.samples_lost);
    if moved < 0.7 {
        text += &format!("; it sent {:.0} % as many bytes per sample", 100.0 * moved);
    }
    if lost > 0.005 {
        text += &format!("; {:.0} % of its samples were lost", 100.0 * lost);
    }
    text += &format!("), and needed {:.0} % as many samples", 100.0 * first.samples_used / other.samples_used);
    let expected = other.efficiency / first.efficiency;
    if expected.is_finite() && (expected - 1.0).abs() > 0.02 {
        text += &format!("; by what its steps are worth, {:.0} % were expected", 100.0 * expected);
    }
    text + "."
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comparison::result;

    fn contestant(name: &str, times: &[Option<f64>], idle: f64) -> ContestantRuns {
        let run = |(seed, time): (u64, &Option<f64>)| {
            let mut run = result(name, seed, *time);
            run.summary.idle_share = idle;
            run
        };
        let runs = (1..).zip(times).map(run).collect();
        ContestantRuns { name: name.into(), step_kind: StepKind::Fresh, rate: 0.1, at_edge: None, runs }
    }

    fn reached(name: &str, times: [f64; 4]) -> ContestantRuns {
        contestant(name, &times.map(Some), 0.5)
    }

    fn ranking(all_runs: &[ContestantRuns]) -> Ranking {
        Ranking::new(all_runs, &"accuracy>0.9,samples=1000".parse().unwrap())
    }

    fn names(places: &[&RankedContestant]) -> Vec<String> {
        places.iter().map(|place| place.name.clone()).collect()
    }

    const BSP: [f64; 4] = [100.0, 140.0, 80.0, 110.0];

    #[test]
    fn seeds_are_paired_so_that_a_steady_ratio_is_told_from_noisy_times() {
        let faster = BSP.map(|time| time / 1.25);
        let wobbly = [90.0, 125.0, 71.0, 100.0];
        let ranking = ranking(&[reached("bsp", BSP), reached("asp", wobbly), reached("dssp", faster)]);
        assert_eq!(names(&ranking.leaders()), ["dssp"]);
        assert_eq!(ranking.winner().unwrap().name, "dssp");
        let first = &ranking.places[0];
        assert!((first.speedup.unwrap() - 1.25).abs() < 1e-12 && first.difference == Difference::Faster);
        let second = &ranking.places[1];
        let (low, high) = (second.speedup_low.unwrap(), second.speedup_high.unwrap());
        assert!(1.08 < low && low < second.speedup.unwrap() && high < 1.15, "{low} {high}");
        let explanation = ranking.explanation();
        let start = "dssp wins: accuracy>0.9 after 86.0 s, 1.25 times as fast as bsp (1.25 to 1.25). Why: ";
        assert!(explanation.starts_with(start), "{explanation}");
        assert!(explanation.ends_with("and needed 100 % as many samples."), "{explanation}");
    }

    #[test]
    fn those_that_can_not_be_told_apart_lead_together() {
        let level = [84.0, 105.0, 65.0, 86.0];
        let all_runs = [
            reached("bsp", BSP),
            reached("asp", BSP.map(|time| time / 1.25)),
            reached("ssp", level),
            reached("dbw", BSP),
        ];
        let ranking = ranking(&all_runs);
        assert!(ranking.winner().is_none());
        assert_eq!(names(&ranking.leaders()), ["ssp", "asp"]);
        let explanation = ranking.explanation();
        let start =
            "ssp and asp lead; they can't be told apart with these seeds. ssp: accuracy>0.9 after 85.0 s, 1.26 ";
        assert!(explanation.starts_with(start), "{explanation}");
        // Equal to bsp in every run.
        let dbw = ranking.places.iter().find(|place| place.name == "dbw").unwrap();
        assert_eq!((dbw.difference, dbw.speedup), (Difference::None, Some(1.0)));
        assert!(ranking.table().contains("1.00 (1.00 to 1.00), no difference"), "{}", ranking.table());
    }

    #[test]
    fn what_does_not_differ_from_bsp_leads_with_it() {
        let ranking = ranking(&[reached("bsp", BSP), reached("asp", [90.0, 150.0, 75.0, 105.0])]);
        assert_eq!(ranking.places[0].name, "asp");
        let explanation = ranking.explanation();
        assert!(explanation.starts_with("asp and bsp lead; they can't be told apart"), "{explanation}");
        assert!(explanation.ends_with("), which is no difference."), "{explanation}");
    }

    #[test]
    fn two_seeds_are_too_few_to_tell() {
        let two = |name, times: [f64; 2]| contestant(name, &times.map(Some), 0.5);
        let ranking = ranking(&[two("bsp", [100.0, 102.0]), two("asp", [10.0, 11.0])]);
        assert!(ranking.winner().is_none());
        assert_eq!(names(&ranking.leaders()), ["asp"]);
        assert_eq!(ranking.places[0].difference, Difference::Unknown);
        let explanation = ranking.explanation();
        assert!(explanation.starts_with("asp was first: accuracy>0.9 after 10.5 s"), "{explanation}");
        assert!(explanation.ends_with("Too few seeds to tell who is faster: give at least 3, better more."));
        assert!(ranking.table().contains("9.63 (too few seeds)"), "{}", ranking.table());
    }

    #[test]
    fn who_misses_the_target_is_ranked_behind_and_has_no_ratio() {
        let missed = contestant("asp", &[Some(10.0), None, Some(11.0), Some(10.0)], 0.0);
        let never = contestant("ssp", &[None; 4], 0.1);
        let ranking = ranking(&[never, missed, reached("bsp", BSP)]);
        assert_eq!(names(&ranking.places.iter().collect::<Vec<_>>()), ["bsp", "asp", "ssp"]);
        assert_eq!(ranking.places[1].speedup, None);
        assert_eq!(ranking.winner().unwrap().name, "bsp");
        let table = ranking.table();
        assert!(table.contains("10.3 s in 3 of 4") && table.contains("not reached"), "{table}");
        assert!(ranking.explanation().contains(", which asp did not reach in every run"));
    }

    #[test]
    fn seeds_that_the_baseline_missed_do_not_count() {
        let baseline = contestant("bsp", &[Some(20.0), None, Some(22.0), Some(24.0)], 0.0);
        let ranking = ranking(&[baseline, reached("asp", [10.0, 99.0, 11.0, 12.0])]);
        assert!((ranking.places[0].speedup.unwrap() - 2.0).abs() < 1e-12);
    }

    #[test]
    fn tuned_rates_have_a_column() {
        let mut tuned = [reached("bsp", BSP), reached("asp", BSP)];
        (tuned[0].at_edge, tuned[1].at_edge, tuned[1].rate) = (Some(false), Some(true), 1.6);
        let ranking = ranking(&tuned);
        assert!(ranking.table().contains("1.6 (edge)"), "{}", ranking.table());
        assert!(
            ranking.explanation().ends_with("so that a wider grid may be better: asp."),
            "{}",
            ranking.explanation()
        );
    }

    #[test]
    fn one_run_has_no_spread() {
        let alone = contestant("bsp", &[Some(0.0123)], 0.5);
        let ranking = Ranking::new(&[alone], &"accuracy>0.9".parse().unwrap());
        assert!(ranking.table().contains("12.3 ms") && !ranking.table().contains('±'), "{}", ranking.table());
        assert_eq!(ranking.explanation(), "bsp ran alone: accuracy>0.9 after 12.3 ms.");
    }

    #[test]
    fn without_a_contestant_that_always_reaches_the_target_none_wins() {
        let alone = contestant("bsp", &[Some(1.0), None], 0.5);
        let ranking = Ranking::new(&[alone], &"loss<0.1".parse().unwrap());
        assert!(ranking.winner().is_none() && ranking.leaders().is_empty());
        let explanation = ranking.explanation();
        assert!(explanation.starts_with("Nobody reached loss<0.1 in every run"), "{explanation}");
    }
}
