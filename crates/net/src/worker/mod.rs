//! A worker: computes what the server asks for, until the run is over.

mod computer;
mod connect;
mod emulation;
mod load;
mod mailbox;

use std::collections::BTreeMap;
use std::io;
use std::net::Shutdown;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use paceline_core::{Version, WorkerId};
use paceline_workload::Workload;
use thiserror::Error;

pub use emulation::Emulation;

use crate::address::Address;
use crate::fingerprint::Fingerprint;
use crate::frame::Kind;
use crate::keys::Keys;
use crate::link::{Incoming, Receiver, Sender, Socket, Traffic, invalid, unexpected};
use crate::message::{Buffer, Buffers, ToServer, ToWorker};
use crate::payload::PayloadFormat;
use crate::region::{Region, Writer};
use computer::Computer;
use connect::connect;
use load::Load;
use mailbox::{End, Mailbox, Task, Verdict};

/// How a worker joins.
#[derive(Debug)]
pub struct Worker {
    /// Where the server is.
    pub address: Address,
    /// The rank to ask for; the server chooses if there is none.
    pub rank: Option<u32>,
    /// How long to try while no server is there, at first and whenever it is lost.
    pub join_timeout: Duration,
    /// How to be late on purpose.
    pub emulation: Option<Emulation>,
    /// TCP's congestion control, e.g. `reno`; the system's own by default.
    pub congestion: Option<String>,
    /// What to show a server that wants to know its workers, and to know it by.
    pub keys: Option<Keys>,
}

/// What a worker has to say on the way.
#[derive(Debug)]
pub enum WorkerNotice<'a> {
    /// No server is there yet; it will be tried again.
    Waiting {
        /// What came of the first try.
        error: &'a io::Error,
    },
    /// The server is lost, or has no place for this worker at present; it will be tried again.
    Out {
        /// Why.
        reason: &'a str,
    },
    /// The server takes this worker.
    Welcomed {
        /// As this rank.
        worker: WorkerId,
    },
}

/// What a worker leaves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerOutcome {
    /// Its rank.
    pub worker: WorkerId,
    /// Tasks it finished.
    pub tasks: u64,
    /// Why the run ended.
    pub reason: String,
}

/// Why a worker could not take part, or could not go on.
#[derive(Debug, Error)]
pub enum WorkError {
    /// There is no server.
    #[error("can't reach a server at {address}{}: {error}", tried_for(waited))]
    Connect {
        /// Where.
        address: Address,
        /// Why.
        error: io::Error,
        /// How long it was tried, where trying again made sense.
        waited: Option<Duration>,
    },
    /// The connection failed, or the server does not keep to the protocol.
    #[error("lost the server at {address}: {reason}")]
    Lost {
        /// Where.
        address: Address,
        /// Why.
        reason: String,
    },
    /// The server does not want this worker.
    #[error("the server at {address} refused this worker: {reason}")]
    Refused {
        /// Where.
        address: Address,
        /// Why.
        reason: String,
    },
    /// There is no memory for gradients.
    #[error("no memory for a gradient: {0}")]
    Memory(io::Error),
    /// The workload can't be made here.
    #[error("can't make the server's workload: {reason}")]
    Workload {
        /// Why.
        reason: String,
    },
}

fn tried_for(waited: &Option<Duration>) -> String {
    waited.map_or(String::new(), |waited| format!(" (tried for {:.0} s)", waited.as_secs_f64()))
}

/// How long a worker waits before it tries again, each time twice as long as the time before.
const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(2);

/// Turns a workload_spec into a workload, or says in a line why not.
type Make<'a> = dyn FnMut(&str) -> Result<Arc<dyn Workload>, String> + 'a;

/// What a worker keeps from one connection to the next.
#[derive(Default)]
struct Career {
    /// The workload and the workload_spec it was made of.
    workload: Option<(String, Arc<dyn Workload>)>,
    tasks: u64,
}

