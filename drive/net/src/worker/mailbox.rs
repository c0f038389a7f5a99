//! What a worker has been told and not done yet: filled by the thread that reads, emptied by the one that computes.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use paceline_core::{Assignment, Version};

use crate::region::Region;

/// A task to do.
#[derive(Debug, Clone)]
pub(super) struct Work {
    pub(super) assignment: Assignment,
    /// The model to use, once it is there: shared, or received.
    pub(super) parameters: Option<Arc<Region>>,
    /// Where the gradient goes, if it is shared; one task at a time writes it.
    pub(super) gradient: Option<Arc<Mutex<Region>>>,
}

impl Work {
    fn number(&self) -> u64 {
        self.assignment.task.number
    }
}

/// How a connection ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum End {
    /// The run is over.
    Bye(String),
    /// The server wants no more of this worker.
    Refused(String),
    /// The connection is gone.
    Lost(String),
}

/// Whether the result of the present task is still of use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    /// It is awaited.
    Wanted,
    /// Newer work waits: the result is late.
    Late,
    /// It was called off.
    None,
}

#[derive(Debug, Default)]
struct State {
    running: Option<Assignment>,
    called_off: bool,
    pending: VecDeque<Work>,
    model: Option<(Version, Arc<Region>)>,
    end: Option<End>,
}

/// The mailbox.
#[derive(Debug, Default)]
pub(super) struct Mailbox {
    state: Mutex<State>,
    changed: Condvar,
}

impl Mailbox {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // --- what the reader tells ---

    /// Takes work in. Everything else, but `after`, is called off: returns the tasks that will not even begin.
    pub(super) fn assign(&self, mut work: Work, after: Option<u64>) -> Vec<u64> {
        let mut state = self.lock();
        if let Some((version, model)) = &state.model
            && *version == work.assignment.version
        {
            work.parameters.get_or_insert_with(|| model.clone());
        }
        if state.running.is_some_and(|running| Some(running.task.number) != after) {
            state.called_off = true;
        }
        let dropped = take_pending(&mut state, |number| Some(number) != after);
        state.pending.push_back(work);
        self.changed.notify_all();
        dropped
    }

    /// Calls a task off. Returns it if it will not even begin.
    pub(super) fn interrupt(&self, number: u64) -> Vec<u64> {
        let mut state = self.lock();
        if state.running.is_some_and(|running| running.task.number == number) {
            state.called_off = true;
        }
        self.changed.notify_all();
        take_pending(&mut state, |pending| pending == number)
    }

    /// A model has arrived, for the tasks that wait for it and those that will come.
    pub(super) fn model(&self, version: Version, parameters: Arc<Region>) {
        let mut state = self.lock();
        for work in state.pending.iter_mut().filter(|work| work.assignment.version == version) {
            work.parameters.get_or_insert_with(|| parameters.clone());
        }
        state.model = Some((version, parameters));
        self.changed.notify_all();
    }

    /// Nothing more will come.
    pub(super) fn end(&self, end: End) {
        let mut state = self.lock();
        state.end.get_or_insert(end);
        state.called_off = true;
        self.changed.notify_all();
    }

    // --- what the computing thread asks ---

