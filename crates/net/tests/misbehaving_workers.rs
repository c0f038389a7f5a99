//! A broken update does not count, and its worker goes on; one whose updates are all broken, or whose model panics, is
//! removed and the run continues.

mod common;

use std::sync::Arc;
use std::thread;

use common::{TransportKind, address, job, run, server, work, worker};
use paceline_net::{PayloadFormat, RunOutcome, TransportOptions, WorkerError, WorkerOutcome};
use paceline_runtime::{Job, JobModel, Notice, Observer, ServerObserver};
use paceline_store::Layout;
use paceline_workload::{Draw, Evaluation, Replica, Workload};

/// Spoils a gradient or its loss. It gets the number of the gradient, from 1.
type SpoilGradient = fn(u32, &mut [f32], &mut f64);

/// A workload with faults.
struct FaultyWorkload(Arc<dyn Workload>, SpoilGradient);

impl Workload for FaultyWorkload {
    fn layout(&self) -> &Layout {
        self.0.layout()
    }

    fn initial(&self, seed: u64) -> Vec<f32> {
        self.0.initial(seed)
    }

    fn replica(&self) -> Box<dyn Replica> {
        Box::new(FaultyReplica { replica: self.0.replica(), fault: self.1, gradients: 0 })
    }
}

struct FaultyReplica {
    replica: Box<dyn Replica>,
    fault: SpoilGradient,
    gradients: u32,
}

impl Replica for FaultyReplica {
    fn gradient(&mut self, parameters: &[f32], draw: Draw, gradient: &mut [f32]) -> f64 {
        let mut loss = self.replica.gradient(parameters, draw, gradient);
        self.gradients += 1;
        (self.fault)(self.gradients, gradient, &mut loss);
        loss
    }

    fn evaluate(&mut self, parameters: &[f32]) -> Evaluation {
        self.replica.evaluate(parameters)
    }
}

#[derive(Default)]
struct NoticeLog(Vec<String>);

impl Observer for NoticeLog {
    fn on_notice(&mut self, notice: &Notice) {
        self.0.push(notice.to_string());
    }
}

impl ServerObserver for NoticeLog {}

const KINDS: [(TransportKind, &str); 4] = [
    (TransportKind::Shared, "bsp"),
    (TransportKind::Tcp, "bsp"),
    (TransportKind::Shared, "asp"),
    (TransportKind::Tcp, "asp"),
];

/// Runs `job` with three workers, the last of them with a fault. Returns what the last one ended with, the outcome and
/// the notices.
fn run_with_fault(
    job: &Job,
    transport: TransportKind,
    options: TransportOptions,
    fault: SpoilGradient,
) -> (Result<WorkerOutcome, WorkerError>, RunOutcome, Vec<String>) {
    let faulty = Job {
        model: JobModel::Workload(Arc::new(FaultyWorkload(job.model.workload().unwrap().clone(), fault))),
        ..job.clone()
    };
    let (server, mut notices) = (server(options), NoticeLog::default());
    thread::scope(|scope| {
        let server_address = address(&server, transport);
        let last = scope.spawn({
            let worker = worker(server_address.clone(), 2);
            || work(worker, &faulty)
        });
        for rank in [0, 1] {
            let worker = worker(server_address.clone(), rank);
            scope.spawn(move || work(worker, job).unwrap());
        }
        let outcome = server.run(job, &mut notices).unwrap();
        (last.join().unwrap(), outcome, notices.0)
    })
}

#[test]
fn a_worker_whose_updates_stay_broken_is_dismissed_and_the_run_continues() {
    for (transport, scheme) in KINDS {
        // Under `asp`, the order of commits is not fixed: the worker may have more broken updates before another worker's
        // update shows that the model is fine.
        let (iterations, is_fixed) = if scheme == "bsp" { (200, true) } else { (2_000, false) };
        let job = job(scheme, 3, &format!("iterations={iterations}"));
        let (result, outcome, notices) =
            run_with_fault(&job, transport, TransportOptions::default(), |count, values, _| {
                if count > 2 {
                    values[5] = f32::NAN;
                }
            });
        assert!(
            matches!(&result, Err(WorkerError::Refused { reason, .. }) if reason.contains("not finite")),
            "{result:?}"
        );
        let summary = outcome.summary;
        assert_eq!(summary.iterations, iterations, "{transport:?}, {scheme}");
        let broken = summary.updates_broken;
        assert!(if is_fixed { broken == 3 } else { broken >= 3 }, "{transport:?}, {scheme}: {broken}");
        assert!(outcome.parameters.iter().all(|value| value.is_finite()), "{transport:?}, {scheme}");
        let task = broken + 1;
        let left =
            format!("worker 2 left: the update of task {task} of worker 2 is the third in a row that is not finite");
        assert!(notices.iter().any(|notice| notice.starts_with(&left)), "{transport:?}: {notices:?}");
    }
}

