//! `ssp`: stale synchronous parallel; a worker may be `staleness` iterations ahead of the slowest (Ho et al., 2013).

use super::{SchemeError, Settings, Setup};
use crate::free_running::{Admission, Clocks, FreeRunning, Gate};
use crate::{Reason, Scheme, Time, WorkerId};

struct StalenessBound(u64);

impl Gate for StalenessBound {
    fn admit(&mut self, worker: WorkerId, clocks: &Clocks, _now: Time) -> Admission {
        admit_within(self.0, worker, clocks)
    }
}

/// Admits a worker that is at most `bound` iterations ahead of the slowest.
pub(super) fn admit_within(bound: u64, worker: WorkerId, clocks: &Clocks) -> Admission {
    let lead = clocks.lead(worker);
    if lead <= bound {
        Admission::Start(Reason::WithinBound { lead, bound })
    } else {
        let slowest = clocks.slowest_after(worker);
        Admission::Wait(slowest, Reason::TooFarAhead { lead, bound, slowest })
    }
}

pub(super) fn build(settings: &Settings<'_>, setup: &Setup) -> Result<Box<dyn Scheme>, SchemeError> {
    let staleness = settings.optional("staleness", 3, 0..=u64::from(u32::MAX))?;
    Ok(Box::new(FreeRunning::new(StalenessBound(staleness), setup.batch)))
}
