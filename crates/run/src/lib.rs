//! A run as a library call: a server with its run folder, checkpoints, event log, metrics, status and observers.
//!
//! A [`RunBuilder`] takes a job and an address, and whatever of the rest is wanted. `prepare` reads all input and tries all
//! output, `run` trains, `save` writes the model, the summary and the report:
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Duration;
//! use paceline_core::Setup;
//! use paceline_net::Worker;
//! use paceline_run::RunBuilder;
//! use paceline_runtime::Job;
//! use paceline_workload::{Order, Partition, Sampler, SoftmaxRegression, Workload, synthetic_digits};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("run");
//! let splits = synthetic_digits(1, 600, 200)?;
//! let sampler = Sampler::new(splits.train().labels(), Partition::Iid, Order::Epochs, 2, 1)?;
//! let workload: Arc<dyn Workload> = Arc::new(SoftmaxRegression::new(splits, sampler, 0.0));
//! let job = Job::new(workload.clone(), Setup::new(2, 16));
//! let job = Job { scheme: "backup:k=1".parse()?, goals: "iterations=50".parse()?, ..job };
//!
//! let run = RunBuilder::new(&job, ["127.0.0.1:0".parse()?]);
//! let run = run.folder(path).checkpoint_every(Duration::from_secs(60)).prepare()?;
//! let address = run.addresses()[0].clone();
//! let outcome = std::thread::scope(|scope| {
//!     // Workers can be threads, processes, or on other machines.
//!     for _ in 0..2 {
//!         scope.spawn(|| Worker::new(address.clone()).run(|_| Ok(workload.clone()), &mut |_| {}));
//!     }
//!     run.run()?.save()
//! })?;
//! assert_eq!(outcome.summary.iterations, 50);
//! # Ok(())
//! # }
//! ```
//!
//! `RunBuilder::resume` goes on with a run from its last checkpoint. Log lines go to [`tracing`].

mod builder;
mod error;
mod follower;
mod notice_logger;
mod prepared_run;

pub use builder::RunBuilder;
pub use error::RunError;
pub use notice_logger::NoticeLogger;
pub use prepared_run::{EndedRun, PreparedRun};
