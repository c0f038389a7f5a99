//! The server: runs a scheme with workers in other processes.
//!
//! One thread, the `coordinator`, drives the protocol. It takes its inputs from an `event_source`, and the protocol acts
//! through the `host`, which has the model and a `link` to every connection. The other end of a link is a `session`,
//! which reads and writes the connection and never blocks. The sessions of a thread are a `session_set`: the coordinator
//! itself has those that share memory, and a few `io_thread`s have those over TCP. The `acceptor` accepts connections.
//! `evaluation` says who evaluates models meanwhile, and `parameter_ring` holds the versions of the model, unless shards hold
//! them (`sharded_model`), or all workers do (`group_model`). If the workers
//! bring the model, a `model_intake` takes it before the run.

mod acceptor;
mod coordinator;
mod data_plane;
mod error;
mod evaluation;
mod event_source;
mod group_model;
mod host;
mod inputs;
mod io_thread;
mod link;
mod model;
mod model_intake;
mod parameter_ring;
mod planning;
mod session;
mod session_set;
mod shard_sizes;
mod shard_writers;
mod sharded_model;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::thread;

use paceline_core::WorkerId;
use paceline_protocol::PayloadRule;
use paceline_runtime::{Job, ResumePoint, ServerObserver, StopReason, Summary};

pub use error::ServerError;
pub use sharded_model::ShardCount;

use crate::address::Address;
use crate::keys::Keys;
use crate::listener::{Listener, TcpOptions};
use crate::socket::Traffic;
use acceptor::{Acceptor, raise_file_limit};
use coordinator::Coordinator;
pub use data_plane::DataPlane;
use event_source::{CoordinatorHandle, EventSource, ServerInput};
use inputs::Inputs;
use io_thread::{IoThread, IoThreadHandle, thread_count};
use session::{GradientPool, SessionContext};

/// The limit of open connections.
pub const MAX_CONNECTIONS: usize = 8_192;

/// How values are sent over TCP, and which workers may join. Shared memory needs none of this.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TransportOptions {
    /// The number format of parameters and gradients; default `f32`.
    pub payload: PayloadRule,
    /// The TCP congestion control, e.g. `reno`; by default that of the system.
    pub congestion: Option<String>,
    /// The keys that workers must have to join over TCP. With keys, TCP connections are encrypted.
    pub keys: Option<Keys>,
    /// Whether workers on other machines may join without keys; default `false`.
    pub open: bool,
    /// The shards that hold the parameters; by default none: the server does.
    pub shards: ShardCount,
    /// Where updates are summed.
    pub data_plane: DataPlane,
}

/// The result of a run.
#[derive(Debug, Clone)]
pub struct RunOutcome {
    /// The summary of the run.
    pub summary: Summary,
    /// The final parameters of the model.
    pub parameters: Vec<f32>,
    /// The workers with emulated delays, each with the description of its delays.
    pub emulated: Vec<(WorkerId, String)>,
}

/// A server that listens and has not started its run.
#[derive(Debug)]
pub struct Server {
    listeners: Vec<Listener>,
    addresses: Vec<Address>,
    transport: TransportOptions,
    tcp_options: TcpOptions,
    handle: CoordinatorHandle,
    event_source: EventSource,
    /// The number of the next connection.
    next_session: u64,
    /// The number of the lease under which the run is served; 0 without one.
    epoch: u64,
    /// Whether the run ends when the last worker has done all that it was started for.
    ends_with_workers: bool,
    /// Whether the workers wait for the run to be resumed when the user interrupts it.
    keeps_workers: bool,
}

/// Stops a run from another thread, e.g. on Ctrl-C.
#[derive(Debug, Clone)]
pub struct Stopper {
    handle: CoordinatorHandle,
}

impl Stopper {
    /// Stops the run as soon as possible. `reason` appears in the summary and is sent to the workers.
    pub fn stop(&self, reason: impl Into<StopReason>) {
        // It fails only if the run has ended already.
        let _ = self.handle.send(ServerInput::Stop { reason: reason.into() });
    }
}

