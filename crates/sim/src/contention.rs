//! Machines shared with competing tasks, which take CPU and memory from the workers (LB-BSP, sections 5.2, 5.3).
//!
//! A worker's speed is the free share of its processors, reduced by swapping when its memory is nearly full. Such a
//! slowdown lasts as long as the competing tasks run. Noise is added, and rare spikes: slow tasks without a visible
//! cause.

use std::collections::VecDeque;
use std::fmt;

use paceline_core::speed::Resources;
use paceline_core::{Time, WorkerId};
use rand::RngExt;
use rand_distr::{Exp1, StandardNormal};
use rand_xoshiro::Xoshiro256PlusPlus;

/// The share of the processors that is always left to the worker.
const MIN_CPU: f64 = 0.1;

/// The memory in use at which swapping starts, and a worker's relative speed when the memory is full.
const SWAP_THRESHOLD: f64 = 0.7;
const SPEED_WHEN_FULL: f64 = 0.5;

/// The share of the memory that the worker's own task uses.
const OWN_MEMORY: f64 = 0.3;

/// A cluster whose machines are shared with competing tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SharedCluster {
    /// No competing tasks: equal workers (the paper's Homo).
    L1,
    /// Cluster-A, the slowest worker half as fast as the fastest.
    L2,
    /// Cluster-A, the slowest worker a third as fast as the fastest.
    L3,
    /// Cluster-B: the machines of Table 2, under the load of a production cluster.
    Production,
}

impl SharedCluster {
    /// All clusters, with their names.
    pub const NAMES: [(&'static str, SharedCluster); 4] = [
        ("l1", SharedCluster::L1),
        ("l2", SharedCluster::L2),
        ("l3", SharedCluster::L3),
        ("production", SharedCluster::Production),
    ];

    /// The worker's machine. In levels l1 to l3 it has one competing task of constant load that runs and sleeps; in
    /// production it has several tasks whose loads vary.
    fn machine(self, worker: WorkerId) -> Machine {
        let ratio = match self {
            SharedCluster::L1 => 1.0,
            SharedCluster::L2 => 2.0,
            SharedCluster::L3 => 3.0,
            SharedCluster::Production => return production(worker),
        };
        // Loads are spread evenly from none to full, for any number of workers.
        let load = spread(worker.0) * (1.0 - 1.0 / ratio);
        let task = Competitor { cpu: (load, load), memory: (0.3 * load, 0.3 * load), runs: 2_000.0, sleeps: 500.0 };
        let competitors = if load > 0.0 { vec![task] } else { Vec::new() };
        Machine { speed: 1.0, competitors, noise: 0.008, spikes: 0.0003 }
    }
}

/// Table 2: m4.2xlarge (8 cores, 32 GiB) × 17, c5.2xlarge (8, 16) × 10, r4.2xlarge (8, 61) × 2, m4.4xlarge (16, 64) × 2
/// and m4.xlarge (4, 16) × 1, assigned by rank.
fn production(worker: WorkerId) -> Machine {
    const TYPES: [(usize, f64, f64, f64); 5] =
        [(17, 1.0, 8.0, 32.0), (10, 1.25, 8.0, 16.0), (2, 1.0, 8.0, 61.0), (2, 2.0, 16.0, 64.0), (1, 0.5, 4.0, 16.0)];
    let mut position = worker.index() % 32;
    let mut machine = TYPES[0];
    for kind in TYPES {
        machine = kind;
        if position < kind.0 {
            break;
        }
        position -= kind.0;
    }
    let (_, speed, cores, memory) = machine;
    // A competing task uses 1 to 3 cores and 1 to 5 GiB on every machine.
    let task = Competitor {
        cpu: (1.0 / cores, 3.0 / cores),
        memory: (1.0 / memory, 5.0 / memory),
        runs: 200.0,
        sleeps: 200.0,
    };
    Machine { speed, competitors: vec![task; 2], noise: 0.04, spikes: 0.0015 }
}

/// Maps ranks 0, 1, 2, 3, … to 0, 1/2, 1/4, 3/4, …: evenly spread over [0, 1) for any number of ranks.
fn spread(rank: u32) -> f64 {
    f64::from(rank.reverse_bits()) / 4_294_967_296.0
}

impl fmt::Display for SharedCluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = SharedCluster::NAMES.iter().find(|(_, cluster)| cluster == self);
        f.write_str(found.map_or("", |(name, _)| name))
    }
}

/// A type of competing task. Each time it starts, it takes a random share of CPU and memory between two bounds.
#[derive(Debug, Clone, Copy)]
struct Competitor {
    cpu: (f64, f64),
    memory: (f64, f64),
    /// Mean running and sleeping times, in reference batches.
    runs: f64,
    sleeps: f64,
}

