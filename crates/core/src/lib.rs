//! The *decide* plane: synchronization schemes and the contract they share.
//!
//! The crate does no I/O, reads no clock and has no source of randomness of its own. Where a scheme needs random
//! numbers they come from [`run_times::Draws`], a pure function of a seed. The same settings and events therefore give
//! the same decisions, bit for bit.
//!
//! - [`Scheme`]: the contract. A scheme receives [`Event`]s and takes [`Action`]s, each with a [`Reason`].
//! - [`Ledger`]: runs a scheme and checks its [laws](Law). The simulator and the server drive the same ledger.
//! - [`catalogue`], [`SchemeSpec`]: the schemes by name. [`add_scheme`] adds one from outside. [`Part`] says which combine.
//! - [`batching`]: plans how many samples each worker gets.
//! - [`barrier`]: plans the next barrier from predicted finish times.
//! - [`speed`]: predicts each worker's speed.
//! - [`run_times`]: predicts the run-times of all workers jointly.
//! - [`rounds`] and [`free_running`]: the parts shared by schemes that exchange gradients.
//! - [`local_rounds`]: the part shared by schemes with local iterations. [`StateServer`] decides how many.
//! - [`number`]: numbers in JSON.
//! - [`Pretrained`]: pretrained weights that some schemes start from.
//! - [`RoundTripTable`]: estimates the time until k gradients have arrived.
//! - [`Executor`]: what carries out decisions. [`Ledger::drive`] is the loop that every driver shares.
//! - [`WorkerActivities`]: who is doing what, from events and decisions.
//! - [`SavedLedger`]: the state of a ledger and its scheme, from which another process goes on. [`Restorable`]: a part
//!   of a scheme that can be saved.
//! - [`Goodput`]: what the steps of a run are worth.
//! - [`PlanRequest`]: what `auto` asks a planner outside of this crate.
//! - [`Lateness`]: how long each worker's tasks are expected to take.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests decide nothing"))]

mod activity;
pub mod barrier;
pub mod batching;
mod clocks;
mod cluster_model;
mod contract;
mod dispatch;
mod driver;
pub mod free_running;
mod gain;
mod goodput;
mod interval;
mod iteration_times;
mod lateness;
mod ledger;
pub mod local_rounds;
mod loss_guard;
pub mod number;
mod plan;
mod pretrained;
mod rate_rule;
mod reason;
mod recent;
mod restore;
mod round_trips;
pub mod rounds;
pub mod run_times;
mod schemes;
pub mod speed;
mod state_server;
mod time;
mod work;

pub use activity::{ActivityChange, Idleness, TaskProgress, WorkerActivities, WorkerActivity};
pub use cluster_model::RecentTimes;
pub use contract::{
    Action, Aggregate, Assignment, Commit, CommitRequest, Decision, Event, Question, Report, Scheme, Share, TaskId,
    Until, Update, UpdateNorm, Version, WorkerId,
};
pub use dispatch::Dispatch;
pub use driver::{CommitOutcome, DriveError, Executor};
pub use goodput::{Goodput, averaging_progress, step_progress};
pub use lateness::Lateness;
pub use ledger::{ExpectedEvent, Law, LawBroken, Ledger, LedgerError, Refusal, SampleCounts, SavedLedger, Turn};
pub use plan::{PlanRequest, SchemePace};
pub use pretrained::{Pretrained, PretrainedError, Tensors};
pub use rate_rule::{GradientNoise, RateRule, RateRuleKind};
pub use reason::{Estimate, QuorumChoice, Reason, ReasonText};
pub use restore::{Restorable, RestoreError};
pub use round_trips::{Memory, RoundTripError, RoundTripTable};
pub use schemes::{
    Build, BuildContext, LocalPart, Part, SchemeEntry, SchemeError, SchemeSpec, Setting, SettingDefault, SettingKind,
    Settings, Setup, SizingPart, StepKind, UpperBound, add_scheme, catalogue, combinable, combination_examples, parts,
};
pub use state_server::{QueryAnswer, QueryMode, StateServer};
pub use time::{Span, Time};
pub use work::{CommitStep, LocalLength, LocalWork, OuterOptimizer, ReplicaStart, Work};
