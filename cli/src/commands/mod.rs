//! The commands, one file each.

pub mod data;
pub mod fit;
pub mod plan;
pub mod replay;
pub mod simulate;
