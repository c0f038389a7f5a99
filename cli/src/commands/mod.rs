//! The commands, one file each.

pub mod data;
pub mod doctor;
pub mod evaluate;
pub mod fit;
pub mod keys;
pub mod plan;
pub mod predictor;
pub mod race;
pub mod replay;
pub mod report;
pub mod reproduce;
pub mod scale;
pub mod serve;
pub mod shard;
pub mod simulate;
pub mod torture;
pub mod train;
pub mod watch;
pub mod whatif;
pub mod work;
