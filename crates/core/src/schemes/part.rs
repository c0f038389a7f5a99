//! What a scheme is made of, and so which schemes combine: `lb-bsp+backup:k=6`.

use super::{SchemeEntry, SchemeError, Settings, Setup, parts_and_schemes};
use crate::local_rounds::LocalPolicy;
use crate::rounds::{LateRule, Quorum, Sizing};
use crate::{CommitStep, Scheme};

/// Builds a scheme, or a part of one, from its settings.
pub type Build<T> = fn(&Settings<'_>, &Setup) -> Result<T, SchemeError>;

/// What a scheme contributes to a combination, and how it is built.
#[derive(Debug, Clone, Copy)]
pub enum Part {
    /// A scheme of its own, which combines with nothing.
    Whole(Build<Box<dyn Scheme>>),
    /// Chooses how many gradients a round waits for.
    Quorum(Build<Box<dyn Quorum>>),
    /// Chooses the workers' batch sizes.
    Sizing(Build<SizingPart>),
    /// Chooses how many local iterations the workers do, without looking at their times.
    LocalPolicy(Build<LocalPart>),
    /// Says what becomes of gradients that arrive after their round.
    Late(Build<LateRule>),
}

/// Batch sizes, as a part.
pub struct SizingPart {
    pub(super) sizing: Box<dyn Sizing>,
    /// How many gradients to wait for if there is no quorum.
    pub(super) waited_for: Option<usize>,
}

impl SizingPart {
    /// Batch sizes for rounds that wait for `waited_for` gradients, unless a quorum says how many; `None`: for all.
    pub fn new(sizing: impl Sizing + 'static, waited_for: Option<usize>) -> Self {
        SizingPart { sizing: Box::new(sizing), waited_for }
    }
}

/// Local iterations, as a part.
pub struct LocalPart {
    pub(super) policy: Box<dyn LocalPolicy>,
    pub(super) step: CommitStep,
}

impl LocalPart {
    /// Local iterations, after which the model moves as `step` says: by an average.
    pub fn new(policy: impl LocalPolicy + 'static, step: CommitStep) -> Self {
        LocalPart { policy: Box::new(policy), step }
    }
}

impl Part {
    /// Whether the two can be parts of one scheme.
    pub fn combines_with(&self, other: &Part) -> bool {
        use Part::{Late, LocalPolicy, Quorum, Sizing};
        matches!(
            (self, other),
            (Quorum(_) | LocalPolicy(_) | Late(_), Sizing(_))
                | (Sizing(_), Quorum(_) | LocalPolicy(_) | Late(_))
                | (Quorum(_), Late(_))
                | (Late(_), Quorum(_))
        )
    }

    /// What it does, as a sentence whose subject is its name.
    pub fn role(&self) -> &'static str {
        match self {
            Part::Whole(_) => "stands alone",
            Part::Quorum(_) => "chooses how many gradients a round waits for",
            Part::Sizing(_) => "sets the batch sizes of rounds",
            Part::LocalPolicy(_) => "sets the number of local iterations",
            Part::Late(_) => "uses the late gradients of rounds",
        }
    }
}

/// The names of the schemes and parts that an entry combines with.
pub fn combinable(entry: &SchemeEntry) -> Vec<&'static str> {
    let others = parts_and_schemes().into_iter().filter(|other| entry.part.combines_with(&other.part));
    others.map(|other| other.name).collect()
}

/// Checks whether these can be parts of one scheme, in any order.
pub(super) fn check(entries: &[&'static SchemeEntry]) -> Result<(), SchemeError> {
    if let [SchemeEntry { name, part: part @ Part::Late(_), .. }] = entries {
        return Err(SchemeError::NotAlone { part: name, role: part.role(), expected: alternatives(entries[0]) });
    }
    for (index, &second) in entries.iter().enumerate() {
        for &first in &entries[..index] {
            if !first.part.combines_with(&second.part) {
                // Explained by the one that combines with something.
                let combines = |entry: &&&SchemeEntry| !matches!(entry.part, Part::Whole(_));
                let by = [&second, &first].into_iter().find(combines).copied().unwrap_or(second);
                return Err(SchemeError::NotCombined {
                    schemes: [first.name, second.name],
                    by: by.name,
                    role: by.part.role(),
                    expected: alternatives(by),
                });
            }
        }
    }
    Ok(())
}

/// What to combine an entry with, in words; empty if there is nothing.
fn alternatives(entry: &SchemeEntry) -> String {
    let names = combinable(entry);
    if names.is_empty() { String::new() } else { format!("; combine it with {}", paceline_spec::alternatives(&names)) }
}

/// Every combination of schemes and parts, each in one order.
fn combinations() -> Vec<Vec<&'static SchemeEntry>> {
    let all = parts_and_schemes();
    let mut combinations: Vec<Vec<&'static SchemeEntry>> = all.iter().map(|&entry| vec![entry]).collect();
    let mut next = 0;
    while let Some(smaller) = combinations.get(next).cloned() {
        next += 1;
        let last = all.iter().position(|entry| std::ptr::eq(*entry, smaller[smaller.len() - 1]));
        for &entry in all.iter().skip(last.map_or(0, |last| last + 1)) {
            if smaller.iter().all(|part| part.part.combines_with(&entry.part)) {
                combinations.push(smaller.iter().copied().chain([entry]).collect());
            }
        }
    }
    combinations.retain(|entries| entries.len() > 1);
    combinations
}

/// Every combination with default settings, and with values for the required ones that fit this number of workers.
pub fn combination_examples(workers: usize) -> Vec<String> {
    let example = |entries: Vec<&SchemeEntry>| {
        let parts: Vec<String> = entries.iter().map(|entry| entry.example("", workers)).collect();
        parts.join("+")
    };
    combinations().into_iter().map(example).collect()
}
