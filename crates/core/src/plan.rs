//! What `auto` asks a planner, and what it is told.
//!
//! A planner runs candidates in virtual time, which is no business of this crate. Its answer enters as an event, so that
//! a replay decides the same without a planner.

use serde::{Deserialize, Serialize};

use crate::cluster_model::RecentTimes;
use crate::{GradientNoise, SchemeSpec, Setup};

/// What a planner is to find out: how fast each candidate would be on the cluster as it is.
#[derive(Debug, Clone, PartialEq)]
pub struct PlanRequest {
    /// The run.
    pub setup: Setup,
    /// The schemes to compare. The one in force is the first.
    pub candidates: Vec<SchemeSpec>,
    /// The workers, and the times that were seen of them.
    pub workers: Vec<RecentTimes>,
    /// How much of a gradient is noise.
    pub noise: GradientNoise,
}

/// How fast a scheme would be.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SchemePace {
    /// The scheme.
    pub scheme: SchemeSpec,
    /// Its expected progress per second, in steps of `bsp`.
    #[serde(with = "crate::number")]
    pub pace: f64,
}
