//! A worker's session with its server: it takes tasks, and reports their results.
//!
//! [`Worker::run`](super::Worker::run) has a loop of its own. A program with another loop, e.g. a PyTorch script, holds the
//! session itself.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use paceline_core::{Assignment, Span, Version};
use paceline_protocol::{
    Fingerprint, GradientLocation, Group, HANDSHAKE_TIMEOUT, HeldParameters, NextTask, Reaction, ResultStatus,
    SessionEnd, TaskSettings, ToServer, Welcome, WireReport,
};
use paceline_workload::Progress;

use super::exchange::{DirectReader, Exchange};
use super::link::WorkerLink;
use super::membership::GroupMembership;
use super::payload_choice::PayloadChoice;
use super::server_messages::ServerMessages;
use super::shard_links::{ShardAccess, ShardLinks};
use super::system_load::SystemLoad;
use super::task_queue::{NextOrder, TaskModel, TaskQueue};
use super::update_push::UpdatePush;
use crate::frame;
use crate::frame_reader::invalid;
use crate::outbox::{Transfer, TransferEnd};
use crate::shared_memory::{ModelMapping, Region, ValueMemory};
use crate::socket::Socket;

/// Where the result of a task goes: a gradient, or a model difference.
enum ResultBuffer {
    /// Memory that the server shares.
    Shared(Arc<Mutex<Region>>),
    /// Own memory, to be sent.
    Own(Region),
    /// Own memory that is being sent to shards.
    Pushed(Arc<UpdatePush>),
    /// Memory that this crate knows nothing of: the process holds the model together with others.
    Elsewhere,
}

/// A task that the worker has taken. It is reported with [`WorkerSession::report`].
pub struct TakenTask {
    assignment: Assignment,
    settings: TaskSettings,
    /// The model to compute from. `None` if the process has it.
    parameters: Option<Arc<Region>>,
    result: ResultBuffer,
}

impl TakenTask {
    /// What to do.
    pub fn assignment(&self) -> &Assignment {
        &self.assignment
    }

    /// What else the worker may need to know.
    pub fn settings(&self) -> TaskSettings {
        self.settings
    }

    /// The model, and a place for the result: the gradient, or the difference of the model and the replica.
    ///
    /// # Panics
    /// If the result is [being sent](WorkerSession::push), or the process holds the model itself.
    pub fn with_values<T>(&mut self, compute: impl FnOnce(&[f32], &mut [f32]) -> T) -> T {
        let model = self.parameters.as_ref().map_or(&[][..], |model| model.values());
        match &mut self.result {
            ResultBuffer::Shared(region) => {
                compute(model, region.lock().unwrap_or_else(PoisonError::into_inner).values_mut())
            }
            ResultBuffer::Own(region) => compute(model, region.values_mut()),
            ResultBuffer::Pushed(_) | ResultBuffer::Elsewhere => panic!("the result is not here"),
        }
    }

    /// The memory of the model. `None` if the process has it, as a member of a group.
    pub fn model_memory(&self) -> Option<ValueMemory> {
        self.parameters.as_ref().map(|model| model.memory())
    }

    /// The memory of the result. `None` if it is [being sent](WorkerSession::push), or the process has a place of its own.
    pub fn result_memory(&self) -> Option<ValueMemory> {
        match &self.result {
            ResultBuffer::Shared(region) => Some(region.lock().unwrap_or_else(PoisonError::into_inner).memory()),
            ResultBuffer::Own(region) => Some(region.memory()),
            ResultBuffer::Pushed(_) | ResultBuffer::Elsewhere => None,
        }
    }

    /// The result on its way to the shards, after [`WorkerSession::push`].
    pub fn update_push(&self) -> Option<&Arc<UpdatePush>> {
        match &self.result {
            ResultBuffer::Pushed(push) => Some(push),
            ResultBuffer::Own(_) | ResultBuffer::Shared(_) | ResultBuffer::Elsewhere => None,
        }
    }
}

/// What a worker reports of a task, beside the values.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TaskReport {
    /// The mean loss of the samples.
    pub loss: f64,
    /// Times since the last message about the task.
    pub times: TimeSpent,
    /// The samples of each iteration, if they were not as many as assigned.
    pub samples: Option<u32>,
    /// The share of a device's memory that the task needed, with what others use there, 0 to 1; `None` without a device.
    pub device_memory: Option<f32>,
    /// The learning rates that the worker's own schedule asks for: of the tensors outside all parameter groups, then of
    /// every group. Empty if the server has the schedule.
    pub rates: Vec<f64>,
}

