//! One connection as the server reads it, from the first word to the last.

use std::io;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use paceline_core::Span;
use paceline_workload::Evaluation;

use super::member::Desk;
use super::outbox::Outbox;
use crate::encoding::Encoding;
use crate::fingerprint::Fingerprint;
use crate::link::{Incoming, Receiver, Socket, Traffic};
use crate::message::{Gradient, ToServer, ToWorker};
use crate::region::Region;

/// How long a new connection may take to say hello: strangers must not hold a thread for ever.
const HELLO: Duration = Duration::from_secs(10);

/// How long a refused peer may take to hang up.
const FAREWELL: Duration = Duration::from_secs(1);

/// How much a refused peer may still say before it is cut off, in bytes.
const FAREWELL_BYTES: usize = 64 * 1024 * 1024;

/// Stack of a connection's threads, in bytes: they hold little, and there may be thousands.
pub(super) const STACK: usize = 128 * 1024;

/// What reaches the coordinator.
#[derive(Debug)]
pub(super) enum Input {
    /// Somebody wants to take part.
    Arrived { session: u64, peer: String, rank: Option<u32>, emulated: Option<String>, outbox: Outbox, desk: Arc<Desk> },
    /// It has made the workload.
    Ready { session: u64, fingerprint: Fingerprint },
    /// It has finished a task.
    Reported { session: u64, number: u64, compute: Span, loss: f64, gradient: Landed },
    /// It has dropped a task.
    Dropped { session: u64, number: u64 },
    /// It is gone.
    Lost { session: u64, reason: String },
    /// Somebody was turned away before it could take part.
    TurnedAway { peer: String, reason: String },
    /// The model was measured on the held-out set.
    Evaluated(Evaluation),
    /// The run is to end.
    Stop { reason: String },
}

/// Where a reported gradient is.
#[derive(Debug)]
pub(super) enum Landed {
    /// In shared memory.
    InPlace,
    /// Received.
    Here(Region),
    /// Nowhere: the worker kept it, or it was called off.
    Nowhere,
}

/// Buffers that received gradients lie in, used again and again.
#[derive(Debug, Default)]
pub(super) struct Pool {
    free: Mutex<Vec<Region>>,
}

impl Pool {
    pub(super) fn give(&self, region: Region) {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).push(region);
    }

    fn take(&self, length: usize) -> io::Result<Region> {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        free.map_or_else(|| Region::private(length), Ok)
    }
}

/// What all sessions share.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) inputs: SyncSender<Input>,
    pub(super) pool: Pool,
    pub(super) traffic: Traffic,
    pub(super) encoding: Encoding,
    /// Length of the parameter vector.
    pub(super) length: usize,
}

/// Talks to whoever connected, until it is gone.
pub(super) fn attend<'scope>(
    scope: &'scope thread::Scope<'scope, '_>,
    context: &'scope Context,
    session: u64,
    peer: String,
    socket: Socket,
) {
    let (outbox, mut receiver) = match (socket.try_clone(), socket.try_clone()) {
        (Ok(out), Ok(own)) => (Outbox::new(out), Receiver::new(own, context.traffic.clone())),
        (Err(error), _) | (_, Err(error)) => return turned_away(context, peer, error.to_string()),
    };
    if let Some(queue) = outbox.queue() {
        let writer = thread::Builder::new().name(format!("to {peer}")).stack_size(STACK);
        let traffic = context.traffic.clone();
        let spawned = writer.spawn_scoped(scope, move || queue.write(socket, context.encoding, traffic));
        if let Err(error) = spawned {
            return turned_away(context, peer, error.to_string());
        }
    }
    let (rank, emulated) = match hello(&mut receiver) {
        Ok(hello) => hello,
        Err(error) => {
            outbox.close(&ToWorker::Refuse { reason: error.to_string() });
            turned_away(context, peer, error.to_string());
            return linger(receiver, None);
        }
    };
    let desk = Arc::new(Desk::default());
    let arrived = Input::Arrived { session, peer, rank, emulated, outbox, desk: desk.clone() };
    if context.inputs.send(arrived).is_err() {
        return;
    }
    let mut reader = Reader { context, session, desk: &desk, receiver };
    let reason = match reader.read() {
        Ok(()) => "it closed the connection".into(),
        Err(error) => error.to_string(),
    };
    // The coordinator refuses a session that broke the rules, with this reason; if it is gone, so is the run.
    let _ = context.inputs.send(Input::Lost { session, reason });
    linger(reader.receiver, Some(&desk));
}

