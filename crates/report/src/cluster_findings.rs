//! What recorded times tell about a cluster, in sentences: who is slow for good, who varies, who has changed, and who is slow at
//! the same times.

use std::fmt;

use paceline_trace::Trace;
use serde::Serialize;

use crate::numbers::ratio;
use crate::statistics::{mean, median};

/// Less is called noise: how many times slower a worker is …
const LEAST_SLOWNESS: f64 = 1.25;

/// … in how many deviations of a test of signs or ranks, …
const CLEAR: f64 = 4.0;

/// … how many times slower or faster it has become, …
const LEAST_CHANGE: f64 = 1.5;

/// … the factor between its long and its short tasks, …
const LEAST_VARIATION: f64 = 3.0;

/// … and how alike the times of two workers are.
const LEAST_CORRELATION: f64 = 0.5;

/// With fewer tasks nothing is said of a worker.
const FEWEST_TASKS: usize = 20;

/// There are at least this many tasks before a change, and after it.
const FEWEST_BESIDE: usize = 5;

/// A task is an outlier if it takes this many times as long as the worker's median, …
const OUTLIER: f64 = 5.0;

/// … and outliers are named if at least this share of the tasks are such.
const LEAST_OUTLIERS: f64 = 0.01;

/// One thing that the times tell.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum ClusterFinding {
    /// A worker is slower than the others from the first to the last task.
    Slower {
        /// Its rank.
        worker: usize,
        /// Its median time as a multiple of the median worker's.
        factor: f64,
    },
    /// A worker has become slower or faster.
    Changed {
        /// Its rank.
        worker: usize,
        /// The first task after the change, from 1.
        task: usize,
        /// The median time since, as a multiple of the one before.
        factor: f64,
    },
    /// A worker's times vary from task to task.
    Varies {
        /// Its rank.
        worker: usize,
        /// The ninth decile of its times as a multiple of the first one.
        factor: f64,
    },
    /// The times of most workers vary from task to task.
    MostVary {
        /// Their ranks.
        workers: Vec<usize>,
        /// The least such factor of a worker.
        least: f64,
        /// The largest.
        most: f64,
    },
    /// A worker takes very long now and then.
    Outliers {
        /// Its rank.
        worker: usize,
        /// The share of such tasks.
        share: f64,
    },
    /// Workers are slow at the same steps.
    Together {
        /// Their ranks.
        workers: Vec<usize>,
        /// Whether these are all workers.
        all: bool,
    },
}

impl fmt::Display for ClusterFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClusterFinding::Slower { worker, factor } => {
                write!(f, "Worker {worker}: {} times slower than the median, all the time.", ratio(*factor))
            }
            ClusterFinding::Changed { worker, task, factor } => {
                let (factor, word) = if *factor > 1.0 { (*factor, "slower") } else { (1.0 / factor, "faster") };
                write!(f, "Worker {worker}: {} times {word} since its task {task}.", ratio(factor))
            }
            ClusterFinding::Varies { worker, factor } => {
                write!(f, "Worker {worker}: varies by a factor {} from task to task.", ratio(*factor))
            }
            ClusterFinding::MostVary { workers, least, most } => {
                let (workers, least, most) = (ranks(workers), ratio(*least), ratio(*most));
                write!(f, "Workers {workers}: vary by factors of {least} to {most} from task to task.")
            }
            ClusterFinding::Outliers { worker, share } => {
                let share = 100.0 * share;
                write!(f, "Worker {worker}: {share:.0} % of its tasks take more than {OUTLIER} times as long as usual.")
            }
            ClusterFinding::Together { all: true, .. } => {
                write!(f, "All workers are slow at the same times: they may share a network or storage.")
            }
            ClusterFinding::Together { workers, .. } => {
                write!(f, "Workers {} are slow at the same times: they may share a host.", ranks(workers))
            }
        }
    }
}

