//! The cost of decisions and messages: with a thousand connections, and with iterations of 100 ms.

use std::time::{Duration, Instant};

use paceline_core::{Action, Decision, Event, Time};
use paceline_net::Address;
use paceline_runtime::{Iteration, Monitor, Observer, ServerObserver};
use rustix::time::{ClockId, clock_gettime};

use crate::idle;

/// Small enough that aggregation costs nothing.
const LENGTH: usize = 1_000;

/// The processor time of this process so far, in seconds. It is the server's: the workers run in other processes.
fn processor_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

fn resident_bytes() -> f64 {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: f64 = status.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0.0);
    pages * rustix::param::page_size() as f64
}

/// Measures from the moment when all workers have joined to the last iteration.
struct ServerCost {
    workers: usize,
    last: u64,
    joined: usize,
    decisions: u64,
    iterations: u64,
    seconds: f64,
    started: Option<(Instant, f64)>,
    processor: f64,
    resident: f64,
    /// When the last report that led to a commit arrived.
    reported: Option<Instant>,
    /// The time from such a report to the last assignment after it, summed up. Workers are idle during it.
    dispatching: Duration,
}

impl ServerCost {
    fn new(workers: usize, last: u64) -> Self {
        ServerCost {
            workers,
            last,
            joined: 0,
            decisions: 0,
            iterations: 0,
            seconds: 0.0,
            started: None,
            processor: 0.0,
            resident: 0.0,
            reported: None,
            dispatching: Duration::ZERO,
        }
    }
}

impl Observer for ServerCost {
    fn on_turn(&mut self, _now: Time, event: &Event, decisions: &[Decision]) {
        if matches!(event, Event::Joined { .. }) {
            self.joined += 1;
            self.resident = resident_bytes();
            if self.joined == self.workers {
                self.started = Some((Instant::now(), processor_seconds()));
            }
        }
        self.decisions += decisions.len() as u64;
        if decisions.iter().any(|decision| matches!(decision.action, Action::Commit { .. })) {
            self.reported = Some(Instant::now());
        }
    }

    fn on_iteration(&mut self, _iteration: &Iteration, _monitor: &Monitor) {
        self.iterations += 1;
        self.dispatching += self.reported.take().map_or(Duration::ZERO, |reported| reported.elapsed());
        // Read once only: with thousands of threads it takes longer than an iteration.
        if self.iterations < self.last {
            return;
        }
        if let Some((started, processor)) = self.started {
            self.seconds = started.elapsed().as_secs_f64();
            self.processor = processor_seconds() - processor;
        }
    }
}

impl ServerObserver for ServerCost {}

fn count(scheme: &str, address: &Address, workers: usize, iterations: usize, task: Duration) -> ServerCost {
    let mut cost = ServerCost::new(workers, iterations as u64);
    let before = resident_bytes();
    idle::run(&idle::job(scheme, LENGTH, workers, iterations), address, &[task], &mut cost);
    cost.resident -= before;
    cost
}

pub fn measure() {
    let transports = [
        ("shared memory", Address::Local { name: format!("paceline-crowd-{}", std::process::id()) }),
        ("TCP", "127.0.0.1:0".parse().expect("a valid address")),
    ];
    println!("1,000 connections, {LENGTH} parameters, asp: every report leads to a commit and an assignment");
    for (name, address) in &transports {
        let cost = count("asp", address, 1_000, 50_000, Duration::ZERO);
        println!(
            "  {name:<14} {:>9.0} decisions/s {:>8.1} KiB of server memory per worker",
            cost.decisions as f64 / cost.seconds,
            cost.resident / 1_000.0 / 1024.0,
        );
    }
    println!("96 workers, tasks of 100 ms, bsp: the time for decisions and messages");
    for (name, address) in &transports {
        let cost = count("bsp", address, 96, 60, Duration::from_millis(100));
        let each = |seconds: f64| seconds / cost.iterations as f64 * 1e3;
        println!(
            "  {name:<14} {:>9.2} ms ({:.2} %) from the last report to the last assignment, {:.2} ms of the server's \
             processor time in all, {:.2} ms of wall time beyond the task",
            each(cost.dispatching.as_secs_f64()),
            each(cost.dispatching.as_secs_f64()),
            each(cost.processor),
            each(cost.seconds) - 100.0,
        );
    }
}
