//! A run, whichever driver runs it: what the simulator and the server share, and what a run leaves behind.
//!
//! During a run:
//! - [`Job`]: what a server trains, how, and until when; [`Goals`]: when it ends.
//! - [`StepControl`]: what a commit does to the model; [`PartStepper`] does it to a part; [`Trainer`] and its [`Stepper`] to
//!   a whole one.
//! - [`RunTracker`]: what a driver keeps about a run, and what follows from updates that are not finite.
//! - [`LocalReplica`]: what a worker's local iterations do to its replica.
//! - [`Monitor`]: a run's metrics; an [`Observer`] follows a run as it goes, a [`ServerObserver`] one on a server.
//! - [`is_interrupted`]: whether what computes is to end with its result so far.
//! - [`load_pretrained`]: what some schemes start from that was trained beforehand.
//!
//! What lasts:
//! - [`EventLog`], [`open_events`], [`read_events`] and [`replay`]: the event log, and what follows from it.
//! - [`RunFolder`]: the files of a run; [`FolderLock`]: who may write them; [`ScalarLog`]: the one for TensorBoard.
//! - [`StoredRun`]: a run in object storage.
//! - [`Lease`] and [`LeaseWatch`]: who may decide, if another coordinator stands by; [`HeldLease`] and [`WatchedLease`] are their rules.
//! - [`StopReason`] and [`RunEnding`]: what ended a run, and what a shell is told.
//! - [`Checkpointer`] and [`ResumePoint`]: checkpoints, and resuming from one.
//!
//! What others can see: [`Status`], served over HTTP by [`StatusServer`], with a [`LivePage`] if there is one.

mod broken_updates;
mod byte_queue;
mod checkpoint_upload;
mod checkpointer;
mod commit_watch;
mod early_sum;
mod ending;
mod event_log;
mod event_segments;
mod folder_lock;
mod folder_writer;
mod goal;
mod http;
mod http_stream;
mod interrupt;
mod job;
mod job_model;
mod lease;
mod lease_rules;
mod metrics;
mod monitor;
mod part_stepper;
mod pretrained;
mod rate_control;
mod recent_loss;
mod replica;
mod resume;
mod retrying_file;
mod run_folder;
mod run_tracker;
mod server_observer;
mod status;
mod step_control;
mod step_threads;
mod stored_run;
mod summed_workers;
mod tensorboard;
mod trained_model;
mod trainer;

pub use checkpointer::Checkpointer;
pub use ending::{RunEnding, StopReason, check_unfinished, has_ended};
pub use event_log::{EventLog, EventLogHeader, ReplayError, Replayed, check_state, read_events, read_header, replay};
pub use event_segments::{EVENTS, KeepEvents, has_older_events, open_events};
pub use folder_lock::FolderLock;
pub use goal::{Goal, GoalProgress, Goals};
pub use http::{LivePage, StatusServer};
pub use interrupt::{is_interrupted, request_interrupt, withdraw_interrupt};
pub use job::Job;
pub use job_model::{JobModel, OfferedModel};
pub use lease::{Lease, LeaseWatch, folder_leases};
pub use lease_rules::{HeldLease, LeaseFile, LeaseLost, NewestLease, WatchedLease};
pub use metrics::{MetricsRow, read_metrics};
pub use monitor::{Iteration, Monitor, Observer, RunInfo, Summary, WorkerTimes};
pub use paceline_protocol::Notice;
pub use part_stepper::{PartStepper, StepPiece, WeightedValues};
pub use pretrained::{load_pretrained, read_pretrained, write_pretrained};
pub use rate_control::{RateSpec, RateState};
pub use replica::{LocalReplica, local_optimizer, pulled_replica, replica_at};
pub use resume::ResumePoint;
pub use run_folder::{CONFIGURATION, REPORT, RunFolder, RunFolderError, WORKER_LOGS, check_free, next_free, set_aside};
pub use run_tracker::RunTracker;
pub use server_observer::{ModelValues, PartWriters, RunState, ServerObserver};
pub use status::{Health, SharedStatus, Status, WorkerStatus};
pub use step_control::{StepControl, StepPlan, StepValues, Summands, UpdateInfo};
pub use step_threads::StepThreads;
pub use stored_run::StoredRun;
pub use summed_workers::SummedWorkers;
pub use tensorboard::ScalarLog;
pub use trained_model::TrainedModel;
pub use trainer::{Contribution, Stepper, Trainer, compensate, server_optimizer};
