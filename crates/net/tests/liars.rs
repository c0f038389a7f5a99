//! A worker whose model breaks, by a gradient that is no number or by a panic, costs only itself.

mod common;

use std::sync::Arc;
use std::thread;

use common::{TransportKind, address, job, run, server, work, worker};
use paceline_net::{TransportOptions, WorkError};
use paceline_runtime::{Job, Notice, Observer, ServerObserver};
use paceline_store::Layout;
use paceline_workload::{Draw, Evaluation, Replica, Workload};

/// A workload to whose gradients something happens from the third on.
struct Broken(Arc<dyn Workload>, fn(&mut [f32]));

impl Workload for Broken {
    fn layout(&self) -> &Layout {
        self.0.layout()
    }

    fn initial(&self, seed: u64) -> Vec<f32> {
        self.0.initial(seed)
    }

    fn replica(&self) -> Box<dyn Replica> {
        Box::new(BrokenReplica { replica: self.0.replica(), happening: self.1, gradients: 0 })
    }
}

struct BrokenReplica {
    replica: Box<dyn Replica>,
    happening: fn(&mut [f32]),
    gradients: u32,
}

impl Replica for BrokenReplica {
    fn gradient(&mut self, parameters: &[f32], draw: Draw, gradient: &mut [f32]) -> f64 {
        let loss = self.replica.gradient(parameters, draw, gradient);
        self.gradients += 1;
        if self.gradients > 2 {
            (self.happening)(gradient);
        }
        loss
    }

    fn evaluate(&mut self, parameters: &[f32]) -> Evaluation {
        self.replica.evaluate(parameters)
    }
}

#[derive(Default)]
struct Notices(Vec<String>);

impl Observer for Notices {}

impl ServerObserver for Notices {
    fn on_notice(&mut self, notice: &Notice) {
        self.0.push(notice.to_string());
    }
}

#[test]
fn a_gradient_that_is_no_number_costs_its_worker_the_place_and_the_run_nothing() {
    for (transport, scheme) in [
        (TransportKind::Shared, "bsp"),
        (TransportKind::Tcp, "bsp"),
        (TransportKind::Shared, "asp"),
        (TransportKind::Tcp, "asp"),
    ] {
        let good = job(scheme, 3, "iterations=200");
        let mut calm = Notices::default();
        run(&good, &[transport; 3], 1.0, TransportOptions::default(), &mut calm);
        assert!(!calm.0.iter().any(|notice| notice.contains("not finite")), "{:?}", calm.0);

        let broken = Job {
            workload: Arc::new(Broken(good.workload.clone(), |gradient| gradient[5] = f32::NAN)),
            ..good.clone()
        };
        let (server, mut notices) = (server(TransportOptions::default()), Notices::default());
        let outcome = thread::scope(|scope| {
            let place = address(&server, transport);
            let liar = scope.spawn({
                let worker = worker(place.clone(), 2);
                || work(worker, &broken)
            });
            for rank in [0, 1] {
                let worker = worker(place.clone(), rank);
                let good = &good;
                scope.spawn(move || work(worker, good).unwrap());
            }
            let outcome = server.run(&good, &mut notices).unwrap();
            let told = liar.join().unwrap();
            assert!(
                matches!(&told, Err(WorkError::Refused { reason, .. }) if reason.contains("not finite")),
                "{told:?}"
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
fn a_worker_whose_model_panics_is_gone_at_once() {
    for transport in [TransportKind::Shared, TransportKind::Tcp] {
        let well = job("bsp", 2, "iterations=12");
        let broken = Arc::new(Broken(well.workload.clone(), |_| panic!("a panic for a test")));
        let ill = Job { workload: broken, ..well.clone() };
        let (server, mut notices) = (server(TransportOptions::default()), Notices::default());
        let outcome = thread::scope(|scope| {
            let [first, second] = [0, 1].map(|rank| worker(address(&server, transport), rank));
            scope.spawn(|| work(first, &well).unwrap());
            let panicking = scope.spawn(|| work(second, &ill));
            let outcome = server.run(&well, &mut notices).unwrap();
            assert!(panicking.join().is_err(), "the panic goes on");
            outcome
        });
        assert_eq!(outcome.summary.iterations, 12, "{transport:?}");
        let left = "worker 1 left: it closed the connection";
        assert!(notices.0.iter().any(|notice| notice.starts_with(left)), "{transport:?}: {:?}", notices.0);
    }
}
