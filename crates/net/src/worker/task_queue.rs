//! The tasks of a worker: the reading thread adds them, the computing thread runs them.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use paceline_core::{Assignment, Version};

use crate::message::ReplicaSettings;
use crate::shared_memory::Region;

/// A task that is queued or running.
#[derive(Debug, Clone)]
pub(super) struct QueuedTask {
    pub(super) assignment: Assignment,
    pub(super) settings: ReplicaSettings,
    /// The model to use, once it is available: shared, or received.
    pub(super) parameters: Option<Arc<Region>>,
    /// The shared buffer for the gradient, if memory is shared. One task at a time writes it.
    pub(super) gradient: Option<Arc<Mutex<Region>>>,
}

impl QueuedTask {
    fn number(&self) -> u64 {
        self.assignment.task.number
    }
}

/// How a session with the server ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SessionEnd {
    /// The run is over.
    Finished(String),
    /// The server refused or dismissed this worker for good.
    Refused(String),
    /// The server refused or dismissed this worker for now; it may rejoin.
    RetryLater(String),
    /// The connection is lost.
    Lost(String),
}

impl From<io::Error> for SessionEnd {
    fn from(error: io::Error) -> Self {
        SessionEnd::Lost(error.to_string())
    }
}

/// Whether the result of the running task is still needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ResultStatus {
    /// The server waits for the result.
    Wanted,
    /// Newer work is queued: the result is late.
    Late,
    /// The task was cancelled.
    Cancelled,
}

/// The server's reply to a question after a local iteration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IterationReply {
    /// Do one more local iteration.
    Continue,
    /// Send the result so far.
    Collect,
}

#[derive(Debug, Default)]
struct TaskQueueState {
    running: Option<Assignment>,
    cancelled: bool,
    /// The server's reply about the running task.
    reply: Option<IterationReply>,
    pending: VecDeque<QueuedTask>,
    model: Option<(Version, Arc<Region>)>,
    end: Option<SessionEnd>,
}

/// The tasks of a worker, shared by its reading and its computing thread.
#[derive(Debug, Default)]
pub(super) struct TaskQueue {
    state: Mutex<TaskQueueState>,
    changed: Condvar,
}

impl TaskQueue {
    fn lock(&self) -> MutexGuard<'_, TaskQueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // --- for the reading thread ---

    /// Adds a task and cancels all others except `after`. Returns the tasks that will never start.
    pub(super) fn assign(&self, mut task: QueuedTask, after: Option<u64>) -> Vec<u64> {
        let mut state = self.lock();
        if let Some((version, model)) = &state.model
            && *version == task.assignment.version
        {
            task.parameters.get_or_insert_with(|| model.clone());
        }
        if state.running.is_some_and(|running| Some(running.task.number) != after) {
            state.cancelled = true;
        }
        let dropped = remove_pending(&mut state, |number| Some(number) != after);
        state.pending.push_back(task);
        self.changed.notify_all();
        dropped
    }

    /// Cancels a task. Returns its number if it will never start.
    pub(super) fn interrupt(&self, number: u64) -> Vec<u64> {
        let mut state = self.lock();
        if state.running.is_some_and(|running| running.task.number == number) {
            state.cancelled = true;
        }
        self.changed.notify_all();
        remove_pending(&mut state, |pending| pending == number)
    }

    /// Sets the server's reply about a task; ignored unless that task is running.
    pub(super) fn reply(&self, number: u64, reply: IterationReply) {
        let mut state = self.lock();
        if state.running.is_some_and(|running| running.task.number == number) {
            state.reply = Some(reply);
            self.changed.notify_all();
        }
    }

    /// Adds a model, for queued tasks that need it and for later ones.
    pub(super) fn add_model(&self, version: Version, parameters: Arc<Region>) {
        let mut state = self.lock();
        for task in state.pending.iter_mut().filter(|task| task.assignment.version == version) {
            task.parameters.get_or_insert_with(|| parameters.clone());
        }
        state.model = Some((version, parameters));
        self.changed.notify_all();
    }

    /// Ends the session; only the first reason counts.
    pub(super) fn end(&self, end: SessionEnd) {
        let mut state = self.lock();
        state.end.get_or_insert(end);
        state.cancelled = true;
        self.changed.notify_all();
    }

    // --- for the computing thread ---

