//! `backup`: static backup workers; the first k of n gradients make an iteration (Chen et al., 2016).

use super::{SchemeError, Settings, Setup};
use crate::rounds::{Quorum, Rounds};
use crate::{Scheme, Time};

/// A constant k.
pub(super) struct FixedQuorum(pub(super) usize);

impl Quorum for FixedQuorum {
    fn choose(&mut self, _now: Time, _live: usize) -> usize {
        self.0
    }
}

pub(super) fn build(settings: &Settings<'_>, setup: &Setup) -> Result<Box<dyn Scheme>, SchemeError> {
    let k = settings.required("k", 1..=setup.workers)?;
    let dispatch = settings.dispatch(setup)?;
    Ok(Box::new(Rounds::new(FixedQuorum(k), dispatch, setup.batch)))
}
