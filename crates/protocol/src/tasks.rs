//! The tasks that a worker has been sent, as the server sees them.

use std::collections::{BTreeMap, VecDeque};

use paceline_core::{Assignment, LocalLength, Time};
use thiserror::Error;

use crate::message::RunPosition;

/// Open tasks that a worker may have: one that runs, one that is queued, and a cancelled one whose cancellation has not
/// arrived yet. Further assignments are held back; a newer one replaces them.
const MAX_OPEN_TASKS: usize = 3;

/// A message that breaks the protocol.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(crate) enum ProtocolViolation {
    #[error("message about task {0}, which was never assigned or is already done")]
    UnknownTask(u64),
    #[error("task {0} was dropped, but it was not cancelled")]
    NotCancelled(u64),
    #[error("task {0} was reported before the task ahead of it")]
    OutOfOrder(u64),
}

/// A task that was sent to the worker and has no report yet.
#[derive(Debug, Clone, Copy)]
struct OpenTask {
    cancelled: bool,
    assignment: Assignment,
    sent: Time,
    /// The local iterations that it has asked about.
    asked: u32,
}

/// What a report means to the server.
#[derive(Debug)]
pub(crate) enum ReportOutcome {
    /// The report of an active task.
    Wanted {
        /// When the task was sent.
        sent: Time,
        /// Whether newer work is queued, so that the worker may have withheld the update.
        late: bool,
        /// How many local iterations were assigned; `None` for a gradient.
        length: Option<LocalLength>,
        /// The samples that were assigned, per iteration, and the iterations.
        samples: u32,
        iterations: u32,
    },
    /// The task was cancelled while the report was on its way.
    Cancelled,
}

/// How far a cancelled task had come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cancellation {
    /// It was sent: the worker will report or drop it.
    Sent,
    /// It was held back, and is forgotten.
    NotSent,
}

/// An assignment that can be sent now.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReadyTask {
    pub(crate) assignment: Assignment,
    /// The task that the worker finishes first.
    pub(crate) after: Option<u64>,
    pub(crate) run: RunPosition,
}

/// The tasks of one worker.
#[derive(Debug, Default)]
pub(crate) struct OpenTasks {
    open: BTreeMap<u64, OpenTask>,
    /// Assignments to send when an open task is done, with how far the run was.
    held_back: VecDeque<(Assignment, RunPosition)>,
}

impl OpenTasks {
    /// Adds an assignment. Returns the tasks that it replaces, which are cancelled.
    pub(crate) fn assign(&mut self, assignment: Assignment, run: RunPosition) -> Vec<(u64, Cancellation)> {
        let running = if assignment.queued { self.running() } else { None };
        let replaced: Vec<u64> = self.active().filter(|&number| Some(number) != running).collect();
        let cancelled = replaced.into_iter().map(|number| (number, self.cancel(number))).collect();
        self.held_back.push_back((assignment, run));
        cancelled
    }

