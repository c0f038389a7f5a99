//! The first sentence about a run: who straggled, and what it cost.

use serde::{Deserialize, Serialize};

use super::members::{Members, SampleFate};
use super::timeline::{ACTIVITIES, Activity};
use crate::numbers::{listed, ratio};
use crate::statistics::median;

/// A worker holds the others up if waiting for it takes at least this share of all workers' time …
const COSTLY: f64 = 0.03;

/// … and more than this many times as much as for a worker on average.
const FAIR: f64 = 1.5;

/// A worker is slow if it takes this many times the others' median for a sample.
const SLOW: f64 = 1.25;

/// Unused work worth a sentence, as a share of all.
const MUCH_LOST: f64 = 0.02;

/// Waiting worth a sentence, as a share of all workers' time.
const MUCH_WAITING: f64 = 0.1;

/// How many workers are named.
const MAX_NAMES: usize = 3;

/// What is said about a run before anything else.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Default)]
pub struct Headline {
    /// Who straggled.
    pub sentence: String,
    /// What it cost.
    pub cost: String,
    /// Whether that is bad news.
    pub is_costly: bool,
    /// The ranks of the stragglers.
    pub stragglers: Vec<usize>,
    /// The share of all workers' time that they waited, 0 to 1.
    pub waiting: f64,
}

/// How many times the others' median each worker needs for a sample, by rank; `None` if it is not known.
pub fn slowness(members: &Members) -> Vec<Option<f64>> {
    let paces: Vec<Option<f64>> = members.all.iter().map(super::members::MemberView::mean_pace).collect();
    let mut known: Vec<f64> = paces.iter().flatten().copied().collect();
    if known.len() < 2 {
        return vec![None; paces.len()];
    }
    known.sort_by(f64::total_cmp);
    let without = |pace: f64| {
        // Without this worker's own: in a sorted list, one beside the middle.
        let mut others = known.clone();
        let own = others.partition_point(|other| *other < pace);
        others.remove(own.min(others.len() - 1));
        median(others)
    };
    // With many workers one of them does not move the median.
    let of_all = (known.len() > 64).then(|| median(known.clone()));
    paces.iter().map(|pace| pace.map(|pace| pace / of_all.unwrap_or_else(|| without(pace)))).collect()
}

impl Headline {
    /// The headline of a run whose workers spent this many seconds on each activity.
    pub fn new(members: &Members, totals: &[[f64; ACTIVITIES]]) -> Self {
        let present: Vec<f64> =
            totals.iter().map(|totals| totals.iter().sum::<f64>() - totals[Activity::Absent as usize]).collect();
        let all: f64 = present.iter().sum();
        if all <= 0.0 || members.all.is_empty() {
            return Headline { sentence: "No worker has done anything yet.".into(), ..Headline::default() };
        }
        let waiting = totals.iter().map(|totals| totals[Activity::Waiting as usize]).sum::<f64>() / all;
        let workers = present.iter().filter(|seconds| **seconds > 0.0).count();
        let slowness = slowness(members);
        let is_slow = |worker: usize| slowness.get(worker).copied().flatten().is_some_and(|factor| factor >= SLOW);
        let cost = |worker: usize| members.all[worker].waited_for / all;
        let by_cost = |mut ranks: Vec<usize>| {
            let slow = |rank: usize| slowness.get(rank).copied().flatten().unwrap_or(1.0);
            ranks.sort_by(|&one, &other| cost(other).total_cmp(&cost(one)).then(slow(other).total_cmp(&slow(one))));
            ranks
        };
        let blamed: f64 = (0..members.all.len()).map(cost).sum();
        // Equal workers take turns in being the last: nobody is to blame for about an equal share.
        let fair = FAIR * blamed / workers as f64;
        let costly = |&worker: &usize| {
            if is_slow(worker) {
                cost(worker) >= COSTLY / 3.0 && cost(worker) > fair
            } else {
                // It is late at times only, so it has to stand out.
                cost(worker) >= COSTLY && cost(worker) > blamed / 2.0 && workers > 2
            }
        };
        let costly = by_cost((0..members.all.len()).filter(costly).collect());
        let slow = by_cost((0..members.all.len()).filter(|&worker| is_slow(worker)).collect());
        let (is_costly, stragglers) = if costly.is_empty() { (false, slow) } else { (true, costly) };
        let waited: f64 = stragglers.iter().map(|&worker| cost(worker)).sum();
        let sentence = match (stragglers.len(), workers) {
            (0, 0 | 1) => "One worker trains alone.".into(),
            (0, _) if waiting > MUCH_WAITING => {
                "No worker straggled more than the others: each was late in turn.".into()
            }
            (0, _) => "No worker straggled.".into(),
            _ => sentence(&stragglers, &slowness, is_costly, waited),
        };
        let cost = if is_costly {
            format!(
                "Waiting for {} took {} of all workers’ time, as if {} of {workers} workers had done nothing.",
                if stragglers.len() == 1 { "it" } else { "them" },
                percent(waited),
                ratio_of_workers(waited * workers as f64)
            )
        } else {
            format!("Waiting took {} of all workers’ time.", percent(waiting))
        };
        let cost = cost + &lost_work(members.samples());
        Headline { sentence, cost, is_costly, stragglers, waiting }
    }
}

