//! The cost of a gradient: Burn's forward and backward pass alone, the same in a workload, which also gathers the
//! batch, writes the parameters and reads the gradient, and two replicas on two threads at once.
//!
//! `cargo bench -p paceline-models` prints milliseconds, the minimum of several rounds.

use std::thread;
use std::time::Instant;

use burn::tensor::Tensor;
use paceline_models::{Batch, BurnWorkload, Classifier, Cnn, Device, Images, Mlp, ResNet, Samples, Sampling};
use paceline_workload::{Draw, Replica, Splits, Workload, synthetic_digits};

/// Keeps the large buffers of a step for the next one. The system allocator returns them, which causes page faults.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Gradients per thread in a round of two threads: enough to make the cost of starting threads negligible.
const REPEATS: usize = 4;

fn main() {
    // `cargo bench` passes `--bench`. Without it this runs as a test, for which one round is enough.
    let measured = std::env::args().any(|argument| argument == "--bench");
    let rounds = if measured { 24 } else { 1 };
    println!(
        "{:<10}{:>7}{:>12}{:>12}{:>10}{:>14}{:>10}",
        "model", "batch", "Burn", "workload", "ratio", "two threads", "speedup"
    );
    let digits = synthetic_digits(1, 2000, 100).expect("2,000 digits are a data set");
    let (shape, classes) = (digits.train().shape(), digits.train().classes());
    for batch in [64, 500] {
        row("mlp", &digits, batch, rounds, move |device| Mlp::new(shape, classes, device));
        row("cnn", &digits, batch, rounds, move |device| Cnn::new(shape, classes, device));
    }
    row("resnet8", &digits, 64, rounds.div_ceil(3), move |device| ResNet::new(shape, classes, 1, device));
}

fn row<N: Classifier<Input = Tensor<4>>>(
    name: &str,
    splits: &Splits,
    batch: u32,
    rounds: usize,
    build: impl Fn(&Device) -> N + Clone + Send + Sync + 'static,
) {
    let images = || Images::new(splits.clone(), &Sampling::default()).expect("one worker has samples");
    let draw = Draw { worker: 0, offset: 0, samples: batch };

    let device = Device::flex().autodiff();
    let network = build(&device);
    let Batch { input, targets } = images().draw(draw, &device);
    let bare = || {
        let loss = Classifier::loss(&network, network.logits(input.clone()), targets.clone());
        loss.backward();
    };

    let workload = BurnWorkload::new(build, images(), &Device::flex());
    let parameters = workload.initial(1);
    let run = |(replica, gradient): &mut (Box<dyn Replica>, Vec<f32>)| {
        replica.gradient(&parameters, draw, gradient);
    };
    let mut replicas = [0, 1].map(|_| (workload.replica(), vec![0.0; parameters.len()]));

    // The first passes fill caches and pools. Other load on the machine only adds time, so the minimum counts.
    let [mut bare_time, mut through, mut together] = [f64::INFINITY; 3];
    bare();
    run(&mut replicas[0]);
    for _ in 0..rounds {
        bare_time = bare_time.min(milliseconds(bare));
        through = through.min(milliseconds(|| run(&mut replicas[0])));
    }
    for _ in 0..rounds.div_ceil(REPEATS) {
        let time = milliseconds(|| {
            thread::scope(|scope| {
                for replica in &mut replicas {
                    scope.spawn(|| (0..REPEATS).for_each(|_| run(replica)));
                }
            });
        });
        together = together.min(time / REPEATS as f64);
    }
    println!(
        "{name:<10}{batch:>7}{bare_time:>12.2}{through:>12.2}{:>10.3}{together:>14.2}{:>10.2}",
        through / bare_time,
        2.0 * through / together,
    );
}

fn milliseconds(work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64() * 1e3
}