fn turned_away(context: &Context, peer: String, reason: String) {
    // Nobody listens any more when the run is over.
    let _ = context.inputs.send(Input::TurnedAway { peer, reason });
}

fn hello(receiver: &mut Receiver) -> io::Result<(Option<u32>, Option<String>)> {
    receiver.socket().set_read_timeout(Some(HELLO))?;
    let first = match receiver.next::<ToServer>()? {
        Incoming::Message(ToServer::Hello { rank, emulated }) => (rank, emulated),
        Incoming::End => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it closed without a word")),
        _ => return Err(invalid("expected a hello first")),
    };
    receiver.socket().set_read_timeout(None)?;
    Ok(first)
}

fn invalid(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

/// Lets a peer that was told why read it: closing on unread bytes would take the words back.
fn linger(receiver: Receiver, desk: Option<&Desk>) {
    if desk.is_none_or(Desk::is_refused) && receiver.socket().set_read_timeout(Some(FAREWELL)).is_ok() {
        let mut receiver = receiver;
        let _ = receiver.skip(FAREWELL_BYTES);
    }
}

struct Reader<'a> {
    context: &'a Context,
    session: u64,
    desk: &'a Desk,
    receiver: Receiver,
}

impl Reader<'_> {
    /// Reads until the peer is gone, or breaks the rules.
    fn read(&mut self) -> io::Result<()> {
        while !self.desk.is_refused() {
            match self.receiver.next()? {
                Incoming::Message(message) => self.hear(message)?,
                Incoming::Chunk(_) => return Err(invalid("a chunk of values that belongs to nothing")),
                Incoming::End => return Ok(()),
            }
        }
        Ok(())
    }

    fn hear(&mut self, message: ToServer) -> io::Result<()> {
        let session = self.session;
        let input = match message {
            ToServer::Hello { .. } => return Err(invalid("a second hello")),
            ToServer::Ready { fingerprint } => Input::Ready { session, fingerprint },
            ToServer::Failed { reason } => return Err(io::Error::other(reason)),
            ToServer::Dropped { number } => Input::Dropped { session, number },
            ToServer::Report { number, compute, loss, gradient } => {
                let gradient = match gradient {
                    Gradient::InPlace => Landed::InPlace,
                    Gradient::Withheld => Landed::Nowhere,
                    Gradient::Follows => match self.receive(number)? {
                        Some(landed) => landed,
                        None => return Ok(()),
                    },
                };
                Input::Reported { session, number, compute, loss, gradient }
            }
        };
        self.tell(input)
    }

    fn tell(&self, input: Input) -> io::Result<()> {
        self.context.inputs.send(input).map_err(|_| io::Error::other("the run is over"))
    }

    /// Reads a gradient; `None` if the worker dropped the task on the way.
    fn receive(&mut self, number: u64) -> io::Result<Option<Landed>> {
        let Context { length, encoding, ref pool, .. } = *self.context;
        let mut region = self.desk.admit(number).then(|| pool.take(length)).transpose()?;
        let mut filled = 0;
        while filled < length {
            match self.receiver.next()? {
                Incoming::Chunk(bytes) => {
                    filled += match &mut region {
                        Some(region) => self.receiver.chunk(bytes, &mut region.values_mut()[filled..], encoding)?,
                        None => self.receiver.skip(bytes).map(|()| bytes / encoding.width())?,
                    };
                }
                Incoming::Message(ToServer::Dropped { number: dropped }) => {
                    self.tell(Input::Dropped { session: self.session, number: dropped })?;
                    if dropped == number {
                        region.into_iter().for_each(|region| pool.give(region));
                        return Ok(None);
                    }
                }
                Incoming::Message(_) => return Err(invalid("a message in the middle of a gradient")),
                Incoming::End => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
        Ok(Some(region.map_or(Landed::Nowhere, Landed::Here)))
    }
}
