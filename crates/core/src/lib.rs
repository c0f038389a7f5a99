//! The *decide* plane: synchronization schemes and the contract they share.
//!
//! Nothing here does I/O, reads a clock or draws random numbers: the same events give the same decisions, bit for bit.
//!
//! - [`contract`](Scheme): a [`Scheme`] hears [`Event`]s and takes [`Action`]s, each with a [`Reason`].
//! - [`Ledger`]: runs a scheme by the [laws](Law); simulator and server drive it alike.
//! - [`CATALOGUE`], [`SchemeSpec`]: the schemes by name.
//! - [`batching`]: how many samples each worker gets.
//! - [`barrier`]: where to put the next barrier, given when each worker will finish.
//! - [`speed`]: how fast each worker will be.
//! - [`run_times`]: how long all workers' next tasks will take, jointly.
//! - [`rounds`] and [`free_running`]: what schemes that exchange gradients are made of.
//! - [`local_rounds`]: what schemes with local iterations are made of; [`StateServer`]: how many of them.
//! - [`Pretrained`]: what some schemes start from that was trained beforehand.
//! - [`RoundTripTable`]: how long until k gradients are in.
//! - [`Deadlines`]: when silence means that a worker is gone.

pub mod barrier;
pub mod batching;
mod contract;
mod deadlines;
mod dispatch;
pub mod free_running;
mod gain;
mod interval;
mod iteration_times;
mod ledger;
pub mod local_rounds;
mod loss_guard;
mod number;
mod pretrained;
mod reason;
mod recent;
mod round_trips;
pub mod rounds;
pub mod run_times;
mod schemes;
pub mod speed;
mod state_server;
mod time;
mod work;

pub use contract::{
    Action, Aggregate, Assignment, Decision, Event, Question, Report, Scheme, Share, TaskId, Until, Update, Version,
    WorkerId,
};
pub use deadlines::Deadlines;
pub use dispatch::Dispatch;
pub use ledger::{Expected, Law, LawBroken, Ledger, LedgerError, Refusal, SampleCounts, Turn};
pub use pretrained::{Pretrained, PretrainedError, Tensors};
pub use reason::{Choice, Estimate, Reason};
pub use round_trips::{Memory, RoundTripError, RoundTripTable};
pub use schemes::{BuildContext, CATALOGUE, SchemeEntry, SchemeSpec, Setup, SpecError};
pub use state_server::{Answer, QueryMode, StateServer};
pub use time::{Span, Time};
pub use work::{CommitStep, LocalLength, LocalWork, ReplicaStart, Work};
