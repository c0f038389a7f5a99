//! `bsp`: bulk synchronous parallel, the baseline that waits for everyone.

use super::{Settings, Setup, SpecError};
use crate::rounds::{Quorum, Rounds};
use crate::{Scheme, Time};

struct Everyone;

impl Quorum for Everyone {
    fn choose(&mut self, _now: Time, _live: usize) -> usize {
        usize::MAX
    }
}

pub(super) fn build(settings: &Settings<'_>, setup: &Setup) -> Result<Box<dyn Scheme>, SpecError> {
    Ok(Box::new(Rounds::new(Everyone, settings.dispatch(setup)?, setup.batch)))
}
