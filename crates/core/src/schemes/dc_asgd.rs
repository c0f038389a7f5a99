//! `dc-asgd`: `asp` whose stale gradients are corrected for the steps made since (Zheng et al., 2017; constant λ).

use super::asp::OpenGate;
use super::{SchemeError, Settings, Setup};
use crate::free_running::FreeRunning;
use crate::{CommitStep, Scheme};

pub(super) fn build(settings: &Settings<'_>, setup: &Setup) -> Result<Box<dyn Scheme>, SchemeError> {
    let lambda = settings.optional("lambda", 0.04, 0.0..=1e6)?;
    Ok(Box::new(FreeRunning::new(OpenGate, setup.batch).stepping_by(CommitStep::Compensated { lambda })))
}