impl Worker {
    /// Takes part in a run until it is over. A server that is lost is joined again when it is back.
    ///
    /// From here on the calling thread is one that computes, to the system's scheduler too: it no longer takes a processor
    /// from somebody else the moment it can go on.
    ///
    /// `make` turns the server's workload_spec into the workload; its error, in a line, is told to both sides.
    ///
    /// # Errors
    /// If there is no server, it refuses this worker or stays away, or the workload can't be made.
    pub fn run(
        mut self,
        mut make: impl FnMut(&str) -> Result<Arc<dyn Workload>, String>,
        progress: &mut dyn FnMut(WorkerNotice<'_>),
    ) -> Result<WorkerOutcome, WorkError> {
        compute_in_batches();
        let address = self.address.clone();
        let mut career = Career::default();
        let mut wait = FIRST_WAIT;
        let mut out: Option<(Instant, String)> = None;
        loop {
            let left =
                out.as_ref().map_or(self.join_timeout, |(since, _)| self.join_timeout.saturating_sub(since.elapsed()));
            let before = career.tasks;
            let reason = match (self.attend(left, &mut career, &mut make, progress), out.take()) {
                (Ok(End::Bye(reason)), _) => {
                    let worker = WorkerId(self.rank.unwrap_or_default());
                    return Ok(WorkerOutcome { worker, tasks: career.tasks, reason });
                }
                (Ok(End::Refused(reason)), _) => return Err(WorkError::Refused { address, reason }),
                (Ok(End::Lost(reason) | End::Later(reason)), known) => {
                    let since = known.filter(|_| career.tasks == before).map(|(since, _)| since);
                    out = Some((since.unwrap_or_else(Instant::now), reason.clone()));
                    reason
                }
                (Err(WorkError::Connect { .. }), Some((_, reason))) => return Err(WorkError::Lost { address, reason }),
                (Err(error), _) => return Err(error),
            };
            if career.tasks > before {
                wait = FIRST_WAIT;
            }
            if out.as_ref().is_some_and(|(since, _)| since.elapsed() >= self.join_timeout) {
                return Err(WorkError::Lost { address, reason });
            }
            progress(WorkerNotice::Out { reason: &reason });
            thread::sleep(wait);
            wait = (wait * 2).min(LONGEST_WAIT);
        }
    }

    /// Joins the server and does what it says until one of both has enough.
    fn attend(
        &mut self,
        join_timeout: Duration,
        career: &mut Career,
        make: &mut Make<'_>,
        progress: &mut dyn FnMut(WorkerNotice<'_>),
    ) -> Result<End, WorkError> {
        let mut announce = |error: &io::Error| progress(WorkerNotice::Waiting { error });
        let socket =
            connect(&self.address, self.congestion.as_deref(), self.keys.as_ref(), join_timeout, &mut announce)?;
        let lost = |error: io::Error| End::Lost(error.to_string());
        let shared = socket.is_local();
        let mut receiver = Receiver::new(socket.clone(), Traffic::default());
        let mut sender = Sender::new(socket, Traffic::default());

        let emulated = self.emulation.as_ref().map(ToString::to_string);
        let token = self.keys.as_ref().map(Keys::token);
        let hello = ToServer::Hello { rank: self.rank, emulated, token };
        let greeted = sender.message(&hello).and_then(|()| receiver.message());
        let (rank, workload_spec, seed, payload, optimizer) = match greeted {
            Ok(ToWorker::Welcome { rank, workload_spec, seed, payload, optimizer }) => {
                (rank, workload_spec, seed, payload, optimizer)
            }
            Ok(ToWorker::Refuse { reason, again }) => return Ok(refused(reason, again)),
            Ok(_) => return Ok(End::Lost("it did not answer the hello".into())),
            Err(error) => {
                let hint = if self.keys.is_some() { "does it use the same --keys?" } else { "does it want --keys?" };
                return Ok(match error.kind() {
                    // What does not speak the protocol, or not in the clear, will not do so later.
                    io::ErrorKind::InvalidData => End::Refused(format!("{error} ({hint})")),
                    io::ErrorKind::UnexpectedEof => End::Lost(format!("it hung up at once ({hint})")),
                    _ => End::Lost(format!("{error} ({hint})")),
                });
            }
        };
        self.rank = Some(rank);
        progress(WorkerNotice::Welcomed { worker: WorkerId(rank) });
        let known = career.workload.take().filter(|(known, _)| *known == workload_spec);
        let workload = match known.map_or_else(|| make(&workload_spec), |(_, workload)| Ok(workload)) {
            Ok(workload) => workload,
            Err(reason) => {
                // The server is told as far as it still listens; this side knows anyway.
                let _ = sender.message(&ToServer::Failed { reason: reason.clone() });
                return Err(WorkError::Workload { reason });
            }
        };
        career.workload = Some((workload_spec, workload.clone()));
        let fingerprint = Fingerprint::of(workload.as_ref(), seed);
        if let Err(error) = sender.message(&ToServer::Ready { fingerprint }) {
            return Ok(lost(error));
        }

        let length = workload.layout().len();
        let gradient = if shared { Ok(None) } else { Region::private(length).map(Some) };
        let gradient = gradient.map_err(WorkError::Memory)?.map(|region| Arc::new(Mutex::new(region)));
        let hang_up = HangUp(sender.socket().clone());
        let (mailbox, sender) = (Mailbox::default(), Mutex::new(sender));
        let (tasks, end) = thread::scope(|scope| {
            let reader = Reader {
                receiver,
                sender: &sender,
                mailbox: &mailbox,
                payload,
                length,
                parameters: BTreeMap::new(),
                gradients: BTreeMap::new(),
                models: Vec::new(),
            };
            scope.spawn(|| reader.read());
            // The reader may still wait for the server when this is done, or panics.
            let _hang_up = hang_up;
            let mut computer = Computer {
                replica: workload.replica(),
                layout: workload.layout(),
                optimizer,
                mailbox: &mailbox,
                sender: &sender,
                payload,
                gradient,
                emulation: self.emulation.as_mut(),
                load: Load::default(),
                tasks: 0,
                replicas: BTreeMap::new(),
            };
            let end = computer.compute();
            (computer.tasks, end)
        });
        career.tasks += tasks;
        Ok(end)
    }
}

/// Asks the system not to take a processor from somebody else the moment this thread, or one that it starts, can go on.
/// Where a server runs on the same machine, all its workers would else stop it, one after the other, while it tells them
/// what to do: handing out work to 96 of them takes twice as long.
fn compute_in_batches() {
    let priority = libc::sched_param { sched_priority: 0 };
    // SAFETY: it reads the structure and changes how this thread is scheduled, nothing else. That it fails does no harm.
    let _ = unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &priority) };
}

