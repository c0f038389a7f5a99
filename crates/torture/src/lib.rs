//! Fault campaigns: every scheme on a virtual clock, under random faults of workers, network and server.
//!
//! - [`FaultSchedule`]: a setup and the [`Fault`]s of a run, drawn from a seed.
//! - [`torture`]: runs a scheme under a fault schedule. Workers crash, freeze, lose their connection and restart; the
//!   network loses, repeats and reorders messages. An independent checker verifies every decision and the
//!   counts of the ledger.
//! - [`shrink`]: the smallest schedule found that still fails in the same way.
//! - [`schemes`]: all schemes, with the settings that change their behaviour.
//!
//! The same schedule gives the same outcome, event for event. The schemes, the ledger and the deadlines are those of a
//! real run. The server, the workers and their messages are models of `paceline-net`, not its code: a campaign tests
//! schemes, ledger and deadlines, not sessions or transports.

mod checker;
mod fault_schedule;
mod fault_simulation;
mod message;
mod schemes;
mod server;
mod shrink;
mod worker;

pub use fault_schedule::{Fault, FaultSchedule, LinkFault};
pub use fault_simulation::{TortureFailure, TortureReport, torture};
pub use schemes::schemes;
pub use shrink::shrink;
