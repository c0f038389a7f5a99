//! The commands, one file each.

pub mod data;
pub mod fit;
pub mod replay;
pub mod simulate;
