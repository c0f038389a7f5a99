//! Workers that compute nothing, so that only the transport of values is measured.

use std::fmt::Display;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use std::{process, thread};

use paceline_core::Setup;
use paceline_net::{Address, Emulation, PayloadFormat, Role, Server, ShardCount, TransportOptions, Worker};
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

/// Runs `job` at `address` with its workers spread over processes. Every task takes at least as long as is said for its
/// process.
pub fn run(job: &Job, address: &Address, tasks: &[Duration], observer: &mut dyn ServerObserver) {
    let server = bind(address, PayloadFormat::F32, ShardCount::None);
    let workers = job.setup.workers / tasks.len();
    let address = &server.addresses()[0];
    let role = |(process, task): (usize, &Duration)| role(address, process * workers..(process + 1) * workers, *task);
    let children: Vec<_> = tasks.iter().enumerate().map(|one| crate::start(role(one))).collect();
    server.run(job, observer).expect("idle workers do not fail");
    for mut child in children {
        assert!(child.wait().expect("the workers were started").success());
    }
}

/// What a process does that runs the workers of these ranks.
pub fn role(address: impl Display, ranks: Range<usize>, task: Duration) -> String {
    format!("{address} {} {} {}", ranks.start, ranks.end, task.as_millis())
}

/// Runs the workers of a [`role`].
pub fn work(role: &str) {
    let [address, first, end, milliseconds] = role.split(' ').collect::<Vec<_>>()[..] else { process::exit(2) };
    let (Ok(address), Ok(first), Ok(end), Ok(milliseconds)) =
        (address.parse::<Address>(), first.parse::<u32>(), end.parse(), milliseconds.parse())
    else {
        process::exit(2)
    };
    thread::scope(|scope| {
        for rank in first..end {
            let task = Duration::from_millis(milliseconds);
            let worker = Worker {
                role: Role::Worker(Some(rank)),
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