    /// Waits for the next task and its parameters, and begins it.
    pub(super) fn begin(&self) -> Result<(Work, Arc<Region>), End> {
        let mut state = self.lock();
        loop {
            if let Some(end) = &state.end {
                return Err(end.clone());
            }
            if let Some(parameters) = state.pending.front().and_then(|work| work.parameters.clone())
                && let Some(work) = state.pending.pop_front()
            {
                state.running = Some(work.assignment);
                state.called_off = false;
                return Ok((work, parameters));
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits until nothing more will come, and says why.
    pub(super) fn wait_for_end(&self) -> End {
        let mut state = self.lock();
        loop {
            if let Some(end) = &state.end {
                return end.clone();
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Sleeps so long, or until the present task is called off.
    pub(super) fn sleep(&self, pause: Duration) {
        let Some(until) = Instant::now().checked_add(pause) else { return };
        let mut state = self.lock();
        while !state.called_off {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// What the present task's result is good for now.
    pub(super) fn usefulness(&self) -> Use {
        let state = self.lock();
        let newer = |work: &Work| state.running.is_some_and(|running| work.assignment.version > running.version);
        if state.called_off {
            Use::None
        } else if state.pending.iter().any(newer) {
            Use::Late
        } else {
            Use::Wanted
        }
    }

    /// The present task is done with.
    pub(super) fn finish(&self) {
        self.lock().running = None;
    }
}

fn take_pending(state: &mut State, called_off: impl Fn(u64) -> bool) -> Vec<u64> {
    let mut dropped = Vec::new();
    state.pending.retain(|work| {
        let off = called_off(work.number());
        if off {
            dropped.push(work.number());
        }
        !off
    });
    dropped
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_core::{TaskId, WorkerId};

    fn work(number: u64, version: u64) -> Work {
        let task = TaskId { worker: WorkerId(0), number };
        let work = paceline_core::Work::Gradient;
        let assignment = Assignment { task, version: Version(version), work, samples: 1, offset: 0, queued: false };
        Work { assignment, parameters: None, gradient: None }
    }

    fn model(mailbox: &Mailbox, version: u64) {
        mailbox.model(Version(version), Arc::new(Region::private(1).unwrap()));
    }

    fn begin(mailbox: &Mailbox) -> u64 {
        mailbox.begin().unwrap().0.assignment.task.number
    }

    #[test]
    fn newer_work_in_the_queue_makes_the_present_late_and_replaces_what_was_queued() {
        let mailbox = Mailbox::default();
        assert!(mailbox.assign(work(0, 0), None).is_empty());
        model(&mailbox, 0);
        assert_eq!(begin(&mailbox), 0);
        assert_eq!(mailbox.usefulness(), Use::Wanted);
        assert!(mailbox.assign(work(1, 1), Some(0)).is_empty());
        assert_eq!(mailbox.usefulness(), Use::Late);
        assert_eq!(mailbox.assign(work(2, 2), Some(0)), [1]);
        mailbox.finish();
        model(&mailbox, 2);
        assert_eq!(begin(&mailbox), 2);
    }

    #[test]
    fn a_task_keeps_the_model_that_came_for_it() {
        let mailbox = Mailbox::default();
        mailbox.assign(work(0, 0), None);
        model(&mailbox, 0);
        mailbox.assign(work(1, 1), Some(0));
        model(&mailbox, 1);
        assert_eq!(begin(&mailbox), 0);
        mailbox.finish();
        assert_eq!(begin(&mailbox), 1);
        mailbox.assign(work(2, 1), Some(1));
        mailbox.finish();
        assert_eq!(begin(&mailbox), 2, "the same model serves again");
    }

    #[test]
    fn a_replaced_task_that_has_begun_is_called_off() {
        let mailbox = Mailbox::default();
        model(&mailbox, 1);
        mailbox.assign(work(1, 1), Some(0));
        assert_eq!(begin(&mailbox), 1);
        // The server had not heard yet that task 0 was done.
        assert!(mailbox.assign(work(2, 2), Some(0)).is_empty());
        assert_eq!(mailbox.usefulness(), Use::None);
    }

    #[test]
    fn interruptions_end_the_sleep_and_unbegun_tasks_alike() {
        let mailbox = Mailbox::default();
        model(&mailbox, 0);
        mailbox.assign(work(0, 0), None);
        assert_eq!(begin(&mailbox), 0);
        mailbox.assign(work(1, 0), Some(0));
        assert_eq!(mailbox.interrupt(1), [1]);
        assert_eq!(mailbox.usefulness(), Use::Wanted);
        assert!(mailbox.interrupt(0).is_empty());
        mailbox.sleep(Duration::MAX);
        mailbox.sleep(Duration::from_secs(1_000_000));
        assert_eq!(mailbox.usefulness(), Use::None);
        mailbox.end(End::Bye("done".into()));
        mailbox.end(End::Lost("closed".into()));
        assert_eq!(mailbox.begin().unwrap_err(), End::Bye("done".into()));
    }
}
