//! A TCP connection, read by a thread of its own from the first word to the last.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::inputs::{Door, Input, Landed};
use super::member::Desk;
use super::outbox::Outbox;
use crate::keys::Keys;
use crate::link::{Incoming, Receiver, Socket, Traffic, invalid};
use crate::message::{Gradient, ToServer, ToWorker};
use crate::payload::PayloadFormat;
use crate::region::Region;

/// How long a new connection may take to say hello: strangers must not hold a thread for ever.
pub(super) const HELLO: Duration = Duration::from_secs(10);

/// How long a peer that was told why may take to hang up.
pub(super) const FAREWELL: Duration = Duration::from_secs(5);

/// How much a refused peer may still say before it is cut off, in bytes.
const FAREWELL_BYTES: usize = 64 * 1024 * 1024;

/// Stack of a connection's threads, in bytes: they hold little, and there may be thousands.
pub(super) const STACK: usize = 128 * 1024;

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
    pub(super) door: Door,
    pub(super) pool: Pool,
    pub(super) traffic: Traffic,
    pub(super) payload: PayloadFormat,
    /// Who may take part over a network; anyone if there are none.
    pub(super) keys: Option<Keys>,
    /// Length of the parameter vector.
    pub(super) length: usize,
}

/// Talks to whoever connected, until it is gone and has been told what there was to tell.
pub(super) fn attend(context: &Context, session: u64, peer: String, socket: Socket) {
    let (outbox, queue) = Outbox::tcp(socket.clone(), context.payload, context.traffic.clone());
    let receiver = Receiver::new(socket, context.traffic.clone());
    thread::scope(|scope| {
        let writer = thread::Builder::new().name(format!("to {peer}")).stack_size(STACK);
        match writer.spawn_scoped(scope, move || queue.write()) {
            Ok(_) => listen(context, session, peer, outbox, receiver),
            Err(error) => turned_away(context, peer, error.to_string()),
        }
    });
}

/// Hears a connection out, from its hello to its end.
fn listen(context: &Context, session: u64, peer: String, outbox: Outbox, mut receiver: Receiver) {
    let (rank, emulated) = match hello(&mut receiver, context.keys.as_ref()) {
        Ok(hello) => hello,
        Err(error) => {
            outbox.close(&ToWorker::Refuse { reason: error.to_string(), again: false });
            turned_away(context, peer, error.to_string());
            return linger(receiver);
        }
    };
    let desk = Arc::new(Desk::default());
    let arrived = Input::Arrived { session, peer, rank, emulated, outbox, desk: desk.clone() };
    if context.door.send(arrived).is_err() {
        return;
    }
    let mut reader = Reader { context, session, desk: &desk, receiver };
    let reason = match reader.read() {
        Ok(()) => "it closed the connection".into(),
        Err(error) => error.to_string(),
    };
    // The coordinator refuses a session that broke the rules, with this reason; if it is gone, so is the run.
    let _ = context.door.send(Input::Lost { session, reason });
    linger(reader.receiver);
}

fn turned_away(context: &Context, peer: String, reason: String) {
    // Nobody listens any more when the run is over.
    let _ = context.door.send(Input::TurnedAway { peer, reason });
}

/// The first word, which must come soon and whole, from somebody who knows the token.
fn hello(receiver: &mut Receiver, keys: Option<&Keys>) -> io::Result<(Option<u32>, Option<String>)> {
    receiver.set_deadline(Some(Instant::now() + HELLO))?;
    let first = match receiver.next::<ToServer>()? {
        Incoming::Message(ToServer::Hello { rank, emulated, token }) => {
            let denied = match (keys, token) {
                (Some(_), None) => Some("it showed no token"),
                (Some(keys), Some(token)) if !keys.admit(&token) => Some("it showed a wrong token"),
                _ => None,
            };
            if let Some(denied) = denied {
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, denied));
            }
            (rank, emulated)
        }
        Incoming::End => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it closed without a word")),
        _ => return Err(invalid("expected a hello first")),
    };
    receiver.set_deadline(None)?;
    Ok(first)
}

/// Lets a peer that was told why read it: closing on unread bytes would take the words back. One that is gone is not
/// waited for.
fn linger(mut receiver: Receiver) {
    if receiver.set_deadline(Some(Instant::now() + FAREWELL)).is_ok() {
        let _ = receiver.skip(FAREWELL_BYTES);
    }
}

/// A peer's words as they may be shown: on a terminal, control characters would do things.
pub(super) fn printable(words: &str) -> String {
    words.replace(char::is_control, " ")
}

/// What a member's message means; `land` says where a reported gradient is.
pub(super) fn translate(
    session: u64,
    message: ToServer,
    land: impl FnOnce(u64, Gradient) -> io::Result<Landed>,
) -> io::Result<Input> {
    match message {
        ToServer::Hello { .. } => Err(invalid("a second hello")),
        ToServer::Ready { fingerprint } => Ok(Input::Ready { session, fingerprint }),
        ToServer::Failed { reason } => Err(io::Error::other(printable(&reason))),
        ToServer::Dropped { number } => Ok(Input::Dropped { session, number }),
        ToServer::Asked { number, iterations, words } => {
            Ok(Input::Asked { session, number, iterations, report: words.into() })
        }
        ToServer::Report { number, words, loss, gradient } => {
            let gradient = land(number, gradient)?;
            Ok(Input::Reported { session, number, report: words.into(), loss, gradient })
        }
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
        let mut dropped = false;
        let input = translate(self.session, message, |number, gradient| match gradient {
            Gradient::InPlace => Ok(Landed::InPlace),
            Gradient::Withheld => Ok(Landed::Nowhere),
            Gradient::Follows => {
                let landed = self.receive(number)?;
                dropped = landed.is_none();
                Ok(landed.unwrap_or(Landed::Nowhere))
            }
        })?;
        if dropped { Ok(()) } else { self.tell(input) }
    }

    fn tell(&self, input: Input) -> io::Result<()> {
        self.context.door.send(input).map_err(|_| io::Error::other("the run is over"))
    }

    /// Reads a gradient; `None` if the worker dropped the task on the way.
    fn receive(&mut self, number: u64) -> io::Result<Option<Landed>> {
        let Context { length, payload, ref pool, .. } = *self.context;
        let mut region = self.desk.admit(number).then(|| pool.take(length)).transpose()?;
        let mut filled = 0;
        while filled < length {
            match self.receiver.next()? {
                Incoming::Chunk(bytes) => {
                    filled += match &mut region {
                        Some(region) => self.receiver.chunk(bytes, &mut region.values_mut()[filled..], payload)?,
                        None => self.receiver.skip(bytes).map(|()| bytes / payload.width())?,
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
