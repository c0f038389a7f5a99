//! Fault campaigns: every scheme, on a virtual clock, through whatever machines and networks can do to it.
//!
//! - [`History`]: a setup and the [`Trouble`]s that happen to it, drawn from a seed.
//! - [`torture`]: lives through a history under one scheme. A server with its ledger and deadlines, workers that are
//!   killed, frozen, cut off and restarted, and a network that loses, repeats and reorders messages run as state
//!   machines; a witness keeps its own books beside them.
//! - [`shorten`]: the shortest history found that still fails in the same way.
//! - [`schemes`]: all schemes, with the settings that change how they move.
//!
//! The same history gives the same outcome, event for event. Messages here may be lost one by one, which is harsher
//! than a connection that breaks: what survives this survives TCP.

mod history;
mod message;
mod schemes;
mod server;
mod shorten;
mod witness;
mod worker;
mod world;

pub use history::{History, Link, Trouble};
pub use schemes::schemes;
pub use shorten::shorten;
pub use world::{Failure, Survival, torture};
