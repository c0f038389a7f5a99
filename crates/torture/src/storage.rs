//! The storage that all servers of a run share: its leases and its last checkpoint.

use std::collections::BTreeMap;

use paceline_core::{Span, Time};
use paceline_runtime::{LeaseFile, NewestLease};

use crate::checker::CheckerMark;
use crate::shards::SavedModel;

/// The last checkpoint.
#[derive(Debug, Clone, Default)]
pub(crate) struct SavedState {
    /// The server that has written it, and the epoch of its lease.
    pub(crate) writer: usize,
    pub(crate) epoch: u64,
    /// The ledger with its scheme, as text; `None` before the first checkpoint.
    pub(crate) ledger: Option<String>,
    /// The length of the event log.
    pub(crate) events: usize,
    pub(crate) mark: CheckerMark,
    /// The model, if it is in shards.
    pub(crate) model: SavedModel,
}

/// What all servers can read and write, unless they are cut off.
#[derive(Debug, Default)]
pub(crate) struct SharedStorage {
    pub(crate) checkpoint: SavedState,
    leases: BTreeMap<u64, LeaseFile>,
    pub(crate) full_until: Time,
}

impl SharedStorage {
    pub(crate) fn newest(&self) -> NewestLease {
        self.leases.last_key_value().map(|(&epoch, file)| (epoch, Some(file.clone())))
    }

    /// The epoch of the newest lease; 0 without leases.
    pub(crate) fn epoch(&self) -> u64 {
        self.leases.last_key_value().map_or(0, |(&epoch, _)| epoch)
    }

    /// Creates a lease, unless there is one of this epoch.
    pub(crate) fn create(&mut self, epoch: u64, server: usize, length: Span) -> bool {
        let file = LeaseFile { seconds: length.seconds(), holder: format!("server {server}"), renewals: 0 };
        !self.leases.contains_key(&epoch) && self.leases.insert(epoch, file).is_none()
    }

    /// Renews a lease, also if there is a newer one.
    pub(crate) fn renew(&mut self, epoch: u64, renewals: u64) {
        if let Some(file) = self.leases.get_mut(&epoch) {
            file.renewals = renewals;
        }
    }

    /// Writes a checkpoint. The error says which law is broken.
    pub(crate) fn save(&mut self, state: SavedState) -> Result<(), String> {
        let (writer, version, last) = (state.writer, state.mark.version, self.checkpoint.mark.version);
        if state.epoch != self.epoch() {
            let newest = self.epoch();
            return Err(format!(
                "server {writer} writes a checkpoint under lease {}, after lease {newest}",
                state.epoch
            ));
        }
        if version <= last {
            return Err(format!(
                "server {writer} writes a checkpoint of version {version} after one of version {last}"
            ));
        }
        self.checkpoint = state;
        Ok(())
    }
}