/// A worker's machine.
#[derive(Debug, Clone)]
struct Machine {
    /// Speed when idle, relative to the reference machine.
    speed: f64,
    competitors: Vec<Competitor>,
    /// Standard deviation of the logarithm of a task's time.
    noise: f64,
    /// Share of the worker's tasks that are slow without a visible cause.
    spikes: f64,
}

/// The current state of a competing task.
#[derive(Debug, Clone, Copy)]
struct ActiveCompetitor {
    kind: Competitor,
    /// The resources it uses; `None` while it sleeps.
    usage: Option<Resources>,
    until: f64,
}

/// An interval during which the resources in use don't change.
#[derive(Debug, Clone, Copy)]
struct SteadyInterval {
    until: f64,
    resources: Resources,
}

/// The machine of one worker over time.
#[derive(Debug, Clone)]
pub(crate) struct SharedMachine {
    machine: Machine,
    /// Seconds of a reference batch on an idle reference machine.
    seconds: f64,
    competitors: Vec<ActiveCompetitor>,
    /// The generator of the competing tasks alone, so that their load does not depend on the scheme.
    random: Xoshiro256PlusPlus,
    /// The intervals known since the start of the last task.
    intervals: VecDeque<SteadyInterval>,
}

impl SharedMachine {
    pub(crate) fn new(cluster: SharedCluster, seconds: f64, worker: WorkerId, mut random: Xoshiro256PlusPlus) -> Self {
        let machine = cluster.machine(worker);
        let first = |&kind: &Competitor| {
            // The long-run probability that the task is running.
            let runs = random.random::<f64>() < kind.runs / (kind.runs + kind.sleeps);
            kind.change(runs, 0.0, seconds, &mut random)
        };
        let competitors = machine.competitors.iter().map(first).collect();
        SharedMachine { machine, seconds, competitors, random, intervals: VecDeque::new() }
    }

    /// The run time in seconds of a task of `size` reference batches that starts at `at`, and the resources in use when
    /// it ends.
    pub(crate) fn task(&mut self, at: Time, size: f64, rng: &mut Xoshiro256PlusPlus) -> (f64, Resources) {
        let start = at.seconds();
        while self.intervals.front().is_some_and(|interval| interval.until <= start) {
            self.intervals.pop_front();
        }
        let noise = (self.machine.noise * rng.sample::<f64, _>(StandardNormal)).exp();
        // A spike makes a task take up to twice as long.
        let spike = if rng.random::<f64>() < self.machine.spikes { 1.2 + 0.8 * rng.random::<f64>() } else { 1.0 };
        let mut work = size * self.seconds * noise * spike / self.machine.speed;
        let mut now = start;
        let mut index = 0;
        loop {
            if index == self.intervals.len() {
                self.extend(now);
            }
            let SteadyInterval { until, resources } = self.intervals[index];
            let speed = speed(resources);
            if work <= speed * (until - now) {
                return (now + work / speed - start, resources);
            }
            work -= speed * (until - now);
            now = until;
            index += 1;
        }
    }

    /// Adds the interval that starts at `now`.
    fn extend(&mut self, now: f64) {
        for task in &mut self.competitors {
            while task.until <= now {
                *task = task.kind.change(task.usage.is_none(), task.until, self.seconds, &mut self.random);
            }
        }
        let usages = self.competitors.iter().filter_map(|task| task.usage);
        let sum = usages.fold(Resources { cpu: 0.0, memory: OWN_MEMORY }, |sum, usage| Resources {
            cpu: sum.cpu + usage.cpu,
            memory: sum.memory + usage.memory,
        });
        let resources = Resources { cpu: sum.cpu.min(1.0 - MIN_CPU), memory: sum.memory.min(1.0) };
        let until = self.competitors.iter().map(|task| task.until).fold(f64::INFINITY, f64::min);
        self.intervals.push_back(SteadyInterval { until, resources });
    }
}

impl Competitor {
    /// The task's next period from `at` on, running or sleeping.
    fn change(self, runs: bool, at: f64, seconds: f64, rng: &mut Xoshiro256PlusPlus) -> ActiveCompetitor {
        let between = |(low, high): (f64, f64), share: f64| low + (high - low) * share;
        let (cpu, memory) = (rng.random::<f64>(), rng.random::<f64>());
        let usage = runs.then(|| Resources { cpu: between(self.cpu, cpu), memory: between(self.memory, memory) });
        let mean = if runs { self.runs } else { self.sleeps };
        ActiveCompetitor { kind: self, usage, until: at + mean * seconds * rng.sample::<f64, _>(Exp1) }
    }
}

