//! `ssp`: stale synchronous parallel; a worker may be `staleness` iterations ahead of the slowest (Ho et al., 2013).

use serde::{Deserialize, Serialize};

use super::{SchemeEntry, SchemeError, Setting, SettingDefault, Settings, Setup, UpperBound};
use crate::free_running::{Admission, Clocks, FreeRunning, Gate};
use crate::{Reason, Scheme, Time, WorkerId};

#[derive(Serialize, Deserialize)]
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

pub(super) const ENTRY: SchemeEntry = SchemeEntry::new(
    "ssp",
    "apply updates on arrival, with a bound on how far a worker may be ahead of the slowest",
    [7, 157, 211],
    build,
)
.settings(&[Setting::count("staleness", "iterations a worker may be ahead", 0, UpperBound::Value(u32::MAX as u64))
    .default(SettingDefault::Count(3))])
.variants(&["staleness=0"]);

fn build(settings: &Settings<'_>, setup: &Setup) -> Result<Box<dyn Scheme>, SchemeError> {
    let staleness = settings.count("staleness")?;
    Ok(Box::new(FreeRunning::new(StalenessBound(staleness), setup.batch)))
}
