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

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::thread;

use paceline_core::{SchemeSpec, Setup, Span, WorkerId};
use paceline_run::{Goals, Observer, Past, Summary};
use paceline_store::{Optimizer, OptimizerSpec, Schedule, Snapshot};
use paceline_workload::Workload;

pub use error::ServeError;

use crate::address::Address;
use crate::encoding::Encoding;
use crate::keys::Keys;
use crate::link::Traffic;
use coordinator::Coordinator;
use inputs::{Door, Input, Inputs};
use listen::{Closing, Listener, Switchboard, Terms, accept_all, raise_file_limit};
use session::{Context, Pool};

/// Connections at a time over TCP, each of which costs two threads, and as many that share memory.
pub const CONNECTIONS: usize = 8_192;

/// A run: what is trained, how, and until when.
#[derive(Clone)]
pub struct Job {
    /// The scheme.
    pub scheme: SchemeSpec,
    /// What it is built for. The run begins when so many workers are ready.
    pub setup: Setup,
    /// The model with its data.
    pub workload: Arc<dyn Workload>,
    /// What workers make the same workload of, in the words of the program; sent to each.
    pub recipe: String,
    /// How gradients change the parameters.
    pub optimizer: OptimizerSpec,
    /// How the learning rate changes.
    pub schedule: Schedule,
    /// The learning rate.
    pub rate: f32,
    /// Threads that aggregate gradients and step the model, each a range of it; 0 counts as 1.
    pub shards: usize,
    /// Measure on the held-out set every so many iterations, beside the training, and at the end; 0 for at the end
    /// only.
    pub evaluate_every: u64,
    /// When the run is over.
    pub goals: Goals,
    /// How long a worker may be silent at work at the very most. Usually its own history says so sooner.
    pub silence: Span,
    /// The seed of everything random.
    pub seed: u64,
}

/// How values travel over networks. In shared memory nothing travels.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Transport {
    /// Their form; default `f32`.
    pub encoding: Encoding,
    /// TCP's congestion control, e.g. `reno`; the system's own by default.
    pub congestion: Option<String>,
    /// Who may take part over TCP, which is encrypted then.
    pub keys: Option<Keys>,
    /// Whether anyone may take part who reaches an address, from other machines too; not by default.
    pub open: bool,
}

/// What a run leaves.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The run in numbers.
    pub summary: Summary,
    /// The model.
    pub parameters: Vec<f32>,
    /// Workers that delayed their answers on purpose, and how.
    pub emulated: Vec<(WorkerId, String)>,
}

/// Something that a person watching the server should know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// A worker takes part.
    Joined {
        /// Its rank.
        worker: WorkerId,
        /// Where it is.
        peer: String,
        /// How it delays its answers on purpose, if it does.
        emulated: Option<String>,
    },
    /// A worker is gone.
    Left {
        /// Its rank.
        worker: WorkerId,
        /// Why.
        reason: String,
        /// Samples of its work that are lost with it.
        lost: u64,
        /// How many workers are left.
        left: usize,
    },
    /// Somebody was turned away.
    Refused {
        /// Who.
        peer: String,
        /// Why.
        reason: String,
    },
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Notice::Joined { worker, peer, emulated: None } => write!(f, "{worker} joined ({peer})"),
            Notice::Joined { worker, peer, emulated: Some(how) } => {
                write!(f, "{worker} joined ({peer}; straggling emulated: {how})")
            }
            Notice::Left { worker, reason, lost, left } => {
                write!(f, "{worker} left: {reason}; {lost} samples are lost with it, ")?;
                match left {
                    0 => write!(f, "and nobody is left to go on"),
                    1 => write!(f, "one other goes on"),
                    _ => write!(f, "{left} others go on"),
                }
            }
            Notice::Refused { peer, reason } => write!(f, "{peer} was refused: {reason}"),
        }
    }
}

/// What a run needs to go on from a moment, beside its event stream.
#[derive(Debug, Clone, Copy)]
pub struct Moment<'a> {
    /// How often the model has been stepped.
    pub version: u64,
    /// The model.
    pub parameters: &'a [f32],
    /// The optimizer with its state.
    pub optimizer: &'a Optimizer,
}

/// Where a run goes on.
pub struct Resumption {
    /// What has happened.
    pub past: Past,
    /// The model and optimizer that came of it.
    pub snapshot: Snapshot,
}

/// Follows a run on a server.
pub trait Watcher: Observer {
    /// Whether it wants to see the next moment that the run can go on from.
    fn wants_moment(&self) -> bool {
        false
    }

    /// Such a moment has come: the events so far led to it, and no update waits. One comes at the end, if it can.
    fn on_moment(&mut self, _moment: &Moment<'_>) {}

    /// Something happened beside the training.
    fn on_notice(&mut self, _notice: &Notice) {}
}

impl Watcher for () {}

/// A server that listens and has not begun.
#[derive(Debug)]
pub struct Server {
    listeners: Vec<Listener>,
    addresses: Vec<Address>,
    transport: Transport,
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
    pub fn bind(addresses: &[Address], transport: Transport) -> Result<Self, ServeError> {
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
    pub fn run(self, job: &Job, watcher: &mut dyn Watcher) -> Result<Outcome, ServeError> {
        self.run_from(job, None, watcher)
    }

    /// Goes on with a run of `job` where it was. Its workers have to come again.
    ///
    /// # Errors
    /// As [`run`](Server::run).
    pub fn resume(self, job: &Job, from: Resumption, watcher: &mut dyn Watcher) -> Result<Outcome, ServeError> {
        self.run_from(job, Some(from), watcher)
    }

    fn run_from(self, job: &Job, from: Option<Resumption>, watcher: &mut dyn Watcher) -> Result<Outcome, ServeError> {
        let Server { listeners, addresses, transport, terms, traffic, door, inputs } = self;
        let shared = addresses.iter().any(|address| matches!(address, Address::Local { .. }));
        let context = Context {
            door,
            pool: Pool::default(),
            traffic,
            encoding: transport.encoding,
            keys: transport.keys,
            length: job.workload.layout().len(),
        };
        let (switchboard, sessions) = (Switchboard::new(), AtomicU64::new(0));
        let coordinator = Coordinator::new(job, &context, shared, watcher, from)?;
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
