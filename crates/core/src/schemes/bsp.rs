//! `bsp`: bulk synchronous parallel, the baseline that waits for every worker.

use serde::{Deserialize, Serialize};

use super::{SchemeEntry, SchemeError, Settings, Setup};
use crate::Time;
use crate::rounds::Quorum;

#[derive(Serialize, Deserialize)]
struct AllWorkers;

impl Quorum for AllWorkers {
    fn choose(&mut self, _now: Time, _live: usize) -> usize {
        usize::MAX
    }

    fn is_all(&self) -> bool {
        true
    }
}

pub(super) const ENTRY: SchemeEntry =
    SchemeEntry::quorum("bsp", "wait for every worker in every iteration", [122, 130, 138], build);

fn build(_settings: &Settings<'_>, _setup: &Setup) -> Result<Box<dyn Quorum>, SchemeError> {
    Ok(Box::new(AllWorkers))
}
