//! An update on its way to the shards, each of which gets its part.
//!
//! A part can be sent as a draft as soon as its values are there, while others are still computed. In the end it is
//! confirmed, or sent again if the values have changed.

use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use paceline_core::{TaskId, Version};
use paceline_protocol::{PayloadFormat, PushedUpdate, WorkerToShard};

use super::shared_vectors::SharedVectors;
use crate::frame;
use crate::outbox::{Outbox, Transfer, TransferEnd};
use crate::shared_memory::Region;

/// The connection to a shard, as a sender sees it.
pub(super) struct PartLink {
    /// The shard's part.
    pub(super) range: Range<usize>,
    pub(super) outbox: Arc<Outbox>,
    /// If it is on this host.
    pub(super) shared: Option<SharedVectors>,
}

/// An update that is sent.
pub struct UpdatePush {
    links: Arc<Vec<PartLink>>,
    task: TaskId,
    version: Version,
    payload: PayloadFormat,
    state: Mutex<PushState>,
}

struct PushState {
    parts: Vec<UpdatePart>,
    /// Whether values have changed since they were there.
    has_changed: bool,
}

struct UpdatePart {
    values: Arc<Region>,
    /// How many of its values are not there yet.
    missing: usize,
    /// Whether it was sent as a draft.
    is_draft: bool,
}

impl UpdatePush {
    /// The update of a task that was computed from this version.
    pub(super) fn new(
        links: Arc<Vec<PartLink>>,
        task: TaskId,
        version: Version,
        payload: PayloadFormat,
        values: Region,
    ) -> Self {
        let ranges: Vec<Range<usize>> = links.iter().map(|link| link.range.clone()).collect();
        let part =
            |values: Region| UpdatePart { missing: values.values().len(), values: Arc::new(values), is_draft: false };
        let parts = values.split(&ranges).into_iter().map(part).collect();
        UpdatePush { links, task, version, payload, state: Mutex::new(PushState { parts, has_changed: false }) }
    }

    fn lock(&self) -> MutexGuard<'_, PushState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// These values are there; to be called once for each. Parts that are complete are sent as drafts.
    ///
    /// # Errors
    /// If a part can't be sent.
    pub fn ready(&self, range: Range<usize>) -> io::Result<()> {
        for (link, part) in self.links.iter().zip(&mut self.lock().parts) {
            let common = range.start.max(link.range.start)..range.end.min(link.range.end);
            if common.is_empty() || part.is_draft {
                continue;
            }
            part.missing = part.missing.saturating_sub(common.len());
            if part.missing == 0 {
                part.is_draft = true;
                self.send(link, part, true)?;
            }
        }
        Ok(())
    }

    /// Values have changed since they were there. What was sent is sent again.
    pub fn change(&self) {
        self.lock().has_changed = true;
    }

    fn send(&self, link: &PartLink, part: &UpdatePart, is_draft: bool) -> io::Result<()> {
        let update = PushedUpdate { task: self.task, version: self.version, is_draft };
        if let Some(shared) = &link.shared {
            return shared.send(&part.values, |vector| {
                link.outbox.hand_over(&WorkerToShard::PushShared { update, vector });
                Ok(())
            });
        }
        let (number, announcement, payload) = (self.task.number, Vec::new(), self.payload);
        let (frame, values) = (frame::encode(&WorkerToShard::Push { update })?, part.values.clone());
        link.outbox.transfer(Transfer { number, frame, version: None, announcement, values, payload }, 0);
        Ok(())
    }

    /// Sends what is not sent, and waits until all of it is, or `is_cancelled`. Drafts count, unless values have changed.
    pub(super) fn finish(&self, is_cancelled: impl Fn() -> bool) -> io::Result<TransferEnd> {
        let state = self.lock();
        let pairs = || self.links.iter().zip(&state.parts);
        for (link, part) in pairs().filter(|(_, part)| !part.is_draft) {
            self.send(link, part, false)?;
        }
        for (link, part) in pairs().filter(|(_, part)| part.is_draft) {
            match link.outbox.wait_for_transfer() {
                TransferEnd::Sent if state.has_changed => self.send(link, part, false)?,
                TransferEnd::Sent => link.outbox.send(&WorkerToShard::Confirm { task: self.task })?,
                TransferEnd::Withdrawn | TransferEnd::Disconnected => {}
            }
        }
        // It may have been cancelled before the transfers were there to be stopped.
        if is_cancelled() {
            self.links.iter().for_each(|link| link.outbox.stop_transfer(self.task.number));
        }
        self.settle()
    }

    /// Waits for the transfers. If one was withdrawn, no shard counts on the update.
    fn settle(&self) -> io::Result<TransferEnd> {
        let ends: Vec<TransferEnd> = self.links.iter().map(|link| link.outbox.wait_for_transfer()).collect();
        if ends.contains(&TransferEnd::Disconnected) {
            return Ok(TransferEnd::Disconnected);
        }
        if !ends.contains(&TransferEnd::Withdrawn) {
            return Ok(TransferEnd::Sent);
        }
        let dropped = WorkerToShard::Dropped { task: self.task };
        self.links.iter().try_for_each(|link| link.outbox.send(&dropped))?;
        Ok(TransferEnd::Withdrawn)
    }

    /// Takes back what was sent.
    pub(super) fn withdraw(&self) -> io::Result<()> {
        let state = self.lock();
        for (link, _) in self.links.iter().zip(&state.parts).filter(|(_, part)| part.is_draft) {
            link.outbox.stop_transfer(self.task.number);
            if link.outbox.wait_for_transfer() != TransferEnd::Disconnected {
                link.outbox.send(&WorkerToShard::Dropped { task: self.task })?;
            }
        }
        Ok(())
    }

    /// The buffer of the update, if nobody reads it any more. Nothing more is sent.
    pub(super) fn take_buffer(&self) -> Option<Region> {
        let parts = std::mem::take(&mut self.lock().parts);
        parts.into_iter().map(|part| Arc::into_inner(part.values)).collect::<Option<Vec<_>>>().and_then(Region::join)
    }
}