/// The speed of a machine with these resources in use, relative to the idle machine.
fn speed(resources: Resources) -> f64 {
    let swapping = ((resources.memory - SWAP_THRESHOLD) / (1.0 - SWAP_THRESHOLD)).max(0.0);
    (1.0 - resources.cpu) * (1.0 - (1.0 - SPEED_WHEN_FULL) * swapping)
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    /// The speeds of a worker's tasks of one batch, one after another.
    fn speeds(cluster: SharedCluster, worker: u32, count: usize) -> Vec<(f64, Resources)> {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(7 + u64::from(worker));
        let mut machine = SharedMachine::new(cluster, 1.0, WorkerId(worker), rng.clone());
        let mut now = 0.0;
        let mut next = || {
            let at = Time::START + paceline_core::Span::from_seconds(now);
            let (seconds, resources) = machine.task(at, 1.0, &mut rng);
            now += seconds;
            (1.0 / seconds, resources)
        };
        (0..count).map(|_| next()).collect()
    }

    fn fastest_and_slowest(cluster: SharedCluster) -> (f64, f64) {
        let usual_speed = |worker| {
            let mut speeds: Vec<f64> = speeds(cluster, worker, 4_000).into_iter().map(|(speed, _)| speed).collect();
            speeds.sort_unstable_by(f64::total_cmp);
            speeds[speeds.len() / 10]
        };
        let usual: Vec<f64> = (0..32).map(usual_speed).collect();
        (usual.iter().copied().fold(0.0, f64::max), usual.iter().copied().fold(f64::INFINITY, f64::min))
    }

    #[test]
    fn the_level_is_the_ratio_of_the_fastest_to_the_slowest_worker() {
        for (cluster, ratio) in [(SharedCluster::L1, 1.0), (SharedCluster::L2, 2.0), (SharedCluster::L3, 3.0)] {
            let (fastest, slowest) = fastest_and_slowest(cluster);
            let found = fastest / slowest;
            assert!((found / ratio - 1.0).abs() < 0.1, "{cluster}: {found}");
        }
    }

    #[test]
    fn production_has_the_machines_of_table_2() {
        let speeds: Vec<f64> = (0..32).map(|worker| production(WorkerId(worker)).speed).collect();
        let count = |speed: f64| speeds.iter().filter(|&&found| found == speed).count();
        assert_eq!([count(1.0), count(1.25), count(2.0), count(0.5)], [19, 10, 2, 1]);
    }

    #[test]
    fn speed_follows_the_resources_in_use() {
        let idle = Resources { cpu: 0.0, memory: OWN_MEMORY };
        assert_eq!(speed(idle), 1.0);
        assert_eq!(speed(Resources { cpu: 0.25, ..idle }), 0.75);
        assert_eq!(speed(Resources { memory: SWAP_THRESHOLD, ..idle }), 1.0);
        assert_eq!(speed(Resources { memory: 1.0, ..idle }), SPEED_WHEN_FULL);
        // If the resources don't change during two consecutive tasks, they give the speed of the second, up to noise.
        let tasks = speeds(SharedCluster::L3, 5, 2_000);
        let steady = tasks.windows(2).filter(|pair| pair[0].1 == pair[1].1).map(|pair| pair[1]);
        let wrong = steady.filter(|(found, resources)| (found / speed(*resources) - 1.0).abs() > 0.05).count();
        assert!(wrong < 10, "{wrong} of 2000");
    }

    #[test]
    fn a_change_during_a_task_affects_the_rest_of_the_task() {
        let machine = Machine { speed: 2.0, competitors: Vec::new(), noise: 0.0, spikes: 0.0 };
        let half = Resources { cpu: 0.5, memory: OWN_MEMORY };
        let idle = Resources { cpu: 0.0, ..half };
        let intervals = VecDeque::from([
            SteadyInterval { until: 1.0, resources: idle },
            SteadyInterval { until: f64::INFINITY, resources: half },
        ]);
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(1);
        let mut machine =
            SharedMachine { machine, seconds: 4.0, competitors: Vec::new(), random: rng.clone(), intervals };
        // Two seconds of work: one at full speed, the other at half.
        assert_eq!(machine.task(Time::START, 1.0, &mut rng), (3.0, half));
    }

    #[test]
    fn the_same_seed_gives_the_same_machine() {
        assert_eq!(speeds(SharedCluster::Production, 3, 500), speeds(SharedCluster::Production, 3, 500));
    }
}
