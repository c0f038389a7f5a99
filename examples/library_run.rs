//! A run as a library call: a server with checkpoints and a folder, two workers as threads, and a resumed run.
//! `cargo run --release --example library_run -- FOLDER`

use paceline::core::Setup;
use paceline::net::{Role, RunOutcome, Worker};
use paceline::run::{RunBuilder, RunError};
use paceline::runtime::{Iteration, Job, Monitor, Observer};
use paceline::workload::{Order, Partition, Sampler, SoftmaxRegression, Workload, synthetic_digits};
use std::{error::Error, path::PathBuf, sync::Arc, time::Duration};

/// A progress display of one's own: a line every hundred iterations.
struct Lines;

impl Observer for Lines {
    fn on_iteration(&mut self, iteration: &Iteration, monitor: &Monitor) {
        if iteration.iteration.is_multiple_of(100) {
            eprintln!("{} samples: loss {:.3}", iteration.samples, monitor.loss().unwrap_or_default());
        }
    }
}

/// Trains with two workers, and writes all results.
fn train(workload: &Arc<dyn Workload>, run: RunBuilder<'_>) -> Result<RunOutcome, RunError> {
    let run = run.checkpoint_every(Duration::from_secs(1)).prepare()?;
    let address = run.addresses()[0].clone();
    std::thread::scope(|scope| {
        for rank in 0..2 {
            let worker = Worker { role: Role::Worker(Some(rank)), ..Worker::new(address.clone()) };
            scope.spawn(move || worker.run(|_| Ok(workload.clone()), &mut |_| {}));
        }
        run.run()?.save()
    })
}

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args().nth(1).map_or_else(|| PathBuf::from("runs/library"), PathBuf::from);
    let digits = synthetic_digits(0, 4000, 1000)?;
    let sampler = Sampler::new(digits.train().labels(), Partition::Iid, Order::Epochs, 2, 1)?;
    let workload: Arc<dyn Workload> = Arc::new(SoftmaxRegression::new(digits, sampler, 0.0));
    let job = Job {
        scheme: "ssp:staleness=3".parse()?,
        goals: "iterations=500".parse()?,
        ..Job::new(workload.clone(), Setup::new(2, 32))
    };
    let address = ["127.0.0.1:0".parse()?];

    train(&workload, RunBuilder::new(&job, address.clone()).folder(&folder).observer(&mut Lines))?;
    // The same run goes on, until another goal.
    let job = Job { goals: "iterations=1000".parse()?, ..job };
    let outcome = train(&workload, RunBuilder::new(&job, address.clone()).resume(&folder).observer(&mut Lines))?;
    eprintln!("accuracy {:.3} after {}", outcome.summary.accuracy.unwrap_or_default(), outcome.summary.iterations);
    Ok(())
}
