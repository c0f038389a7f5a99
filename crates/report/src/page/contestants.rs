//! Contestants on the page: runs that differ by their seed alone count as one, and are ranked as in a race.

use std::collections::BTreeMap;

use paceline_runtime::Goals;
use serde::Serialize;

use super::PageRun;
use crate::comparison::{Advice, ContestantRuns, RankedContestant, Ranking, RunResult, time_interval};
use crate::plot::{RGBColor, colour_of};
use crate::view::merged;

/// Settings in which runs of one contestant may differ.
const OWN: [&str; 4] = ["seed", "seeds", "out", "record"];

/// Points of a curve of one seed.
const MAX_POINTS: usize = 60;

/// What to use after a comparison.
#[derive(Debug, Clone, Serialize)]
pub struct Recommendation {
    /// Which answer it is, in a word.
    pub name: &'static str,
    /// The scheme and its reasons.
    pub text: String,
    /// The command that trains with it, if there is one.
    pub command: Option<String>,
}

impl Recommendation {
    /// The answers of a comparison, without commands.
    pub fn all(results: &[ContestantRuns], ranking: &Ranking) -> Vec<Self> {
        let advice = Advice::new(results, ranking);
        let answer = |name, text| Recommendation { name, text, command: None };
        let bold = advice.bold.iter().map(|bold| answer("Bold", bold.explanation(advice.safe.as_ref())));
        advice.safe.iter().map(|safe| answer("Safe", safe.explanation())).chain(bold).collect()
    }
}

/// A contestant and its runs.
#[derive(Debug, Serialize)]
pub(super) struct PageContestant {
    name: String,
    colour: String,
    /// Its runs on the page, by their place there.
    runs: Vec<usize>,
    /// The accuracy of every seed over time.
    accuracy: Vec<Vec<(f64, f64)>>,
    /// What it is worth, if the contestants were ranked.
    rank: Option<Rank>,
}

/// A contestant's place, and the times to target behind it.
#[derive(Debug, Serialize)]
struct Rank {
    #[serde(flatten)]
    place: RankedContestant,
    /// The seed of every run, and its time to target if it reached it.
    times: Vec<(u64, Option<f64>)>,
    /// Their mean between the ends of its interval; empty if a run missed the target.
    interval: Vec<f64>,
}

/// How the contestants compare.
#[derive(Debug, Serialize)]
pub(super) struct PageComparison {
    target: String,
    verdict: String,
    reasons: String,
    answers: Vec<Recommendation>,
}

impl PageComparison {
    pub fn new(ranking: &Ranking, answers: Vec<Recommendation>) -> Self {
        let (target, verdict, reasons) = (ranking.target().into(), ranking.verdict(), ranking.reasons());
        PageComparison { target, verdict, reasons, answers }
    }
}

impl PageContestant {
    pub fn new(results: &ContestantRuns, runs: Vec<usize>, ranking: Option<&Ranking>) -> Self {
        let RGBColor(red, green, blue) = colour_of(&results.name);
        let place = ranking.and_then(|ranking| ranking.places.iter().find(|place| place.name == results.name));
        let times = results.runs.iter().map(|run| (run.summary.seed, run.summary.time_to_target)).collect();
        PageContestant {
            name: results.name.clone(),
            colour: format!("#{red:02x}{green:02x}{blue:02x}"),
            runs,
            accuracy: results.runs.iter().map(|run| merged(&run.curve, MAX_POINTS)).collect(),
            rank: place.map(|place| Rank { place: place.clone(), times, interval: time_interval(results) }),
        }
    }
}

/// Runs of a report, as contestants: each with the places of its runs.
pub(super) fn contestants_of(runs: &[PageRun]) -> Vec<(ContestantRuns, Vec<usize>)> {
    let mut groups: Vec<(String, Vec<usize>)> = Vec::new();
    for (index, run) in runs.iter().enumerate() {
        let lines = run.configuration.lines();
        let settings = lines.filter(|line| OWN.iter().all(|key| !line.starts_with(&format!("{key} ="))));
        let settings = format!("{}\n{}", run.view.scheme, settings.collect::<Vec<_>>().join("\n"));
        let seed = |run: &PageRun| run.summary.as_ref().map(|summary| summary.seed);
        let is_new = |other: &usize| seed(&runs[*other]).is_some_and(|other| seed(run).is_some_and(|own| own != other));
        match groups.iter_mut().find(|(known, others)| *known == settings && others.iter().all(is_new)) {
            Some((_, others)) => others.push(index),
            None => groups.push((settings, vec![index])),
        }
    }
    let mut named: BTreeMap<&str, usize> = BTreeMap::new();
    groups.iter().for_each(|(_, own)| *named.entry(&runs[own[0]].view.scheme).or_default() += 1);
    let contestant = |(_, own): &(String, Vec<usize>)| {
        let first = &runs[own[0]];
        // Where several have the same scheme, the names of their folders tell them apart.
        let name = if named[first.view.scheme.as_str()] == 1 { &first.view.scheme } else { &first.name };
        let result = |index: &usize| {
            let summary = runs[*index].summary.clone()?;
            Some(RunResult { summary, curve: runs[*index].accuracy().to_vec() })
        };
        let results = ContestantRuns {
            name: name.clone(),
            step_kind: first.step_kind,
            rate: first.setting("lr").and_then(|rate| rate.trim_matches('"').parse().ok()).unwrap_or(f32::NAN),
            at_edge: None,
            runs: own.iter().filter_map(result).collect(),
        };
        (results, own.clone())
    };
    groups.iter().map(contestant).collect()
}

/// The target that all of these runs had; `None` if they had none, or not the same.
pub(super) fn common_target(runs: &[PageRun]) -> Option<Goals> {
    let goals = |run: &PageRun| -> Vec<Goals> {
        run.setting("until").into_iter().flat_map(|text| text.split('"')).filter_map(|text| text.parse().ok()).collect()
    };
    let targets = |goals: &Goals| -> Vec<String> {
        goals.iter().filter(|goal| goal.is_target()).map(|goal| goal.to_string()).collect()
    };
    let mut all = runs.iter().map(|run| Goals::any(&goals(run)));
    let first = all.next()?;
    let wanted = targets(&first);
    (!wanted.is_empty() && all.all(|other| targets(&other) == wanted)).then_some(first)
}
