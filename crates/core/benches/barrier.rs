//! Microseconds per planned barrier, for every algorithm, beside the paper's Table 4.
//!
//! Workers as in the paper's section 6.1: intervals uniform in 1000–1500 ms, starts 10–50 ms after a common origin, and
//! planned after 20 iterations (from the start itself, the first iteration would be a trivial optimum). Each figure is
//! the median of several runs on one instance. A run that would take more than 5 s is skipped.

#![allow(clippy::disallowed_methods, reason = "benchmarks decide nothing")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use paceline_core::barrier::{Algorithm, Planner, PredictedTimes, Progression, plan};
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

/// Workers and horizon of each column, and the column of the paper's Table 4 if it has one.
const SIZES: [(usize, u32, Option<usize>); 10] = [
    (4, 15, None),
    (10, 15, Some(0)),
    (10, 150, Some(1)),
    (30, 50, None),
    (100, 15, Some(2)),
    (100, 150, Some(3)),
    (1000, 15, Some(4)),
    (1000, 150, Some(5)),
    (10_000, 15, None),
    (10_000, 150, None),
];

/// A run that is expected to take longer is skipped.
const LONGEST_RUN: Duration = Duration::from_secs(5);

/// How long to repeat each measurement.
const MEASURING: Duration = Duration::from_millis(200);

/// The paper's Table 4, in microseconds.
fn table_4(algorithm: Algorithm) -> Option<[f64; 6]> {
    match algorithm {
        Algorithm::ZiplineBasic => Some([1.49e2, 1.32e3, 6.37e3, 4.99e4, 2.53e5, 2.38e6]),
        Algorithm::ZiplineOpt => Some([0.90e2, 8.08e2, 2.46e3, 1.93e4, 9.39e4, 7.78e5]),
        Algorithm::ZiplineOptBs => Some([1.24e2, 1.15e3, 2.65e3, 2.30e4, 7.68e4, 5.66e5]),
        Algorithm::FullGridScan => Some([1.54e3, 4.67e4, 8.13e4, 2.15e6, 4.04e6, 2.07e8]),
        Algorithm::GridScan => Some([1.68e2, 5.50e3, 1.11e3, 4.38e4, 7.45e3, 2.57e5]),
        Algorithm::Zipline | Algorithm::Naive => None,
    }
}

/// Elementary steps in the worst case, to predict how long a run takes from the one before.
fn steps(algorithm: Algorithm, workers: f64, horizon: f64) -> f64 {
    match algorithm {
        Algorithm::Zipline => workers * horizon,
        Algorithm::ZiplineBasic | Algorithm::ZiplineOpt | Algorithm::ZiplineOptBs => workers * workers * horizon,
        Algorithm::FullGridScan => workers * workers * horizon * horizon,
        Algorithm::GridScan => workers * horizon * horizon,
        Algorithm::Naive => horizon.powf(workers) * workers,
    }
}

fn workers(count: usize) -> Vec<Progression> {
    let mut generator = Xoshiro256PlusPlus::seed_from_u64(count as u64);
    let mut worker = || {
        let interval = generator.random_range(1000..=1500);
        Progression { next: 1_643_595_472_000 + generator.random_range(10..=50) + 20 * interval, interval }
    };
    (0..count).map(|_| worker()).collect()
}

/// The median time of a plan, in microseconds, over at least one plan and about [`MEASURING`]. `plan` returns the
/// barrier's time, so that no part of it can be optimized away.
fn microseconds(mut plan: impl FnMut() -> u64) -> f64 {
    let mut times = Vec::new();
    let begin = Instant::now();
    while times.is_empty() || begin.elapsed() < MEASURING {
        let start = Instant::now();
        black_box(plan());
        times.push(start.elapsed());
    }
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64() * 1e6
}

fn row(name: &str, cells: impl IntoIterator<Item = String>) {
    print!("{name:<40}");
    for cell in cells {
        print!("{cell:>11}");
    }
    println!();
}

fn figure(value: f64) -> String {
    if value < 1e5 { format!("{value:.*}", if value < 100.0 { 2 } else { 0 }) } else { format!("{value:.2e}") }
}

fn main() {
    println!("Microseconds per barrier; in brackets the paper's Table 4; – would take more than {LONGEST_RUN:?}.\n");
    row("", SIZES.iter().map(|(workers, horizon, _)| format!("{workers}×{horizon}")));

    let progressions = SIZES.map(|(count, horizon, _)| {
        let workers = workers(count);
        let mut planner = Planner::new();
        microseconds(|| planner.plan_progressions(black_box(&workers), horizon).expect("the workers are valid").at)
    });
    row("zipline, progressions", progressions.map(figure));

    let mut ours = [f64::NAN; SIZES.len()];
    let mut opt_bs = [f64::NAN; SIZES.len()];
    let mut fastest_other = [f64::INFINITY; SIZES.len()];
    for algorithm in Algorithm::ALL {
        let mut cells = Vec::new();
        let mut brackets = Vec::new();
        // Microseconds per step of the run before; a nanosecond until there is one.
        let mut rate: f64 = 1e-3;
        for (index, (count, horizon, column)) in SIZES.into_iter().enumerate() {
            let steps = steps(algorithm, count as f64, f64::from(horizon));
            let published = column.and_then(|column| Some(table_4(algorithm)?[column]));
            brackets.push(published.map_or(String::new(), |value| format!("[{}]", figure(value))));
            if steps * rate > LONGEST_RUN.as_secs_f64() * 1e6 {
                cells.push("–".to_owned());
                continue;
            }
            let times = PredictedTimes::from_progressions(&workers(count), horizon).expect("the times fit");
            let mut planner = Planner::new();
            let time = microseconds(|| match algorithm {
                Algorithm::Zipline => planner.plan(black_box(&times)).at,
                _ => plan(algorithm, black_box(&times)).expect("too long naive searches are skipped").at,
            });
            rate = time / steps;
            cells.push(figure(time));
            match algorithm {
                Algorithm::Zipline => ours[index] = time,
                _ => fastest_other[index] = fastest_other[index].min(time),
            }
            if algorithm == Algorithm::ZiplineOptBs {
                opt_bs[index] = time;
            }
        }
        row(&algorithm.to_string(), cells);
        if table_4(algorithm).is_some() {
            row("", brackets);
        }
    }

    println!("\nTimes faster");
    for (name, ours) in [("zipline, progressions", progressions), ("zipline", ours)] {
        for (other, times) in [("zipline-opt-bs", opt_bs), ("fastest other", fastest_other)] {
            row(&format!("{name} : {other}"), std::iter::zip(times, ours).map(|(other, ours)| figure(other / ours)));
        }
    }
}
