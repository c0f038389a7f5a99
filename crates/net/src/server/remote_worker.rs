//! The server's view of one worker: its open tasks and its buffers.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use paceline_core::Assignment;
use thiserror::Error;

use super::parameter_ring::ParameterBuffer;
use super::send_queue::SendQueue;
use super::session::printable;
use crate::message::{ReplicaSettings, SharedBuffer, SharedBuffers, ToWorker};
use crate::shared_memory::{Region, RegionWriter};

/// Open tasks that a worker may have: one that runs, one that is queued, and a cancelled one whose cancellation has not
/// arrived yet. Further assignments are held back here; a newer one replaces them.
const MAX_OPEN_TASKS: usize = 3;

/// Which gradients the reader of a connection may store, and whether it is to stop reading. Set by the coordinator.
#[derive(Debug, Default)]
pub(super) struct UploadPermits {
    granted: Mutex<BTreeSet<u64>>,
    refused: AtomicBool,
}

impl UploadPermits {
    /// Takes the permit to upload the gradient of a task. Each permit is valid once, so a worker can't fill the memory.
    pub(super) fn take(&self, number: u64) -> bool {
        self.granted.lock().unwrap_or_else(PoisonError::into_inner).remove(&number)
    }

    fn grant(&self, number: u64) {
        self.granted.lock().unwrap_or_else(PoisonError::into_inner).insert(number);
    }

    /// Whether the worker was refused, so that nothing more is read from it.
    pub(super) fn is_refused(&self) -> bool {
        self.refused.load(Ordering::Relaxed)
    }
}

/// A message that breaks the protocol.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(super) enum ProtocolViolation {
    #[error("message about task {0}, which was never assigned or is already done")]
    UnknownTask(u64),
    #[error("task {0} was dropped, but it was not cancelled")]
    NotCancelled(u64),
    #[error("task {0} was reported before the task ahead of it")]
    OutOfOrder(u64),
}

/// A task that was sent to the worker and has no report yet.
#[derive(Debug)]
struct OpenTask {
    cancelled: bool,
    assignment: Assignment,
    /// The model that the worker reads in shared memory, or that its gradient is compensated with. Holding it keeps it
    /// from being overwritten.
    parameters: Option<Arc<ParameterBuffer>>,
    /// The buffer in shared memory for its gradient.
    gradient: Option<Arc<Region>>,
}

/// What a report means to the server.
#[derive(Debug)]
pub(super) enum ReportOutcome {
    /// The report of an active task.
    Wanted(ArrivedReport),
    /// The task was cancelled while the report was on its way.
    Cancelled,
}

/// A report that has arrived, with the task it belongs to.
#[derive(Debug)]
pub(super) struct ArrivedReport {
    pub(super) assignment: Assignment,
    /// The model that the update was computed from, if it was kept.
    pub(super) parameters: Option<Arc<ParameterBuffer>>,
    /// The gradient, if it is in shared memory.
    pub(super) gradient: Option<Arc<Region>>,
}

/// An assignment that is held back.
#[derive(Debug)]
struct PendingTask {
    assignment: Assignment,
    parameters: Arc<ParameterBuffer>,
    rate: f32,
}

/// One worker, seen from the server.
#[derive(Debug)]
pub(super) struct RemoteWorker {
    pub(super) session: u64,
    pub(super) peer: String,
    pub(super) emulated: Option<String>,
    /// Whether the worker has built the workload and can be given work.
    pub(super) ready: bool,
    /// Whether the models that it computes from must be kept until its gradients are committed.
    keeps_models: bool,
    send_queue: SendQueue,
    permits: Arc<UploadPermits>,
    open_tasks: BTreeMap<u64, OpenTask>,
    /// Assignments to send when an open task is done.
    pending: VecDeque<PendingTask>,
    /// The last task of the worker whose update was committed.
    committed: Option<u64>,
    gradients: Vec<Arc<Region>>,
    mapped: BTreeSet<u32>,
}

impl RemoteWorker {
    pub(super) fn new(
        session: u64,
        peer: String,
        emulated: Option<String>,
        send_queue: SendQueue,
        permits: Arc<UploadPermits>,
    ) -> Self {
        RemoteWorker {
            session,
            peer,
            emulated: emulated.as_deref().map(printable),
            ready: false,
            keeps_models: false,
            send_queue,
            permits,
            open_tasks: BTreeMap::new(),
            pending: VecDeque::new(),
            committed: None,
            gradients: Vec::new(),
            mapped: BTreeSet::new(),
        }
    }

    /// Sets whether the models that it computes from are kept until its gradients are committed.
    pub(super) fn keeping_models(self, kept: bool) -> Self {
        RemoteWorker { keeps_models: kept, ..self }
    }

    pub(super) fn send(&self, message: &ToWorker) {
        self.send_queue.send(message);
    }

    /// Sends the reason for the dismissal and whether the worker may rejoin, and stops reading from it.
    pub(super) fn refuse(&self, reason: String, may_rejoin: bool) {
        self.permits.refused.store(true, Ordering::Relaxed);
        self.send_queue.close(&ToWorker::Refuse { reason, may_rejoin });
    }

