//! Plans how many samples each worker gets, so that all finish together (LB-BSP, problem (3)).
//!
//! - [`Cost`] is a worker's time as a function of its samples; [`balance`] splits an iteration's samples so that the
//!   last worker finishes as early as possible.
//! - [`Profile`] is fitted to a worker's measured points: cost per sample, fixed cost, and the range of sizes for which
//!   they hold. [`Devices`] measures all workers.

mod balance;
mod devices;
mod profile;

pub use balance::{BatchingError, Cost, balance};
pub use devices::Devices;
pub use profile::{Profile, ProfilePoint};
