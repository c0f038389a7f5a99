//! The messages between the coordinator and workers whose processes hold the model together: each has all of it, they sum
//! their updates among themselves, and step alike.
//!
//! ```text
//! worker                          coordinator
//!         ◀─────────────────────── Form       who sums together, from now on
//!   Report ──────────────────────▶            the update is in this process; it is summed with the others' at once
//!   Summed, or Failed ───────────▶
//!         ◀─────────────────────── Step       every member has the sum, and the scheme commits it
//! ```
//!
//! If a member is gone, or an update is broken, the others form another group and sum again: nobody has stepped yet.

use std::net::SocketAddr;

use paceline_core::Version;
use serde::{Deserialize, Serialize};

/// Workers that sum their updates together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    /// Counts the groups of a run.
    pub number: u64,
    /// The ranks of its members, in their order.
    pub members: Vec<u32>,
    /// Where the first member listens, for the others to find each other.
    pub meeting: SocketAddr,
    /// The position of a member that shares the state of its optimizer with the others, if some lack it.
    pub source: Option<u32>,
    /// The positions of members that add nothing to the first sum: they have no update, or a broken one.
    pub silent: Vec<u32>,
}

/// What the coordinator tells a member.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum ToMember {
    /// Form this group. A sum that is not complete is made again there, from the same updates.
    Form(Group),
    /// Step the model by the mean of the last sum. This makes `version`.
    Step {
        /// The version.
        version: Version,
        /// How it is stepped.
        step: MemberStep,
    },
    /// Send the model of this version, once it is there.
    Send(Version),
}

/// How a member steps its model by the mean of the updates.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum MemberStep {
    /// Its optimizer steps by the mean, multiplied by `scale`.
    Optimizer {
        /// The learning rate of every parameter group, or one for all.
        rates: Vec<f64>,
        /// The mean is multiplied by it, except for statistics.
        scale: f32,
    },
    /// The model moves against the mean by this share of it, statistics by another.
    Average {
        /// The share of the mean.
        rate: f64,
        /// The share of the mean of statistics.
        statistics: f32,
    },
    /// The model stays as it is.
    Keep,
}

/// What a member tells the coordinator.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum FromMember {
    /// It has the sum of all members.
    Summed {
        /// The group.
        group: u64,
        /// The version that the updates were computed from.
        version: Version,
        /// The sum of the squares of its own update.
        own: f64,
        /// The sum of the squares of the mean.
        mean: f64,
    },
    /// It could not get the sum.
    Failed {
        /// The group.
        group: u64,
        /// Why, in one line.
        reason: String,
    },
    /// The model that was asked for follows.
    Model(Version),
}
