//! `bsp`: bulk synchronous parallel, the baseline that waits for every worker.

use serde::{Deserialize, Serialize};

use super::{SchemeEntry, SchemeError, Settings, Setup};
use crate::rounds::{Quorum, Rounds};
use crate::{Scheme, Time};

#[derive(Serialize, Deserialize)]
struct AllWorkers;

impl Quorum for AllWorkers {
    fn choose(&mut self, _now: Time, _live: usize) -> usize {
        usize::MAX
    }
}

pub(super) const ENTRY: SchemeEntry =
    SchemeEntry::new("bsp", "wait for every worker in every iteration", [0, 0, 0], build).dispatches();

fn build(settings: &Settings<'_>, setup: &Setup) -> Result<Box<dyn Scheme>, SchemeError> {
    Ok(Box::new(Rounds::new(AllWorkers, settings.dispatch()?, setup.batch)))
}
