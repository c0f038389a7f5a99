//! `asp`: asynchronous parallel; no worker ever waits, as in Hogwild.

use serde::{Deserialize, Serialize};

use super::{SchemeEntry, SchemeError, Settings, Setup};
use crate::free_running::{Admission, Clocks, FreeRunning, Gate};
use crate::{Reason, Scheme, Time, WorkerId};

/// Admits every worker.
#[derive(Serialize, Deserialize)]
pub(super) struct OpenGate;

impl Gate for OpenGate {
    fn admit(&mut self, _worker: WorkerId, _clocks: &Clocks, _now: Time) -> Admission {
        Admission::Start(Reason::NewVersion)
    }
}

pub(super) const ENTRY: SchemeEntry =
    SchemeEntry::new("asp", "never wait: apply every update as it arrives", [209, 127, 0], build);

fn build(_settings: &Settings<'_>, setup: &Setup) -> Result<Box<dyn Scheme>, SchemeError> {
    Ok(Box::new(FreeRunning::new(OpenGate, setup.batch)))
}
