//! `asp`: asynchronous parallel; nobody ever waits, in the manner of Hogwild.

use super::{Settings, Setup, SpecError};
use crate::free_running::{Clocks, FreeRunning, Gate, Verdict};
use crate::{Reason, Scheme, Time, WorkerId};

/// Everyone may always go on.
pub(super) struct Open;

impl Gate for Open {
    fn admit(&mut self, _worker: WorkerId, _clocks: &Clocks, _now: Time) -> Verdict {
        Verdict::Go(Reason::NewVersion)
    }
}

pub(super) fn build(_settings: &Settings<'_>, setup: &Setup) -> Result<Box<dyn Scheme>, SpecError> {
    Ok(Box::new(FreeRunning::new(Open, setup.batch)))
}
