//! The simulator: schemes on a virtual clock, with real gradients.
//!
//! A [`Simulation`] says everything; [`Simulation::run`] gives the same outcome for the same seed, whatever the number
//! of threads. A discarded update's gradient is never computed, so a simulation can be faster than the cluster it
//! stands for.

mod agenda;
mod contention;
mod devices;
mod foresight;
mod gradients;
mod interference;
mod network;
mod ranks;
mod script;
mod simulation;
mod times;
mod world;

pub use contention::SharedCluster;
pub use interference::Pattern;
pub use network::NetworkSpec;
pub use ranks::{Ranks, Slowness};
pub use script::{Change, Script, ScriptError};
pub use simulation::{Outcome, Simulation, SimulationError, Training};
pub use times::{Times, TimesSpec};