/// How long a worker has spent on a task since its last message about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TimeSpent {
    /// Computing, waiting for data included.
    pub compute: Span,
    /// Waiting for the server's answers.
    pub querying: Span,
    /// Waiting for data.
    pub loading: Span,
}

/// The server's answer to a hello.
pub(super) enum HelloAnswer {
    Welcome(WorkerSession, Welcome),
    /// The server has no model: it takes that of this worker over this connection.
    SendModel(WorkerLink),
}

/// A session. A thread of its own exchanges messages with the server.
pub struct WorkerSession {
    task_queue: Arc<TaskQueue>,
    exchange: Arc<Exchange>,
    /// Counts the steps of this worker, for the heartbeats.
    progress: Progress,
    payload: Arc<PayloadChoice>,
    /// The connections to the shards, if the server has any.
    shard_links: Arc<OnceLock<ShardLinks>>,
    /// The length of the parameter vector, once it is known.
    length: Arc<OnceLock<usize>>,
    /// Whether the process holds the model together with others.
    is_member: bool,
    /// A buffer for results that are sent. It is allocated for the first, and while another is still being read.
    buffer: Option<Region>,
    system_load: SystemLoad,
    tasks: u64,
    thread: Option<JoinHandle<()>>,
}

impl WorkerSession {
    /// Sends the hello, and waits for the answer up to [`HANDSHAKE_TIMEOUT`].
    pub(super) fn join(
        mut link: WorkerLink,
        hello: &ToServer,
        shard_access: ShardAccess,
        mapping: ModelMapping,
    ) -> Result<HelloAnswer, SessionEnd> {
        let task_queue = Arc::new(TaskQueue::default());
        let Some(welcome) = shake_hands(&mut link, hello, shard_access.keys.is_some(), &task_queue)? else {
            return Ok(HelloAnswer::SendModel(link));
        };
        let (progress, length) = (Progress::default(), Arc::new(OnceLock::new()));
        let (queue, payload) = (task_queue.clone(), Arc::new(PayloadChoice::new(welcome.payload)));
        let messages =
            ServerMessages::new(queue, progress.clone(), length.clone(), mapping, payload.clone(), shard_access);
        let shard_links = messages.shard_links().clone();
        let exchange = Arc::new(Exchange::new(link, messages));
        let own = exchange.clone();
        let thread = thread::Builder::new().name("connection".into()).spawn(move || own.run());
        let session = WorkerSession {
            task_queue,
            exchange,
            progress,
            payload,
            shard_links,
            length,
            is_member: welcome.holds == HeldParameters::All,
            buffer: None,
            system_load: SystemLoad::default(),
            tasks: 0,
            thread: Some(thread.map_err(|error| SessionEnd::Lost(error.to_string()))?),
        };
        Ok(HelloAnswer::Welcome(session, welcome))
    }

    /// The connection to the server.
    pub(super) fn socket(&self) -> &Socket {
        self.exchange.socket()
    }

    /// Counts the steps of this worker: as long as it moves, the worker is not stuck.
    pub fn progress(&self) -> &Progress {
        &self.progress
    }

    /// How many tasks are done.
    pub fn tasks(&self) -> u64 {
        self.tasks
    }

    /// Tells the server that this worker has its model, of this length, and can take tasks. Others reach its process at these
    /// ports.
    pub(super) fn ready(&self, fingerprint: Fingerprint, length: usize, ports: Vec<u16>) {
        self.length.get_or_init(|| length);
        // If it fails, the first task is the end of the session.
        let _ = self.exchange.outbox().send(&ToServer::Ready { fingerprint, ports });
    }

    /// Leaves for this reason. `is_done` says whether the worker has done all that it was started for.
    pub fn leave(&self, reason: String, is_done: bool) {
        // It fails only if the server has closed the connection.
        let _ = self.exchange.outbox().send(&ToServer::Leave { reason, is_done });
    }

