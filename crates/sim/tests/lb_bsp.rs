//! LB-BSP: little waiting, the same steps as BSP, and batch sizes that follow the workers' speeds.

mod common;

use std::collections::BTreeMap;
use std::path::Path;

use common::{observed, summary, timing, training, with_scheme};
use paceline_core::{Action, Decision, Event, Time, Version, WorkerId};
use paceline_runtime::{EventLog, EventLogHeader, Iteration, Monitor, Observer, replay};
use paceline_sim::{Script, Simulation};

const BATCH: u32 = 128;

/// Records batch sizes, and idle time after a warm-up.
#[derive(Default)]
struct BatchSizeRecorder {
    warm_up: u64,
    /// Each worker's latest size.
    sizes: BTreeMap<WorkerId, u32>,
    /// The samples assigned on each version.
    assigned: BTreeMap<Version, u64>,
    /// Each iteration's duration, and the batch size of worker 0 in it.
    iterations: Vec<(f64, Option<u32>)>,
    /// Time and idle time at the end of the warm-up.
    warm: Option<(f64, f64)>,
    /// Time and idle time at the last iteration.
    last: (f64, f64),
}

impl Observer for BatchSizeRecorder {
    fn on_turn(&mut self, _now: Time, _event: &Event, decisions: &[Decision]) {
        for decision in decisions {
            if let Action::Assign(assignment) = decision.action {
                self.sizes.insert(assignment.task.worker, assignment.samples);
                *self.assigned.entry(assignment.version).or_default() += u64::from(assignment.samples);
            }
        }
    }

    fn on_iteration(&mut self, iteration: &Iteration, monitor: &Monitor) {
        let now = Time::START + paceline_core::Span::from_seconds(iteration.time);
        self.last = (iteration.time, iteration.time * monitor.idle_share(now));
        if iteration.iteration == self.warm_up {
            self.warm = Some(self.last);
        }
        self.iterations.push((iteration.duration, self.sizes.get(&WorkerId(0)).copied()));
    }
}

impl BatchSizeRecorder {
    fn of(simulation: &Simulation, warm_up: u64) -> Self {
        let mut recorder = BatchSizeRecorder { warm_up, ..BatchSizeRecorder::default() };
        observed(simulation, &mut recorder);
        recorder
    }

    /// Seconds since the warm-up, and the idle share of them.
    fn since_warm_up(&self) -> (f64, f64) {
        let (time, idle) = self.warm.expect("the run outlasts the warm-up");
        (self.last.0 - time, (self.last.1 - idle) / (self.last.0 - time))
    }
}

fn cluster(scheme: &str, times: &str, iterations: u64, seed: u64) -> Simulation {
    let mut simulation = timing(scheme, 32, times, &format!("iterations={iterations}"));
    simulation.setup.batch = BATCH;
    simulation.seed = seed;
    simulation
}

#[test]
fn an_iteration_has_the_same_number_of_samples_as_in_bsp() {
    for scheme in ["lb-bsp", "lb-bsp:predictor=memoryless,change=0", "lb-bsp:least=100,most=150,predictor=ema"] {
        let recorder = BatchSizeRecorder::of(&cluster(scheme, "contention:production", 200, 1), 0);
        let total = 32 * u64::from(BATCH);
        assert!(recorder.assigned.values().all(|&samples| samples == total), "{scheme}");
    }
}

#[test]
fn workers_hardly_wait_and_asp_is_hardly_faster() {
    for times in ["contention:l2", "contention:l3"] {
        for seed in 1..=3 {
            let balanced = BatchSizeRecorder::of(&cluster("lb-bsp", times, 3_000, seed), 1_000);
            let (_, waiting) = balanced.since_warm_up();
            assert!(waiting < 0.05, "{times}, seed {seed}: idle share {waiting}");
            // In the same time on the same machines, ASP makes one update per iteration of a worker.
            let (from, to) = (balanced.warm.unwrap().0, balanced.last.0);
            let mut free = cluster("asp", times, 1, seed);
            free.goals = format!("time={to}").parse().unwrap();
            let free = BatchSizeRecorder::of(&free, 0);
            let mut now = 0.0;
            let within = free.iterations.iter().filter(|(seconds, _)| {
                now += seconds;
                now > from
            });
            let ratio = within.count() as f64 / (32.0 * 2_000.0);
            assert!(ratio < 1.05, "{times}, seed {seed}: asp makes {ratio} times as many updates");
        }
    }
}

#[test]
fn a_production_cluster_is_twice_as_fast_and_narx_is_best() {
    let seconds = |scheme: &str, seed| {
        BatchSizeRecorder::of(&cluster(scheme, "contention:production", 3_000, seed), 1_000).since_warm_up().0
    };
    let sum = |scheme: &str| (1..=3).map(|seed| seconds(scheme, seed)).sum::<f64>();
    let (bsp, narx, ema) = (sum("bsp"), sum("lb-bsp"), sum("lb-bsp:predictor=ema"));
    assert!(2.0 * narx < bsp, "narx {narx}, bsp {bsp}");
    assert!(narx < 0.9 * ema, "narx {narx}, ema {ema}");
    for other in ["memoryless", "arima", "rnn", "lstm"] {
        let seconds = sum(&format!("lb-bsp:predictor={other}"));
        assert!(narx < seconds, "narx {narx}, {other} {seconds}");
    }
}

