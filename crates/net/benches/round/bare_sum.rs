//! The least that a round must do: every processor sums a slice of the gradients and steps that slice of the model.

use std::ops::Range;
use std::sync::Barrier;
use std::thread::{self, available_parallelism};
use std::time::Instant;

use crate::rounds::{RoundTimes, rounds};

/// Values whose sum stays in the first-level cache.
const TILE: usize = 2_048;

/// One thread's slice: the gradients and the model.
struct Slice {
    gradients: Vec<Vec<f32>>,
    model: Vec<f32>,
}

impl Slice {
    fn new(range: Range<usize>, workers: usize) -> Self {
        let length = range.len();
        Slice { gradients: vec![vec![1e-6; length]; workers], model: vec![0.5; length] }
    }

    fn step(&mut self) {
        let mut sum = [0.0; TILE];
        for (index, model) in self.model.chunks_mut(TILE).enumerate() {
            let sum = &mut sum[..model.len()];
            sum.fill(0.0);
            for gradient in &self.gradients {
                sum.iter_mut().zip(&gradient[index * TILE..]).for_each(|(sum, value)| *sum += 0.125 * value);
            }
            model.iter_mut().zip(sum).for_each(|(value, sum)| *value -= 1e-6 * *sum);
        }
    }
}

/// Sums and steps with all processors, each of which has touched its slice first.
pub fn measure(length: usize, workers: usize) -> RoundTimes {
    let threads = available_parallelism().map_or(1, usize::from);
    let barrier = Barrier::new(threads);
    let work = &|thread: usize| {
        let mut slice = Slice::new(thread * length / threads..(thread + 1) * length / threads, workers);
        let mut times = Vec::new();
        for _ in 0..rounds(length) {
            barrier.wait();
            let started = Instant::now();
            slice.step();
            barrier.wait();
            times.push(started.elapsed().as_secs_f64() * 1e3);
        }
        times
    };
    thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|thread| scope.spawn(move || work(thread))).collect();
        let times = work(0);
        others.into_iter().for_each(|other| _ = other.join().expect("it can't fail"));
        RoundTimes::of(times)
    })
}
