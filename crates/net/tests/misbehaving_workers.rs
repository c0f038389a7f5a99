//! A worker whose gradients are not finite, or whose model panics, is removed and the run continues.

mod common;

use std::sync::Arc;
use std::thread;

use common::{TransportKind, address, job, run, server, work, worker};
use paceline_net::{TransportOptions, WorkerError};
use paceline_runtime::{Job, Notice, Observer, ServerObserver};
use paceline_store::Layout;
use paceline_workload::{Draw, Evaluation, Replica, Workload};

/// A workload with a fault in every gradient from the third on.
struct FaultyWorkload(Arc<dyn Workload>, fn(&mut [f32]));

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
    fault: fn(&mut [f32]),
    gradients: u32,
}

impl Replica for FaultyReplica {
    fn gradient(&mut self, parameters: &[f32], draw: Draw, gradient: &mut [f32]) -> f64 {
        let loss = self.replica.gradient(parameters, draw, gradient);
        self.gradients += 1;
        if self.gradients > 2 {
            (self.fault)(gradient);
        }
        loss
    }

    fn evaluate(&mut self, parameters: &[f32]) -> Evaluation {
        self.replica.evaluate(parameters)
    }
}

#[derive(Default)]
struct NoticeLog(Vec<String>);

impl Observer for NoticeLog {}

impl ServerObserver for NoticeLog {
    fn on_notice(&mut self, notice: &Notice) {
        self.0.push(notice.to_string());
    }
}

#[test]
fn a_worker_with_a_non_finite_gradient_is_dismissed_and_the_run_continues() {
    for (transport, scheme) in [
        (TransportKind::Shared, "bsp"),
        (TransportKind::Tcp, "bsp"),
        (TransportKind::Shared, "asp"),
        (TransportKind::Tcp, "asp"),
    ] {
        let good = job(scheme, 3, "iterations=200");
        let mut healthy = NoticeLog::default();
        run(&good, &[transport; 3], 1.0, TransportOptions::default(), &mut healthy);
        assert!(!healthy.0.iter().any(|notice| notice.contains("not finite")), "{:?}", healthy.0);

        let broken = Job {
            workload: Arc::new(FaultyWorkload(good.workload.clone(), |gradient| gradient[5] = f32::NAN)),
            ..good.clone()
        };
        let (server, mut notices) = (server(TransportOptions::default()), NoticeLog::default());
        let outcome = thread::scope(|scope| {
            let server_address = address(&server, transport);
            let faulty = scope.spawn({
                let worker = worker(server_address.clone(), 2);
                || work(worker, &broken)
            });
            for rank in [0, 1] {
                let worker = worker(server_address.clone(), rank);
                let good = &good;
                scope.spawn(move || work(worker, good).unwrap());
            }
            let outcome = server.run(&good, &mut notices).unwrap();
            let result = faulty.join().unwrap();
            assert!(
                matches!(&result, Err(WorkerError::Refused { reason, .. }) if reason.contains("not finite")),
                "{result:?}"
            );
            outcome
        });
        assert_eq!(outcome.summary.iterations, 200, "{transport:?}");
        assert!(outcome.parameters.iter().all(|value| value.is_finite()), "{transport:?}");
        let left = "worker 2 left: the gradient of task 2 of worker 2 is not finite";
        assert!(notices.0.iter().any(|notice| notice.starts_with(left)), "{transport:?}: {:?}", notices.0);
    }
}

#[test]
fn a_worker_whose_model_panics_leaves_at_once() {
    for transport in [TransportKind::Shared, TransportKind::Tcp] {
        let good = job("bsp", 2, "iterations=12");
        let broken = Arc::new(FaultyWorkload(good.workload.clone(), |_| panic!("a panic for a test")));
        let bad = Job { workload: broken, ..good.clone() };
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
