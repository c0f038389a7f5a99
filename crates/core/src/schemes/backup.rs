//! `backup`: static backup workers; the first k of n gradients make an iteration (Chen et al., 2016).

use serde::{Deserialize, Serialize};

use super::{SchemeEntry, SchemeError, Setting, Settings, Setup, UpperBound};
use crate::Time;
use crate::rounds::Quorum;

/// A constant k.
#[derive(Serialize, Deserialize)]
pub(super) struct FixedQuorum(pub(super) usize);

impl Quorum for FixedQuorum {
    fn choose(&mut self, _now: Time, _live: usize) -> usize {
        self.0
    }

    fn is_all(&self) -> bool {
        self.0 == usize::MAX
    }
}

pub(super) const ENTRY: SchemeEntry =
    SchemeEntry::quorum("backup", "wait for the first k workers in every iteration", [0, 80, 255], build)
        .settings(&[Setting::count("k", "gradients to wait for", 1, UpperBound::Workers)])
        .variants(&["k=1"])
        .compared(|workers| {
            let mut ks: Vec<String> = Vec::new();
            for k in [workers * 3 / 4, workers.saturating_sub(1), workers / 2] {
                let text = format!("k={}", k.max(1));
                if !ks.contains(&text) {
                    ks.push(text);
                }
            }
            ks
        });

fn build(settings: &Settings<'_>, _setup: &Setup) -> Result<Box<dyn Quorum>, SchemeError> {
    Ok(Box::new(FixedQuorum(settings.count("k")?)))
}