fn sentence(stragglers: &[usize], slowness: &[Option<f64>], is_costly: bool, waited: f64) -> String {
    let mut named: Vec<usize> = stragglers.iter().take(MAX_NAMES).copied().collect();
    named.sort_unstable();
    let mut names: Vec<String> = named.iter().map(usize::to_string).collect();
    if stragglers.len() > MAX_NAMES {
        names.push(format!("{} more", stragglers.len() - MAX_NAMES));
    }
    let names = listed(&names.iter().map(String::as_str).collect::<Vec<_>>());
    let plural = stragglers.len() > 1;
    let factors: Vec<f64> = stragglers.iter().filter_map(|&worker| *slowness.get(worker)?).collect();
    let factor = if factors.is_empty() { 1.0 } else { median(factors) };
    let subject = if plural { format!("Workers {names}") } else { format!("Worker {names}") };
    let by = if factor < SLOW { String::new() } else { format!("{}× slower than the others", ratio(factor)) };
    match (is_costly, by.is_empty()) {
        (true, true) => format!("{subject} held the others up."),
        (true, false) => format!("{subject} straggled: {by}."),
        (false, _) => {
            let (are, them) = if plural { ("are", "them") } else { ("is", "it") };
            let but = if waited < COSTLY { "nobody waited for" } else { "the scheme makes up for" };
            format!("{subject} {are} {by}, and {but} {them}.")
        }
    }
}

fn lost_work(samples: SampleFate) -> String {
    let share = samples.lost as f64 / (samples.used + samples.lost).max(1) as f64;
    if share < MUCH_LOST {
        String::new()
    } else {
        format!(" {} of the computed samples were not used.", percent(share))
    }
}

fn percent(share: f64) -> String {
    if share > 0.0 && share < 0.01 { "less than 1 %".into() } else { format!("{:.0} %", 100.0 * share) }
}

fn ratio_of_workers(workers: f64) -> String {
    if workers < 10.0 { format!("{workers:.1}") } else { format!("{workers:.0}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::members::MemberView;

    fn member(pace: f64, waited_for: f64) -> MemberView {
        let samples = SampleFate { used: 100, ..SampleFate::default() };
        MemberView { computing: 100.0 * pace, computed: 100, waited_for, samples, ..MemberView::default() }
    }

    fn spent(computing: f64, waiting: f64) -> [f64; ACTIVITIES] {
        [computing, waiting, 0.0, 0.0, 0.0]
    }

    fn headline(members: Vec<MemberView>, totals: &[[f64; ACTIVITIES]]) -> Headline {
        Headline::new(&Members { all: members, ..Members::default() }, totals)
    }

    #[test]
    fn the_straggler_is_named_with_its_cost() {
        let members = vec![member(3.0, 600.0), member(1.0, 0.0), member(1.0, 0.0), member(1.0, 0.0)];
        let totals = [spent(300.0, 0.0), spent(100.0, 200.0), spent(100.0, 200.0), spent(100.0, 200.0)];
        let found = headline(members.clone(), &totals);
        assert_eq!(found.sentence, "Worker 0 straggled: 3.00× slower than the others.");
        assert_eq!(
            found.cost,
            "Waiting for it took 50 % of all workers’ time, as if 2.0 of 4 workers had done nothing."
        );
        assert_eq!((found.stragglers, found.waiting), (vec![0], 0.5));

        // The same workers, and nobody waits.
        let mut members: Vec<MemberView> =
            members.into_iter().map(|member| MemberView { waited_for: 0.0, ..member }).collect();
        members[0].samples = SampleFate { used: 50, lost: 50, pending: 0 };
        let found = headline(members, &[spent(300.0, 0.0), spent(300.0, 0.0), spent(300.0, 0.0), spent(300.0, 0.0)]);
        assert_eq!(found.sentence, "Worker 0 is 3.00× slower than the others, and nobody waited for it.");
        assert_eq!(found.cost, "Waiting took 0 % of all workers’ time. 12 % of the computed samples were not used.");
        assert!(!found.is_costly);
    }

    #[test]
    fn equal_workers_are_not_blamed_for_being_last_in_turn() {
        let members = vec![member(1.0, 10.0), member(1.01, 12.0), member(1.0, 9.0)];
        let found = headline(members.clone(), &[spent(50.0, 50.0); 3]);
        assert_eq!(found.sentence, "No worker straggled more than the others: each was late in turn.");
        let found = headline(members, &[spent(100.0, 10.0); 3]);
        assert_eq!((found.sentence.as_str(), found.is_costly), ("No worker straggled.", false));
        assert_eq!(found.cost, "Waiting took 9 % of all workers’ time.");
        // One is slow, but has less to do.
        let members = vec![member(3.0, 10.0), member(1.0, 12.0), member(1.0, 9.0)];
        let found = headline(members, &[spent(100.0, 10.0); 3]);
        assert_eq!(found.sentence, "Worker 0 is 3.00× slower than the others, and the scheme makes up for it.");
        assert_eq!(headline(vec![member(1.0, 0.0)], &[spent(9.0, 0.0)]).sentence, "One worker trains alone.");
        assert_eq!(headline(vec![], &[]).sentence, "No worker has done anything yet.");
    }

    #[test]
    fn of_many_stragglers_a_few_are_named() {
        let members = (0..8).map(|rank| if rank < 3 { member(4.0, 100.0) } else { member(1.0, 0.0) });
        let mut members: Vec<MemberView> = members.collect();
        members.extend((0..8).map(|_| member(1.0, 0.0)));
        let found = headline(members, &[spent(50.0, 50.0); 16]);
        assert_eq!(found.sentence, "Workers 0, 1 and 2 straggled: 4.00× slower than the others.");
        assert!(
            found.cost.starts_with("Waiting for them took 19 % of all workers’ time, as if 3.0 of 16"),
            "{found:?}"
        );
    }
}
