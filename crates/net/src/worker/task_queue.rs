//! The worker's side of the protocol, shared by the thread of the connection and the computing thread.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use paceline_core::Version;
use paceline_protocol::{Group, NextTask, Reaction, ResultStatus, SessionEnd, ToMember, ToWorker, WorkerProtocol};

use crate::shared_memory::Region;

/// The model of a task, and where its gradient goes.
#[derive(Debug, Clone)]
pub(super) struct TaskModel {
    /// `None` if the worker's process has the model itself.
    pub(super) parameters: Option<Arc<Region>>,
    /// The shared buffer for the gradient, if memory is shared. One task at a time writes it.
    pub(super) gradient: Option<Arc<Mutex<Region>>>,
}

/// What a worker is told before its next task.
#[derive(Debug, Clone, PartialEq)]
pub enum NextOrder {
    /// As a member of a group.
    Order(ToMember),
    /// Nothing: the next task can start, or the session has ended.
    None,
}

/// The tasks of a worker.
#[derive(Debug, Default)]
pub(super) struct TaskQueue {
    protocol: Mutex<WorkerProtocol<TaskModel>>,
    changed: Condvar,
    /// Counts changes. Moves only while the protocol is locked.
    changes: AtomicU64,
}

impl TaskQueue {
    fn lock(&self) -> MutexGuard<'_, WorkerProtocol<TaskModel>> {
        self.protocol.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<T>(&self, change: impl FnOnce(&mut WorkerProtocol<TaskModel>) -> T) -> T {
        let mut protocol = self.lock();
        self.changes.fetch_add(1, Ordering::Relaxed);
        self.changed.notify_all();
        change(&mut protocol)
    }

    // --- for the thread of the connection ---

    pub(super) fn on_message(&self, message: ToWorker, model: Option<TaskModel>) -> Reaction {
        self.change(|protocol| protocol.on_message(message, model))
    }

    /// Adds a model that was received, or that this process has itself.
    pub(super) fn add_model(&self, version: Version, parameters: Option<Arc<Region>>) {
        self.change(|protocol| protocol.on_model(version, TaskModel { parameters, gradient: None }));
    }

    /// The number of the running task, if it is cancelled.
    pub(super) fn cancelled_task(&self) -> Option<u64> {
        self.lock().cancelled_task()
    }

    /// Ends the session; only the first reason counts.
    pub(super) fn end(&self, end: SessionEnd) {
        self.change(|protocol| protocol.end(end));
    }

    // --- for the computing thread ---

    /// How often something has changed.
    pub(super) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    /// Waits until something has changed since there were `seen` changes, or the deadline.
    pub(super) fn wait_for_change(&self, seen: u64, deadline: Option<Instant>) {
        let mut protocol = self.lock();
        while self.changes() == seen {
            let left = deadline.map_or(Duration::MAX, |deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return;
            }
            protocol = self.changed.wait_timeout(protocol, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The next task and its model, started, if they have arrived.
    pub(super) fn start_next(&self) -> Option<Result<(NextTask<TaskModel>, TaskModel), SessionEnd>> {
        let mut protocol = self.lock();
        match protocol.ended() {
            Some(end) => Some(Err(end.clone())),
            None => protocol.start_next().map(Ok),
        }
    }

    /// What the worker is told as a member of a group, before its next task starts. `None` if nothing has arrived.
    pub(super) fn next_order(&self) -> Option<NextOrder> {
        let mut protocol = self.lock();
        match protocol.take_order(|order| !matches!(order, ToMember::Send(_))) {
            Some(order) => Some(NextOrder::Order(order)),
            None => (protocol.ended().is_some() || protocol.has_next()).then_some(NextOrder::None),
        }
    }

    /// The next group that the worker is told to form, if there is one.
    pub(super) fn take_group(&self) -> Option<Group> {
        match self.lock().take_order(|order| matches!(order, ToMember::Form(_)))? {
            ToMember::Form(group) => Some(group),
            _ => None,
        }
    }

    /// Waits until the newest model is asked for. `None` if the session ends before.
    pub(super) fn wait_for_request(&self) -> Option<Version> {
        let mut protocol = self.lock();
        while protocol.ended().is_none() {
            if let Some(ToMember::Send(version)) = protocol.take_order(|order| matches!(order, ToMember::Send(_))) {
                return Some(version);
            }
            protocol = self.changed.wait(protocol).unwrap_or_else(PoisonError::into_inner);
        }
        None
    }

    /// The server's answer about the running task, if it has arrived: whether to continue.
    pub(super) fn take_answer(&self) -> Option<bool> {
        self.lock().take_answer()
    }

    /// The newest model that has arrived.
    pub(super) fn last_model(&self) -> Option<(Version, TaskModel)> {
        self.lock().last_model()
    }

    /// Whether the session has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.lock().ended().is_some()
    }

    /// Waits for the end of the session and returns its reason.
    pub(super) fn wait_for_end(&self) -> SessionEnd {
        let mut protocol = self.lock();
        loop {
            if let Some(end) = protocol.ended() {
                return end.clone();
            }
            protocol = self.changed.wait(protocol).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Sleeps until the time is over, the running task is cancelled or its result is collected. Returns `true` in the
    /// first case only.
    pub(super) fn sleep(&self, duration: Duration) -> bool {
        let Some(until) = Instant::now().checked_add(duration) else { return true };
        let mut protocol = self.lock();
        while !protocol.is_cancelled() && !protocol.is_collected() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            protocol = self.changed.wait_timeout(protocol, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        false
    }

    /// Whether the server has asked for the result of the running task.
    pub(super) fn is_collected(&self) -> bool {
        self.lock().is_collected()
    }

    /// Whether the result of the running task is still needed.
    pub(super) fn result_status(&self) -> ResultStatus {
        self.lock().result_status()
    }

    /// Notes that the running task is done.
    pub(super) fn finish(&self) {
        self.lock().finish_task();
    }
}