    /// Sends that the run has ended; the worker closes the connection then.
    pub(super) fn finish(&self, reason: String) {
        self.send_queue.close(&ToWorker::Finished { reason });
    }

    /// Assigns work; local iterations use the learning rate `rate`. Queued tasks that it replaces are cancelled.
    pub(super) fn assign(
        &mut self,
        assignment: Assignment,
        parameters: &Arc<ParameterBuffer>,
        rate: f32,
    ) -> io::Result<()> {
        let running = if assignment.queued { self.running() } else { None };
        let replaced: Vec<u64> = self.active_tasks().filter(|&number| Some(number) != running).collect();
        for number in replaced {
            self.cancel(number);
        }
        self.pending.push_back(PendingTask { assignment, parameters: parameters.clone(), rate });
        self.send_pending()
    }

    /// The numbers of the tasks that are not cancelled, oldest first.
    fn active_tasks(&self) -> impl Iterator<Item = u64> + '_ {
        let open = self.open_tasks.iter().filter(|(_, task)| !task.cancelled).map(|(&number, _)| number);
        open.chain(self.pending.iter().map(|pending| pending.assignment.task.number))
    }

    fn running(&self) -> Option<u64> {
        self.active_tasks().next()
    }

    /// Whether the worker has a task that is not cancelled.
    pub(super) fn is_busy(&self) -> bool {
        self.running().is_some()
    }

    /// Cancels a task. The worker learns of it with its next assignment at the latest.
    fn cancel(&mut self, number: u64) {
        self.pending.retain(|pending| pending.assignment.task.number != number);
        if self.send_queue.withdraw(number) {
            self.open_tasks.remove(&number);
        }
        if let Some(task) = self.open_tasks.get_mut(&number) {
            task.cancelled = true;
            // The worker runs one task at a time, so it never writes this buffer for two tasks at once.
            task.gradient = None;
        }
        self.permits.take(number);
    }

    /// Cancels a task and tells the worker to drop it.
    pub(super) fn interrupt(&mut self, number: u64) {
        self.cancel(number);
        if self.open_tasks.contains_key(&number) {
            self.send(&ToWorker::Interrupt { number });
        }
    }

    /// Sends assignments that are held back, as far as the limit of open tasks allows.
    pub(super) fn send_pending(&mut self) -> io::Result<()> {
        while self.open_tasks.len() < MAX_OPEN_TASKS
            && let Some(PendingTask { assignment, parameters, rate }) = self.pending.pop_front()
        {
            let number = assignment.task.number;
            let settings = ReplicaSettings { rate, committed: self.committed };
            let after = self.running().filter(|&running| running < number);
            let gradient = if self.send_queue.is_shared() {
                let (index, gradient) = self.free_gradient(parameters.region.values().len())?;
                if self.mapped.insert(parameters.index) {
                    self.map(SharedBuffer::Parameters(parameters.index), &parameters.region);
                }
                let buffers = Some(SharedBuffers { parameters: parameters.index, gradient: index });
                self.send(&ToWorker::Assign { assignment, after, buffers, settings });
                Some(gradient)
            } else {
                self.permits.grant(number);
                let message = ToWorker::Assign { assignment, after, buffers: None, settings };
                self.send_queue.assign(number, &message, assignment.version, &parameters);
                None
            };
            let parameters = (self.keeps_models || self.send_queue.is_shared()).then_some(parameters);
            self.open_tasks.insert(number, OpenTask { cancelled: false, assignment, parameters, gradient });
        }
        Ok(())
    }

    /// A gradient buffer that no task and no commit uses.
    fn free_gradient(&mut self, length: usize) -> io::Result<(u32, Arc<Region>)> {
        let free = self.gradients.iter().position(|gradient| Arc::strong_count(gradient) == 1);
        let index = match free {
            Some(index) => index,
            None => {
                let mut region = Region::shared(length, RegionWriter::Peer)?;
                self.map(SharedBuffer::Gradient(self.gradients.len() as u32), &region);
                region.close_file();
                self.gradients.push(Arc::new(region));
                self.gradients.len() - 1
            }
        };
        Ok((index as u32, self.gradients[index].clone()))
    }

    fn map(&self, buffer: SharedBuffer, region: &Region) {
        self.send_queue.send_buffer(&ToWorker::Map { buffer, length: region.values().len() as u64 }, region);
    }

    /// The worker reports that a task is done.
    pub(super) fn reported(&mut self, number: u64) -> Result<ReportOutcome, ProtocolViolation> {
        let running = self.running();
        let task = self.open_tasks.remove(&number).ok_or(ProtocolViolation::UnknownTask(number))?;
        match task {
            OpenTask { cancelled: true, .. } => Ok(ReportOutcome::Cancelled),
            OpenTask { assignment, parameters, gradient, .. } if running == Some(number) => {
                Ok(ReportOutcome::Wanted(ArrivedReport { assignment, parameters, gradient }))
            }
            OpenTask { .. } => Err(ProtocolViolation::OutOfOrder(number)),
        }
    }

    /// The worker asks about a task. Returns whether the task is still active.
    pub(super) fn asked(&self, number: u64) -> Result<bool, ProtocolViolation> {
        let task = self.open_tasks.get(&number).ok_or(ProtocolViolation::UnknownTask(number))?;
        Ok(!task.cancelled)
    }

    /// Notes that the update of a task was committed.
    pub(super) fn committed(&mut self, number: u64) {
        self.committed = Some(number);
    }

    /// The worker has dropped a task.
    pub(super) fn dropped(&mut self, number: u64) -> Result<(), ProtocolViolation> {
        let task = self.open_tasks.get(&number).ok_or(ProtocolViolation::UnknownTask(number))?;
        if !task.cancelled {
            return Err(ProtocolViolation::NotCancelled(number));
        }
        self.open_tasks.remove(&number);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::{Receiver, Socket, Traffic};
    use crate::server::parameter_ring::ParameterRing;
    use paceline_core::{TaskId, Version, WorkerId};
    use std::os::unix::net::UnixStream;

    /// A worker that shares memory, and the receiving end of its connection.
    fn remote() -> (RemoteWorker, Receiver) {
        let (near, far) = UnixStream::pair().unwrap();
        let send_queue = SendQueue::local(Socket::local(near));
        let remote = RemoteWorker::new(0, "a test".into(), None, send_queue, Arc::default());
        (remote, Receiver::new(Socket::local(far), Traffic::default()))
    }

    fn task(number: u64, queued: bool) -> Assignment {
        let task = TaskId { worker: WorkerId(0), number };
        let work = paceline_core::Work::Gradient;
        Assignment { task, version: Version(number), work, samples: 1, offset: 0, queued }
    }

    /// The next assignment: its number, the task it is queued behind and the index of its gradient buffer.
    fn assigned(worker: &mut Receiver) -> (u64, Option<u64>, u32) {
        loop {
            if let ToWorker::Assign { assignment, after, buffers, .. } = worker.message().unwrap() {
                return (assignment.task.number, after, buffers.unwrap().gradient);
            }
        }
    }

    #[test]
    fn newer_work_replaces_queued_work_and_open_tasks_are_limited() {
        let (mut remote, mut worker) = remote();
        let ring = ParameterRing::new(&[0.0; 8], true).unwrap();
        remote.assign(task(0, false), ring.newest(), 0.1).unwrap();
        for number in 1..5 {
            remote.assign(task(number, true), ring.newest(), 0.1).unwrap();
        }
        assert_eq!(assigned(&mut worker), (0, None, 0));
        assert_eq!(assigned(&mut worker), (1, Some(0), 1));
        assert_eq!(assigned(&mut worker), (2, Some(0), 1), "the buffer of task 1 is free may_rejoin");
        assert_eq!(remote.pending.len(), 1, "task 4 replaced task 3, which was held back");
        remote.dropped(1).unwrap();
        remote.send_pending().unwrap();
        assert_eq!(assigned(&mut worker), (4, Some(0), 1));
        assert!(matches!(remote.reported(0), Ok(ReportOutcome::Wanted(_))));
    }

    #[test]
    fn a_gradient_is_not_overwritten_before_its_commit() {
        let (mut remote, mut worker) = remote();
        let ring = ParameterRing::new(&[0.0; 8], true).unwrap();
        remote.assign(task(0, false), ring.newest(), 0.1).unwrap();
        assert_eq!(assigned(&mut worker).2, 0);
        let Ok(ReportOutcome::Wanted(uncommitted)) = remote.reported(0) else { panic!("task 0 is active") };
        remote.assign(task(1, false), ring.newest(), 0.1).unwrap();
        assert_eq!(assigned(&mut worker).2, 1);
        drop(uncommitted);
        assert!(matches!(remote.reported(1), Ok(ReportOutcome::Wanted(_))));
        remote.assign(task(2, false), ring.newest(), 0.1).unwrap();
        assert_eq!(assigned(&mut worker).2, 0);
    }

    #[test]
    fn protocol_violations_are_distinguished() {
        let (mut remote, _worker) = remote();
        let ring = ParameterRing::new(&[0.0; 8], true).unwrap();
        remote.assign(task(0, false), ring.newest(), 0.1).unwrap();
        remote.assign(task(1, true), ring.newest(), 0.1).unwrap();
        assert_eq!(remote.reported(7).unwrap_err(), ProtocolViolation::UnknownTask(7));
        assert_eq!(remote.dropped(0).unwrap_err(), ProtocolViolation::NotCancelled(0));
        remote.interrupt(0);
        assert!(matches!(remote.reported(0), Ok(ReportOutcome::Cancelled)), "the report and the interruption crossed");
        assert_eq!(remote.reported(0).unwrap_err(), ProtocolViolation::UnknownTask(0));
        remote.assign(task(2, true), ring.newest(), 0.1).unwrap();
        assert_eq!(remote.reported(2).unwrap_err(), ProtocolViolation::OutOfOrder(2));
    }
}