fn refused(reason: String, again: bool) -> End {
    if again { End::Later(reason) } else { End::Refused(reason) }
}

/// Ends the connection when it goes.
struct HangUp(Socket);

impl Drop for HangUp {
    fn drop(&mut self) {
        self.0.shutdown(Shutdown::Both);
    }
}

fn lock(sender: &Mutex<Sender>) -> MutexGuard<'_, Sender> {
    sender.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The thread that listens to the server.
struct Reader<'a> {
    receiver: Receiver,
    sender: &'a Mutex<Sender>,
    mailbox: &'a Mailbox,
    payload: PayloadFormat,
    length: usize,
    /// Parameter buffers shared by the server.
    parameters: BTreeMap<u32, Arc<Region>>,
    /// Gradient buffers shared by the server.
    gradients: BTreeMap<u32, Arc<Mutex<Region>>>,
    /// Own buffers that models are received into; one is used again when no task reads it.
    models: Vec<Arc<Region>>,
}

impl Reader<'_> {
    fn read(mut self) {
        let end = loop {
            match self.receiver.next() {
                Ok(Incoming::Message(message)) => {
                    if let Err(end) = self.hear(message) {
                        break end;
                    }
                }
                Ok(Incoming::Chunk(_)) => break End::Lost(unexpected(Kind::Message, Kind::Chunk).to_string()),
                Ok(Incoming::End) => break End::Lost("it closed the connection".into()),
                Err(error) => break error.into(),
            }
        };
        self.mailbox.end(end);
    }

    /// Does what the server says, or says why nothing more will come.
    fn hear(&mut self, message: ToWorker) -> Result<(), End> {
        let dropped = match message {
            ToWorker::Assign { assignment, after, buffers, terms } => {
                let (parameters, gradient) = buffers.map(|buffers| self.shared(buffers)).transpose()?.unzip();
                self.mailbox.assign(Task { assignment, terms, parameters, gradient }, after)
            }
            ToWorker::Interrupt { number } => self.mailbox.interrupt(number),
            ToWorker::Continue { number } => {
                self.mailbox.answer(number, Verdict::Continue);
                Vec::new()
            }
            ToWorker::Collect { number } => {
                self.mailbox.answer(number, Verdict::Collect);
                Vec::new()
            }
            ToWorker::Map { buffer, length } => {
                self.map(buffer, length)?;
                Vec::new()
            }
            ToWorker::Model { version } => {
                self.receive(version)?;
                Vec::new()
            }
            ToWorker::Welcome { .. } => return Err(End::Lost("a second welcome".into())),
            ToWorker::Refuse { reason, again } => return Err(refused(reason, again)),
            ToWorker::Bye { reason } => return Err(End::Bye(reason)),
        };
        for number in dropped {
            lock(self.sender).message(&ToServer::Dropped { number })?;
        }
        Ok(())
    }

    fn shared(&self, Buffers { parameters, gradient }: Buffers) -> io::Result<(Arc<Region>, Arc<Mutex<Region>>)> {
        match (self.parameters.get(&parameters), self.gradients.get(&gradient)) {
            (Some(parameters), Some(gradient)) => Ok((parameters.clone(), gradient.clone())),
            _ => Err(invalid(format!("shared buffers {parameters} and {gradient} are not both known"))),
        }
    }

    fn map(&mut self, buffer: Buffer, length: u64) -> io::Result<()> {
        if length != self.length as u64 {
            return Err(invalid(format!("a shared buffer of {length} values instead of {}", self.length)));
        }
        let file = self.receiver.file()?;
        match buffer {
            Buffer::Parameters(index) => {
                let region = Region::open(file, self.length, Writer::Maker)?;
                self.parameters.insert(index, Arc::new(region));
            }
            Buffer::Gradient(index) => {
                let region = Region::open(file, self.length, Writer::Guest)?;
                self.gradients.insert(index, Arc::new(Mutex::new(region)));
            }
        }
        Ok(())
    }

    /// Receives a model; messages may come between its chunks.
    fn receive(&mut self, version: Version) -> Result<(), End> {
        let free = self.models.iter_mut().position(|model| Arc::get_mut(model).is_some());
        let mut model = match free {
            Some(free) => self.models.swap_remove(free),
            None => Arc::new(Region::private(self.length)?),
        };
        let values = Arc::get_mut(&mut model).expect("nobody reads a free buffer").values_mut();
        let mut filled = 0;
        while filled < values.len() {
            match self.receiver.next()? {
                Incoming::Chunk(bytes) => {
                    filled += self.receiver.chunk(bytes, &mut values[filled..], self.payload)?;
                }
                Incoming::Message(ToWorker::Assign { .. } | ToWorker::Model { .. }) => {
                    return Err(End::Lost("a message in the middle of a model".into()));
                }
                Incoming::Message(message) => self.hear(message)?,
                Incoming::End => return Err(End::Lost("it closed the connection".into())),
            }
        }
        self.mailbox.model(version, model.clone());
        self.models.push(model);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_never_comes_is_given_up_with_both_reasons() {
        let nowhere = Address::Local { name: format!("paceline-nobody-{}", std::process::id()) };
        let worker = Worker {
            address: nowhere,
            rank: None,
            join_timeout: Duration::from_millis(1),
            emulation: None,
            congestion: None,
            keys: None,
        };
        let mut announced = 0;
        let error = worker
            .run(|_| Err("never asked".into()), &mut |progress| {
                assert!(matches!(progress, WorkerNotice::Waiting { .. }));
                announced += 1;
            })
            .unwrap_err();
        assert_eq!(announced, 1);
        let text = error.to_string();
        assert!(text.contains("can't reach a server at local:paceline-nobody-") && text.contains("(tried for 0 s)"));
    }
}
