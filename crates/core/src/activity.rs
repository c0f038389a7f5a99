//! Who is doing what: a fold over the events and decisions of a run.
//!
//! Timelines and tables are views on it, so that all of them agree with the ledger and with each other. The metrics of a run
//! are on the hot path of a simulation and keep less; a test of the simulator compares them with it.

use serde::{Deserialize, Serialize};

use crate::{Action, Assignment, Decision, Event, LocalLength, Reason, Time, Until, WorkerId};

/// A task that a worker is computing.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct TaskProgress {
    /// The task.
    pub assignment: Assignment,
    /// Why it was assigned.
    pub reason: Reason,
    /// When the worker was free to start it.
    pub since: Time,
    /// Local iterations done, as of the last question.
    pub iterations: u32,
    /// The worker waits for an answer.
    pub awaits_answer: bool,
    /// The update was requested.
    pub collected: bool,
}

impl TaskProgress {
    fn new(assignment: Assignment, reason: Reason, since: Time) -> Self {
        TaskProgress { assignment, reason, since, iterations: 0, awaits_answer: false, collected: false }
    }

    /// How many iterations the update of this task consists of when it is reported.
    pub fn reported_iterations(&self) -> u32 {
        match self.assignment.work.length() {
            None => 1,
            Some(LocalLength::Iterations(count)) => count,
            Some(LocalLength::AskAndWait | LocalLength::AskAndContinue) => self.iterations,
        }
    }
}

/// What a worker without a task waits for.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Idleness {
    /// Since when it has no task.
    pub since: Time,
    /// What it waits for, and why; `None` only within the turn in which it became idle.
    pub hold: Option<(Until, Reason)>,
}

/// What one worker does.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum WorkerActivity {
    /// It has not joined, or has left.
    Absent,
    /// It has no task.
    Idle(Idleness),
    /// It computes.
    Busy {
        /// The present task.
        running: TaskProgress,
        /// The next task, and why it was assigned.
        queued: Option<(Assignment, Reason)>,
    },
}

impl WorkerActivity {
    /// The present task.
    pub fn running(&self) -> Option<&TaskProgress> {
        if let WorkerActivity::Busy { running, .. } = self { Some(running) } else { None }
    }

    /// The task that is queued behind the present one.
    pub fn queued(&self) -> Option<&Assignment> {
        if let WorkerActivity::Busy { queued: Some((assignment, _)), .. } = self { Some(assignment) } else { None }
    }

    /// Since when the worker has no task.
    pub fn idle_since(&self) -> Option<Time> {
        if let WorkerActivity::Idle(idleness) = self { Some(idleness.since) } else { None }
    }
}

