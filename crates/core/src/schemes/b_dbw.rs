//! `b-dbw`: blind DBW; the most gradients per unit of time, whatever they are worth.

use super::dbw::{Worth, build_dynamic};
use super::{Settings, Setup, SpecError};
use crate::Scheme;

pub(super) fn build(settings: &Settings<'_>, setup: &Setup) -> Result<Box<dyn Scheme>, SpecError> {
    build_dynamic(Worth::Blind, settings, setup)
}