    /// The numbers of the tasks that are not cancelled, oldest first.
    fn active(&self) -> impl Iterator<Item = u64> + '_ {
        let open = self.open.iter().filter(|(_, task)| !task.cancelled).map(|(&number, _)| number);
        open.chain(self.held_back.iter().map(|(assignment, _)| assignment.task.number))
    }

    fn running(&self) -> Option<u64> {
        self.active().next()
    }

    /// Cancels a task. If it was sent, the worker learns of it with its next assignment at the latest.
    pub(crate) fn cancel(&mut self, number: u64) -> Cancellation {
        self.held_back.retain(|(assignment, _)| assignment.task.number != number);
        match self.open.get_mut(&number) {
            Some(task) => {
                task.cancelled = true;
                Cancellation::Sent
            }
            None => Cancellation::NotSent,
        }
    }

    /// Takes the next assignment to send, as far as the limit of open tasks allows.
    pub(crate) fn send_next(&mut self, now: Time) -> Option<ReadyTask> {
        if self.open.len() >= MAX_OPEN_TASKS {
            return None;
        }
        let (assignment, run) = self.held_back.pop_front()?;
        let number = assignment.task.number;
        let after = self.running().filter(|&running| running < number);
        self.open.insert(number, OpenTask { cancelled: false, assignment, sent: now, asked: 0 });
        Some(ReadyTask { assignment, after, run })
    }

    /// The worker reports that a task is done.
    pub(crate) fn reported(&mut self, number: u64) -> Result<ReportOutcome, ProtocolViolation> {
        let running = self.running();
        match self.open.remove(&number).ok_or(ProtocolViolation::UnknownTask(number))? {
            OpenTask { cancelled: true, .. } => Ok(ReportOutcome::Cancelled),
            OpenTask { sent, assignment, asked, .. } if running == Some(number) => {
                let length = assignment.work.length();
                let iterations = match length {
                    None => 1,
                    Some(LocalLength::Iterations(count)) => count,
                    Some(LocalLength::AskAndWait | LocalLength::AskAndContinue) => asked,
                };
                let (samples, late) = (assignment.samples, self.running().is_some());
                Ok(ReportOutcome::Wanted { sent, late, length, samples, iterations })
            }
            OpenTask { .. } => Err(ProtocolViolation::OutOfOrder(number)),
        }
    }

    /// The worker asks about a task after some local iterations. Returns when it was sent; `None` if it is cancelled.
    pub(crate) fn asked(&mut self, number: u64, iterations: u32) -> Result<Option<Time>, ProtocolViolation> {
        let task = self.open.get_mut(&number).ok_or(ProtocolViolation::UnknownTask(number))?;
        task.asked = iterations;
        Ok((!task.cancelled).then_some(task.sent))
    }

    /// The worker has dropped a task.
    pub(crate) fn dropped(&mut self, number: u64) -> Result<(), ProtocolViolation> {
        let task = self.open.get(&number).ok_or(ProtocolViolation::UnknownTask(number))?;
        if !task.cancelled {
            return Err(ProtocolViolation::NotCancelled(number));
        }
        self.open.remove(&number);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_core::{TaskId, Version, Work, WorkerId};

    fn task(number: u64, queued: bool) -> Assignment {
        let task = TaskId { worker: WorkerId(0), number };
        Assignment { task, version: Version(number), work: Work::Gradient, samples: 1, offset: 0, queued }
    }

    fn sent(tasks: &mut OpenTasks) -> Vec<(u64, Option<u64>)> {
        let next = || tasks.send_next(Time::START);
        std::iter::from_fn(next).map(|ready| (ready.assignment.task.number, ready.after)).collect()
    }

    #[test]
    fn newer_work_replaces_queued_work_and_open_tasks_are_limited() {
        let mut tasks = OpenTasks::default();
        assert!(tasks.assign(task(0, false), RunPosition::default()).is_empty());
        assert_eq!(sent(&mut tasks), [(0, None)]);
        for number in 1..5 {
            let replaced = tasks.assign(task(number, true), RunPosition::default());
            let how = if number == 4 { Cancellation::NotSent } else { Cancellation::Sent };
            assert_eq!(replaced, if number == 1 { vec![] } else { vec![(number - 1, how)] });
            assert_eq!(sent(&mut tasks), if number < 3 { vec![(number, Some(0))] } else { vec![] });
        }
        assert_eq!(tasks.held_back.len(), 1, "task 4 replaced task 3, which was held back");
        tasks.dropped(1).unwrap();
        assert_eq!(sent(&mut tasks), [(4, Some(0))]);
        assert!(matches!(tasks.reported(0), Ok(ReportOutcome::Wanted { late: true, .. })));
        assert!(matches!(tasks.reported(2), Ok(ReportOutcome::Cancelled)));
        assert!(matches!(tasks.reported(4), Ok(ReportOutcome::Wanted { late: false, .. })));
    }

    #[test]
    fn protocol_violations_are_distinguished() {
        let mut tasks = OpenTasks::default();
        tasks.assign(task(0, false), RunPosition::default());
        tasks.assign(task(1, true), RunPosition::default());
        sent(&mut tasks);
        assert_eq!(tasks.reported(7).unwrap_err(), ProtocolViolation::UnknownTask(7));
        assert_eq!(tasks.dropped(0).unwrap_err(), ProtocolViolation::NotCancelled(0));
        assert_eq!(tasks.cancel(0), Cancellation::Sent);
        assert_eq!(tasks.asked(0, 1), Ok(None));
        assert!(matches!(tasks.reported(0), Ok(ReportOutcome::Cancelled)), "the report and the interruption crossed");
        assert_eq!(tasks.reported(0).unwrap_err(), ProtocolViolation::UnknownTask(0));
        tasks.assign(task(2, true), RunPosition::default());
        sent(&mut tasks);
        assert_eq!(tasks.reported(2).unwrap_err(), ProtocolViolation::OutOfOrder(2));
    }
}
