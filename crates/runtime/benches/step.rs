//! The time of a step by the number of its threads, and relative to memory bandwidth: `cargo bench -p paceline-runtime`.

use std::hint::black_box;
use std::thread::available_parallelism;
use std::time::Instant;

use paceline_core::{Commit, CommitStep, TaskId, Version, WorkerId};
use paceline_runtime::{Contribution, RateSpec, StepThreads, Stepper};
use paceline_store::Layout;

const LENGTHS: [usize; 3] = [100_000, 1_000_000, 25_600_000];

/// The median time of one call, in milliseconds.
fn median(repeats: usize, mut call: impl FnMut()) -> f64 {
    call();
    let time = |_| {
        let start = Instant::now();
        call();
        start.elapsed().as_secs_f64() * 1e3
    };
    let mut times: Vec<_> = (0..repeats).map(time).collect();
    times.sort_by(f64::total_cmp);
    times[repeats / 2]
}

fn main() {
    let processors = available_parallelism().map_or(1, usize::from);
    let threads: Vec<usize> = (0..).map(|power| 1 << power).take_while(|&threads| threads <= processors).collect();
    for length in LENGTHS {
        measure(length, &threads);
    }
}

fn measure(length: usize, threads: &[usize]) {
    let repeats = (200_000_000 / length).clamp(15, 500);
    let layout = Layout::new([("weight", vec![length])], []);
    let task = TaskId { worker: WorkerId(0), number: 0 };
    let commit =
        Commit { version: Version(1), updates: Default::default(), step: CommitStep::Optimizer, rate_factor: 1.0 };
    let value = |source: usize, index: usize| ((index * 7 + source * 13) % 1000) as f32 * 1e-3;
    let gradients: Vec<Vec<_>> = (0..8).map(|j| (0..length).map(|index| value(j, index)).collect()).collect();
    let (mut old, mut new) = (vec![1.0; length], vec![0.0; length]);
    let memcpy = median(repeats, || old.copy_from_slice(black_box(&gradients[0])));
    println!("a step of {length} parameters, in ms, on {threads:?} threads; memcpy on one takes {memcpy:.2}");
    for optimizer in ["sgd", "momentum:0.9", "adam"] {
        for count in [1, 4, 8] {
            let weight = 1.0 / count as f32;
            let contributions: Vec<_> = gradients[..count]
                .iter()
                .map(|gradient| Contribution { task, gradient, weight, loss: 1.0, rates: &[] })
                .collect();
            let times = threads.iter().map(|&threads| {
                let spec = optimizer.parse().expect("valid");
                let mut stepper =
                    Stepper::new(&layout, spec, RateSpec::constant(1e-6)).threads(StepThreads::new(threads));
                median(repeats, || {
                    black_box(stepper.commit(&commit, &old, &mut new, &contributions, count));
                    std::mem::swap(&mut old, &mut new);
                })
            });
            let times: Vec<String> = times.map(|time| format!("{time:>8.3}")).collect();
            println!("{optimizer:<14} {count} updates {}", times.join(" "));
        }
    }
}
