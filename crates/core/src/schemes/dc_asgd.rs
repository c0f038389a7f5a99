//! `dc-asgd`: `asp` whose stale gradients are corrected for the steps made since (Zheng et al., 2017; constant λ).

use super::asp::OpenGate;
use super::{SchemeEntry, SchemeError, Setting, SettingDefault, Settings, Setup};
use crate::free_running::FreeRunning;
use crate::{CommitStep, Scheme};

pub(super) const ENTRY: SchemeEntry =
    SchemeEntry::new("dc-asgd", "like asp, with stale gradients corrected for the steps since", [159, 70, 115], build)
        .settings(&[
            Setting::number("lambda", "strength of the correction", 0.0, 1e6).default(SettingDefault::Number(0.04))
        ]);

fn build(settings: &Settings<'_>, setup: &Setup) -> Result<Box<dyn Scheme>, SchemeError> {
    let lambda = settings.number("lambda")? as f32;
    Ok(Box::new(FreeRunning::new(OpenGate, setup.batch).stepping_by(CommitStep::Compensated { lambda })))
}
