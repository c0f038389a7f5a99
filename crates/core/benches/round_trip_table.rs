//! The time of one iteration's samples and estimates: DBW's table compared with a quadratic program, problem (17).
//!
//! `cargo bench -p paceline-core --bench round_trip_table`

#![allow(clippy::disallowed_methods, reason = "benchmarks decide nothing")]

#[path = "../src/round_trips/oracle.rs"]
mod oracle;

use std::{hint::black_box, time::Instant};

use paceline_core::{Memory, RoundTripTable};
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

/// How k changes from one iteration to the next.
#[derive(Clone, Copy, Debug)]
enum QuorumPattern {
    Walk,
    Uniform,
}

/// Draws arrivals: h workers start at once, the others finish their present tasks first.
struct ArrivalGenerator {
    workers: usize,
    pattern: QuorumPattern,
    waited_for: usize,
    random: Xoshiro256PlusPlus,
    arrivals: Vec<f64>,
}

impl ArrivalGenerator {
    fn new(workers: usize, pattern: QuorumPattern) -> Self {
        let random = Xoshiro256PlusPlus::seed_from_u64(1);
        Self { workers, pattern, waited_for: workers / 2, random, arrivals: Vec::new() }
    }

    fn exponential(&mut self) -> f64 {
        -0.7 * (1.0 - self.random.random::<f64>()).ln()
    }

    /// The next iteration's h, with all its arrival times in `arrivals`.
    fn iteration(&mut self) -> usize {
        let workers = self.workers as i64;
        self.waited_for = match self.pattern {
            QuorumPattern::Walk => {
                let step = self.random.random_range(-2..=2);
                (self.waited_for as i64 + step).clamp(1, workers) as usize
            }
            QuorumPattern::Uniform => self.random.random_range(1..=self.workers),
        };
        self.arrivals.clear();
        for worker in 0..self.workers {
            let residual = if worker < self.waited_for { 0.0 } else { self.exponential() };
            let arrival = residual + 0.3 + self.exponential();
            self.arrivals.push(arrival);
        }
        self.arrivals.sort_unstable_by(f64::total_cmp);
        self.waited_for
    }
}

fn main() {
    println!(
        "{:>5} {:>8} {:>11} {:>11} {:>11} {:>13} {:>9}",
        "n", "k", "median µs", "mean µs", "p99 µs", "program µs", "ratio"
    );
    for (workers, programs) in [(16, 5), (64, 3), (256, 0), (1000, 0)] {
        for pattern in [QuorumPattern::Walk, QuorumPattern::Uniform] {
            measure(workers, pattern, programs);
        }
    }
}

fn measure(workers: usize, pattern: QuorumPattern, programs: usize) {
    let mut table = RoundTripTable::new(workers, Memory::All).expect("keeping all is always allowed");
    let mut generator = ArrivalGenerator::new(workers, pattern);
    let (mut sums, mut counts) = (vec![0.0; workers * workers], vec![0.0; workers * workers]);
    let (warm_up, measured) = (10 * workers, 1000);
    let mut times = Vec::with_capacity(measured);
    for iteration in 0..warm_up + measured {
        let waited_for = generator.iteration();
        let start = Instant::now();
        for (rank, &seconds) in (1..).zip(&generator.arrivals) {
            table.observe(waited_for, rank, seconds).expect("the arrival is in the table");
        }
        black_box(table.expected_all());
        table.advance();
        let elapsed = start.elapsed().as_secs_f64() * 1e6;
        if iteration >= warm_up {
            times.push(elapsed);
        }
        for (rank, &seconds) in generator.arrivals.iter().enumerate() {
            sums[(waited_for - 1) * workers + rank] += seconds;
            counts[(waited_for - 1) * workers + rank] += 1.0;
        }
    }
    let mean = times.iter().sum::<f64>() / times.len() as f64;
    times.sort_unstable_by(f64::total_cmp);
    let median = times[times.len() / 2];
    let p99 = times[times.len() * 99 / 100];
    print!("{workers:>5} {:>8} {median:>11.2} {mean:>11.2} {p99:>11.2}", format!("{pattern:?}").to_lowercase());
    if programs > 0 {
        let start = Instant::now();
        for _ in 0..programs {
            black_box(oracle::solve(workers, &sums, &counts)).expect("the solver converges");
        }
        let program = start.elapsed().as_secs_f64() * 1e6 / programs as f64;
        print!(" {program:>13.0} {:>8.0}×", program / median);
    }
    println!();
}