/// A change of what a worker does. Changes of one turn come in the order in which they happen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ActivityChange<'a> {
    /// The worker joined and has no task.
    Joined(WorkerId),
    /// The worker left; with what it did until then.
    Left(WorkerId, &'a WorkerActivity),
    /// The task was reported.
    Reported(&'a TaskProgress),
    /// The task was interrupted, for this reason.
    Interrupted(&'a TaskProgress, Reason),
    /// The task starts.
    Started {
        /// The task.
        task: &'a TaskProgress,
        /// Since when its worker was idle; `None` if the task was queued behind another one.
        idle_since: Option<Time>,
    },
}

/// What every worker does.
///
/// Pass every event with its decisions to [`observe`](WorkerActivities::observe).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkerActivities {
    workers: Vec<WorkerActivity>,
}

impl WorkerActivities {
    /// What the worker does.
    pub fn of(&self, worker: WorkerId) -> WorkerActivity {
        self.workers.get(worker.index()).copied().unwrap_or(WorkerActivity::Absent)
    }

    /// The workers that have joined, by rank, and what they do.
    pub fn present(&self) -> impl Iterator<Item = (WorkerId, &WorkerActivity)> {
        let all = (0..).map(WorkerId).zip(&self.workers);
        all.filter(|(_, activity)| !matches!(activity, WorkerActivity::Absent))
    }

    /// Takes in an event and the decisions that followed, and calls `on_change` for every change.
    pub fn observe(
        &mut self,
        now: Time,
        event: &Event,
        decisions: &[Decision],
        mut on_change: impl FnMut(ActivityChange<'_>),
    ) {
        match *event {
            Event::Joined { worker } => {
                *self.worker_mut(worker) = WorkerActivity::Idle(Idleness { since: now, hold: None });
                on_change(ActivityChange::Joined(worker));
            }
            Event::Left { worker } => {
                let before = std::mem::replace(self.worker_mut(worker), WorkerActivity::Absent);
                on_change(ActivityChange::Left(worker, &before));
            }
            Event::Reported { task, .. } => {
                self.end_task(now, task.worker, |task| ActivityChange::Reported(task), &mut on_change);
            }
            Event::Asked { task, iterations, .. } => {
                if let WorkerActivity::Busy { running, .. } = self.worker_mut(task.worker) {
                    running.iterations = iterations;
                    running.awaits_answer = running.assignment.work.length() == Some(LocalLength::AskAndWait);
                }
            }
            Event::Committed { .. }
            | Event::Broken { .. }
            | Event::Late { .. }
            | Event::Timer
            | Event::Planned { .. } => {}
        }
        for Decision { action, reason } in decisions {
            self.carry_out(now, action, *reason, &mut on_change);
        }
    }

    fn carry_out(
        &mut self,
        now: Time,
        action: &Action,
        reason: Reason,
        on_change: &mut impl FnMut(ActivityChange<'_>),
    ) {
        match action {
            Action::Assign(assignment) => match self.worker_mut(assignment.task.worker) {
                WorkerActivity::Busy { queued, .. } => *queued = Some((*assignment, reason)),
                activity => {
                    let idle_since = activity.idle_since();
                    let running = TaskProgress::new(*assignment, reason, now);
                    *activity = WorkerActivity::Busy { running, queued: None };
                    activity
                        .running()
                        .into_iter()
                        .for_each(|task| on_change(ActivityChange::Started { task, idle_since }));
                }
            },
            Action::Interrupt { task } => {
                self.end_task(now, task.worker, |task| ActivityChange::Interrupted(task, reason), on_change);
            }
            Action::Continue { task } | Action::Collect { task } => {
                if let WorkerActivity::Busy { running, .. } = self.worker_mut(task.worker) {
                    running.awaits_answer = false;
                    running.collected |= matches!(action, Action::Collect { .. });
                }
            }
            Action::Hold { worker, until } => {
                if let WorkerActivity::Idle(idleness) = self.worker_mut(*worker) {
                    idleness.hold = Some((*until, reason));
                }
            }
            Action::Commit { .. } | Action::Discard { .. } | Action::Wake { .. } => {}
        }
    }

    /// The worker's present task ends. The queued one starts, or the worker becomes idle.
    fn end_task(
        &mut self,
        now: Time,
        worker: WorkerId,
        change: impl FnOnce(&TaskProgress) -> ActivityChange<'_>,
        on_change: &mut impl FnMut(ActivityChange<'_>),
    ) {
        let activity = self.worker_mut(worker);
        let WorkerActivity::Busy { running, queued } = activity else { return };
        on_change(change(running));
        if let Some((assignment, reason)) = queued.take() {
            *running = TaskProgress::new(assignment, reason, now);
            on_change(ActivityChange::Started { task: running, idle_since: None });
        } else {
            *activity = WorkerActivity::Idle(Idleness { since: now, hold: None });
        }
    }

    #[inline]
    fn worker_mut(&mut self, worker: WorkerId) -> &mut WorkerActivity {
        if worker.index() >= self.workers.len() {
            self.workers.resize(worker.index() + 1, WorkerActivity::Absent);
        }
        &mut self.workers[worker.index()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Report, TaskId, Version, Work};

    const WORKER: WorkerId = WorkerId(1);

    fn assigned(number: u64, queued: bool) -> Decision {
        let task = TaskId { worker: WORKER, number };
        let assignment = Assignment { task, version: Version(0), work: Work::Gradient, samples: 4, offset: 0, queued };
        Decision { action: Action::Assign(assignment), reason: Reason::Free }
    }

    fn numbered(change: ActivityChange<'_>) -> (&'static str, u64) {
        match change {
            ActivityChange::Joined(_) => ("joined", 0),
            ActivityChange::Left(_, before) => ("left", before.idle_since().map_or(0, |since| since.0)),
            ActivityChange::Reported(task) => ("reported", task.assignment.task.number),
            ActivityChange::Interrupted(task, _) => ("interrupted", task.assignment.task.number),
            ActivityChange::Started { task, .. } => ("started", task.assignment.task.number),
        }
    }

    #[test]
    fn a_queued_task_starts_when_the_one_before_it_ends_however_it_ends() {
        let mut activities = WorkerActivities::default();
        let mut changes = Vec::new();
        let mut observe = |at, event: Event, decisions: &[Decision]| {
            activities.observe(Time(at), &event, decisions, |change| changes.push(numbered(change)));
            activities.of(WORKER)
        };
        let task = |number| TaskId { worker: WORKER, number };
        let interrupt =
            |number| Decision { action: Action::Interrupt { task: task(number) }, reason: Reason::Contributed };
        let hold =
            Decision { action: Action::Hold { worker: WORKER, until: Until::Commit }, reason: Reason::Contributed };

        let activity = observe(1, Event::Joined { worker: WORKER }, &[assigned(0, false), assigned(1, true)]);
        assert_eq!(activity.queued().map(|queued| queued.task.number), Some(1));
        let activity = observe(3, Event::Timer, &[interrupt(0)]);
        let running = *activity.running().unwrap();
        assert_eq!((running.assignment.task.number, running.since, activity.queued()), (1, Time(3), None));
        observe(5, Event::Timer, &[assigned(2, true), assigned(3, true)]);
        let activity = observe(7, Event::Reported { task: task(1), report: Report::default() }, &[]);
        assert_eq!(activity.running().unwrap().assignment.task.number, 3, "it replaced the one queued before");
        let activity = observe(9, Event::Timer, &[interrupt(3), hold]);
        let hold = Some((Until::Commit, Reason::Contributed));
        assert_eq!(activity, WorkerActivity::Idle(Idleness { since: Time(9), hold }));
        assert_eq!(observe(9, Event::Left { worker: WORKER }, &[]), WorkerActivity::Absent);
        let expected = [
            &[("joined", 0), ("started", 0), ("interrupted", 0), ("started", 1)][..],
            &[("reported", 1), ("started", 3), ("interrupted", 3), ("left", 9)],
        ];
        assert_eq!(changes, expected.concat());
        assert_eq!(activities.present().count(), 0);
    }
}