    /// Waits for the next task. The one before must be reported. `None` if there is none by the deadline.
    ///
    /// # Errors
    /// If the session has ended.
    pub fn next_task(&mut self, deadline: Option<Instant>) -> Result<Option<TakenTask>, SessionEnd> {
        let next = self.wait_until(deadline, TaskQueue::start_next).transpose()?;
        let Some((NextTask { assignment, settings, .. }, TaskModel { parameters, gradient })) = next else {
            return Ok(None);
        };
        self.progress.step();
        let result = match gradient {
            _ if self.is_member => ResultBuffer::Elsewhere,
            Some(shared) => ResultBuffer::Shared(shared),
            None if self.exchange.is_shared() && self.shard_links.get().is_none() => {
                return Err(self.failed(&invalid("assignment without shared buffers")));
            }
            None => {
                let new = || match self.shard_links.get() {
                    Some(links) => links.vector(),
                    None => Region::private(self.length.get().copied().unwrap_or_default()),
                };
                let own = self.buffer.take().map_or_else(new, Ok);
                ResultBuffer::Own(own.map_err(|error| self.failed(&error))?)
            }
        };
        Ok(Some(TakenTask { assignment, settings, parameters, result }))
    }

    /// Waits until the queue has something, and takes it. `None` if it has nothing by the deadline.
    fn wait_until<T>(&self, deadline: Option<Instant>, take: impl Fn(&TaskQueue) -> Option<T>) -> Option<T> {
        let mut reader = None;
        loop {
            let (seen, is_over) =
                (self.task_queue.changes(), deadline.is_some_and(|deadline| Instant::now() >= deadline));
            match take(&self.task_queue) {
                // What it waits for may come over other connections.
                None if !is_over && self.shard_links.get().is_some() => {
                    reader = None;
                    self.task_queue.wait_for_change(seen, deadline);
                }
                None if !is_over => match &mut reader {
                    Some(reader) => DirectReader::wait(reader, deadline),
                    // Until now the other thread may have read what is waited for.
                    None => reader = Some(self.exchange.read_directly()),
                },
                taken => return taken,
            }
        }
    }

    /// The version and the memory of the model at the end of the run, if the server sent it to its workers.
    pub fn last_model(&self) -> Option<(Version, ValueMemory)> {
        let (version, model) = self.task_queue.last_model()?;
        model.parameters.map(|parameters| (version, parameters.memory()))
    }

    /// The worker's part in groups, if its process holds the model together with others.
    pub fn membership(&self) -> Option<GroupMembership> {
        self.is_member.then(|| GroupMembership::new(self.exchange.clone(), self.task_queue.clone()))
    }

    /// Waits for what the worker is told as a member of a group. `None` if there is nothing by the deadline.
    pub fn next_order(&self, deadline: Option<Instant>) -> Option<NextOrder> {
        self.wait_until(deadline, TaskQueue::next_order)
    }

    /// The next group that the worker is told to form, if there is one already.
    pub fn take_group(&self) -> Option<Group> {
        self.task_queue.take_group()
    }

    /// Waits until the session has ended. Returns whether it has by the deadline.
    pub fn wait_for_end(&self, deadline: Instant) -> bool {
        self.wait_until(Some(deadline), |queue| queue.has_ended().then_some(())).is_some()
    }

    /// Whether the session has ended.
    pub fn has_ended(&self) -> bool {
        self.task_queue.has_ended()
    }

    /// The process has made this version of the model itself: tasks of this version can start.
    pub fn has_model(&self, version: Version) {
        self.task_queue.add_model(version, None);
    }

    /// In a process that was forked from this one: replaces its copy of the connection, so that the connection ends with the
    /// process that joined. That process's session stays as it is.
    ///
    /// # Errors
    /// If the system can't do it.
    pub fn let_go(&self) -> io::Result<()> {
        let nothing = File::open("/dev/null")?;
        // SAFETY: both are open. This process never uses the connection, so what it finds there instead does not matter.
        match unsafe { libc::dup2(nothing.as_raw_fd(), self.exchange.descriptor()) } {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    }

    /// Whether the running task is cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.task_queue.result_status() == ResultStatus::Cancelled
    }

    /// Sleeps, unless the running task is cancelled or its result is collected. Returns whether it slept to the end.
    pub fn sleep(&self, duration: Duration) -> bool {
        self.task_queue.sleep(duration)
    }

