//! The stragglers in a trace, and what they cost under `bsp`.

use std::fmt;

use crate::numbers::{number, time};
use crate::statistics::{mean, median};
use crate::tables::aligned;
use paceline_trace::Trace;
use serde::Serialize;

/// A step is slow if it takes this many times the other workers' median.
const SLOW_STEP: f64 = 1.25;

/// A worker straggles if at least this share of its steps is slow.
const MIN_SLOW_SHARE: f64 = 0.01;

/// Whether a worker straggles.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Straggling {
    /// At least half of its steps are slow.
    Persistent,
    /// Some of its steps are slow.
    Transient,
    /// It does not straggle.
    Steady,
}

impl fmt::Display for Straggling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Straggling::Persistent => "persistent straggler",
            Straggling::Transient => "transient straggler",
            Straggling::Steady => "steady",
        })
    }
}

/// One worker in a trace.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TracedWorker {
    /// Its rank.
    pub worker: usize,
    /// Whether it straggles.
    pub straggling: Straggling,
    /// Mean seconds of its steps.
    pub mean_step: f64,
    /// The median of its steps, each as a multiple of the other workers' median at that step.
    pub slowness: f64,
    /// Share of its steps that are slow.
    pub slow_steps: f64,
    /// Share of the time that it would wait for other workers under `bsp`.
    pub waits: f64,
    /// Share of `bsp`'s time that would be saved without this worker.
    pub holds_back: f64,
}

/// A trace under `bsp`, where every step takes as long as its slowest worker.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Analysis {
    /// Steps that all workers have.
    pub steps: usize,
    /// Their time under `bsp`, in seconds.
    pub bsp_time: f64,
    /// Share of the workers' time spent waiting under `bsp`.
    pub waiting_share: f64,
    /// The workers, by rank.
    pub workers: Vec<TracedWorker>,
}

impl Analysis {
    /// Analyses the steps that all workers have.
    pub fn new(trace: &Trace) -> Self {
        let columns = trace.workers();
        let steps = columns.iter().map(Vec::len).min().unwrap_or(0);
        let last = |step: usize, without: Option<usize>| {
            let others = columns.iter().enumerate().filter(|(worker, _)| Some(*worker) != without);
            others.map(|(_, times)| times[step]).fold(0.0, f64::max)
        };
        let total = |without: Option<usize>| (0..steps).map(|step| last(step, without)).sum::<f64>();
        let bsp_time = total(None);
        let worker = |worker: usize| {
            let times = &columns[worker][..steps];
            let ratio = |step: usize| {
                let others = columns.iter().enumerate().filter(|(other, _)| *other != worker);
                times[step] / median(others.map(|(_, times)| times[step]).collect())
            };
            // A single worker can't be compared with others.
            let ratios: Vec<f64> = if columns.len() > 1 { (0..steps).map(ratio).collect() } else { vec![1.0; steps] };
            let slow_steps = ratios.iter().filter(|ratio| **ratio >= SLOW_STEP).count() as f64 / steps as f64;
            let straggling = match slow_steps {
                share if share >= 0.5 => Straggling::Persistent,
                share if share >= MIN_SLOW_SHARE => Straggling::Transient,
                _ => Straggling::Steady,
            };
            let saved = if columns.len() > 1 { bsp_time - total(Some(worker)) } else { 0.0 };
            TracedWorker {
                worker,
                straggling,
                mean_step: mean(times),
                slowness: median(ratios),
                slow_steps,
                waits: 1.0 - times.iter().sum::<f64>() / bsp_time,
                holds_back: saved / bsp_time,
            }
        };
        let workers: Vec<TracedWorker> = (0..columns.len()).map(worker).collect();
        let waiting_share = mean(&workers.iter().map(|worker| worker.waits).collect::<Vec<_>>());
        Analysis { steps, bsp_time, waiting_share, workers }
    }

    /// The workers of a kind, each with its slowness.
    fn described(&self, kind: Straggling) -> Vec<String> {
        let workers = self.workers.iter().filter(|worker| worker.straggling == kind);
        let describe = |worker: &TracedWorker| match kind {
            Straggling::Persistent => format!("worker {} ({}×)", worker.worker, number(worker.slowness, 1)),
            _ => format!("worker {} ({:.0} % of its steps)", worker.worker, 100.0 * worker.slow_steps),
        };
        workers.map(describe).collect()
    }

