//! Speed of the kernels relative to memory bandwidth: `cargo bench -p paceline-store`.
//!
//! Every figure is the median of repeated runs, next to a `memcpy` of the same length in the same minute. Traffic
//! counts each value that is read or written once; with several sources the result counts once.

use std::hint::black_box;
use std::thread;
use std::time::Instant;

use paceline_store::{
    CheckpointFolder, CheckpointView, Layout, Norms, Optimizer, Shards, aggregate, aggregate_shard, load_checkpoint,
};

const LENGTHS: [usize; 3] = [100_000, 1_000_000, 25_600_000];
const SOURCES: usize = 8;

fn main() {
    println!("{:<34} {:>10} {:>9} {:>8} {:>9}", "", "parameters", "ms", "GB/s", "× memcpy");
    for len in LENGTHS {
        kernels(len);
    }
    checkpoints(LENGTHS[2]);
}

/// Prints one row. `vectors` is the number of vectors of `len` values that are read or written.
fn row(name: &str, len: usize, vectors: usize, seconds: f64, memcpy: f64) -> f64 {
    let speed = (vectors * len * size_of::<f32>()) as f64 / seconds / 1e9;
    println!("{name:<34} {len:>10} {:>9.3} {speed:>8.1} {:>9.2}", seconds * 1e3, speed / memcpy);
    speed
}

/// The median time of one call, in seconds.
fn median(repeats: usize, mut call: impl FnMut()) -> f64 {
    call();
    let time = |_| {
        let start = Instant::now();
        call();
        start.elapsed().as_secs_f64()
    };
    let mut times: Vec<_> = (0..repeats).map(time).collect();
    times.sort_by(f64::total_cmp);
    times[repeats / 2]
}

fn memcpy(repeats: usize, source: &[f32], out: &mut [f32]) -> f64 {
    let seconds = median(repeats, || out.copy_from_slice(black_box(source)));
    let len = out.len();
    // The ratio of memcpy to itself is one.
    let speed = (2 * size_of_val(source)) as f64 / seconds / 1e9;
    row("memcpy", len, 2, seconds, speed)
}

fn kernels(len: usize) {
    let repeats = (200_000_000 / len).clamp(15, 500);
    let value = |source: usize, index: usize| ((index * 7 + source * 13) % 1000) as f32 * 1e-3;
    let gradients: Vec<Vec<_>> = (0..SOURCES).map(|j| (0..len).map(|index| value(j, index)).collect()).collect();
    let mut out = vec![0.0; len];
    let memcpy = memcpy(repeats, &gradients[0], &mut out);

    for count in [1, 4, SOURCES] {
        let sources: Vec<_> = gradients[..count].iter().map(|values| (&values[..], 1.0 / count as f32)).collect();
        let seconds = median(repeats, || {
            black_box(aggregate(&sources, len, &mut out));
        });
        row(&format!("aggregate {count}"), len, count + 1, seconds, memcpy);
    }
    let seconds = median(repeats, || {
        black_box(two_threads(&gradients, &mut out));
    });
    row("aggregate 8, 2 threads", len, SOURCES + 1, seconds, memcpy);

    for (text, vectors) in [
        ("sgd", 3),
        ("momentum:0.9", 5),
        ("nesterov:0.9", 5),
        ("delayed-nesterov:delay=8", 7),
        ("adam", 7),
        ("adamw", 7),
    ] {
        let mut optimizer = Optimizer::plain(text.parse().expect("a valid optimizer"), len);
        let seconds = median(repeats, || optimizer.step(&mut out, &gradients[0], 1e-6));
        row(&format!("step of {text}"), len, vectors, seconds, memcpy);
    }
}

/// One shard per thread.
fn two_threads(gradients: &[Vec<f32>], out: &mut [f32]) -> Norms {
    let mut rest = out;
    let norms: Vec<_> = thread::scope(|scope| {
        let start = |range: std::ops::Range<usize>| {
            let shard = rest.split_off_mut(..range.len()).expect("ranges cover the vector");
            let slices = gradients.iter().map(|values| &values[range.clone()]);
            let sources: Vec<_> = slices.map(|values| (values, 1.0 / SOURCES as f32)).collect();
            scope.spawn(move || aggregate_shard(&sources, shard.len(), shard))
        };
        let threads: Vec<_> = Shards::new(gradients[0].len(), 2).ranges().map(start).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    Norms::join(&norms)
}

fn checkpoints(len: usize) {
    let layout = Layout::new([("weight", vec![len])], []);
    let parameters = vec![1.0; len];
    let mut copy = vec![0.0; len];
    let memcpy = memcpy(15, &parameters, &mut copy);
    let optimizer = Optimizer::plain("sgd".parse().expect("a valid optimizer"), len);
    let directory = tempfile::tempdir().expect("a temporary folder");
    let folder = CheckpointFolder::create(directory.path(), 1).expect("a new folder");
    let view = CheckpointView {
        version: 1,
        layout: &layout,
        parameters: &parameters,
        optimizer: &optimizer,
        run_state: "",
        rate_state: "",
    };
    let mut manifest = folder.save(&view).expect("saved");
    let seconds = median(5, || manifest = folder.save(&view).expect("saved"));
    row("save a checkpoint, synced to disk", len, 1, seconds, memcpy);
    let seconds = median(5, || {
        black_box(load_checkpoint(&manifest, &layout).expect("valid"));
    });
    row("load a cached checkpoint", len, 1, seconds, memcpy);
}
