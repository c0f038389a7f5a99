//! `ssp`: stale synchronous parallel; a worker may be `staleness` iterations ahead of the slowest (Ho et al., 2013).

use super::{Settings, Setup, SpecError};
use crate::free_running::{Clocks, FreeRunning, Gate, Verdict};
use crate::{Reason, Scheme, Time, WorkerId};

struct Bound(u64);

impl Gate for Bound {
    fn admit(&mut self, worker: WorkerId, clocks: &Clocks, _now: Time) -> Verdict {
        admit_within(self.0, worker, clocks)
    }
}

/// Lets a worker start while those it may wait for are at most `bound` iterations behind it.
pub(super) fn admit_within(bound: u64, worker: WorkerId, clocks: &Clocks) -> Verdict {
    let lead = clocks.lead(worker);
    if lead <= bound {
        Verdict::Go(Reason::WithinBound { lead, bound })
    } else {
        let slowest = clocks.slowest_after(worker);
        Verdict::Wait(slowest, Reason::TooFarAhead { lead, bound, slowest })
    }
}

pub(super) fn build(settings: &Settings<'_>, setup: &Setup) -> Result<Box<dyn Scheme>, SpecError> {
    let staleness = settings.optional("staleness", 3, 0..=u64::from(u32::MAX))?;
    Ok(Box::new(FreeRunning::new(Bound(staleness), setup.batch)))
}