    /// Waits for the next task and its parameters, and starts it.
    pub(super) fn start_next(&self) -> Result<(QueuedTask, Arc<Region>), SessionEnd> {
        let mut state = self.lock();
        loop {
            if let Some(end) = &state.end {
                return Err(end.clone());
            }
            if let Some(parameters) = state.pending.front().and_then(|task| task.parameters.clone())
                && let Some(task) = state.pending.pop_front()
            {
                state.running = Some(task.assignment);
                state.cancelled = false;
                state.reply = None;
                return Ok((task, parameters));
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits for the end of the session and returns its reason.
    pub(super) fn wait_for_end(&self) -> SessionEnd {
        let mut state = self.lock();
        loop {
            if let Some(end) = &state.end {
                return end.clone();
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Sleeps until the time is over, the running task is cancelled or its result is collected. Returns `true` in the
    /// first case only.
    pub(super) fn sleep(&self, duration: Duration) -> bool {
        let Some(until) = Instant::now().checked_add(duration) else { return true };
        let mut state = self.lock();
        while !state.cancelled && state.reply != Some(IterationReply::Collect) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        false
    }

    /// Waits for the server's reply about the running task. Returns whether to continue.
    pub(super) fn wait_for_reply(&self) -> bool {
        let mut state = self.lock();
        while !state.cancelled && state.reply.is_none() {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        !state.cancelled && state.reply.take_if(|reply| *reply == IterationReply::Continue).is_some()
    }

    /// Whether the server has asked for the result of the running task.
    pub(super) fn is_collected(&self) -> bool {
        self.lock().reply == Some(IterationReply::Collect)
    }

    /// Whether the result of the running task is still needed.
    pub(super) fn result_status(&self) -> ResultStatus {
        let state = self.lock();
        let newer = |task: &QueuedTask| state.running.is_some_and(|running| task.assignment.version > running.version);
        if state.cancelled {
            ResultStatus::Cancelled
        } else if state.pending.iter().any(newer) {
            ResultStatus::Late
        } else {
            ResultStatus::Wanted
        }
    }

    /// Notes that the running task is done.
    pub(super) fn finish(&self) {
        self.lock().running = None;
    }
}

fn remove_pending(state: &mut TaskQueueState, cancelled: impl Fn(u64) -> bool) -> Vec<u64> {
    let mut dropped = Vec::new();
    state.pending.retain(|task| {
        let is_cancelled = cancelled(task.number());
        if is_cancelled {
            dropped.push(task.number());
        }
        !is_cancelled
    });
    dropped
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_core::{TaskId, WorkerId};

    fn task(number: u64, version: u64) -> QueuedTask {
        let task = TaskId { worker: WorkerId(0), number };
        let work = paceline_core::Work::Gradient;
        let assignment = Assignment { task, version: Version(version), work, samples: 1, offset: 0, queued: false };
        QueuedTask {
            assignment,
            settings: ReplicaSettings { rate: 0.1, committed: None },
            parameters: None,
            gradient: None,
        }
    }

    fn add_model(task_queue: &TaskQueue, version: u64) {
        task_queue.add_model(Version(version), Arc::new(Region::private(1).unwrap()));
    }

    fn start_next(task_queue: &TaskQueue) -> u64 {
        task_queue.start_next().unwrap().0.assignment.task.number
    }

    #[test]
    fn newer_work_makes_the_running_task_late_and_replaces_queued_tasks() {
        let task_queue = TaskQueue::default();
        assert!(task_queue.assign(task(0, 0), None).is_empty());
        add_model(&task_queue, 0);
        assert_eq!(start_next(&task_queue), 0);
        assert_eq!(task_queue.result_status(), ResultStatus::Wanted);
        assert!(task_queue.assign(task(1, 1), Some(0)).is_empty());
        assert_eq!(task_queue.result_status(), ResultStatus::Late);
        assert_eq!(task_queue.assign(task(2, 2), Some(0)), [1]);
        task_queue.finish();
        add_model(&task_queue, 2);
        assert_eq!(start_next(&task_queue), 2);
    }

    #[test]
    fn a_task_keeps_the_model_that_arrived_for_it() {
        let task_queue = TaskQueue::default();
        task_queue.assign(task(0, 0), None);
        add_model(&task_queue, 0);
        task_queue.assign(task(1, 1), Some(0));
        add_model(&task_queue, 1);
        assert_eq!(start_next(&task_queue), 0);
        task_queue.finish();
        assert_eq!(start_next(&task_queue), 1);
        task_queue.assign(task(2, 1), Some(1));
        task_queue.finish();
        assert_eq!(start_next(&task_queue), 2, "the model is reused");
    }

    #[test]
    fn a_running_task_that_is_replaced_is_cancelled() {
        let task_queue = TaskQueue::default();
        add_model(&task_queue, 1);
        task_queue.assign(task(1, 1), Some(0));
        assert_eq!(start_next(&task_queue), 1);
        // The server did not know yet that task 0 was done.
        assert!(task_queue.assign(task(2, 2), Some(0)).is_empty());
        assert_eq!(task_queue.result_status(), ResultStatus::Cancelled);
    }

    #[test]
    fn replies_apply_to_the_running_task_only_and_a_collection_ends_its_sleep() {
        let task_queue = TaskQueue::default();
        add_model(&task_queue, 0);
        task_queue.assign(task(4, 0), None);
        assert_eq!(start_next(&task_queue), 4);
        task_queue.reply(3, IterationReply::Collect);
        assert!(task_queue.sleep(Duration::ZERO) && !task_queue.is_collected(), "the reply was for another task");
        task_queue.reply(4, IterationReply::Continue);
        assert!(task_queue.wait_for_reply());
        task_queue.reply(4, IterationReply::Collect);
        assert!(task_queue.is_collected() && !task_queue.wait_for_reply());
        assert!(!task_queue.sleep(Duration::from_secs(1_000_000)));
        task_queue.finish();
        task_queue.assign(task(5, 0), None);
        assert_eq!(start_next(&task_queue), 5);
        assert!(!task_queue.is_collected());
        task_queue.interrupt(5);
        assert!(!task_queue.wait_for_reply());
    }

    #[test]
    fn an_interruption_ends_a_sleep_and_removes_queued_tasks() {
        let task_queue = TaskQueue::default();
        add_model(&task_queue, 0);
        task_queue.assign(task(0, 0), None);
        assert_eq!(start_next(&task_queue), 0);
        task_queue.assign(task(1, 0), Some(0));
        assert_eq!(task_queue.interrupt(1), [1]);
        assert_eq!(task_queue.result_status(), ResultStatus::Wanted);
        assert!(task_queue.interrupt(0).is_empty());
        task_queue.sleep(Duration::MAX);
        task_queue.sleep(Duration::from_secs(1_000_000));
        assert_eq!(task_queue.result_status(), ResultStatus::Cancelled);
        task_queue.end(SessionEnd::Finished("done".into()));
        task_queue.end(SessionEnd::Lost("closed".into()));
        assert_eq!(task_queue.start_next().unwrap_err(), SessionEnd::Finished("done".into()));
    }
}
