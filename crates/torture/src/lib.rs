//! Fault campaigns: every scheme on a virtual clock, under random faults of workers, network and server.
//!
//! - [`FaultSchedule`]: a setup and the [`Fault`]s of a run, drawn from a seed.
//! - [`torture`]: runs a scheme under a fault schedule. Workers crash, freeze, hang, slow down, lose their connection and
//!   restart; the server stands still, is killed and resumes. An independent checker verifies every decision, the
//!   counts of the ledger, and that no worker is dismissed that is alive and makes progress.
//!   - In some runs the parameters are in shards beside the workers, and are lost with them. They must have the bits of one
//!     server.
//!   - In some runs servers stand by: one is killed, stands still, or is cut off from workers or storage, and another takes
//!     over. Never may two decide at a time, and no old one writes a checkpoint.
//! - [`shrink`]: the smallest schedule found that still fails in the same way.
//! - [`schemes`]: all schemes, with the settings that change their behaviour.
//! - [`TimeoutRule`]: a rule for timeouts to try out.
//! - [`run_at_scale`]: thousands of workers without faults, and what they cost.
//! - [`fuzz_protocol`]: arbitrary messages for both sides of the protocol.
//!
//! The same schedule gives the same outcome, event for event. Both sides run the code of a real run: the protocol of
//! `paceline-protocol` with its schemes and its ledger. Only what moves the bytes is simulated, and what computes:
//! connections deliver in order or break, as TCP does, and computations only take time.

mod checker;
mod fault_schedule;
mod fault_simulation;
mod fuzz;
mod outages;
mod random;
mod scale;
mod schemes;
mod server;
mod shards;
mod shrink;
mod standby;
mod storage;
mod timeout_rule;
mod worker;

pub use fault_schedule::{Fault, FaultSchedule, LinkFault, ServerCut};
pub use fault_simulation::{TortureFailure, TortureReport, torture, torture_with};
pub use fuzz::fuzz_protocol;
pub use scale::{FrameSize, LinkTraffic, ScaleReport, ScaleSetup, run_at_scale};
pub use schemes::schemes;
pub use shrink::shrink;
pub use timeout_rule::TimeoutRule;