#[test]
fn a_worker_with_a_broken_update_now_and_then_goes_on() {
    let faults: [(SpoilGradient, PayloadFormat); 4] = [
        (|count, values, _| values[5] = if count % 4 == 3 { f32::NAN } else { values[5] }, PayloadFormat::F32),
        (|count, _, loss| *loss = if count % 4 == 3 { f64::INFINITY } else { *loss }, PayloadFormat::F32),
        // Above the largest value of a 16-bit payload.
        (|count, values, _| values[5] = if count % 4 == 3 { 70_000.0 } else { values[5] }, PayloadFormat::F16),
        (
            |count, values, _| values[5] = if count % 4 == 3 { f32::NEG_INFINITY } else { values[5] },
            PayloadFormat::Int8,
        ),
    ];
    for (transport, scheme) in KINDS {
        // Values in shared memory are not converted.
        for (fault, payload) in faults.into_iter().take(if transport == TransportKind::Tcp { 4 } else { 2 }) {
            let job = job(scheme, 3, "iterations=60");
            let options = TransportOptions { payload: payload.into(), ..TransportOptions::default() };
            let (result, outcome, notices) = run_with_fault(&job, transport, options, fault);
            result.unwrap();
            assert!(!notices.iter().any(|notice| notice.contains("left")), "{transport:?}, {scheme}: {notices:?}");
            let summary = outcome.summary;
            assert_eq!(summary.iterations, 60);
            assert!(outcome.parameters.iter().all(|value| value.is_finite()));
            if scheme == "bsp" {
                let (committed, broken) = (summary.updates_committed, summary.updates_broken);
                assert_eq!((committed, broken), (165, 15), "{transport:?}: every fourth of the last worker");
                assert_eq!((summary.samples_used, summary.samples_lost), (165 * 16, 15 * 16));
            }
        }
    }
}

#[test]
fn a_run_whose_updates_are_all_broken_ends() {
    for transport in [TransportKind::Shared, TransportKind::Tcp] {
        let mut job = job("bsp", 2, "iterations=200");
        job.model =
            JobModel::Workload(Arc::new(FaultyWorkload(job.model.workload().unwrap().clone(), |count, values, _| {
                if count > 5 {
                    values[0] = f32::NAN;
                }
            })));
        let outcome = run(&job, &[transport; 2], 1.0, TransportOptions::default(), &mut ());
        assert_eq!(outcome.summary.stopped_by, "the loss is no longer finite");
        assert_eq!((outcome.summary.iterations, outcome.summary.updates_broken), (8, 6));
    }
}

#[test]
fn a_worker_whose_model_panics_leaves_at_once() {
    for transport in [TransportKind::Shared, TransportKind::Tcp] {
        let good = job("bsp", 2, "iterations=12");
        let broken = Arc::new(FaultyWorkload(good.model.workload().unwrap().clone(), |count, _, _| {
            assert!(count < 3, "a panic for a test");
        }));
        let bad = Job { model: JobModel::Workload(broken), ..good.clone() };
        let (server, mut notices) = (server(TransportOptions::default()), NoticeLog::default());
        let outcome = thread::scope(|scope| {
            let [first, second] = [0, 1].map(|rank| worker(address(&server, transport), rank));
            scope.spawn(|| work(first, &good).unwrap());
            let panicking = scope.spawn(|| work(second, &bad));
            let outcome = server.run(&good, &mut notices).unwrap();
            assert!(panicking.join().is_err(), "the panic propagates");
            outcome
        });
        assert_eq!(outcome.summary.iterations, 12, "{transport:?}");
        let left = "worker 1 left: connection closed";
        assert!(notices.0.iter().any(|notice| notice.starts_with(left)), "{transport:?}: {:?}", notices.0);
    }
}

/// Its server and it agree on a new reference, and what it computes is of use.
#[test]
fn a_worker_rejoins_a_run_whose_models_are_differences() {
    let good = job("bsp", 2, "iterations=1500");
    let broken = Arc::new(FaultyWorkload(good.model.workload().unwrap().clone(), |count, _, _| {
        assert!(count < 30, "a panic for a test");
    }));
    let bad = Job { model: JobModel::Workload(broken), ..good.clone() };
    let options = TransportOptions { payload: PayloadFormat::Int8.into(), ..TransportOptions::default() };
    let (server, mut notices) = (server(options), NoticeLog::default());
    let outcome = thread::scope(|scope| {
        let [first, second, third] = [0, 1, 1].map(|rank| worker(address(&server, TransportKind::Tcp), rank));
        scope.spawn(|| work(first, &good).unwrap());
        let successor = scope.spawn(|| {
            assert!(thread::scope(|inner| inner.spawn(|| work(second, &bad)).join()).is_err(), "the panic propagates");
            work(third, &good).unwrap()
        });
        let outcome = server.run(&good, &mut notices).unwrap();
        assert!(successor.join().unwrap().tasks > 0);
        outcome
    });
    let summary = outcome.summary;
    assert_eq!((summary.iterations, summary.updates_broken), (1500, 0));
    assert!(summary.loss.unwrap() < 0.5, "{summary:?}");
}
