//! The saved state of a ledger and its scheme.

use std::collections::{BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};

use super::Ledger;
use super::state::LedgerState;
use crate::{RestoreError, SampleCounts, Scheme, Time, Version, WorkerId};

/// The state of a [`Ledger`] between two events. Another process goes on from it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedLedger {
    /// The scheme's state; `None` if the scheme starts afresh. Then no worker is a member.
    scheme: Option<String>,
    latest: Time,
    unconfirmed: VecDeque<Version>,
    state: LedgerState,
}

impl SavedLedger {
    /// Whether the scheme's state is part of it.
    pub fn has_scheme(&self) -> bool {
        self.scheme.is_some()
    }

    /// The same with a scheme that starts afresh: all workers have left.
    pub fn without_scheme(mut self) -> Self {
        self.scheme = None;
        self.unconfirmed.clear();
        self.state.dismiss_all();
        self
    }

    /// The time of the last event.
    pub fn latest(&self) -> Time {
        self.latest
    }

    /// The newest version of the model.
    pub fn version(&self) -> Version {
        self.state.version
    }

    /// What became of all assigned samples.
    pub fn samples(&self) -> SampleCounts {
        self.state.samples
    }

    /// The members.
    pub fn workers(&self) -> BTreeSet<WorkerId> {
        self.state.members().collect()
    }
}

impl Ledger {
    /// The state of the ledger and its scheme. If the scheme can't be saved, it starts afresh.
    pub fn save(&self) -> SavedLedger {
        let saved = SavedLedger {
            scheme: self.scheme.save(),
            latest: self.latest,
            unconfirmed: self.unconfirmed.clone(),
            state: self.state.clone(),
        };
        if saved.has_scheme() { saved } else { saved.without_scheme() }
    }

    /// Goes on from a saved state with a scheme that was built from the same settings. The history that explains broken
    /// laws begins here.
    ///
    /// # Errors
    /// If the scheme does not read its state.
    pub fn restore(mut scheme: Box<dyn Scheme>, saved: SavedLedger) -> Result<Self, RestoreError> {
        let SavedLedger { scheme: scheme_state, latest, unconfirmed, state } = saved;
        if let Some(scheme_state) = scheme_state {
            scheme.restore(&scheme_state)?;
        }
        Ok(Ledger { state, latest, unconfirmed, ..Ledger::new(scheme) })
    }
}
