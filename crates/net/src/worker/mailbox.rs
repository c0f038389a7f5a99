//! What a worker has been told and not done yet: filled by the thread that reads, emptied by the one that computes.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use paceline_core::{Assignment, Version};

use crate::message::Terms;
use crate::region::Region;

/// A task to do.
#[derive(Debug, Clone)]
pub(super) struct Task {
    pub(super) assignment: Assignment,
    pub(super) terms: Terms,
    /// The model to use, once it is there: shared, or received.
    pub(super) parameters: Option<Arc<Region>>,
    /// Where the gradient goes, if it is shared; one task at a time writes it.
    pub(super) gradient: Option<Arc<Mutex<Region>>>,
}

impl Task {
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
    /// The server does not want this worker now; it may come again.
    Later(String),
    /// The connection is gone.
    Lost(String),
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> Self {
        End::Lost(error.to_string())
    }
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

/// The server's answer to a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// One more local iteration.
    Continue,
    /// Send what there is.
    Collect,
}

#[derive(Debug, Default)]
struct State {
    running: Option<Assignment>,
    called_off: bool,
    /// What the server has answered to the present task's question.
    verdict: Option<Verdict>,
    pending: VecDeque<Task>,
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
    pub(super) fn assign(&self, mut task: Task, after: Option<u64>) -> Vec<u64> {
        let mut state = self.lock();
        if let Some((version, model)) = &state.model
            && *version == task.assignment.version
        {
            task.parameters.get_or_insert_with(|| model.clone());
        }
        if state.running.is_some_and(|running| Some(running.task.number) != after) {
            state.called_off = true;
        }
        let dropped = take_pending(&mut state, |number| Some(number) != after);
        state.pending.push_back(task);
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

    /// The server answers a question about a task; one that is done needs no answer.
    pub(super) fn answer(&self, number: u64, verdict: Verdict) {
        let mut state = self.lock();
        if state.running.is_some_and(|running| running.task.number == number) {
            state.verdict = Some(verdict);
            self.changed.notify_all();
        }
    }

    /// A model has arrived, for the tasks that wait for it and those that will come.
    pub(super) fn model(&self, version: Version, parameters: Arc<Region>) {
        let mut state = self.lock();
        for task in state.pending.iter_mut().filter(|task| task.assignment.version == version) {
            task.parameters.get_or_insert_with(|| parameters.clone());
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
    pub(super) fn begin(&self) -> Result<(Task, Arc<Region>), End> {
        let mut state = self.lock();
        loop {
            if let Some(end) = &state.end {
                return Err(end.clone());
            }
            if let Some(parameters) = state.pending.front().and_then(|task| task.parameters.clone())
                && let Some(task) = state.pending.pop_front()
            {
                state.running = Some(task.assignment);
                state.called_off = false;
                state.verdict = None;
                return Ok((task, parameters));
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

    /// Sleeps so long, or until the present task is called off or what there is of it is called for. Says whether
    /// neither happened.
    pub(super) fn sleep(&self, pause: Duration) -> bool {
        let Some(until) = Instant::now().checked_add(pause) else { return true };
        let mut state = self.lock();
        while !state.called_off && state.verdict != Some(Verdict::Collect) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        false
    }

    /// Waits for the answer to a question of the present task. Says whether it is to go on.
    pub(super) fn wait_for_answer(&self) -> bool {
        let mut state = self.lock();
        while !state.called_off && state.verdict.is_none() {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        !state.called_off && state.verdict.take_if(|verdict| *verdict == Verdict::Continue).is_some()
    }

    /// Whether what there is of the present task is called for.
    pub(super) fn is_collected(&self) -> bool {
        self.lock().verdict == Some(Verdict::Collect)
    }

    /// What the present task's result is good for now.
    pub(super) fn usefulness(&self) -> Use {
        let state = self.lock();
        let newer = |task: &Task| state.running.is_some_and(|running| task.assignment.version > running.version);
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
    state.pending.retain(|task| {
        let off = called_off(task.number());
        if off {
            dropped.push(task.number());
        }
        !off
    });
    dropped
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_core::{TaskId, WorkerId};

    fn work(number: u64, version: u64) -> Task {
        let task = TaskId { worker: WorkerId(0), number };
        let work = paceline_core::Work::Gradient;
        let assignment = Assignment { task, version: Version(version), work, samples: 1, offset: 0, queued: false };
        Task { assignment, terms: Terms { rate: 0.1, committed: None }, parameters: None, gradient: None }
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
    fn answers_are_for_the_present_task_and_its_collection_ends_the_sleep() {
        let mailbox = Mailbox::default();
        model(&mailbox, 0);
        mailbox.assign(work(4, 0), None);
        assert_eq!(begin(&mailbox), 4);
        mailbox.answer(3, Verdict::Collect);
        assert!(mailbox.sleep(Duration::ZERO) && !mailbox.is_collected(), "that was for another");
        mailbox.answer(4, Verdict::Continue);
        assert!(mailbox.wait_for_answer());
        mailbox.answer(4, Verdict::Collect);
        assert!(mailbox.is_collected() && !mailbox.wait_for_answer());
        assert!(!mailbox.sleep(Duration::from_secs(1_000_000)));
        mailbox.finish();
        mailbox.assign(work(5, 0), None);
        assert_eq!(begin(&mailbox), 5);
        assert!(!mailbox.is_collected());
        mailbox.interrupt(5);
        assert!(!mailbox.wait_for_answer());
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
