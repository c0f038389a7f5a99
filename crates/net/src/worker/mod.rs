//! The worker: computes what the server assigns, until the run is over.

mod computer;
mod connect;
mod emulation;
mod system_load;
mod task_queue;

use std::collections::BTreeMap;
use std::io;
use std::net::Shutdown;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use paceline_core::{Version, WorkerId};
use paceline_protocol::{
    Fingerprint, HANDSHAKE_TIMEOUT, HEARTBEAT_INTERVAL, PayloadFormat, Reaction, SessionEnd, SharedBuffer,
    SharedBuffers, ToServer, ToWorker, Welcome,
};
use paceline_workload::{Progress, Workload};
use thiserror::Error;

pub use emulation::Emulation;

use crate::address::Address;
use crate::connection::{Incoming, Receiver, Sender, Socket, Traffic, invalid, unexpected};
use crate::frame::FrameKind;
use crate::keys::Keys;
use crate::shared_memory::{Region, RegionWriter};
use computer::Computer;
use connect::connect;
use system_load::SystemLoad;
use task_queue::{TaskModel, TaskQueue};

/// A worker and how it joins its server.
#[derive(Debug)]
pub struct Worker {
    /// The address of the server.
    pub address: Address,
    /// The rank to ask for; `None` lets the server choose.
    pub rank: Option<u32>,
    /// How long to try to reach the server, when joining and when rejoining.
    pub join_timeout: Duration,
    /// Emulated delays; `None` for no delays.
    pub emulation: Option<Emulation>,
    /// The TCP congestion control, e.g. `reno`; by default that of the system.
    pub congestion: Option<String>,
    /// The keys that authenticate this worker and its server over TCP, if the server has keys.
    pub keys: Option<Keys>,
}

/// A change in the state of a worker.
#[derive(Debug)]
pub enum WorkerNotice<'a> {
    /// The server can't be reached yet; the worker tries again.
    Waiting {
        /// Why the first attempt failed.
        error: &'a io::Error,
    },
    /// The connection is lost, or the server has no place for this worker now; the worker tries again.
    Disconnected {
        /// The reason.
        reason: &'a str,
    },
    /// The server has accepted this worker.
    Joined {
        /// The rank of the worker.
        worker: WorkerId,
    },
}

/// The result of a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerOutcome {
    /// The rank of the worker.
    pub worker: WorkerId,
    /// The number of tasks that it finished.
    pub tasks: u64,
    /// Why the run ended.
    pub reason: String,
}

/// Why a worker could not take part, or could not continue.
#[derive(Debug, Error)]
pub enum WorkerError {
    /// The server can't be reached.
    #[error("can't reach a server at {address}{}: {error}", tried_for(waited))]
    Connect {
        /// The address of the server.
        address: Address,
        /// The cause.
        error: io::Error,
        /// How long the worker tried; `None` if a further attempt was pointless.
        waited: Option<Duration>,
    },
    /// The connection was lost or refused, and the worker could not rejoin in time.
    #[error("disconnected from the server at {address}: {reason}")]
    Lost {
        /// The address of the server.
        address: Address,
        /// The reason.
        reason: String,
    },
    /// The server refused or dismissed this worker.
    #[error("the server at {address} refused this worker: {reason}")]
    Refused {
        /// The address of the server.
        address: Address,
        /// The reason.
        reason: String,
    },
    /// Memory for gradients can't be allocated.
    #[error("can't allocate memory for a gradient: {0}")]
    Memory(io::Error),
    /// The workload can't be built here.
    #[error("can't build the workload of the server: {reason}")]
    Workload {
        /// The reason.
        reason: String,
    },
}

fn tried_for(waited: &Option<Duration>) -> String {
    waited.map_or(String::new(), |waited| format!(" (tried for {:.0} s)", waited.as_secs_f64()))
}