impl Server {
    /// Listens on all of `addresses`, and raises this process's limit of open files to its maximum.
    ///
    /// # Errors
    /// If the server can't listen on an address, or an address can be reached from other machines and `transport` has
    /// neither keys nor `open`.
    pub fn bind(addresses: &[Address], transport: TransportOptions) -> Result<Self, ServerError> {
        raise_file_limit();
        if let Some(address) = addresses.iter().find(|address| !address.is_loopback())
            && transport.keys.is_none()
            && !transport.open
        {
            return Err(ServerError::NoKeys { address: address.clone() });
        }
        let encryption = transport.keys.as_ref().map(Keys::server).transpose()?;
        let tcp_options = TcpOptions { congestion: transport.congestion.clone(), encryption };
        let bind = |address: &Address| {
            Listener::bind(address).map_err(|error| ServerError::Bind { address: address.clone(), error })
        };
        let bound = addresses.iter().map(bind).collect::<Result<Vec<_>, _>>()?;
        let (listeners, addresses) = bound.into_iter().unzip();
        let (handle, event_source) = EventSource::new().map_err(ServerError::System)?;
        Ok(Server {
            listeners,
            addresses,
            transport,
            tcp_options,
            handle,
            event_source,
            next_session: 0,
            epoch: 0,
            ends_with_workers: false,
            keeps_workers: false,
        })
    }

    /// The same server under the lease with this number. Workers that have joined a server with a higher number do not join
    /// this one.
    pub fn under_lease(self, epoch: u64) -> Self {
        Server { epoch, ..self }
    }

    /// The same server, whose run ends when no worker is left and the last one had done all that it was started for: its
    /// script has ended.
    pub fn ending_with_workers(self) -> Self {
        Server { ends_with_workers: true, ..self }
    }

    /// The same server, whose workers wait for the run to be resumed when the user interrupts it.
    pub fn keeping_workers(self) -> Self {
        Server { keeps_workers: true, ..self }
    }

    /// The addresses the server listens on. Port 0 is replaced by the port that the system chose.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// A handle that stops the run.
    pub fn stopper(&self) -> Stopper {
        Stopper { handle: self.handle.clone() }
    }

    /// Runs `job` with the workers that join, until it ends. All connections are then closed and all threads joined.
    ///
    /// # Errors
    /// If the scheme can't be built or makes an invalid decision, or memory runs out. A failing worker is not an error.
    pub fn run(self, job: &Job, observer: &mut dyn ServerObserver) -> Result<RunOutcome, ServerError> {
        self.run_from(job, None, observer)
    }

    /// Resumes a run of `job` from a checkpoint. Its workers have to rejoin.
    ///
    /// # Errors
    /// As [`run`](Server::run).
    pub fn resume(
        self,
        job: &Job,
        from: ResumePoint,
        observer: &mut dyn ServerObserver,
    ) -> Result<RunOutcome, ServerError> {
        self.run_from(job, Some(from), observer)
    }

    /// Whether workers can join over TCP.
    fn is_over_tcp(&self) -> bool {
        self.addresses.iter().any(|address| matches!(address, Address::Tcp { .. }))
    }

    fn run_from(
        self,
        job: &Job,
        from: Option<ResumePoint>,
        observer: &mut dyn ServerObserver,
    ) -> Result<RunOutcome, ServerError> {
        let over_tcp = self.is_over_tcp();
        let Server { listeners, addresses, transport, tcp_options, handle, mut event_source, .. } = self;
        let (next_session, epoch) = (self.next_session, self.epoch);
        let context = Arc::new(SessionContext {
            pool: GradientPool::default(),
            traffic: Traffic::default(),
            payload: transport.payload,
            shares_memory: addresses.iter().any(|address| matches!(address, Address::Local { .. })),
            length: Some(job.model.layout().len()),
            open: AtomicUsize::new(0),
        });
        let (io_threads, io_handles) = io_threads(over_tcp, &handle).map_err(ServerError::System)?;
        let poller = event_source.poller();
        let acceptor = Acceptor::new(listeners, tcp_options, context.clone(), io_handles, next_session, poller);
        event_source.acceptor = Some(acceptor.map_err(ServerError::System)?);
        let inputs = Inputs::new(event_source);
        let mut coordinator = Coordinator::new(job, &context, &transport, epoch, inputs, observer, from)?;
        (coordinator.ends_with_workers, coordinator.keeps_workers) = (self.ends_with_workers, self.keeps_workers);
        thread::scope(|scope| {
            for io_thread in io_threads {
                scope.spawn(|| io_thread.run());
            }
            // The coordinator's inputs are dropped before the scope joins the threads, also on a panic: senders that wait get
            // an error, and the I/O threads end after the last messages.
            coordinator.run(scope, handle)
        })
    }
}

/// The threads for TCP connections, if there may be any.
fn io_threads(over_tcp: bool, handle: &CoordinatorHandle) -> io::Result<(Vec<IoThread>, Vec<IoThreadHandle>)> {
    let threads = (0..if over_tcp { thread_count() } else { 0 }).map(|_| IoThread::new(handle.clone()));
    Ok(threads.collect::<io::Result<Vec<_>>>()?.into_iter().unzip())
}