    /// Asks how to continue after `iterations` local iterations.
    ///
    /// # Errors
    /// If the session has ended.
    pub fn ask(&mut self, task: &TakenTask, iterations: u32, times: TimeSpent) -> Result<(), SessionEnd> {
        let report = self.wire_report(times);
        let asked = ToServer::Asked { number: task.assignment.task.number, iterations, report };
        self.exchange.outbox().send(&asked).map_err(|error| self.failed(&error))
    }

    /// Waits for the answer: whether to continue. `None` if there is none by the deadline.
    pub fn wait_for_answer(&self, deadline: Option<Instant>) -> Option<bool> {
        self.wait_until(deadline, TaskQueue::take_answer)
    }

    /// Whether the server has asked for the result of the running task. An iteration that is complete by then is part of it.
    pub fn is_collected(&self) -> bool {
        self.task_queue.is_collected()
    }

    /// Lets the parts of a task's result go to their shards while others are still computed, as [`TakenTask::update_push`]
    /// is told. Without shards, nothing changes.
    #[must_use]
    pub fn push(&self, task: TakenTask) -> TakenTask {
        let Assignment { task: id, version, .. } = task.assignment;
        let result = match (task.result, self.shard_links.get()) {
            (ResultBuffer::Own(values), Some(links)) => match links.push(id, version, values) {
                Ok(push) => ResultBuffer::Pushed(Arc::new(push)),
                Err(values) => ResultBuffer::Own(values),
            },
            (result, _) => result,
        };
        TakenTask { result, ..task }
    }

    /// Reports the result of a task, as far as it is still needed. Returns when it is sent.
    ///
    /// # Errors
    /// If the session has ended.
    pub fn report(&mut self, task: TakenTask, report: TaskReport) -> Result<(), SessionEnd> {
        let task = self.push(task);
        let number = task.assignment.task.number;
        let sent = match task.result {
            ResultBuffer::Shared(_) => self.report_at(GradientLocation::InPlace, number, report),
            ResultBuffer::Own(_) if self.shard_links.get().is_some() => Err(io::ErrorKind::NotConnected.into()),
            ResultBuffer::Own(values) => self.upload(number, report, values),
            ResultBuffer::Pushed(push) => self.finish_push(number, report, &push),
            ResultBuffer::Elsewhere => self.report_at(GradientLocation::InMembers, number, report),
        };
        sent.map_err(|error| self.failed(&error))?;
        self.task_queue.finish();
        Ok(())
    }

    /// Reports what an evaluator has found for the model of a task.
    ///
    /// # Errors
    /// If the session has ended.
    pub fn report_evaluation(
        &mut self,
        task: TakenTask,
        loss: Option<f64>,
        accuracy: Option<f64>,
    ) -> Result<(), SessionEnd> {
        let evaluated = ToServer::Evaluated { number: task.assignment.task.number, loss, accuracy };
        self.exchange.outbox().send(&evaluated).map_err(|error| self.failed(&error))?;
        self.task_queue.finish();
        Ok(())
    }

    /// The session has ended by an error. If the server sent a reason before it closed the connection, that counts.
    fn failed(&self, error: &io::Error) -> SessionEnd {
        self.exchange.outbox().disconnect();
        match self.task_queue.wait_for_end() {
            SessionEnd::Lost(_) => SessionEnd::Lost(error.to_string()),
            known => known,
        }
    }

    fn wire_report(&mut self, TimeSpent { compute, querying, loading }: TimeSpent) -> WireReport {
        let (cpu, memory) = self.system_load.shares();
        WireReport { compute, querying, cpu, memory, loading, samples: None }
    }

    /// The message that reports a task.
    fn report_message(&mut self, number: u64, report: TaskReport, gradient: GradientLocation) -> ToServer {
        let TaskReport { loss, times, samples, device_memory, rates } = report;
        let report = self.wire_report(times);
        let report = WireReport { samples, memory: device_memory.or(report.memory), ..report };
        ToServer::Report { number, report, loss, gradient, rates }
    }

    /// Reports a result that is where the server or other members find it.
    fn report_at(&mut self, place: GradientLocation, number: u64, report: TaskReport) -> io::Result<()> {
        let message = self.report_message(number, report, place);
        if self.is_cancelled() {
            return self.exchange.outbox().send(&ToServer::Dropped { number });
        }
        self.tasks += 1;
        self.exchange.outbox().send(&message)
    }