/// The delay before the first retry. It doubles with every retry, up to [`MAX_RETRY_DELAY`].
const MIN_RETRY_DELAY: Duration = Duration::from_millis(100);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(2);

/// Builds a workload from its specification; an error is one line.
type BuildWorkload<'a> = dyn FnMut(&str) -> Result<Arc<dyn Workload>, String> + 'a;

/// The state that a worker keeps when it rejoins.
#[derive(Default)]
struct RejoinState {
    /// The workload and the specification it was built from.
    workload: Option<(String, Arc<dyn Workload>)>,
    tasks: u64,
}

impl Worker {
    /// Takes part in a run until it is over. If the connection is lost, the worker rejoins.
    ///
    /// Sets the scheduling policy of the calling thread to `SCHED_BATCH`: when it wakes up, it does not preempt other
    /// threads any more.
    ///
    /// `build` turns the server's workload specification into a workload. Its error, one line, is also sent to the
    /// server.
    ///
    /// # Errors
    /// If the server can't be reached, refuses this worker or stays away, or the workload can't be built.
    pub fn run(
        mut self,
        mut build: impl FnMut(&str) -> Result<Arc<dyn Workload>, String>,
        on_notice: &mut dyn FnMut(WorkerNotice<'_>),
    ) -> Result<WorkerOutcome, WorkerError> {
        set_batch_scheduling();
        let address = self.address.clone();
        let mut state = RejoinState::default();
        let mut delay = MIN_RETRY_DELAY;
        let mut disconnected: Option<(Instant, String)> = None;
        loop {
            let left = disconnected
                .as_ref()
                .map_or(self.join_timeout, |(since, _)| self.join_timeout.saturating_sub(since.elapsed()));
            let before = state.tasks;
            let reason = match (self.run_session(left, &mut state, &mut build, on_notice), disconnected.take()) {
                (Ok(SessionEnd::Finished(reason)), _) => {
                    let worker = WorkerId(self.rank.unwrap_or_default());
                    return Ok(WorkerOutcome { worker, tasks: state.tasks, reason });
                }
                (Ok(SessionEnd::Refused(reason)), _) => return Err(WorkerError::Refused { address, reason }),
                (Ok(SessionEnd::Lost(reason) | SessionEnd::RetryLater(reason)), earlier) => {
                    let since = earlier.filter(|_| state.tasks == before).map(|(since, _)| since);
                    disconnected = Some((since.unwrap_or_else(Instant::now), reason.clone()));
                    reason
                }
                (Err(WorkerError::Connect { .. }), Some((_, reason))) => {
                    return Err(WorkerError::Lost { address, reason });
                }
                (Err(error), _) => return Err(error),
            };
            if state.tasks > before {
                delay = MIN_RETRY_DELAY;
            }
            if disconnected.as_ref().is_some_and(|(since, _)| since.elapsed() >= self.join_timeout) {
                return Err(WorkerError::Lost { address, reason });
            }
            on_notice(WorkerNotice::Disconnected { reason: &reason });
            thread::sleep(delay);
            delay = (delay * 2).min(MAX_RETRY_DELAY);
        }
    }

    /// Joins the server and works for it until the session ends.
    fn run_session(
        &mut self,
        join_timeout: Duration,
        state: &mut RejoinState,
        build: &mut BuildWorkload<'_>,
        on_notice: &mut dyn FnMut(WorkerNotice<'_>),
    ) -> Result<SessionEnd, WorkerError> {
        let mut on_waiting = |error: &io::Error| on_notice(WorkerNotice::Waiting { error });
        let socket =
            connect(&self.address, self.congestion.as_deref(), self.keys.as_ref(), join_timeout, &mut on_waiting)?;
        let shared = socket.is_local();
        let mut receiver = Receiver::new(socket.clone(), Traffic::default());
        let shutdown_on_drop = ShutdownOnDrop(socket.clone());
        let sender = Mutex::new(Sender::new(socket, Traffic::default()));
        let (task_queue, progress) = (TaskQueue::default(), Progress::default());

        let emulated = self.emulation.as_ref().map(ToString::to_string);
        // The token is for a server on a network, and only readable for it: TLS is on with keys.
        let token = self.keys.as_ref().filter(|_| !shared).map(Keys::token);
        let hello = ToServer::Hello { rank: self.rank, emulated, token };
        let welcome = match self.join(&hello, &sender, &mut receiver, &task_queue) {
            Ok(welcome) => welcome,
            Err(end) => return Ok(end),
        };
        let Welcome { rank, workload_spec, seed, payload, optimizer } = welcome;
        self.rank = Some(rank);
        on_notice(WorkerNotice::Joined { worker: WorkerId(rank) });
        let (tasks, end) = thread::scope(|scope| {
            // Ends the session, and with it the other threads, also if the computation panics.
            let _end_on_drop = EndOnDrop(&task_queue);
            let _shutdown_on_drop = shutdown_on_drop;
            scope.spawn(|| send_heartbeats(&sender, &task_queue, &progress));
            let built = state.workload.take().filter(|(spec, _)| *spec == workload_spec);
            let workload = match built.map_or_else(|| build(&workload_spec), |(_, workload)| Ok(workload)) {
                Ok(workload) => workload,
                Err(reason) => {
                    // It fails only if the server has closed the connection.
                    let _ = lock(&sender).message(&ToServer::Leave { reason: reason.clone() });
                    return Err(WorkerError::Workload { reason });
                }
            };
            state.workload = Some((workload_spec, workload.clone()));
            let fingerprint = Fingerprint::of(workload.as_ref(), seed);
            if let Err(error) = lock(&sender).message(&ToServer::Ready { fingerprint }) {
                return Ok((0, lost(&error)));
            }
            let length = workload.layout().len();
            let gradient = if shared { Ok(None) } else { Region::private(length).map(Some) };
            let gradient = gradient.map_err(WorkerError::Memory)?.map(|region| Arc::new(Mutex::new(region)));
            let reader = ServerReader {
                receiver,
                sender: &sender,
                task_queue: &task_queue,
                progress: &progress,
                payload,
                length,
                parameters: BTreeMap::new(),
                gradients: BTreeMap::new(),
                models: Vec::new(),
            };
            scope.spawn(|| reader.read());
            let mut replica = workload.replica();
            replica.track(progress.clone());
            let mut computer = Computer {
                replica,
                layout: workload.layout(),
                optimizer,
                task_queue: &task_queue,
                sender: &sender,
                payload,
                gradient,
                emulation: self.emulation.as_mut(),
                system_load: SystemLoad::default(),
                tasks: 0,
                progress: progress.clone(),
                replicas: BTreeMap::new(),
            };
            let end = computer.compute();
            Ok((computer.tasks, end))
        })?;
        state.tasks += tasks;
        Ok(end)
    }

    /// Sends the hello and waits for the answer, up to [`HANDSHAKE_TIMEOUT`].
    fn join(
        &self,
        hello: &ToServer,
        sender: &Mutex<Sender>,
        receiver: &mut Receiver,
        task_queue: &TaskQueue,
    ) -> Result<Welcome, SessionEnd> {
        let deadline = Instant::now() + Duration::from_nanos(HANDSHAKE_TIMEOUT.0);
        let answer = receiver.set_deadline(Some(deadline)).and_then(|()| lock(sender).message(hello));
        let answer = answer.and_then(|()| receiver.message());
        receiver.set_deadline(None).map_err(|error| lost(&error))?;
        match answer {
            Ok(message) => match task_queue.on_message(message, None) {
                Reaction::Join(welcome) => Ok(welcome),
                Reaction::End(end) => Err(end),
                Reaction::None | Reaction::Drop(_) => Err(SessionEnd::Lost("no welcome".into())),
            },
            Err(error) => {
                let hint = if self.keys.is_some() {
                    "does the server use the same --keys?"
                } else {
                    "does the server require --keys?"
                };
                Err(match error.kind() {
                    // Retrying is pointless: the peer has another protocol, or only one side uses TLS.
                    io::ErrorKind::InvalidData => SessionEnd::Refused(format!("{error} ({hint})")),
                    io::ErrorKind::TimedOut => {
                        let seconds = HANDSHAKE_TIMEOUT.seconds();
                        SessionEnd::Lost(format!("no answer to the handshake within {seconds:.0} s"))
                    }
                    io::ErrorKind::UnexpectedEof => {
                        SessionEnd::Lost(format!("connection closed during the handshake ({hint})"))
                    }
                    _ => SessionEnd::Lost(format!("{error} ({hint})")),
                })
            }
        }
    }
}

/// Sends heartbeats until the session ends. This thread does not compute, so the server knows that the process is
/// alive, however long a task takes.
fn send_heartbeats(sender: &Mutex<Sender>, task_queue: &TaskQueue, progress: &Progress) {
    while task_queue.wait(Duration::from_nanos(HEARTBEAT_INTERVAL.0)) {
        if lock(sender).message(&ToServer::Heartbeat { progress: progress.steps() }).is_err() {
            break;
        }
    }
}

fn lost(error: &io::Error) -> SessionEnd {
    SessionEnd::Lost(error.to_string())
}

/// Sets the scheduling policy to `SCHED_BATCH`, so that this thread and those it starts do not preempt others when they
/// wake up. With a server on the same machine, every worker would otherwise preempt it while it dispatches: dispatching
/// to 96 workers takes twice as long.
fn set_batch_scheduling() {
    let priority = libc::sched_param { sched_priority: 0 };
    // SAFETY: the call reads the structure and changes the scheduling of this thread only. A failure does no harm.
    let _ = unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &priority) };
}

