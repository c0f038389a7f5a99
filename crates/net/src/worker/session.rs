//! A worker's session with its server: it takes tasks, and reports their results.

use std::io;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use paceline_core::{Assignment, Span};
use paceline_protocol::{
    Fingerprint, GradientLocation, HANDSHAKE_TIMEOUT, NextTask, PayloadFormat, Reaction, ReplicaSettings, ResultStatus,
    SessionEnd, ToServer, Welcome, WireReport,
};
use paceline_workload::Progress;

use super::link::WorkerLink;
use super::server_messages::ServerMessages;
use super::system_load::SystemLoad;
use super::task_queue::{TaskModel, TaskQueue};
use crate::frame;
use crate::frame_reader::invalid;
use crate::outbox::{Outbox, Transfer, TransferEnd};
use crate::shared_memory::Region;

/// Where the result of a task goes: a gradient, or a model difference.
pub(super) enum ResultBuffer {
    /// Memory that the server shares.
    Shared(Arc<Mutex<Region>>),
    /// Own memory, to be sent.
    Own(Region),
}

impl ResultBuffer {
    /// Calls `write` with the values.
    pub(super) fn with<T>(&mut self, write: impl FnOnce(&mut [f32]) -> T) -> T {
        match self {
            ResultBuffer::Shared(region) => write(region.lock().unwrap_or_else(PoisonError::into_inner).values_mut()),
            ResultBuffer::Own(region) => write(region.values_mut()),
        }
    }
}

/// A task that the worker has taken.
pub(super) struct TakenTask {
    pub(super) assignment: Assignment,
    pub(super) settings: ReplicaSettings,
    /// The model to compute from.
    pub(super) parameters: Arc<Region>,
    pub(super) result: ResultBuffer,
}

/// How long a worker has spent on a task since its last message about it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct TimeSpent {
    /// Computing.
    pub(super) compute: Span,
    /// Waiting for the server's answers.
    pub(super) querying: Span,
}

/// A session. A thread of its own exchanges messages with the server.
pub(super) struct WorkerSession {
    task_queue: Arc<TaskQueue>,
    outbox: Arc<Outbox>,
    /// Counts the steps of this worker, for the heartbeats.
    progress: Progress,
    payload: PayloadFormat,
    /// Whether the server shares memory with this worker.
    is_shared: bool,
    /// The length of the parameter vector, once it is known.
    length: Arc<OnceLock<usize>>,
    /// A buffer for results that are sent. It is allocated for the first, and while another is still being read.
    buffer: Option<Region>,
    system_load: SystemLoad,
    tasks: u64,
    thread: Option<JoinHandle<()>>,
}

impl WorkerSession {
    /// Sends the hello, and waits for the answer up to [`HANDSHAKE_TIMEOUT`].
    pub(super) fn join(mut link: WorkerLink, hello: &ToServer, has_keys: bool) -> Result<(Self, Welcome), SessionEnd> {
        let task_queue = Arc::new(TaskQueue::default());
        let welcome = shake_hands(&mut link, hello, has_keys, &task_queue)?;
        let (progress, length) = (Progress::default(), Arc::new(OnceLock::new()));
        let messages = ServerMessages::new(task_queue.clone(), progress.clone(), welcome.payload, length.clone());
        let (outbox, is_shared) = (link.outbox().clone(), link.is_shared());
        let exchange = move || link.run(messages);
        let thread = thread::Builder::new().name("connection".into()).spawn(exchange);
        let session = WorkerSession {
            task_queue,
            outbox,
            progress,
            payload: welcome.payload,
            is_shared,
            length,
            buffer: None,
            system_load: SystemLoad::default(),
            tasks: 0,
            thread: Some(thread.map_err(|error| SessionEnd::Lost(error.to_string()))?),
        };
        Ok((session, welcome))
    }

    /// Counts the steps of this worker.
    pub(super) fn progress(&self) -> &Progress {
        &self.progress
    }

    /// How many tasks are done.
    pub(super) fn tasks(&self) -> u64 {
        self.tasks
    }

    /// Tells the server that this worker has its model, of this length, and can take tasks.
    pub(super) fn ready(&self, fingerprint: Fingerprint, length: usize) {
        self.length.get_or_init(|| length);
        // If it fails, the first task is the end of the session.
        let _ = self.outbox.send(&ToServer::Ready { fingerprint });
    }

    /// Leaves for this reason.
    pub(super) fn leave(&self, reason: String) {
        // It fails only if the server has closed the connection.
        let _ = self.outbox.send(&ToServer::Leave { reason });
    }

    /// Waits for the next task. The one before must be reported.
    pub(super) fn next_task(&mut self) -> Result<TakenTask, SessionEnd> {
        let (NextTask { assignment, settings, .. }, TaskModel { parameters, gradient }) =
            self.task_queue.start_next()?;
        self.progress.step();
        let length = parameters.values().len();
        let result = match gradient {
            Some(shared) => ResultBuffer::Shared(shared),
            None if self.is_shared => return Err(self.failed(&invalid("assignment without shared buffers"))),
            None => {
                let own = self.buffer.take().map_or_else(|| Region::private(length), Ok);
                ResultBuffer::Own(own.map_err(|error| self.failed(&error))?)
            }
        };
        Ok(TakenTask { assignment, settings, parameters, result })
    }