    /// Sends the result to the server.
    fn upload(&mut self, number: u64, report: TaskReport, values: Region) -> io::Result<()> {
        let status = self.task_queue.result_status();
        let report = self.report_message(number, report, location(status, GradientLocation::Follows));
        let end = match status {
            ResultStatus::Cancelled => TransferEnd::Withdrawn,
            ResultStatus::Late => {
                self.exchange.outbox().send(&report)?;
                TransferEnd::Sent
            }
            ResultStatus::Wanted => {
                let (values, payload) = (Arc::new(values), self.payload.format());
                let (frame, announcement) = (frame::encode(&report)?, Vec::new());
                let transfer = Transfer { number, frame, version: None, announcement, values: values.clone(), payload };
                self.exchange.outbox().transfer(transfer, usize::MAX);
                // It may have been cancelled before the transfer was there to be stopped.
                if self.is_cancelled() {
                    self.exchange.outbox().stop_transfer(number);
                }
                let end = self.exchange.outbox().wait_for_transfer();
                self.buffer = Arc::into_inner(values);
                end
            }
        };
        self.note_end(number, end)
    }

    /// Sends the result to the shards, then the report to the server.
    fn finish_push(&mut self, number: u64, report: TaskReport, push: &UpdatePush) -> io::Result<()> {
        let status = self.task_queue.result_status();
        let report = self.report_message(number, report, location(status, GradientLocation::InShards));
        let end = match status {
            ResultStatus::Wanted => push.finish(|| self.is_cancelled())?,
            ResultStatus::Cancelled | ResultStatus::Late => {
                push.withdraw()?;
                if status == ResultStatus::Late { TransferEnd::Sent } else { TransferEnd::Withdrawn }
            }
        };
        self.buffer = push.take_buffer();
        match end {
            TransferEnd::Sent => self.exchange.outbox().send(&report)?,
            TransferEnd::Disconnected => self.shard_links.get().into_iter().for_each(ShardLinks::wait_for_end),
            TransferEnd::Withdrawn => {}
        }
        self.note_end(number, end)
    }

    /// Counts the task, or tells the server that its result is not sent.
    fn note_end(&mut self, number: u64, end: TransferEnd) -> io::Result<()> {
        match end {
            TransferEnd::Sent => self.tasks += 1,
            TransferEnd::Withdrawn => self.exchange.outbox().send(&ToServer::Dropped { number })?,
            TransferEnd::Disconnected => return Err(io::ErrorKind::NotConnected.into()),
        }
        Ok(())
    }
}

/// Where a result of this status is, if it would be at `place`.
fn location(status: ResultStatus, place: GradientLocation) -> GradientLocation {
    if status == ResultStatus::Late { GradientLocation::Withheld } else { place }
}

impl Drop for WorkerSession {
    /// Ends the session after the last messages.
    fn drop(&mut self) {
        self.exchange.outbox().close(None);
        // A panic of the thread is a bug there; it has nothing to give back.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Sends the hello. Returns the welcome, or `None` if the server asks for a model.
fn shake_hands(
    link: &mut WorkerLink,
    hello: &ToServer,
    has_keys: bool,
    task_queue: &TaskQueue,
) -> Result<Option<Welcome>, SessionEnd> {
    let deadline = Instant::now() + Duration::from_nanos(HANDSHAKE_TIMEOUT.0);
    let error = match link.ask(hello, deadline) {
        Ok(message) => {
            return match task_queue.on_message(message, None) {
                Reaction::Join(welcome) => Ok(Some(welcome)),
                Reaction::SendModel => Ok(None),
                Reaction::End(end) => Err(end),
                Reaction::None | Reaction::Drop(_) => Err(SessionEnd::Lost("no welcome".into())),
            };
        }
        Err(error) => error,
    };
    let hint = if has_keys { "does the server use the same --keys?" } else { "does the server require --keys?" };
    Err(match error.kind() {
        // Retrying is pointless: the peer has another protocol, or only one side uses TLS.
        io::ErrorKind::InvalidData => SessionEnd::Refused(format!("{error} ({hint})")),
        io::ErrorKind::TimedOut => {
            let seconds = HANDSHAKE_TIMEOUT.seconds();
            SessionEnd::Lost(format!("no answer to the handshake within {seconds:.0} s"))
        }
        io::ErrorKind::UnexpectedEof => SessionEnd::Lost(format!("connection closed during the handshake ({hint})")),
        _ => SessionEnd::Lost(format!("{error} ({hint})")),
    })
}
