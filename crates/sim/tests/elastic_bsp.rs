//! `elastic-bsp`: barriers open as planned, never hang, and make training faster than `bsp`.

mod common;

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::Arc;

use common::{observed, summary, timing, training, with_scheme};
use paceline_core::{Action, Assignment, Decision, Event, Reason, Span, Time, WorkerId};
use paceline_runtime::{Iteration, Monitor, Observer};
use paceline_sim::{Script, Simulation};
use paceline_workload::{Order, Partition, Sampler, SoftmaxRegression, synthetic_digits};
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

/// A barrier that opened.
#[derive(Debug)]
struct OpenedBarrier {
    /// The planned and the actual wait of the first worker to arrive.
    planned_wait: Span,
    waited: Span,
    /// The planned and the actual time of opening.
    planned: Time,
    at: Time,
}

/// Records the barriers of a run.
#[derive(Default)]
struct BarrierRecorder {
    waiting: BTreeMap<WorkerId, (Time, Reason)>,
    opened: Vec<OpenedBarrier>,
    /// Barriers that were cancelled.
    cancelled: usize,
}

impl Observer for BarrierRecorder {
    fn on_turn(&mut self, now: Time, event: &Event, decisions: &[Decision]) {
        if let Event::Left { worker } = event {
            self.waiting.remove(worker);
        }
        let mut released: Vec<(Assignment, Time, Reason)> = Vec::new();
        for Decision { action, reason } in decisions {
            match (action, reason) {
                (Action::Hold { worker, .. }, Reason::AtBarrier { .. }) => {
                    self.waiting.entry(*worker).or_insert((now, *reason));
                }
                (Action::Assign(assignment), _) => {
                    let waited = self.waiting.remove(&assignment.task.worker);
                    released.extend(waited.map(|(since, reason)| (*assignment, since, reason)));
                }
                _ => {}
            }
        }
        let Some((first, since, Reason::AtBarrier { at, wait, .. })) =
            released.iter().min_by_key(|(_, since, _)| *since)
        else {
            return;
        };
        assert!(
            released.iter().all(|(assignment, ..)| assignment.version == first.version),
            "all workers get the same model"
        );
        if matches!(event, Event::Reported { .. }) {
            assert!(self.waiting.is_empty(), "a barrier opens for every waiting worker");
            self.opened.push(OpenedBarrier { planned_wait: *wait, waited: now.since(*since), planned: *at, at: now });
        } else {
            self.cancelled += 1;
        }
    }
}

fn barriers(simulation: &Simulation) -> BarrierRecorder {
    let mut barriers = BarrierRecorder::default();
    observed(simulation, &mut barriers);
    barriers
}

fn scripted(mut simulation: Simulation, script: &str) -> Simulation {
    simulation.script = Script::of(Path::new("script"), script, simulation.setup.workers).unwrap();
    simulation
}

/// Workers as in the paper's section 6.1: each has its own interval, 1000 to 1500 ms.
fn uneven(mut simulation: Simulation, seed: u64) -> Simulation {
    let mut generator = Xoshiro256PlusPlus::seed_from_u64(seed);
    let factor = |rank: usize| format!("{rank}={}", f64::from(generator.random_range(1000..=1500)) / 1000.0);
    let factors: Vec<String> = (0..simulation.setup.workers).map(factor).collect();
    simulation.slowness = factors.join(",").parse().unwrap();
    simulation
}

#[test]
fn barriers_open_as_planned_when_times_are_deterministic() {
    let (mut count, mut planned, mut waited, mut bsp_idle, mut idle) = (0, 0.0, 0.0, 0.0, 0.0);
    for seed in 0..20 {
        let simulation = uneven(timing("elastic-bsp:r=15", 10, "deterministic:1", "time=2000"), seed);
        let found = barriers(&simulation);
        for opened in &found.opened {
            assert_eq!((opened.at, opened.waited), (opened.planned, opened.planned_wait), "{opened:?}");
            planned += opened.planned_wait.seconds();
            waited += opened.waited.seconds();
        }
        assert_eq!(found.cancelled, 0);
        count += found.opened.len();
        idle += summary(&simulation).idle_share;
        bsp_idle += summary(&with_scheme(simulation, "bsp")).idle_share;
    }
    assert!(count > 20 * 50, "{count}");
    assert!((waited / planned - 1.0).abs() < 0.01);
    assert!(idle < 0.5 * bsp_idle, "{idle} {bsp_idle}");
}

#[test]
fn barriers_open_with_every_interval_estimator_under_noise() {
    for estimator in ["last", "ema", "median"] {
        for times in ["uniform:0.9,1.1", "shifted-exponential:0.3,0.7", "pareto:1,2.5", "markov:1,5,0.05,0.2"] {
            let found = barriers(&timing(&format!("elastic-bsp:interval={estimator}"), 8, times, "time=2000"));
            assert!(
                found.opened.len() > 60,
                "{estimator} {times}: {}, cancelled {}",
                found.opened.len(),
                found.cancelled
            );
        }
    }
}