/// Ends the session when dropped.
struct EndOnDrop<'a>(&'a TaskQueue);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.end(SessionEnd::Lost("the session is over".into()));
    }
}

/// Closes the connection when dropped.
struct ShutdownOnDrop(Socket);

impl Drop for ShutdownOnDrop {
    fn drop(&mut self) {
        self.0.shutdown(Shutdown::Both);
    }
}

fn lock(sender: &Mutex<Sender>) -> MutexGuard<'_, Sender> {
    sender.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The thread that reads the messages of the server.
struct ServerReader<'a> {
    receiver: Receiver,
    sender: &'a Mutex<Sender>,
    task_queue: &'a TaskQueue,
    progress: &'a Progress,
    payload: PayloadFormat,
    length: usize,
    /// Parameter buffers shared by the server.
    parameters: BTreeMap<u32, Arc<Region>>,
    /// Gradient buffers shared by the server.
    gradients: BTreeMap<u32, Arc<Mutex<Region>>>,
    /// Own buffers for received models; a buffer is reused when no task reads it.
    models: Vec<Arc<Region>>,
}

impl ServerReader<'_> {
    fn read(mut self) {
        let end = loop {
            match self.receiver.next() {
                Ok(Incoming::Message(message)) => {
                    if let Err(end) = self.handle(message) {
                        break end;
                    }
                }
                Ok(Incoming::Chunk(_)) => {
                    break SessionEnd::Lost(unexpected(FrameKind::Message, FrameKind::Chunk).to_string());
                }
                Ok(Incoming::End) => break SessionEnd::Lost("connection closed".into()),
                Err(error) => break lost(&error),
            }
        };
        self.task_queue.end(end);
    }

    /// Carries out a message. An error is the end of the session.
    fn handle(&mut self, message: ToWorker) -> Result<(), SessionEnd> {
        let model = match &message {
            ToWorker::Assign { buffers: Some(buffers), .. } => Some(self.shared(*buffers)?),
            ToWorker::Map { buffer, length } => {
                self.map(*buffer, *length)?;
                None
            }
            ToWorker::Model { version } => return self.receive(*version),
            _ => None,
        };
        match self.task_queue.on_message(message, model) {
            Reaction::None => Ok(()),
            Reaction::Drop(messages) => {
                messages.iter().try_for_each(|message| lock(self.sender).message(message)).map_err(|error| lost(&error))
            }
            Reaction::Join(_) => Err(SessionEnd::Lost("second welcome".into())),
            Reaction::End(end) => Err(end),
        }
    }

    fn shared(&self, SharedBuffers { parameters, gradient }: SharedBuffers) -> Result<TaskModel, SessionEnd> {
        match (self.parameters.get(&parameters), self.gradients.get(&gradient)) {
            (Some(parameters), Some(gradient)) => {
                Ok(TaskModel { parameters: parameters.clone(), gradient: Some(gradient.clone()) })
            }
            _ => Err(lost(&invalid(format!("unknown shared buffer: parameters {parameters} or gradient {gradient}")))),
        }
    }

    fn map(&mut self, buffer: SharedBuffer, length: u64) -> Result<(), SessionEnd> {
        if length != self.length as u64 {
            let text = format!("shared buffer of {length} values: expected {}", self.length);
            return Err(SessionEnd::Lost(text));
        }
        let (SharedBuffer::Parameters(index) | SharedBuffer::Gradient(index)) = buffer;
        let writer = if let SharedBuffer::Parameters(_) = buffer { RegionWriter::Owner } else { RegionWriter::Peer };
        let file = self.receiver.file();
        let region = file.and_then(|file| Region::open(file, self.length, writer)).map_err(|error| lost(&error))?;
        match writer {
            RegionWriter::Owner => drop(self.parameters.insert(index, Arc::new(region))),
            RegionWriter::Peer => drop(self.gradients.insert(index, Arc::new(Mutex::new(region)))),
        }
        Ok(())
    }

    /// Receives a model; messages may arrive between its chunks.
    fn receive(&mut self, version: Version) -> Result<(), SessionEnd> {
        let free = self.models.iter_mut().position(|model| Arc::get_mut(model).is_some());
        let mut model = match free {
            Some(free) => self.models.swap_remove(free),
            None => Arc::new(Region::private(self.length).map_err(|error| lost(&error))?),
        };
        let values = Arc::get_mut(&mut model).expect("a free buffer has no reader").values_mut();
        let mut filled = 0;
        while filled < values.len() {
            match self.receiver.next().map_err(|error| lost(&error))? {
                Incoming::Chunk(bytes) => {
                    let chunk = self.receiver.chunk(bytes, &mut values[filled..], self.payload);
                    filled += chunk.map_err(|error| lost(&error))?;
                    self.progress.step();
                }
                Incoming::Message(ToWorker::Assign { .. } | ToWorker::Model { .. }) => {
                    return Err(SessionEnd::Lost("message in the middle of a model".into()));
                }
                Incoming::Message(message) => self.handle(message)?,
                Incoming::End => return Err(SessionEnd::Lost("connection closed".into())),
            }
        }
        self.task_queue.add_model(version, model.clone());
        self.models.push(model);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_absent_server_is_reported_with_its_address_and_the_time_tried() {
        let absent = Address::Local { name: format!("paceline-absent-{}", std::process::id()) };
        let worker = Worker {
            address: absent,
            rank: None,
            join_timeout: Duration::from_millis(1),
            emulation: None,
            congestion: None,
            keys: None,
        };
        let mut notices = 0;
        let error = worker
            .run(|_| Err("never called".into()), &mut |notice| {
                assert!(matches!(notice, WorkerNotice::Waiting { .. }));
                notices += 1;
            })
            .unwrap_err();
        assert_eq!(notices, 1);
        let text = error.to_string();
        assert!(text.contains("can't reach a server at local:paceline-absent-") && text.contains("(tried for 0 s)"));
    }
}
