//! How many samples each worker gets, so that all finish together (LB-BSP, problem (3)).
//!
//! - [`Cost`] is what samples cost a worker; [`balance`] splits an iteration's samples so that the last worker is done as
//!   early as can be.
//! - [`Profile`] is what a worker's measured points say of it: cost per sample, fixed cost, and the sizes between which
//!   they hold; [`Devices`] measures all workers.

mod balance;
mod devices;
mod profile;

pub use balance::{BatchingError, Cost, balance};
pub use devices::Devices;
pub use profile::{Profile, ProfilePoint};
