//! The simulator: schemes on a virtual clock, with real gradients.
//!
//! A [`Simulation`] describes a run; [`Simulation::run`] gives the same outcome for the same seed and any number of
//! threads. The gradient of a discarded update is never computed, so a simulation can be faster than the cluster it
//! models.

mod cluster;
mod contention;
mod devices;
mod event_queue;
mod fast_workers;
mod foresight;
mod gradients;
mod interference;
mod late_checks;
mod network;
mod planner;
mod ranks;
mod script;
mod simulation;
mod subset;
mod times;

pub use contention::SharedCluster;
pub use fast_workers::FastWorkers;
pub use interference::Pattern;
pub use network::NetworkSpec;
pub use planner::plan;
pub use ranks::{Ranks, Slowness};
pub use script::{Change, Script, ScriptError};
pub use simulation::{Simulation, SimulationError, SimulationOutcome, Training};
pub use subset::RankSet;
pub use times::{Times, TimesSpec};
