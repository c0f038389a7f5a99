//! What deciding and messaging cost: with a thousand connections, and beside iterations of 100 ms.

use std::time::{Duration, Instant};

use paceline_core::{Action, Decision, Event, Time};
use paceline_net::Address;
use paceline_runtime::{Iteration, Monitor, Observer, ServerObserver};
use rustix::time::{ClockId, clock_gettime};

use crate::idle;

/// Small enough that aggregating it is nothing.
const LENGTH: usize = 1_000;

/// Processor time of this process so far, in seconds: the server's, since the workers are in other processes.
fn processor_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

fn resident_bytes() -> f64 {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: f64 = status.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0.0);
    pages * rustix::param::page_size() as f64
}

/// Counts from the moment that all workers have joined to the last iteration.
struct Counter {
    workers: usize,
    last: u64,
    joined: usize,
    decisions: u64,
    iterations: u64,
    seconds: f64,
    began: Option<(Instant, f64)>,
    processor: f64,
    resident: f64,
    /// When a report led to a commit.
    heard: Option<Instant>,
    /// From such a report to the last assignment that followed, summed up: while it lasts, somebody waits.
    answering: Duration,
}

impl Counter {
    fn new(workers: usize, last: u64) -> Self {
        Counter {
            workers,
            last,
            joined: 0,
            decisions: 0,
            iterations: 0,
            seconds: 0.0,
            began: None,
            processor: 0.0,
            resident: 0.0,
            heard: None,
            answering: Duration::ZERO,
        }
    }
}

impl Observer for Counter {
    fn on_turn(&mut self, _now: Time, event: &Event, decisions: &[Decision]) {
        if matches!(event, Event::Joined { .. }) {
            self.joined += 1;
            self.resident = resident_bytes();
            if self.joined == self.workers {
                self.began = Some((Instant::now(), processor_seconds()));
            }
        }
        self.decisions += decisions.len() as u64;
        if decisions.iter().any(|decision| matches!(decision.action, Action::Commit { .. })) {
            self.heard = Some(Instant::now());
        }
    }

    fn on_iteration(&mut self, _iteration: &Iteration, _monitor: &Monitor) {
        self.iterations += 1;
        self.answering += self.heard.take().map_or(Duration::ZERO, |heard| heard.elapsed());
        // Asked once: with thousands of threads, adding up their processor time takes longer than an iteration.
        if self.iterations < self.last {
            return;
        }
        if let Some((began, processor)) = self.began {
            self.seconds = began.elapsed().as_secs_f64();
            self.processor = processor_seconds() - processor;
        }
    }
}

impl ServerObserver for Counter {}

fn count(scheme: &str, address: &Address, workers: usize, iterations: usize, task: Duration) -> Counter {
    let mut counter = Counter::new(workers, iterations as u64);
    let before = resident_bytes();
    idle::run(&idle::job(scheme, LENGTH, workers, iterations, 1), address, 1, task, &mut counter);
    counter.resident -= before;
    counter
}

pub fn measure() {
    let transports = [
        ("shared memory", Address::Local { name: format!("paceline-crowd-{}", std::process::id()) }),
        ("TCP", "127.0.0.1:0".parse().expect("an address")),
    ];
    println!("1,000 connections, {LENGTH} parameters, asp: every report is a commit and an assignment");
    for (name, address) in &transports {
        let counter = count("asp", address, 1_000, 50_000, Duration::ZERO);
        println!(
            "  {name:<14} {:>9.0} decisions/s {:>8.1} KiB of server memory per worker",
            counter.decisions as f64 / counter.seconds,
            counter.resident / 1_000.0 / 1024.0,
        );
    }
    println!("96 workers, tasks of 100 ms, bsp: what deciding and messaging take");
    for (name, address) in &transports {
        let counter = count("bsp", address, 96, 60, Duration::from_millis(100));
        let each = |seconds: f64| seconds / counter.iterations as f64 * 1e3;
        println!(
            "  {name:<14} {:>9.2} ms ({:.2} %) from the last report to the last assignment, {:.2} ms of the server's \
             processor time in all, {:.2} ms longer by the clock",
            each(counter.answering.as_secs_f64()),
            each(counter.answering.as_secs_f64()),
            each(counter.processor),
            each(counter.seconds) - 100.0,
        );
    }
}