    /// Whether the running task is cancelled.
    pub(super) fn is_cancelled(&self) -> bool {
        self.task_queue.result_status() == ResultStatus::Cancelled
    }

    /// Sleeps, unless the running task is cancelled or its result is collected. Returns whether it slept to the end.
    pub(super) fn sleep(&self, duration: Duration) -> bool {
        self.task_queue.sleep(duration)
    }

    /// Asks how to continue after `iterations` local iterations, and waits for the answer if `wait`. Returns whether to
    /// continue. Without waiting, an iteration that is complete when the result is collected is part of it.
    pub(super) fn ask(
        &mut self,
        assignment: &Assignment,
        iterations: u32,
        times: TimeSpent,
        wait: bool,
    ) -> Result<bool, SessionEnd> {
        let report = self.wire_report(times);
        let asked = ToServer::Asked { number: assignment.task.number, iterations, report };
        self.outbox.send(&asked).map_err(|error| self.failed(&error))?;
        Ok(if wait { self.task_queue.wait_for_answer() } else { !self.task_queue.is_collected() })
    }

    /// Reports the result of a task, as far as it is still needed. Returns when it is sent.
    pub(super) fn report(&mut self, task: TakenTask, loss: f64, times: TimeSpent) -> Result<(), SessionEnd> {
        let number = task.assignment.task.number;
        let sent = match task.result {
            ResultBuffer::Shared(_) => self.report_in_place(number, loss, times),
            ResultBuffer::Own(values) => self.upload(number, loss, times, values),
        };
        sent.map_err(|error| self.failed(&error))?;
        self.task_queue.finish();
        Ok(())
    }

    /// The session has ended by an error. If the server sent a reason before it closed the connection, that counts.
    fn failed(&self, error: &io::Error) -> SessionEnd {
        self.outbox.disconnect();
        match self.task_queue.wait_for_end() {
            SessionEnd::Lost(_) => SessionEnd::Lost(error.to_string()),
            known => known,
        }
    }

    fn wire_report(&mut self, TimeSpent { compute, querying }: TimeSpent) -> WireReport {
        let (cpu, memory) = self.system_load.shares();
        WireReport { compute, querying, cpu, memory }
    }

    fn report_in_place(&mut self, number: u64, loss: f64, times: TimeSpent) -> io::Result<()> {
        let report = self.wire_report(times);
        if self.is_cancelled() {
            return self.outbox.send(&ToServer::Dropped { number });
        }
        self.tasks += 1;
        self.outbox.send(&ToServer::Report { number, report, loss, gradient: GradientLocation::InPlace })
    }

    fn upload(&mut self, number: u64, loss: f64, times: TimeSpent, values: Region) -> io::Result<()> {
        let status = self.task_queue.result_status();
        let gradient =
            if status == ResultStatus::Late { GradientLocation::Withheld } else { GradientLocation::Follows };
        let report = ToServer::Report { number, report: self.wire_report(times), loss, gradient };
        let end = match status {
            ResultStatus::Cancelled => TransferEnd::Withdrawn,
            ResultStatus::Late => {
                self.outbox.send(&report)?;
                TransferEnd::Sent
            }
            ResultStatus::Wanted => {
                let (values, payload) = (Arc::new(values), self.payload);
                let (frame, announcement) = (frame::encode(&report)?, Vec::new());
                let transfer = Transfer { number, frame, version: None, announcement, values: values.clone(), payload };
                self.outbox.transfer(transfer, usize::MAX);
                // It may have been cancelled before the transfer was there to be stopped.
                if self.is_cancelled() {
                    self.outbox.stop_transfer(number);
                }
                let end = self.outbox.wait_for_transfer();
                self.buffer = Arc::into_inner(values);
                end
            }
        };
        match end {
            TransferEnd::Sent => self.tasks += 1,
            TransferEnd::Withdrawn => self.outbox.send(&ToServer::Dropped { number })?,
            TransferEnd::Disconnected => return Err(io::ErrorKind::NotConnected.into()),
        }
        Ok(())
    }
}

impl Drop for WorkerSession {
    /// Ends the session after the last messages.
    fn drop(&mut self) {
        self.outbox.close(None);
        // A panic of the thread is a bug there; it has nothing to give back.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn shake_hands(
    link: &mut WorkerLink,
    hello: &ToServer,
    has_keys: bool,
    task_queue: &TaskQueue,
) -> Result<Welcome, SessionEnd> {
    let deadline = Instant::now() + Duration::from_nanos(HANDSHAKE_TIMEOUT.0);
    let error = match link.ask(hello, deadline) {
        Ok(message) => {
            return match task_queue.on_message(message, None) {
                Reaction::Join(welcome) => Ok(welcome),
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
