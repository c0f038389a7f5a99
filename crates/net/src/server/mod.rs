//! The server: drives a scheme by the real clock.

mod coordinator;
mod error;
mod inputs;
mod listen;
mod local;
mod member;
mod outbox;
mod ring;
mod session;
#[cfg(test)]
mod tests;

use std::sync::atomic::AtomicU64;
use std::thread;

use paceline_core::WorkerId;
use paceline_runtime::{Job, ResumePoint, ServerObserver, Summary};

pub use error::ServeError;

use crate::address::Address;
use crate::keys::Keys;
use crate::link::Traffic;
use crate::payload::PayloadFormat;
use coordinator::Coordinator;
use inputs::{Door, Input, Inputs};
use listen::{Closing, Listener, Switchboard, Terms, accept_all, raise_file_limit};
use session::{Context, Pool};

/// Connections at a time over TCP, each of which costs two threads, and as many that share memory.
pub const CONNECTIONS: usize = 8_192;

/// How values travel over networks. In shared memory nothing travels.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TransportOptions {
    /// Their form; default `f32`.
    pub payload: PayloadFormat,
    /// TCP's congestion control, e.g. `reno`; the system's own by default.
    pub congestion: Option<String>,
    /// Who may take part over TCP, which is encrypted then.
    pub keys: Option<Keys>,
    /// Whether anyone may take part who reaches an address, from other machines too; not by default.
    pub open: bool,
}

/// What a run leaves.
#[derive(Debug, Clone)]
pub struct RunOutcome {
    /// The run in numbers.
    pub summary: Summary,
    /// The model.
    pub parameters: Vec<f32>,
    /// Workers that delayed their answers on purpose, and how.
    pub emulated: Vec<(WorkerId, String)>,
}

/// A server that listens and has not begun.
#[derive(Debug)]
pub struct Server {
    listeners: Vec<Listener>,
    addresses: Vec<Address>,
    transport: TransportOptions,
    terms: Terms,
    traffic: Traffic,
    door: Door,
    inputs: Inputs,
}

/// Ends a run from elsewhere, e.g. on Ctrl-C.
#[derive(Debug, Clone)]
pub struct Stopper {
    door: Door,
}

impl Stopper {
    /// Ends the run as soon as it can end; `reason` goes into the summary and to the workers.
    pub fn stop(&self, reason: &str) {
        // A run that is over can't be stopped again.
        let _ = self.door.send(Input::Stop { reason: reason.into() });
    }
}

impl Server {
    /// Listens on all of `addresses`, and lets this process have as many open files as it may.
    ///
    /// # Errors
    /// If one can't be listened on, or strangers could join there and are not to.
    pub fn bind(addresses: &[Address], transport: TransportOptions) -> Result<Self, ServeError> {
        raise_file_limit();
        if let Some(address) = addresses.iter().find(|address| !address.is_loopback())
            && transport.keys.is_none()
            && !transport.open
        {
            return Err(ServeError::Open { address: address.clone() });
        }
        let encryption = transport.keys.as_ref().map(Keys::server).transpose()?;
        let terms = Terms { congestion: transport.congestion.clone(), encryption };
        let bind = |address: &Address| {
            Listener::bind(address).map_err(|error| ServeError::Bind { address: address.clone(), error })
        };
        let bound = addresses.iter().map(bind).collect::<Result<Vec<_>, _>>()?;
        let (listeners, addresses) = bound.into_iter().unzip();
        let traffic = Traffic::default();
        let (door, inputs) = Inputs::new(traffic.clone()).map_err(ServeError::System)?;
        Ok(Server { listeners, addresses, transport, terms, traffic, door, inputs })
    }

    /// The addresses listened on, with the ports that were chosen where 0 was asked for.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// Something to end the run with.
    pub fn stopper(&self) -> Stopper {
        Stopper { door: self.door.clone() }
    }

    /// Runs `job` with the workers that come, until it is over. Then all connections are closed and all threads ended.
    ///
    /// # Errors
    /// If the scheme can't be built or breaks a law, or there is no memory. That a worker fails is no error.
    pub fn run(self, job: &Job, observer: &mut dyn ServerObserver) -> Result<RunOutcome, ServeError> {
        self.run_from(job, None, observer)
    }

    /// Goes on with a run of `job` where it was. Its workers have to come again.
    ///
    /// # Errors
    /// As [`run`](Server::run).
    pub fn resume(
        self,
        job: &Job,
        from: ResumePoint,
        observer: &mut dyn ServerObserver,
    ) -> Result<RunOutcome, ServeError> {
        self.run_from(job, Some(from), observer)
    }

    fn run_from(
        self,
        job: &Job,
        from: Option<ResumePoint>,
        observer: &mut dyn ServerObserver,
    ) -> Result<RunOutcome, ServeError> {
        let Server { listeners, addresses, transport, terms, traffic, door, inputs } = self;
        let shared = addresses.iter().any(|address| matches!(address, Address::Local { .. }));
        let context = Context {
            door,
            pool: Pool::default(),
            traffic,
            payload: transport.payload,
            keys: transport.keys,
            length: job.workload.layout().len(),
        };
        let (switchboard, sessions) = (Switchboard::new(), AtomicU64::new(0));
        let coordinator = Coordinator::new(job, &context, shared, observer, from)?;
        thread::scope(|scope| {
            for listener in &listeners {
                let (context, switchboard, sessions) = (&context, &switchboard, &sessions);
                let terms = &terms;
                scope.spawn(move || accept_all(scope, context, switchboard, sessions, listener, terms));
            }
            // Dropped last to first, even when a panic passes through: whoever still waits to be heard gets an error,
            // then all connections end, then the scope waits for their threads.
            let _closing = Closing { switchboard: &switchboard, listeners: &listeners };
            let mut inputs = inputs;
            coordinator.run(scope, &mut inputs)
        })
    }
}
