//! Groups of options that several commands share.

mod cluster;
mod seeds;
mod training;

pub use cluster::Cluster;
pub use seeds::Seeds;
pub use training::Training;
