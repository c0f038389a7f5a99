//! What the simulator and the server share.
//!
//! - [`Trainer`], and its [`Stepper`]: what a commit does to the model.
//! - [`LocalReplica`]: what a worker's local iterations do to its replica.
//! - [`Goals`]: when a run is over.
//! - [`Monitor`]: what it has to show; [`Observer`]s follow it as it goes.
//! - [`EventLog`], [`recall`], [`replay`] and [`Past`]: its event stream, and going on from it.
//! - [`Trace`]: its workers' times.
//! - [`equip`]: what schemes start from that was learnt beforehand.

mod equip;
mod events;
mod goal;
mod local;
mod monitor;
mod trace;
mod trainer;

pub use equip::{equip, read_learnt, write_learnt};
pub use events::{EventLog, Header, Past, ReplayError, Replayed, recall, replay};
pub use goal::{Goal, GoalError, Goals, LOSS_WINDOW, Standing};
pub use local::{LocalReplica, drawn_to, replica_at};
pub use monitor::{Iteration, Monitor, Observer, Run, Summary, WorkerTimes};
pub use trace::{PROFILER_STEP, Recorder, Trace, TraceError, TraceErrorKind};
pub use trainer::{Contribution, Stepper, Trainer, compensate};