impl ClusterFinding {
    /// The worker and its factor, if this says that one worker varies.
    fn variation(&self) -> Option<(usize, f64)> {
        if let ClusterFinding::Varies { worker, factor } = self { Some((*worker, *factor)) } else { None }
    }
}

/// Ranks in order, with three or more in a row as `4 to 7`.
fn ranks(workers: &[usize]) -> String {
    let rows = workers.chunk_by(|a, b| a + 1 == *b).flat_map(|row| match row {
        [first, _, .., last] => vec![format!("{first} to {last}")],
        few => few.iter().map(usize::to_string).collect(),
    });
    let rows: Vec<String> = rows.collect();
    crate::numbers::listed(&rows.iter().map(String::as_str).collect::<Vec<_>>())
}

/// One worker's times, and what is left of them without its own level.
struct WorkerLevel {
    change: Option<usize>,
    /// Each time as a multiple of the median before or after the change.
    relative: Vec<f64>,
}

impl WorkerLevel {
    fn new(times: &[f64]) -> Self {
        let change = change_point(times);
        let (before, after) = times.split_at(change.unwrap_or(times.len()));
        let relative = [before, after].into_iter().flat_map(|part| {
            let usual = median(part.to_vec());
            part.iter().map(move |time| time / usual)
        });
        WorkerLevel { change, relative: relative.collect() }
    }
}

/// What these times tell. Noise alone says nothing.
pub fn cluster_findings(trace: &Trace) -> Vec<ClusterFinding> {
    let columns = trace.workers();
    let levels: Vec<WorkerLevel> = columns.iter().map(|times| WorkerLevel::new(times)).collect();
    let usual = median(columns.iter().map(|times| median(times.clone())).collect());
    let mut findings = Vec::new();
    for (worker, (times, level)) in
        columns.iter().zip(&levels).enumerate().filter(|(_, (times, _))| times.len() >= FEWEST_TASKS)
    {
        let factor = median(times.clone()) / usual;
        if let Some(split) = level.change {
            let factor = median(times[split..].to_vec()) / median(times[..split].to_vec());
            findings.push(ClusterFinding::Changed { worker, task: split + 1, factor });
        } else if factor >= LEAST_SLOWNESS && is_clearly_above(times, usual) {
            findings.push(ClusterFinding::Slower { worker, factor });
        }
        let mut relative = level.relative.clone();
        relative.sort_by(f64::total_cmp);
        let tenth = relative.len() / 10;
        let factor = relative[relative.len() - 1 - tenth] / relative[tenth];
        let share = relative.iter().filter(|&&time| time > OUTLIER).count() as f64 / relative.len() as f64;
        if factor >= LEAST_VARIATION {
            findings.push(ClusterFinding::Varies { worker, factor });
        } else if share >= LEAST_OUTLIERS {
            findings.push(ClusterFinding::Outliers { worker, share });
        }
    }
    let (workers, factors): (Vec<usize>, Vec<f64>) = findings.iter().filter_map(ClusterFinding::variation).unzip();
    if 2 * workers.len() > columns.len().max(2) {
        findings.retain(|finding| finding.variation().is_none());
        let least = factors.iter().copied().fold(f64::INFINITY, f64::min);
        let most = factors.iter().copied().fold(0.0, f64::max);
        findings.push(ClusterFinding::MostVary { workers, least, most });
    }
    findings.extend(groups(&levels).into_iter().map(|workers| {
        let all = workers.len() == levels.len();
        ClusterFinding::Together { workers, all }
    }));
    findings
}

/// Whether clearly more than half of the times are above a level: by a sign test.
fn is_clearly_above(times: &[f64], level: f64) -> bool {
    let count = times.len() as f64;
    let above = times.iter().filter(|&&time| time > level).count() as f64;
    (above - count / 2.0) / (count.sqrt() / 2.0) >= CLEAR
}

