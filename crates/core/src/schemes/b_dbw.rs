//! `b-dbw`: blind DBW; the most gradients per unit of time, regardless of their gain.

use super::dbw::{BETA, FORMULAS, GainModel, MEMORY, build_dynamic};
use super::{SchemeEntry, SchemeError, Settings, Setup};
use crate::rounds::Quorum;

pub(super) const ENTRY: SchemeEntry = SchemeEntry::quorum(
    "b-dbw",
    "wait for the first k workers; k is chosen in every iteration for the most gradients per second",
    [195, 119, 197],
    build,
)
.settings(&[FORMULAS, BETA, MEMORY])
.variants(&["memory=discount-0.7"]);

fn build(settings: &Settings<'_>, setup: &Setup) -> Result<Box<dyn Quorum>, SchemeError> {
    build_dynamic(GainModel::Blind, settings, setup)
}
