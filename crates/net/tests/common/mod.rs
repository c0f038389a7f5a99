//! The harness for tests of whole runs: a server and its workers on threads, over real sockets.
#![allow(dead_code, reason = "no test uses all of it")]

pub mod bowl;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use paceline_core::Setup;
use paceline_net::{
    Address, Emulation, Role, RunOutcome, Server, ServerError, TransportOptions, Worker, WorkerError, WorkerOutcome,
};
use paceline_runtime::{Job, ServerObserver};
use paceline_workload::{Order, Partition, Sampler, SoftmaxRegression, Workload, synthetic_digits};

/// Synthetic digits for `workers` workers.
pub fn workload(workers: usize) -> Arc<dyn Workload> {
    let splits = synthetic_digits(7, 2_000, 200).unwrap();
    let labels = splits.train().labels();
    let sampler = Sampler::new(labels, Partition::Iid, Order::Epochs, workers, 7).unwrap();
    Arc::new(SoftmaxRegression::new(splits, sampler, 0.0))
}

/// A run of `scheme` with `workers` workers until `goals`.
pub fn job(scheme: &str, workers: usize, goals: &str) -> Job {
    Job {
        scheme: scheme.parse().unwrap(),
        workload_spec: "digits".into(),
        optimizer: "momentum:0.5".parse().unwrap(),
        rate: 0.02,
        step_threads: Some(2),
        goals: goals.parse().unwrap(),
        seed: 3,
        ..Job::new(workload(workers), Setup::new(workers, 16))
    }
}

/// The transport of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransportKind {
    Shared,
    Tcp,
}

/// A local address that no other test uses.
pub fn unused_name() -> Address {
    static NAMES: AtomicU64 = AtomicU64::new(0);
    let name = format!("paceline-test-{}-{}", std::process::id(), NAMES.fetch_add(1, Ordering::Relaxed));
    Address::Local { name }
}

/// A server that listens on both transports.
pub fn server(transport: TransportOptions) -> Server {
    Server::bind(&["127.0.0.1:0".parse().unwrap(), unused_name()], transport).unwrap()
}

/// The address of `server` for `transport`.
pub fn address(server: &Server, transport: TransportKind) -> Address {
    let is_local =
        |address: &&Address| matches!(address, Address::Local { .. }) == (transport == TransportKind::Shared);
    server.addresses().iter().find(is_local).unwrap().clone()
}

/// A worker that asks for `rank`. Every other one reaches all shards over TCP, as from another host.
pub fn worker(address: Address, rank: u32) -> Worker {
    let shares_memory = rank.is_multiple_of(2);
    Worker { role: Role::Worker(Some(rank)), join_timeout: Duration::ZERO, shares_memory, ..Worker::new(address) }
}

/// Runs `worker` on the workload of `job`.
pub fn work(worker: Worker, job: &Job) -> Result<WorkerOutcome, WorkerError> {
    let workload = job.model.workload().unwrap().clone();
    worker.run(|_| Ok(workload.clone()), &mut |_| {})
}

/// Runs `job` with one worker per entry of `transports`; the last worker is `slower` times slower.
pub fn run(
    job: &Job,
    transports: &[TransportKind],
    slower: f64,
    transport: TransportOptions,
    observer: &mut dyn ServerObserver,
) -> RunOutcome {
    run_on(server(transport), job, transports, slower, |server| server.run(job, observer))
}

/// As [`run`], on this server, which `start` starts.
pub fn run_on(
    server: Server,
    job: &Job,
    transports: &[TransportKind],
    slower: f64,
    start: impl FnOnce(Server) -> Result<RunOutcome, ServerError>,
) -> RunOutcome {
    thread::scope(|scope| {
        for (rank, &transport) in transports.iter().enumerate() {
            let mut worker = worker(address(&server, transport), rank as u32);
            if slower > 1.0 && rank + 1 == transports.len() {
                worker.emulation = Some(Emulation::factor(slower));
            }
            scope.spawn(move || match work(worker, job) {
                // A run that resumes does not wait for all workers, so it may be over.
                Err(WorkerError::Connect { .. } | WorkerError::Lost { .. }) => {}
                done => assert_eq!(done.unwrap().worker.0, rank as u32),
            });
        }
        start(server).unwrap()
    })
}
