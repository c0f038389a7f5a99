//! `b-dbw`: blind DBW; the most gradients per unit of time, regardless of their gain.

use super::dbw::{GainModel, build_dynamic};
use super::{Settings, Setup, SpecError};
use crate::Scheme;

pub(super) fn build(settings: &Settings<'_>, setup: &Setup) -> Result<Box<dyn Scheme>, SpecError> {
    build_dynamic(GainModel::Blind, settings, setup)
}
