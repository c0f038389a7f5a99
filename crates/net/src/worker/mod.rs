//! The worker: computes what the server assigns, until the run is over.

mod computer;
mod emulation;
mod exchange;
mod link;
mod membership;
mod payload_choice;
mod server_messages;
mod session;
mod shard_links;
mod shared_vectors;
mod system_load;
mod task_queue;
mod update_push;

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use paceline_core::WorkerId;
use paceline_protocol::{
    Fingerprint, HeldParameters, MAX_PARTS, Role, ServerSearch, SessionEnd, ToServer, ToWorker, Welcome,
};
use paceline_runtime::{OfferedModel, is_interrupted};
use paceline_workload::Workload;
use thiserror::Error;

pub use emulation::Emulation;

use crate::address::Address;
use crate::connect::connect;
use crate::keys::Keys;
use crate::shard::Shard;
use crate::shared_memory::ModelMapping;
use crate::socket::Socket;
use computer::Computer;
use link::WorkerLink;
pub use membership::GroupMembership;
use session::HelloAnswer;
pub use session::{TakenTask, TaskReport, TimeSpent, WorkerSession};
use shard_links::ShardAccess;
pub use task_queue::NextOrder;
pub use update_push::UpdatePush;

/// A worker and how it joins its server.
#[derive(Debug)]
pub struct Worker {
    /// Where the server is found, or its standby.
    pub servers: ServerSearch<Address>,
    /// What it joins as: a worker, by default of any rank.
    pub role: Role,
    /// How long to try to reach the server, when joining and when rejoining.
    pub join_timeout: Duration,
    /// Emulated delays; `None` for no delays.
    pub emulation: Option<Emulation>,
    /// The TCP congestion control, e.g. `reno`; by default that of the system.
    pub congestion: Option<String>,
    /// The keys that authenticate this worker and its server over TCP, if the server has keys.
    pub keys: Option<Keys>,
    /// How models in shared memory are mapped.
    pub model_mapping: ModelMapping,
    /// Whether memory is shared with shards on the same host; default true.
    pub shares_memory: bool,
    /// The parts of the parameters that this process holds, if the server asks for that.
    pub shards: HeldShards,
    /// Where the workers find each other, if their processes hold the model together and this one is the first of them. It
    /// listens once a server has asked for that, and stays when the worker rejoins.
    pub meeting: Option<TcpListener>,
}

/// The parts of the parameters that a process holds, once a server has asked for them. They stay when it rejoins.
#[derive(Debug, Default)]
pub struct HeldShards(Vec<Shard>);

impl HeldShards {
    /// The ports of as many shards, which a server can reach that is connected by this socket. They are started if need be.
    fn ports(&mut self, parts: u8, socket: &Socket, access: &ShardAccess) -> Vec<u16> {
        let Socket::Tcp(tcp) = socket else { return Vec::new() };
        while self.0.len() < parts.into() {
            let start =
                |address: SocketAddr| Shard::start(address.ip(), access.keys.as_ref(), access.congestion.as_deref());
            // Without one, the server does with others, or says what is missing.
            let Ok(shard) = tcp.stream.local_addr().and_then(start) else { break };
            self.0.push(shard);
        }
        self.0.iter().take(parts.into()).map(Shard::port).collect()
    }