#[test]
fn lb_bsp_takes_the_same_number_of_steps_to_the_target_as_bsp() {
    let steps = |scheme: &str| -> f64 {
        let runs = (1..=3).map(|seed| {
            let mut simulation = training(scheme, 8, "contention:production", "loss<0.6,iterations=3000", 0.1, 1);
            simulation.seed = seed;
            let summary = summary(&simulation);
            assert!(summary.reached, "{summary:?}");
            summary.iterations as f64
        });
        runs.sum()
    };
    let (balanced, bsp) = (steps("lb-bsp:predictor=ema"), steps("bsp"));
    assert!((balanced / bsp - 1.0).abs() < 0.1, "lb-bsp {balanced}, bsp {bsp}");
}

/// Cluster-C of the paper: eight GPUs, ResNet-32's gradients over links of 480 Mb/s.
fn gpus(scheme: &str, script: &str, iterations: u64) -> Simulation {
    let mut simulation = timing(scheme, 8, "gpu:1", &format!("iterations={iterations}"));
    simulation.setup.batch = 380;
    simulation.network = Some("link=60e6,bytes=1.86e6".parse().unwrap());
    simulation.script = Script::of(Path::new("links"), script, 8).unwrap();
    simulation
}

#[test]
fn gpus_are_profiled_then_balanced_and_a_slow_link_costs_little() {
    // The link of worker 0 drops to a third of its bandwidth at 60 s.
    let recorder = BatchSizeRecorder::of(&gpus("lb-bsp:mode=gpu", "60 link 0 3", 100), 0);
    let drop = recorder.iterations.iter().scan(0.0, |time, (seconds, _)| {
        *time += seconds;
        Some(*time)
    });
    let drop = drop.take_while(|&time| time < 60.0).count();
    let (before, size_before) = recorder.iterations[drop - 1];
    // 235 in the paper.
    let size_before = size_before.unwrap();
    assert!((225..=245).contains(&size_before), "{size_before}");
    let size_after = recorder.iterations[drop + 10].1.unwrap();
    assert!(size_after < size_before, "{size_before}, then {size_after}");
    let (after, _) = *recorder.iterations.last().unwrap();
    assert!(after < 1.03 * before, "{before} s, then {after} s");
    // The paper reports a gain of 27 % over BSP from the unequal devices alone.
    let bsp = BatchSizeRecorder::of(&gpus("bsp", "", 10), 0).iterations[5].0;
    assert!(before < 0.8 * bsp, "{before} s against {bsp} s");
}

#[test]
fn no_batch_exceeds_the_memory_of_its_device() {
    let recorder = BatchSizeRecorder::of(&gpus("lb-bsp:mode=gpu", "", 60), 0);
    // A task that does not fit takes ten times as long.
    assert!(recorder.iterations.iter().all(|&(seconds, _)| seconds < 3.0), "{:?}", recorder.iterations);
}

#[test]
fn a_change_threshold_keeps_batch_sizes_stable() {
    let changes = |scheme: &str| {
        let recorder = BatchSizeRecorder::of(&cluster(scheme, "contention:l2", 400, 1), 0);
        recorder.iterations.windows(2).filter(|pair| pair[0].1 != pair[1].1).count()
    };
    let (without, with) = (changes("lb-bsp:predictor=ema,change=0"), changes("lb-bsp:predictor=ema"));
    assert!(without > 100 && with < without / 4, "{without} and {with} changes");
}

#[test]
fn batch_sizes_follow_workers_that_leave_and_join() {
    for scheme in ["lb-bsp:predictor=ema", "lb-bsp:predictor=ema,update=non-blocking", "lb-bsp:mode=gpu"] {
        let mut simulation = timing(scheme, 4, "deterministic:1", "iterations=120");
        simulation.setup.batch = 60;
        simulation.slowness = "0=3".parse().unwrap();
        // One worker leaves and rejoins; a new worker joins.
        let script = "25.5 leave 3\n45.5 join 3\n50.5 join 4\n";
        simulation.script = Script::of(Path::new("script"), script, 4).unwrap();
        let recorder = BatchSizeRecorder::of(&simulation, 0);
        // In the end all 240 samples are assigned again, and the slow worker gets a third of the others' size.
        assert_eq!(recorder.assigned.iter().nth_back(1).map(|(_, &samples)| samples), Some(240), "{scheme}");
        let sizes: Vec<u32> = recorder.sizes.values().copied().collect();
        assert_eq!(sizes.len(), 5);
        assert!(sizes[1..].iter().all(|&size| size.abs_diff(3 * sizes[0]) <= 4), "{scheme}: {sizes:?}");
    }
}

#[test]
fn a_trained_predictor_replays_bit_for_bit() {
    let simulation = cluster("lb-bsp:warm-up=50", "contention:production", 300, 1);
    let mut bytes = Vec::new();
    let mut log =
        EventLog::new(&mut bytes, &EventLogHeader::new(simulation.scheme.clone(), &simulation.setup)).unwrap();
    observed(&simulation, &mut log);
    log.finish().unwrap();
    assert!(replay(&bytes[..]).unwrap().decisions > 300);
}

#[test]
fn a_quorum_and_batch_sizing_combine() {
    let all = summary(&cluster("lb-bsp:predictor=ema", "contention:production", 300, 1));
    let some = summary(&with_scheme(cluster("bsp", "contention:production", 300, 1), "lb-bsp:predictor=ema,k=28"));
    assert_eq!(some.updates_committed, 28 * 300);
    assert!(some.time < all.time);
}