/// The first task after the one lasting change of level, if there is one: where it explains most of the logarithms' variance,
/// if the ranks before and after it clearly differ.
fn change_point(times: &[f64]) -> Option<usize> {
    if times.len() < FEWEST_TASKS {
        return None;
    }
    let sums = |values: Vec<f64>| {
        let middle = mean(&values);
        let add = move |sum: &mut f64, value: f64| {
            *sum += value - middle;
            Some(*sum)
        };
        values.into_iter().scan(0.0, add).collect::<Vec<_>>()
    };
    let logs = sums(times.iter().map(|time| time.ln()).collect());
    let sides = |split: usize| (split * (times.len() - split)) as f64;
    let explained = |split: usize| logs[split - 1].powi(2) / sides(split);
    let splits = FEWEST_BESIDE..=times.len() - FEWEST_BESIDE;
    let split = splits.max_by(|&a, &b| explained(a).total_cmp(&explained(b)))?;
    // A rank sum test.
    let clearly = sums(ranked(times))[split - 1].abs() / (sides(split) * (times.len() + 1) as f64 / 12.0).sqrt();
    let (before, after) = times.split_at(split);
    let factor = median(after.to_vec()) / median(before.to_vec());
    (clearly >= CLEAR && factor.max(1.0 / factor) >= LEAST_CHANGE).then_some(split)
}

/// The rank of each value, from 1; equal ones share the mean of theirs.
fn ranked(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&a, &b| values[a].total_cmp(&values[b]));
    let mut ranks = vec![0.0; values.len()];
    let mut first = 1;
    for equal in order.chunk_by(|&a, &b| values[a] == values[b]) {
        let rank = first as f64 + (equal.len() - 1) as f64 / 2.0;
        equal.iter().for_each(|&index| ranks[index] = rank);
        first += equal.len();
    }
    ranks
}

/// The correlation of the ranks of two series (Spearman); 0 if one is constant.
fn correlation(a: &[f64], b: &[f64]) -> f64 {
    let common = a.len().min(b.len());
    let centred = |values: &[f64]| {
        let ranks = ranked(&values[..common]);
        let middle = mean(&ranks);
        ranks.into_iter().map(|rank| rank - middle).collect::<Vec<_>>()
    };
    let (a, b) = (centred(a), centred(b));
    let product = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let scale = (product(&a, &a) * product(&b, &b)).sqrt();
    if scale > 0.0 { product(&a, &b) / scale } else { 0.0 }
}