    /// The stragglers and their cost, in two sentences.
    pub fn explanation(&self) -> String {
        let list = |names: Vec<String>| {
            let more = names.len().saturating_sub(4);
            let named = names[..names.len() - more].join(", ");
            if more > 0 { format!("{named} and {more} others") } else { named }
        };
        let mut parts = Vec::new();
        for (kind, how) in [(Straggling::Persistent, "persistently"), (Straggling::Transient, "at times")] {
            let names = self.described(kind);
            let verb = if names.len() == 1 { "straggles" } else { "straggle" };
            if !names.is_empty() {
                parts.push(format!("{} {verb} {how}", list(names)));
            }
        }
        let text = if parts.is_empty() { "No worker straggles".into() } else { parts.join("; ") };
        let mut rest = text.chars();
        let first = rest.next().map(|first| first.to_uppercase().collect::<String>()).unwrap_or_default();
        format!(
            "{first}{}. Under bsp, waiting takes {:.1} % of the workers' time.",
            rest.as_str(),
            100.0 * self.waiting_share
        )
    }

    /// Whether all workers' steps take equally long, as they do if they include waiting for other workers.
    pub fn is_balanced(&self) -> bool {
        self.workers.len() > 1 && self.waiting_share < 0.01
    }

    /// The workers as a table.
    pub fn table(&self) -> String {
        let names = ["worker", "mean step", "× others", "slow steps", "waits", "holds back", ""].map(String::from);
        let percent = |share: f64| format!("{:.1} %", 100.0 * share);
        let row = |worker: &TracedWorker| {
            [
                format!("worker {}", worker.worker),
                time(worker.mean_step),
                number(worker.slowness, 2),
                percent(worker.slow_steps),
                percent(worker.waits),
                percent(worker.holds_back),
                format!("{:<20}", worker.straggling),
            ]
        };
        aligned(std::iter::once(names).chain(self.workers.iter().map(row)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_agree_with_a_calculation_by_hand() {
        // Worker 0 is always twice as slow; worker 2 is slow in one of four steps, and last in it.
        let trace = Trace::new(vec![vec![2.0; 4], vec![1.0; 4], vec![1.0, 1.0, 4.0, 1.0, 9.0]]);
        let found = Analysis::new(&trace);
        assert_eq!((found.steps, found.bsp_time), (4, 10.0));
        let kinds: Vec<Straggling> = found.workers.iter().map(|worker| worker.straggling).collect();
        assert_eq!(kinds, [Straggling::Persistent, Straggling::Steady, Straggling::Transient]);
        // Worker 0 waits for worker 2 once, 2 s of 10; worker 1 for all but its own 4 s.
        let waits: Vec<f64> = found.workers.iter().map(|worker| worker.waits).collect();
        assert!((waits[0] - 0.2).abs() < 1e-12 && (waits[1] - 0.6).abs() < 1e-12 && (waits[2] - 0.3).abs() < 1e-12);
        assert!((found.waiting_share - 1.1 / 3.0).abs() < 1e-12);
        // Without worker 0: 1 + 1 + 4 + 1 instead of 2 + 2 + 4 + 2.
        assert!((found.workers[0].holds_back - 0.3).abs() < 1e-12);
        assert!((found.workers[2].holds_back - 0.2).abs() < 1e-12);
        let explanation = found.explanation();
        assert!(
            explanation
                .starts_with("Worker 0 (2.0×) straggles persistently; worker 2 (25 % of its steps) straggles at times"),
            "{explanation}"
        );
    }

    #[test]
    fn equal_workers_and_a_single_worker_are_steady() {
        let equal = Analysis::new(&Trace::new(vec![vec![1.0, 2.0]; 3]));
        assert!(
            equal.is_balanced()
                && equal.explanation().starts_with("No worker straggles. Under bsp, waiting takes 0.0 %")
        );
        let alone = Analysis::new(&Trace::new(vec![vec![1.0, 5.0]]));
        assert_eq!((alone.workers[0].straggling, alone.waiting_share), (Straggling::Steady, 0.0));
    }
}
