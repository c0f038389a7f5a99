//! Updates that are not finite: left out whole, and what becomes of their worker.

mod common;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use common::{outcome, training};
use paceline_core::{Commit, CommitStep, Decision, Event, TaskId, Time, Version, WorkerId};
use paceline_runtime::{Contribution, EventLog, EventLogHeader, Notice, Observer, RateSpec, Stepper, replay};
use paceline_sim::{Simulation, SimulationOutcome};
use paceline_store::Layout;
use paceline_workload::{Draw, Evaluation, Replica, Workload};

/// Which gradients are broken: by worker and the number of the gradient, from 0.
type IsBroken = fn(u32, u64) -> bool;

struct BrokenWorkload {
    workload: Arc<dyn Workload>,
    is_broken: IsBroken,
}

struct BrokenReplica {
    replica: Box<dyn Replica>,
    is_broken: IsBroken,
}

impl Workload for BrokenWorkload {
    fn layout(&self) -> &Layout {
        self.workload.layout()
    }

    fn initial(&self, seed: u64) -> Vec<f32> {
        self.workload.initial(seed)
    }

    fn replica(&self) -> Box<dyn Replica> {
        Box::new(BrokenReplica { replica: self.workload.replica(), is_broken: self.is_broken })
    }
}

impl Replica for BrokenReplica {
    fn gradient(&mut self, parameters: &[f32], draw: Draw, gradient: &mut [f32]) -> f64 {
        let loss = self.replica.gradient(parameters, draw, gradient);
        if (self.is_broken)(draw.worker, draw.offset / u64::from(draw.samples)) {
            gradient[7] = f32::NAN;
        }
        loss
    }

    fn evaluate(&mut self, parameters: &[f32]) -> Evaluation {
        self.replica.evaluate(parameters)
    }
}

fn faulty(scheme: &str, until: &str, is_broken: IsBroken) -> Simulation {
    let mut simulation = training(scheme, 4, "uniform:1,1.5", until, 0.005, 1);
    let training = simulation.training.as_mut().unwrap();
    training.optimizer = "momentum:0.9".parse().unwrap();
    training.workload = Arc::new(BrokenWorkload { workload: training.workload.clone(), is_broken });
    simulation
}

#[derive(Default)]
struct Notices(Vec<String>);

impl Observer for Notices {
    fn on_notice(&mut self, notice: &Notice) {
        self.0.push(notice.to_string());
    }
}

/// The outcome, the notices and the event log.
fn run(simulation: &Simulation) -> (SimulationOutcome, Vec<String>, String) {
    let header = EventLogHeader::new(simulation.scheme.clone(), &simulation.setup);
    let (mut notices, mut bytes) = (Notices::default(), Vec::new());
    let mut log = EventLog::new(&mut bytes, &header).unwrap();
    let outcome = simulation.run(&mut vec![&mut notices as &mut dyn Observer, &mut log]).unwrap();
    log.finish().unwrap();
    (outcome, notices.0, String::from_utf8(bytes).unwrap())
}

#[test]
fn a_worker_with_a_broken_update_now_and_then_goes_on() {
    for scheme in [
        "bsp",
        "asp",
        "backup:k=3",
        "dc-asgd",
        "local-sgd:tau=2",
        "async-local-sgd:tau=2",
        "easgd:tau=2",
        "dbw",
        "lb-bsp",
    ] {
        let simulation = faulty(scheme, "iterations=60", |worker, number| worker == 2 && number % 8 == 3);
        let (outcome, notices, log) = run(&simulation);
        assert!(notices.is_empty(), "{scheme}: {notices:?}");
        let summary = outcome.summary;
        assert!(summary.updates_broken > 0 && summary.iterations == 60, "{scheme}: {summary:?}");
        assert!(outcome.parameters.unwrap().iter().all(|value| value.is_finite()), "{scheme}");
        assert!(summary.loss.unwrap() < 2.25, "{scheme} learns: {:?}", summary.loss);
        assert_eq!(log.matches("\"event\":\"broken\"").count() as u64, summary.updates_broken);
        replay(log.as_bytes()).unwrap();
    }
}

#[test]
fn a_worker_whose_updates_stay_broken_is_dismissed() {
    for scheme in ["bsp", "asp", "local-sgd:tau=2", "easgd:tau=2", "esync"] {
        let simulation = faulty(scheme, "iterations=60", |worker, _| worker == 2);
        let (outcome, notices, log) = run(&simulation);
        let left = "worker 2 left: the update of task 2 of worker 2 is the third in a row that is not finite";
        assert!(notices.len() == 1 && notices[0].starts_with(left), "{scheme}: {notices:?}");
        assert!(notices[0].ends_with("3 workers remain"), "{scheme}: {notices:?}");
        assert_eq!((outcome.summary.iterations, outcome.summary.updates_broken), (60, 3), "{scheme}");
        assert!(outcome.summary.loss.unwrap() < 2.25, "{scheme}");
        replay(log.as_bytes()).unwrap();
    }
}

