//! Workers that compute nothing, so that only the transport of values is measured.

use std::sync::Arc;
use std::time::Duration;
use std::{process, thread};

use paceline_core::Setup;
use paceline_net::{Address, Emulation, PayloadFormat, Server, ShardCount, TransportOptions, Worker};
use paceline_runtime::{Job, ServerObserver};
use paceline_store::Layout;
use paceline_workload::{Draw, Evaluation, Replica, Workload};

use crate::congestion;

/// A model whose gradient costs nothing.
struct IdleWorkload(Layout);

fn workload(length: usize) -> Arc<dyn Workload> {
    Arc::new(IdleWorkload(Layout::new([("values", vec![length])], [])))
}

impl Workload for IdleWorkload {
    fn layout(&self) -> &Layout {
        &self.0
    }

    fn initial(&self, _seed: u64) -> Vec<f32> {
        vec![0.5; self.0.len()]
    }

    fn replica(&self) -> Box<dyn Replica> {
        Box::new(IdleReplica)
    }
}

struct IdleReplica;

impl Replica for IdleReplica {
    fn gradient(&mut self, _parameters: &[f32], draw: Draw, gradient: &mut [f32]) -> f64 {
        // A new buffer holds zeros.
        if gradient.first() == Some(&0.0) {
            gradient.fill(1e-6 * (1 + draw.worker) as f32);
        }
        1.0
    }

    fn evaluate(&mut self, _parameters: &[f32]) -> Evaluation {
        Evaluation { loss: 1.0, accuracy: None }
    }
}

/// A run of `scheme` with idle workers.
pub fn job(scheme: &str, length: usize, workers: usize, iterations: usize) -> Job {
    Job {
        scheme: scheme.parse().expect("a valid scheme"),
        workload_spec: length.to_string(),
        rate: 1e-6,
        goals: format!("iterations={iterations}").parse().expect("a valid goal"),
        seed: 0,
        ..Job::new(workload(length), Setup::new(workers, 1))
    }
}

/// A server at `address` that any worker may join.
pub fn bind(address: &Address, payload: PayloadFormat, shards: ShardCount) -> Server {
    let congestion = congestion();
    let transport =
        TransportOptions { payload: payload.into(), congestion, shards, open: true, ..TransportOptions::default() };
    Server::bind(std::slice::from_ref(address), transport).expect("the address is free")
}

/// Runs `job` at `address` with its workers spread over `processes`. Every task takes at least `task`.
pub fn run(job: &Job, address: &Address, processes: usize, task: Duration, observer: &mut dyn ServerObserver) {
    let server = bind(address, PayloadFormat::F32, ShardCount::None);
    let workers = job.setup.workers / processes;
    let role = format!("{} {workers} {}", server.addresses()[0], task.as_millis());
    let children: Vec<_> = (0..processes).map(|_| crate::start(role.clone())).collect();
    server.run(job, observer).expect("idle workers do not fail");
    for mut child in children {
        assert!(child.wait().expect("the workers were started").success());
    }
}

/// Runs the workers of `role`: address, number of workers, and milliseconds per task.
pub fn work(role: &str) {
    let [address, workers, milliseconds] = role.split(' ').collect::<Vec<_>>()[..] else { process::exit(2) };
    let (Ok(address), Ok(workers), Ok(milliseconds)) =
        (address.parse::<Address>(), workers.parse(), milliseconds.parse::<u64>())
    else {
        process::exit(2)
    };
    thread::scope(|scope| {
        for _ in 0..workers {
            let task = Duration::from_millis(milliseconds);
            let worker = Worker {
                join_timeout: Duration::from_secs(10),
                emulation: (milliseconds > 0).then(|| Emulation::times(format!("{task:?} a task"), move || task)),
                congestion: congestion(),
                ..Worker::new(address.clone())
            };
            scope.spawn(move || {
                let build = |length: &str| length.parse().map(workload).map_err(|_| "not a length".to_string());
                if let Err(error) = worker.run(build, &mut |_| {}) {
                    eprintln!("{error}");
                    process::exit(1);
                }
            });
        }
    });
}