/// Groups of workers whose times rise and fall together.
fn groups(levels: &[WorkerLevel]) -> Vec<Vec<usize>> {
    let mut group: Vec<usize> = (0..levels.len()).collect();
    for (second, other) in levels.iter().enumerate() {
        for (first, own) in levels[..second].iter().enumerate() {
            let common = own.relative.len().min(other.relative.len());
            let least = LEAST_CORRELATION.max(5.0 / (common as f64).sqrt());
            if common >= FEWEST_TASKS && correlation(&own.relative, &other.relative) >= least {
                let (kept, joined) = (group[first], group[second]);
                group.iter_mut().filter(|name| **name == joined).for_each(|name| *name = kept);
            }
        }
    }
    let of = |name: usize| (0..levels.len()).filter(|&worker| group[worker] == name).collect::<Vec<_>>();
    (0..levels.len()).map(of).filter(|workers| workers.len() > 1).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Evenly distributed numbers between 0 and 1, by a hash of worker, task and a salt (SplitMix64).
    fn random(worker: usize, task: usize, salt: u64) -> f64 {
        let seed = (worker as u64) << 40 | (task as u64) << 8 | salt;
        let mut mixed = seed.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// A hundred tasks of eight workers: a tenth of noise, times a factor of worker and task.
    fn found(factor: impl Fn(usize, usize) -> f64) -> Vec<ClusterFinding> {
        let time = |worker, task| (0.9 + 0.2 * random(worker, task, 1)) * factor(worker, task);
        let column = |worker| (0..100).map(|task| time(worker, task)).collect();
        cluster_findings(&Trace::new((0..8).map(column).collect()))
    }

    fn sentences(findings: &[ClusterFinding]) -> Vec<String> {
        findings.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn noise_says_nothing_of_any_worker() {
        assert_eq!(found(|_, _| 1.0), []);
        // Up to twice as long, on all workers alike, with 200 seeds.
        for salt in 2..202 {
            assert_eq!(found(|worker, task| 1.0 + random(worker, task, salt)), [], "salt {salt}");
        }
        // Times that vary much have that in common, and nothing else.
        let exponential = found(|worker, task| -random(worker, task, 2).ln());
        let [ClusterFinding::MostVary { workers, least, most }] = &exponential[..] else { panic!("{exponential:?}") };
        assert!(workers.len() == 8 && *least > 10.0 && *most < 40.0, "{exponential:?}");
        assert!(exponential[0].to_string().starts_with("Workers 0 to 7: vary by factors of "));
    }

    #[test]
    fn a_worker_that_is_slow_all_the_time_is_named_with_its_factor() {
        let found = found(|worker, _| if worker == 3 { 2.1 } else { 1.0 });
        let [ClusterFinding::Slower { worker: 3, factor }] = found[..] else { panic!("{found:?}") };
        assert!((factor - 2.1).abs() < 0.05, "{factor}");
        assert!(found[0].to_string().ends_with(" times slower than the median, all the time."));
    }

    #[test]
    fn variation_and_outliers_are_told_apart() {
        let varying = found(|worker, task| if worker == 5 { 1.0 + 4.0 * random(worker, task, 9) } else { 1.0 });
        let varies = |found: &ClusterFinding| matches!(found, ClusterFinding::Varies { worker: 5, .. });
        assert!(varying.iter().any(varies) && varying.len() <= 2, "{varying:?}");
        let outliers = found(|worker, task| if worker == 5 && task % 25 == 7 { 20.0 } else { 1.0 });
        assert_eq!(outliers, [ClusterFinding::Outliers { worker: 5, share: 0.04 }]);
        assert_eq!(sentences(&outliers), ["Worker 5: 4 % of its tasks take more than 5 times as long as usual."]);
    }

    #[test]
    fn a_change_is_found_where_it_was() {
        for (from, factor) in [(30, 4.0), (60, 0.25), (80, 1.8), (93, 4.0)] {
            let found = found(|worker, task| if worker == 2 && task >= from { factor } else { 1.0 });
            let [ClusterFinding::Changed { worker: 2, task, factor: seen }] = found[..] else { panic!("{found:?}") };
            assert_eq!(task, from + 1);
            assert!((seen / factor - 1.0).abs() < 0.1, "{seen}");
        }
        let faster = ClusterFinding::Changed { worker: 2, task: 61, factor: 0.25 };
        assert_eq!(faster.to_string(), "Worker 2: 4.00 times faster since its task 61.");
    }

    #[test]
    fn workers_that_are_slow_at_the_same_times_are_a_group() {
        // Each host is slow in a third of the steps.
        let on_hosts = found(|worker, task| if random(worker / 4, task / 3, 7) < 0.33 { 1.6 } else { 1.0 });
        let together: Vec<_> =
            on_hosts.iter().filter(|found| matches!(found, ClusterFinding::Together { .. })).collect();
        assert_eq!(together.len(), 2, "{on_hosts:?}");
        let expected = "Workers 4 to 7 are slow at the same times: they may share a host.";
        assert_eq!(together[1].to_string(), expected);
        let all = found(|_, task| 1.0 + random(0, task, 7));
        assert!(matches!(&all[..], [ClusterFinding::Together { all: true, workers }] if workers.len() == 8), "{all:?}");
        assert_eq!(ranks(&[0, 1, 3, 5, 6, 7]), "0, 1, 3 and 5 to 7");
    }

    #[test]
    fn short_traces_say_nothing() {
        assert_eq!(cluster_findings(&Trace::new(vec![vec![1.0; 5], vec![9.0; 5]])), []);
        assert_eq!(cluster_findings(&Trace::new(vec![vec![1.0; 50]])), []);
    }
}
