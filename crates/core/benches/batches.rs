//! The time of batch sizing: splitting an iteration's samples, whole decisions of lb-bsp, and a training step.
//!
//! `cargo bench -p paceline-core --bench batches`

use std::{hint::black_box, time::Instant};

use paceline_core::batching::{Cost, balance};
use paceline_core::speed::{PredictorKind, Resources};
use paceline_core::{Action, Event, Ledger, Report, SchemeSpec, Setup, Span, TaskId, Time, WorkerId};
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

fn main() {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(1);
    println!("{:<24}{:>8}{:>12}{:>12}", "", "workers", "median µs", "worst µs");
    for workers in [96, 1_000, 10_000] {
        let costs: Vec<Cost> = (0..workers)
            .map(|_| Cost {
                per_sample: random.random_range(0.001..0.01),
                fixed: random.random_range(0.0..0.5),
                least: random.random_range(1..50),
                most: random.random_range(200..2_000),
            })
            .collect();
        let total = 128 * workers as u64;
        let split = || drop(black_box(balance(black_box(&costs), total).expect("the bounds leave room")));
        print_row("split", workers, (0..200).map(|_| timed(split)).collect());
    }
    for workers in [32, 96, 1_000] {
        print_row("decision with narx", workers, decisions(workers, &mut random));
    }
    print_row("training step of narx", 1, training(&mut random));
}

fn timed(work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64() * 1e6
}

fn print_row(what: &str, workers: usize, mut micros: Vec<f64>) {
    micros.sort_unstable_by(f64::total_cmp);
    println!("{what:<24}{workers:>8}{:>12.1}{:>12.1}", micros[micros.len() / 2], micros[micros.len() - 1]);
}

/// The times of the reports that end iterations: predict all speeds, split the samples, assign work to every worker.
fn decisions(workers: usize, random: &mut Xoshiro256PlusPlus) -> Vec<f64> {
    let weights = ["0.1"; 17].join("/");
    let spec: SchemeSpec = format!("lb-bsp:change=0,weights={weights}").parse().expect("a scheme of the catalogue");
    let scheme = spec.build(&Setup::new(workers, 128)).expect("allowed settings");
    let mut ledger = Ledger::new(scheme);
    let ids = || (0..workers as u32).map(WorkerId);
    let mut now = Time::START;
    ids().for_each(|worker| drop(handle(&mut ledger, now, Event::Joined { worker })));
    let mut micros = Vec::new();
    for number in 0..200 {
        for worker in ids() {
            now = now + Span(1_000_000);
            let compute = Span(random.random_range(900_000_000..1_100_000_000));
            let report = Report { compute, cpu: Some(0.3), memory: Some(0.4), ..Report::default() };
            let event = Event::Reported { task: TaskId { worker, number }, report };
            let mut decisions = Vec::new();
            let taken = timed(|| decisions = handle(&mut ledger, now, event));
            for action in decisions {
                if let Action::Commit(commit) = action {
                    micros.push(taken);
                    handle(&mut ledger, now, Event::Committed { version: commit.version, aggregate: None });
                }
            }
        }
    }
    micros.split_off(100)
}

fn handle(ledger: &mut Ledger, now: Time, event: Event) -> Vec<Action> {
    let decisions = ledger.handle(now, event).expect("the scheme keeps the laws");
    decisions
        .iter()
        .filter(|decision| matches!(decision.action, Action::Commit { .. }))
        .map(|decision| decision.action.clone())
        .collect()
}

fn training(random: &mut Xoshiro256PlusPlus) -> Vec<f64> {
    let mut predictor = PredictorKind::Narx.build(500, None);
    let mut micros = Vec::new();
    for _ in 0..3_000 {
        let cpu = random.random_range(0.0..0.6);
        predictor.observe(100.0 * (1.0 - cpu) * random.random_range(0.95..1.05), Resources { cpu, memory: 0.3 });
        let mut trained = false;
        let taken = timed(|| trained = predictor.train_step());
        micros.extend(trained.then_some(taken));
    }
    micros
}
