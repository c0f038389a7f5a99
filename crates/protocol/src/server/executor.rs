//! Carrying out what the scheme decides.

use std::collections::BTreeMap;

use paceline_core::{
    Action, Commit, CommitOutcome, Decision, Event, Executor, Lateness, Ledger, Share, TaskId, Time, WorkerId,
};

use super::{ServerHost, SessionId, SessionState};
use crate::message::{TaskSettings, ToWorker};
use crate::tasks::{Cancellation, ReadyTask};

/// Carries out the decisions of the scheme.
pub(super) struct HostExecutor<'a, H> {
    pub(super) now: Time,
    pub(super) sessions: &'a mut BTreeMap<SessionId, SessionState>,
    pub(super) members: &'a BTreeMap<WorkerId, SessionId>,
    pub(super) lateness: &'a mut Lateness,
    pub(super) host: &'a mut H,
}

impl<H: ServerHost> HostExecutor<'_, H> {
    fn session(&mut self, worker: WorkerId) -> Option<(SessionId, &mut SessionState)> {
        let id = *self.members.get(&worker)?;
        self.sessions.get_mut(&id).map(|session| (id, session))
    }

    fn send(&mut self, worker: WorkerId, message: &ToWorker) {
        if let Some(&id) = self.members.get(&worker) {
            self.host.send(id, message);
        }
    }
}

impl<H: ServerHost> Executor for HostExecutor<'_, H> {
    type Error = H::Error;

    fn begin_turn(&mut self, at: Time, event: &Event, decisions: &[Decision]) -> Result<(), H::Error> {
        self.lateness.observe(self.now, event, decisions);
        self.host.begin_turn(at, event, decisions)
    }

    fn commit(&mut self, commit: &Commit, live: usize) -> Result<CommitOutcome, H::Error> {
        for Share { task, .. } in commit.updates.iter() {
            if let Some((_, session)) = self.session(task.worker) {
                session.committed = Some(task.number);
            }
        }
        self.host.commit(commit, live)
    }

    fn carry_out(&mut self, _: Time, action: &Action) -> Result<(), H::Error> {
        match *action {
            Action::Assign(assignment) => {
                let (now, task) = (self.now, assignment.task);
                let Some(&id) = self.members.get(&task.worker) else { return Ok(()) };
                let Some(session) = self.sessions.get_mut(&id) else { return Ok(()) };
                if !assignment.queued {
                    session.progressed = now;
                }
                let run = self.host.prepare(id, task);
                for (number, cancellation) in session.tasks.assign(assignment, run) {
                    cancel(id, TaskId { number, ..task }, cancellation, self.host);
                }
                send_next(now, id, session, self.host)?;
            }
            Action::Interrupt { task } => {
                if let Some((id, session)) = self.session(task.worker) {
                    let cancellation = session.tasks.cancel(task.number);
                    cancel(id, task, cancellation, self.host);
                    if cancellation == Cancellation::Sent {
                        self.host.send(id, &ToWorker::Interrupt { number: task.number });
                    }
                }
            }
            Action::Discard { task } => self.host.discard(task),
            Action::Continue { task } => self.send(task.worker, &ToWorker::Continue { number: task.number }),
            Action::Collect { task } => self.send(task.worker, &ToWorker::Collect { number: task.number }),
            // Idle workers need no message, the ledger keeps the timers, and commits are carried out above.
            Action::Hold { .. } | Action::Wake { .. } | Action::Commit { .. } => {}
        }
        Ok(())
    }

    fn end_turn(&mut self, at: Time, event: &Event, ledger: &Ledger) -> Result<(), H::Error> {
        self.lateness.settle(self.now, ledger);
        self.host.end_turn(at, event, ledger)
    }
}

pub(super) fn send_next<H: ServerHost>(
    now: Time,
    id: SessionId,
    session: &mut SessionState,
    host: &mut H,
) -> Result<(), H::Error> {
    while let Some(ReadyTask { assignment, after, run }) = session.tasks.send_next(now) {
        let settings = TaskSettings { run, committed: session.committed };
        host.assign(id, assignment.task, ToWorker::Assign { assignment, after, buffers: None, settings })?;
    }
    Ok(())
}

fn cancel<H: ServerHost>(id: SessionId, task: TaskId, cancellation: Cancellation, host: &mut H) {
    match cancellation {
        Cancellation::Sent => host.cancel(id, task),
        Cancellation::NotSent => host.release(id, task),
    }
}