#[test]
fn a_model_that_diverges_ends_the_run() {
    for scheme in ["bsp", "asp", "local-sgd:tau=2"] {
        let (outcome, notices, log) = run(&faulty(scheme, "iterations=200", |_, number| number >= 10));
        let summary = outcome.summary;
        assert_eq!(summary.stopped_by, "the loss is no longer finite", "{scheme}");
        assert!(
            !summary.reached && summary.iterations < 60 && notices.is_empty(),
            "{scheme}: {summary:?}, {notices:?}"
        );
        replay(log.as_bytes()).unwrap();
    }
}

/// The gradients that were computed, by worker and number.
type Computed = Mutex<BTreeMap<(u32, u64), (Vec<f32>, f64)>>;

struct RecordingWorkload(Arc<dyn Workload>, Arc<Computed>);

impl Workload for RecordingWorkload {
    fn layout(&self) -> &Layout {
        self.0.layout()
    }

    fn initial(&self, seed: u64) -> Vec<f32> {
        self.0.initial(seed)
    }

    fn replica(&self) -> Box<dyn Replica> {
        Box::new(RecordingReplica(self.0.replica(), self.1.clone()))
    }
}

struct RecordingReplica(Box<dyn Replica>, Arc<Computed>);

impl Replica for RecordingReplica {
    fn gradient(&mut self, parameters: &[f32], draw: Draw, gradient: &mut [f32]) -> f64 {
        let loss = self.0.gradient(parameters, draw, gradient);
        let number = draw.offset / u64::from(draw.samples);
        self.1.lock().unwrap().insert((draw.worker, number), (gradient.to_vec(), loss));
        loss
    }

    fn evaluate(&mut self, parameters: &[f32]) -> Evaluation {
        self.0.evaluate(parameters)
    }
}

#[test]
fn the_model_is_the_one_without_the_broken_update_bit_for_bit() {
    let mut simulation = faulty("bsp", "iterations=8", |worker, number| worker == 2 && number == 4);
    let computed: Arc<Computed> = Arc::default();
    let training = simulation.training.as_mut().unwrap();
    let workload = training.workload.clone();
    training.workload = Arc::new(RecordingWorkload(workload.clone(), computed.clone()));
    let (optimizer, rate) = (training.optimizer.clone(), training.rate);
    let parameters = outcome(&simulation).parameters.unwrap();

    // The same steps; the fifth has three gradients, of a third each.
    let computed = computed.lock().unwrap();
    let mut stepper = Stepper::new(workload.layout(), optimizer, RateSpec::constant(rate));
    let commit =
        Commit { version: Version(1), updates: Default::default(), step: CommitStep::Optimizer, rate_factor: 1.0 };
    let mut old = workload.initial(simulation.seed);
    let mut new = vec![0.0; old.len()];
    for number in 0..8 {
        let workers: Vec<u32> = (0..4).filter(|&worker| (worker, number) != (2, 4)).collect();
        let weight = 1.0 / workers.len() as f32;
        let contribution = |worker: &u32| {
            let (gradient, loss) = &computed[&(*worker, number)];
            let task = TaskId { worker: WorkerId(*worker), number };
            Contribution { task, gradient, weight, loss: *loss, rates: &[] }
        };
        let contributions: Vec<_> = workers.iter().map(contribution).collect();
        stepper.commit(&commit, &old, &mut new, &contributions, 4);
        std::mem::swap(&mut old, &mut new);
    }
    let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&parameters), bits(&old));
}

/// The order of events.
#[derive(Default)]
struct EventOrder(Vec<&'static str>);

impl Observer for EventOrder {
    fn on_turn(&mut self, _now: Time, event: &Event, decisions: &[Decision]) {
        match event {
            Event::Committed { aggregate, .. } => {
                self.0.push(if aggregate.is_some() { "committed" } else { "committed nothing" });
            }
            Event::Broken { .. } => {
                assert!(decisions.is_empty());
                self.0.push("broken");
            }
            _ => {}
        }
    }
}

#[test]
fn a_broken_update_is_named_after_its_commit() {
    let mut order = EventOrder::default();
    faulty("bsp", "iterations=3", |worker, number| number == 1 || (number == 2 && worker > 1)).run(&mut order).unwrap();
    let expected = [&["committed", "committed nothing"][..], &["broken"; 4], &["committed", "broken", "broken"]];
    assert_eq!(order.0, expected.concat());
}
