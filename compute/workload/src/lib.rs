//! The *compute* plane's contract: a [`Workload`] turns flat parameters and a [`Draw`] into a loss and a gradient.

mod contract;

pub use contract::{Draw, Evaluation, Replica, Workload};