#[test]
fn crashes_and_rejoins_only_delay_a_barrier() {
    let script = "20 crash 1 30\n21 leave 5\n40 slow 2 6\n80 join 5\n90 join 1\n120 crash 0-6 3\n140 join 0-6\n";
    for seed in 0..10 {
        let noisy = timing("elastic-bsp", 8, "shifted-exponential:0.3,0.7", "time=400");
        let found = barriers(&scripted(Simulation { seed, ..noisy }, script));
        let after_the_last = found.opened.iter().filter(|opened| opened.at.seconds() > 160.0).count();
        assert!(after_the_last > 5, "seed {seed}: {after_the_last}");
    }
}

#[test]
fn an_unnoticed_crash_does_not_stall_the_other_workers() {
    // Worker 3 crashes in a superstep, unnoticed: the other workers continue without barriers.
    let simulation = timing("elastic-bsp", 4, "uniform:0.9,1.1", "time=1000");
    let simulation = scripted(simulation, "100 crash 3 2000\n");
    let mut found = BarrierRecorder::default();
    let summary = observed(&simulation, &mut found);
    assert!(
        found.cancelled <= 1 && found.opened.iter().all(|opened| opened.at.seconds() < 101.0),
        "{:?}",
        found.opened
    );
    assert!(summary.updates_committed > 3 * 980, "{summary:?}");

    // Once the crash is noticed, barriers are planned for the remaining workers.
    let simulation = timing("elastic-bsp", 4, "uniform:0.9,1.1", "time=1000");
    let found = barriers(&scripted(simulation, "100 crash 3 200\n"));
    assert!(found.opened.iter().filter(|opened| opened.at.seconds() > 300.0).count() > 50);
}

#[test]
fn a_barrier_opens_when_the_last_awaited_worker_leaves() {
    // The barrier is planned for 13.5 s, after the slow worker's third iteration; the fast worker arrives at 13 s.
    let mut simulation = timing("elastic-bsp:r=6", 2, "deterministic:1", "time=30");
    simulation.slowness = "1=4.5".parse().unwrap();
    let found = barriers(&simulation);
    assert_eq!(found.opened[0].at.seconds(), 13.5);
    assert_eq!(found.opened[0].waited.seconds(), 0.5);
    let mut times = Vec::new();
    observed(&scripted(simulation, "13.25 leave 1\n"), &mut AssignmentTimes(&mut times));
    assert_eq!(times.iter().find(|&&at| at > 12.5), Some(&13.25));
}

/// Records when worker 0 gets assignments, in seconds.
struct AssignmentTimes<'a>(&'a mut Vec<f64>);

impl Observer for AssignmentTimes<'_> {
    fn on_turn(&mut self, now: Time, _event: &Event, decisions: &[Decision]) {
        let assigned = |decision: &&Decision| match decision.action {
            Action::Assign(assignment) => assignment.task.worker == WorkerId(0),
            _ => false,
        };
        self.0.extend(decisions.iter().filter(assigned).map(|_| now.seconds()));
    }
}

/// The time at which the mean training loss of the last `updates` updates is first below 0.5.
struct TimeToLoss {
    updates: usize,
    losses: VecDeque<f64>,
    time: Option<f64>,
}

impl Observer for TimeToLoss {
    fn on_iteration(&mut self, iteration: &Iteration, _monitor: &Monitor) {
        self.losses.extend(std::iter::repeat_n(iteration.loss.unwrap(), iteration.waited_for));
        while self.losses.len() > self.updates {
            self.losses.pop_front();
        }
        if self.losses.len() == self.updates && self.losses.iter().sum::<f64>() < 0.5 * self.updates as f64 {
            self.time = self.time.or(Some(iteration.time));
        }
    }
}

#[test]
fn elastic_bsp_is_faster_than_bsp_and_as_accurate_when_communication_is_slow() {
    let splits = synthetic_digits(3, 3000, 1000).unwrap();
    let sampler = Sampler::new(splits.train().labels(), Partition::Iid, Order::WithReplacement, 8, 3).unwrap();
    let workload = Arc::new(SoftmaxRegression::new(splits, sampler, 0.0));
    let (mut time, mut accuracy) = ([0.0; 2], [0.0; 2]);
    for seed in 1..=4 {
        for (index, scheme) in ["bsp", "elastic-bsp"].into_iter().enumerate() {
            let mut simulation = training(scheme, 8, "uniform:0.5,1.5", "samples=40000", 0.1, 1);
            simulation.seed = seed;
            // Eight downloads and one upload of 0.125 s next to 1 s of computing: more than half of a round.
            simulation.network = Some("bandwidth=8,bytes=1".parse().unwrap());
            let training = simulation.training.as_mut().unwrap();
            training.workload = workload.clone();
            // With a proportional rate, one of eight updates makes an eighth of a step.
            simulation.setup.rate_rule = "proportional".parse().unwrap();
            let mut to_loss = TimeToLoss { updates: 80, losses: VecDeque::new(), time: None };
            let summary = observed(&simulation, &mut to_loss);
            time[index] += to_loss.time.unwrap();
            accuracy[index] += summary.accuracy.unwrap();
        }
    }
    assert!(time[1] < 0.9 * time[0], "{time:?}");
    assert!(accuracy[1] > accuracy[0] - 4.0 * 0.01, "{accuracy:?}");
}
