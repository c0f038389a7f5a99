//! `b-dbw`: blind DBW; the most gradients per unit of time, regardless of their gain.

use super::dbw::{GainModel, build_dynamic};
use super::{SchemeError, Settings, Setup};
use crate::Scheme;

pub(super) fn build(settings: &Settings<'_>, setup: &Setup) -> Result<Box<dyn Scheme>, SchemeError> {
    build_dynamic(GainModel::Blind, settings, setup)
}
