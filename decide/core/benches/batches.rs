//! What splitting an iteration's samples costs.
//!
//! `cargo bench -p paceline-core --bench batches`

use std::{hint::black_box, time::Instant};

use paceline_core::batching::{Cost, balance};
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

fn main() {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(1);
    println!("{:>8}  {:>12}  {:>12}", "workers", "median µs", "worst µs");
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
        let mut micros: Vec<f64> = (0..200)
            .map(|_| {
                let began = Instant::now();
                black_box(balance(black_box(&costs), total).expect("the bounds leave room"));
                began.elapsed().as_secs_f64() * 1e6
            })
            .collect();
        micros.sort_unstable_by(f64::total_cmp);
        println!("{workers:>8}  {:>12.1}  {:>12.1}", micros[100], micros[199]);
    }
}
