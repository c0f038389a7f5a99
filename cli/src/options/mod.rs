//! Options of commands that run real workers.

mod emulation;
mod job;

pub use emulation::{DelaySpec, StragglerSpec};
pub use job::JobOptions;
