//! The server: runs a scheme with workers in other processes.
//!
//! One thread, the `coordinator`, drives the protocol. It takes its inputs from an `event_source`, and the protocol acts
//! through the `host`, which has the model and a `link` for every connection. The `listener` threads accept
//! connections. Every TCP connection has two more threads: `session` reads, `send_queue` writes. The coordinator itself
//! reads and writes the Unix sockets of workers that share memory (`local_reader`). `parameter_ring` holds the versions
//! of the model.

mod coordinator;
mod error;
mod event_source;
mod host;
mod link;
mod listener;
mod local_reader;
mod parameter_ring;
mod send_queue;
mod session;
#[cfg(test)]
mod tests;

use std::sync::atomic::AtomicU64;
use std::thread;

use paceline_core::WorkerId;
use paceline_protocol::PayloadFormat;
use paceline_runtime::{Job, ResumePoint, ServerObserver, StopReason, Summary};

pub use error::ServerError;

use crate::address::Address;
use crate::connection::Traffic;
use crate::keys::Keys;
use coordinator::Coordinator;
use event_source::{CoordinatorHandle, EventSource, ServerInput};
use listener::{CloseOnDrop, ConnectionRegistry, Listener, TcpOptions, accept_all, raise_file_limit};
use session::{GradientPool, SessionContext};

/// The limit of open connections per transport. Every TCP connection costs two threads.
pub const MAX_CONNECTIONS: usize = 8_192;

/// How values are sent over TCP, and which workers may join. Shared memory needs none of this.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TransportOptions {
    /// The number format of parameters and gradients; default `f32`.
    pub payload: PayloadFormat,
    /// The TCP congestion control, e.g. `reno`; by default that of the system.
    pub congestion: Option<String>,
    /// The keys that workers must have to join over TCP. With keys, TCP connections are encrypted.
    pub keys: Option<Keys>,
    /// Whether workers on other machines may join without keys; default `false`.
    pub open: bool,
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
    traffic: Traffic,
    handle: CoordinatorHandle,
    event_source: EventSource,
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
        let traffic = Traffic::default();
        let (handle, event_source) = EventSource::new(traffic.clone()).map_err(ServerError::System)?;
        Ok(Server { listeners, addresses, transport, tcp_options, traffic, handle, event_source })
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

    fn run_from(
        self,
        job: &Job,
        from: Option<ResumePoint>,
        observer: &mut dyn ServerObserver,
    ) -> Result<RunOutcome, ServerError> {
        let Server { listeners, addresses, transport, tcp_options, traffic, handle, event_source } = self;
        let shared = addresses.iter().any(|address| matches!(address, Address::Local { .. }));
        let context = SessionContext {
            handle,
            pool: GradientPool::default(),
            traffic,
            payload: transport.payload,
            token: transport.keys.as_ref().map(Keys::token),
            length: job.workload.layout().len(),
        };
        let (registry, sessions) = (ConnectionRegistry::new(), AtomicU64::new(0));
        let coordinator = Coordinator::new(job, &context, shared, observer, from)?;
        thread::scope(|scope| {
            for listener in &listeners {
                let (context, registry, sessions) = (&context, &registry, &sessions);
                let tcp_options = &tcp_options;
                scope.spawn(move || accept_all(scope, context, registry, sessions, listener, tcp_options));
            }
            // Dropped in reverse order, also on a panic: first the event source, so that pending senders get an error,
            // then all connections are closed, then the scope joins their threads.
            let _close_on_drop = CloseOnDrop { registry: &registry, listeners: &listeners };
            let mut event_source = event_source;
            coordinator.run(scope, &mut event_source)
        })
    }
}
