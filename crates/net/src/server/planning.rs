//! Planning for the scheme while the run goes on: by a thread of its own, so that it holds up nobody.

use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::Scope;

use paceline_core::{Ledger, PlanRequest};

use super::event_source::{CoordinatorHandle, ServerInput};

/// A thread that answers the scheme's requests for plans, one at a time.
#[derive(Debug)]
pub(super) struct PlanThread {
    requests: SyncSender<PlanRequest>,
    /// Whether it is at work.
    is_busy: bool,
}

impl PlanThread {
    /// Starts the thread. It sends its answers to the coordinator, and ends with this.
    pub(super) fn start<'scope>(scope: &'scope Scope<'scope, '_>, coordinator: CoordinatorHandle) -> Self {
        let (requests, received) = sync_channel::<PlanRequest>(1);
        scope.spawn(move || {
            for request in received {
                if coordinator.send(ServerInput::Planned { paces: paceline_sim::plan(&request) }).is_err() {
                    break;
                }
            }
        });
        PlanThread { requests, is_busy: false }
    }

    /// Passes the scheme's request on, if it has one that is not under way.
    pub(super) fn request(&mut self, ledger: &Ledger) {
        if !self.is_busy
            && let Some(request) = ledger.plan_request()
        {
            // The queue is empty, and the thread ends with this only.
            self.is_busy = self.requests.try_send(request).is_ok();
        }
    }

    /// The request is answered.
    pub(super) fn answered(&mut self) {
        self.is_busy = false;
    }
}