    /// Waits until no run has a part of its parameters here, up to the deadline. Returns whether that is so.
    pub fn wait_until_free(&self, deadline: Instant) -> bool {
        self.0.iter().all(|shard| shard.wait_until_free(deadline))
    }
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
    /// The server has accepted this process.
    Joined {
        /// The rank of the worker. `None` if this process holds a part of the parameters only.
        worker: Option<WorkerId>,
        /// Where the server is.
        address: &'a Address,
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
    /// The run is over.
    #[error("the run is over: {reason}")]
    Finished {
        /// Why it ended.
        reason: String,
    },
    /// The process was interrupted while no server was there.
    #[error("interrupted")]
    Interrupted,
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
pub(crate) const MIN_RETRY_DELAY: Duration = Duration::from_millis(100);
pub(crate) const MAX_RETRY_DELAY: Duration = Duration::from_secs(2);

/// How long to ask a server again that has no place yet, e.g. because another worker sends its model.
const PLACE_TIMEOUT: Duration = Duration::from_secs(60);

/// Builds a workload from its specification; an error is one line.
type BuildWorkload<'a> = dyn FnMut(&str) -> Result<Arc<dyn Workload>, String> + 'a;

impl Worker {
    /// A worker of the server at `address`, of any rank, which tries to reach it for half a minute.
    pub fn new(address: Address) -> Self {
        let join_timeout = Duration::from_secs(30);
        Worker {
            servers: ServerSearch::new(address, []),
            role: Role::Worker(None),
            join_timeout,
            emulation: None,
            congestion: None,
            keys: None,
            model_mapping: ModelMapping::default(),
            shares_memory: true,
            shards: HeldShards::default(),
            meeting: None,
        }
    }

    /// Takes part in a run until it is over, or [the process is interrupted](paceline_runtime::request_interrupt). If the
    /// connection is lost, the worker rejoins.
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
        let (mut workload, mut tasks) = (None, 0);
        let reason = self.rejoin_until_over(on_notice, |worker, join_timeout, on_notice| {
            let (done, end) = worker.run_session(join_timeout, &mut workload, &mut build, on_notice)?;
            tasks += done;
            Ok((done > 0, end))
        })?;
        let rank = if let Role::Worker(rank) = self.role { rank } else { None };
        Ok(WorkerOutcome { worker: WorkerId(rank.unwrap_or_default()), tasks, reason })
    }

    /// Holds a part of the parameters until the run is over, and computes nothing. If the connection is lost, or the server
    /// has all the shards that it needs, tries again. Returns why the run ended.
    ///
    /// # Errors
    /// If the server can't be reached over TCP, refuses this process or stays away.
    pub fn hold(mut self, on_notice: &mut dyn FnMut(WorkerNotice<'_>)) -> Result<String, WorkerError> {
        self.role = Role::Shard { ports: Vec::new() };
        self.rejoin_until_over(on_notice, |worker, join_timeout, on_notice| {
            match worker.say_hello(join_timeout, on_notice)? {
                Ok(HelloAnswer::Welcome(mut session, _)) => loop {
                    match session.next_task(None) {
                        Ok(_) => {}
                        Err(end) => return Ok((true, end)),
                    }
                },
                Ok(HelloAnswer::SendModel(_)) => Ok((false, SessionEnd::Lost("a shard has no model to send".into()))),
                Err(end) => Ok((false, end)),
            }
        })
    }

    /// Runs sessions, up to the join timeout after another, until the run is over. A session is given that time, and returns
    /// whether it came to anything. Returns why the run ended.
    fn rejoin_until_over(
        &mut self,
        on_notice: &mut dyn FnMut(WorkerNotice<'_>),
        mut run_session: impl FnMut(
            &mut Self,
            Duration,
            &mut dyn FnMut(WorkerNotice<'_>),
        ) -> Result<(bool, SessionEnd), WorkerError>,
    ) -> Result<String, WorkerError> {
        let address = self.servers.first().clone();
        let mut delay = MIN_RETRY_DELAY;
        let mut disconnected: Option<(Instant, String)> = None;
        loop {
            let left = disconnected
                .as_ref()
                .map_or(self.join_timeout, |(since, _)| self.join_timeout.saturating_sub(since.elapsed()));
            let reason = match (run_session(self, left, on_notice), disconnected.take()) {
                (Ok((_, SessionEnd::Finished(reason))), _) => return Ok(reason),
                (Ok((_, SessionEnd::Refused(reason))), _) => return Err(WorkerError::Refused { address, reason }),
                (Ok((came_to_something, SessionEnd::Lost(reason) | SessionEnd::RetryLater(reason))), earlier) => {
                    if came_to_something {
                        delay = MIN_RETRY_DELAY;
                    }
                    let since = earlier.filter(|_| !came_to_something).map(|(since, _)| since);
                    disconnected = Some((since.unwrap_or_else(Instant::now), reason.clone()));
                    reason
                }
                (Err(WorkerError::Connect { .. }), Some((_, reason))) => {
                    return Err(WorkerError::Lost { address, reason });
                }
                (Err(error), _) => return Err(error),
            };
            if is_interrupted() {
                return Err(WorkerError::Interrupted);
            }
            if disconnected.as_ref().is_some_and(|(since, _)| since.elapsed() >= self.join_timeout) {
                return Err(WorkerError::Lost { address, reason });
            }
            on_notice(WorkerNotice::Disconnected { reason: &reason });
            thread::sleep(delay);
            delay = (delay * 2).min(MAX_RETRY_DELAY);
        }
    }

    /// Joins a server whose workers bring the model. Sends it if the server has none yet; if the server has one, it must have
    /// the same tensors. If the server can't be reached, tries again up to the join timeout; if it has no place now, for a
    /// minute at least.
    ///
    /// # Errors
    /// If the server can't be reached, has another model, or refuses this worker.
    pub fn join(
        &mut self,
        model: &OfferedModel,
        on_notice: &mut dyn FnMut(WorkerNotice<'_>),
    ) -> Result<(WorkerSession, Welcome), WorkerError> {
        let (started, limit) = (Instant::now(), self.join_timeout.max(PLACE_TIMEOUT));
        loop {
            let end = match self.say_hello(self.join_timeout, on_notice)? {
                Ok(HelloAnswer::Welcome(session, welcome)) => {
                    let (training, ports) = (&model.training, self.ports(&session, &welcome));
                    session.ready(Fingerprint::of_layout(&model.layout, training.frozen), model.layout.len(), ports);
                    return Ok((session, welcome));
                }
                Ok(HelloAnswer::SendModel(link)) => match link.offer(model) {
                    Ok(ToWorker::Refuse { reason, may_rejoin: false }) => SessionEnd::Refused(reason),
                    Ok(_) => SessionEnd::RetryLater("the model was sent".into()),
                    Err(error) => lost(&error),
                },
                Err(end) => end,
            };
            let address = self.servers.first().clone();
            let reason = match end {
                SessionEnd::Refused(reason) => return Err(WorkerError::Refused { address, reason }),
                SessionEnd::Finished(reason) => return Err(WorkerError::Finished { reason }),
                SessionEnd::Lost(reason) | SessionEnd::RetryLater(reason) => reason,
            };
            if started.elapsed() >= limit {
                return Err(WorkerError::Lost { address, reason });
            }
            thread::sleep(MIN_RETRY_DELAY);
        }
    }

    /// Connects to the server and says hello.
    fn say_hello(
        &mut self,
        join_timeout: Duration,
        on_notice: &mut dyn FnMut(WorkerNotice<'_>),
    ) -> Result<Result<HelloAnswer, SessionEnd>, WorkerError> {
        let mut on_waiting = |error: &io::Error| on_notice(WorkerNotice::Waiting { error });
        let addresses: Vec<&Address> = self.servers.addresses().collect();
        let (congestion, keys) = (self.congestion.as_deref(), self.keys.as_ref());
        let (address, socket, tls) = connect(&addresses, congestion, keys, join_timeout, &mut on_waiting)?;
        let address = address.clone();
        let no_link = |error| WorkerError::Connect { address: self.servers.first().clone(), error, waited: None };
        let link = WorkerLink::new(socket, tls).map_err(no_link)?;
        let access = self.shard_access();
        let is_shard = matches!(self.role, Role::Shard { .. });
        let role = if is_shard {
            let ports = self.shards.ports(MAX_PARTS, link.socket(), &access);
            if ports.is_empty() {
                return Err(no_link(io::Error::other("a shard joins over TCP, at a port of its own")));
            }
            Role::Shard { ports }
        } else {
            self.role.clone()
        };
        let emulated = self.emulation.as_ref().map(ToString::to_string);
        // The token is for a server on a network, and only readable for it: TLS is on with keys.
        let token = self.keys.as_ref().filter(|_| !link.is_shared()).map(Keys::token);
        let hello = ToServer::Hello { role, emulated, token };
        let answer = WorkerSession::join(link, &hello, access, self.model_mapping);
        match &answer {
            Ok(HelloAnswer::Welcome(_, welcome)) if !self.servers.on_welcome(welcome.epoch) => {
                return Ok(Err(SessionEnd::RetryLater("another server has taken over its run".into())));
            }
            Ok(HelloAnswer::Welcome(_, welcome)) => {
                if let Role::Worker(rank) = &mut self.role {
                    *rank = Some(welcome.rank);
                }
                let worker = (!is_shard).then_some(WorkerId(welcome.rank));
                on_notice(WorkerNotice::Joined { worker, address: &address });
            }
            // A server that accepts connections may stand still all the same.
            Err(SessionEnd::Lost(_)) => self.servers.pass_on(),
            Ok(HelloAnswer::SendModel(_)) | Err(_) => {}
        }
        Ok(answer)
    }

    fn shard_access(&self) -> ShardAccess {
        let (keys, congestion) = (self.keys.clone(), self.congestion.clone());
        ShardAccess { keys, congestion, shares_memory: self.shares_memory }
    }

    /// The ports where others reach this process, as many as the server asks for.
    fn ports(&mut self, session: &WorkerSession, welcome: &Welcome) -> Vec<u16> {
        match welcome.holds {
            HeldParameters::Nothing => Vec::new(),
            HeldParameters::Parts(parts) => {
                let access = self.shard_access();
                self.shards.ports(parts.min(MAX_PARTS), session.socket(), &access)
            }
            HeldParameters::All => {
                if self.meeting.is_none() {
                    // Without one, the server says what is missing.
                    self.meeting = own_address(session.socket()).and_then(|ip| TcpListener::bind((ip, 0))).ok();
                }
                let port = self.meeting.as_ref().and_then(|listener| listener.local_addr().ok());
                port.into_iter().map(|address| address.port()).collect()
            }
        }
    }

    /// Joins the server and works for it until the session ends. A workload that was built is kept, with its specification.
    /// Returns how many tasks are done.
    fn run_session(
        &mut self,
        join_timeout: Duration,
        kept: &mut Option<(String, Arc<dyn Workload>)>,
        build: &mut BuildWorkload<'_>,
        on_notice: &mut dyn FnMut(WorkerNotice<'_>),
    ) -> Result<(u64, SessionEnd), WorkerError> {
        let (session, welcome) = match self.say_hello(join_timeout, on_notice)? {
            Ok(HelloAnswer::Welcome(session, welcome)) => (session, welcome),
            Ok(HelloAnswer::SendModel(_)) => {
                let reason = "its workers bring the model; this one computes the server's".into();
                return Ok((0, SessionEnd::Refused(reason)));
            }
            Err(end) => return Ok((0, end)),
        };
        if welcome.holds == HeldParameters::All {
            let reason = "its workers hold the model together, as scripts can";
            session.leave(reason.into(), false);
            return Ok((0, SessionEnd::Refused(reason.into())));
        }
        let shards = self.ports(&session, &welcome);
        let Welcome { workload_spec, seed, optimizer, .. } = welcome;
        let built = kept.take().filter(|(spec, _)| *spec == workload_spec);
        let workload = match built.map_or_else(|| build(&workload_spec), |(_, workload)| Ok(workload)) {
            Ok(workload) => workload,
            Err(reason) => {
                session.leave(reason.clone(), false);
                return Err(WorkerError::Workload { reason });
            }
        };
        *kept = Some((workload_spec, workload.clone()));
        let layout = workload.layout();
        session.ready(Fingerprint::of(workload.as_ref(), seed), layout.len(), shards);
        let mut replica = workload.replica();
        replica.track(session.progress().clone());
        let (emulation, kept) = (self.emulation.as_mut(), BTreeMap::new());
        Ok(Computer { session, replica, layout, optimizer, emulation, kept }.compute())
    }
}

/// The address of this host on the network of the server.
fn own_address(socket: &Socket) -> io::Result<IpAddr> {
    match socket {
        Socket::Tcp(tcp) => Ok(tcp.stream.local_addr()?.ip()),
        Socket::Local(_) => Ok(Ipv4Addr::LOCALHOST.into()),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_absent_server_is_reported_with_its_address_and_the_time_tried() {
        let absent = Address::Local { name: format!("paceline-absent-{}", std::process::id()) };
        let worker = Worker { join_timeout: Duration::from_millis(1), ..Worker::new(absent) };
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
