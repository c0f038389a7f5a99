//! The time of a prediction, and its share of an iteration.
//!
//! `cargo bench -p paceline-predictor`

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use paceline_core::WorkerId;
use paceline_core::run_times::{Amortized, DeepMarkov, Draws, IndependentNormal, RunTimePredictor, SAMPLES, Size};

/// The mean iteration on the clusters of Cutoff SGD, in seconds (section 4.1).
const ITERATION: f64 = 1.057;

fn main() {
    for workers in [158, 2175] {
        let size = Size { workers, lag: 20, latent: 16, hidden: 32 };
        let mut draws = Draws::at(&[1]);
        let tensor = |(name, shape): (String, Vec<usize>)| {
            let count = shape.iter().product();
            let bound = 0.5 / (shape[0] as f64).sqrt();
            (name, (shape, (0..count).map(|_| (bound * draws.normal()) as f32).collect()))
        };
        let tensors = size.shapes().into_iter().map(tensor).collect();
        let model = Arc::new(DeepMarkov::of(size, &tensors, 1.0).expect("all tensors are given"));
        report("dmm", workers, &mut Amortized::new(model, SAMPLES, 1));
        report("normal", workers, &mut IndependentNormal::new(20));
    }
}

/// Prints the time of one observation with one prediction.
fn report(name: &str, workers: usize, predictor: &mut dyn RunTimePredictor) {
    let ranks: Vec<WorkerId> = (0..workers as u32).map(WorkerId).collect();
    let mut draws = Draws::at(&[2]);
    let rows: Vec<Vec<f64>> =
        (0..20).map(|_| (0..workers).map(|_| (1.0 + 0.1 * draws.normal()).max(0.1)).collect()).collect();
    rows.iter().for_each(|row| predictor.observe(row));
    let mut times: Vec<f64> = (0..60)
        .map(|round| {
            let start = Instant::now();
            predictor.observe(&rows[round % rows.len()]);
            black_box(predictor.predict(&ranks).map(|forecast| forecast.cutoff()));
            start.elapsed().as_secs_f64()
        })
        .collect();
    times.sort_by(f64::total_cmp);
    let (median, slowest) = (times[times.len() / 2], times[times.len() - 1]);
    println!(
        "{name:<8} n = {workers:<5} {:8.3} ms (slowest {:.3} ms), {:.3} % of an iteration of {ITERATION} s",
        1e3 * median,
        1e3 * slowest,
        100.0 * median / ITERATION
    );
}
