//! Speed of a step of a large model relative to memory bandwidth: `cargo bench -p paceline-runtime`.

use std::hint::black_box;
use std::time::Instant;

use paceline_core::{Commit, CommitStep, TaskId, Version, WorkerId};
use paceline_runtime::{Contribution, RateSpec, Stepper};
use paceline_store::Layout;

const LENGTH: usize = 25_600_000;
const SHARDS: usize = 2;
const REPEATS: usize = 31;

/// The median time of one call, in seconds.
fn median(mut call: impl FnMut()) -> f64 {
    call();
    let time = |_| {
        let start = Instant::now();
        call();
        start.elapsed().as_secs_f64()
    };
    let mut times: Vec<_> = (0..REPEATS).map(time).collect();
    times.sort_by(f64::total_cmp);
    times[REPEATS / 2]
}

fn main() {
    let layout = Layout::new([("weight", vec![LENGTH])], []);
    let task = TaskId { worker: WorkerId(0), number: 0 };
    let commit = Commit { version: Version(1), updates: [].into(), step: CommitStep::Optimizer, rate_factor: 1.0 };
    let value = |source: usize, index: usize| ((index * 7 + source * 13) % 1000) as f32 * 1e-3;
    let gradients: Vec<Vec<_>> = (0..8).map(|j| (0..LENGTH).map(|index| value(j, index)).collect()).collect();
    let (mut old, mut new) = (vec![1.0; LENGTH], vec![0.0; LENGTH]);
    let memcpy = median(|| old.copy_from_slice(black_box(&gradients[0])));
    println!("a step of {LENGTH} parameters on {SHARDS} threads; memcpy on one takes {:.1} ms", memcpy * 1e3);
    for optimizer in ["sgd", "momentum:0.9", "adam"] {
        for count in [1, 4, 8] {
            let weight = 1.0 / count as f32;
            let contributions: Vec<_> = gradients[..count]
                .iter()
                .map(|gradient| Contribution { task, gradient, weight, loss: 1.0, rates: &[] })
                .collect();
            let spec = optimizer.parse().expect("valid");
            let mut stepper = Stepper::new(&layout, spec, RateSpec::constant(1e-6), SHARDS);
            let seconds = median(|| {
                black_box(stepper.commit(&commit, &old, &mut new, &contributions, count));
                std::mem::swap(&mut old, &mut new);
            });
            println!("{optimizer:<14} {count} updates {:>7.1} ms, {:>5.2} × memcpy", seconds * 1e3, seconds / memcpy);
        }
    }
}
