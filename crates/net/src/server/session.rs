//! One TCP connection, read by its own thread from the handshake to the end.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::event_source::{CoordinatorHandle, ReceivedGradient, RunEnded, ServerInput};
use super::remote_worker::UploadPermits;
use super::send_queue::SendQueue;
use crate::connection::{Incoming, Receiver, Socket, Traffic, invalid};
use crate::keys::Keys;
use crate::message::{GradientLocation, ToServer, ToWorker};
use crate::payload::PayloadFormat;
use crate::shared_memory::Region;

/// The time limit of the handshake, so that an unknown peer can't hold a thread for long.
pub(super) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a peer may take to close the connection after its last message was sent.
pub(super) const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// How many bytes are still read from a refused peer before it is disconnected.
const MAX_DRAINED_BYTES: usize = 64 * 1024 * 1024;

/// The stack size of a connection's threads, in bytes. They need little, and there may be thousands.
pub(super) const THREAD_STACK_SIZE: usize = 128 * 1024;

/// The buffers for gradients received over TCP; they are reused.
#[derive(Debug, Default)]
pub(super) struct GradientPool {
    free: Mutex<Vec<Region>>,
}

impl GradientPool {
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
pub(super) struct SessionContext {
    pub(super) handle: CoordinatorHandle,
    pub(super) pool: GradientPool,
    pub(super) traffic: Traffic,
    pub(super) payload: PayloadFormat,
    /// The keys that a worker must have to join over TCP; without keys every worker may join.
    pub(super) keys: Option<Keys>,
    /// The length of the parameter vector.
    pub(super) length: usize,
}

/// Serves a connection until the peer has closed it and the last messages are sent.
pub(super) fn serve_session(context: &SessionContext, session: u64, peer: String, socket: Socket) {
    let (send_queue, writer) = SendQueue::tcp(socket.clone(), context.payload, context.traffic.clone());
    let receiver = Receiver::new(socket, context.traffic.clone());
    thread::scope(|scope| {
        let thread = thread::Builder::new().name(format!("to {peer}")).stack_size(THREAD_STACK_SIZE);
        match thread.spawn_scoped(scope, move || writer.write()) {
            Ok(_) => run_session(context, session, peer, send_queue, receiver),
            Err(error) => report_refusal(context, peer, error.to_string()),
        }
    });
}

/// Reads a connection from the handshake to its end.
fn run_session(context: &SessionContext, session: u64, peer: String, send_queue: SendQueue, mut receiver: Receiver) {
    let (rank, emulated) = match read_hello(&mut receiver, context.keys.as_ref()) {
        Ok(hello) => hello,
        Err(error) => {
            send_queue.close(&ToWorker::Refuse { reason: error.to_string(), may_rejoin: false });
            report_refusal(context, peer, error.to_string());
            return drain(receiver);
        }
    };
    let permits = Arc::new(UploadPermits::default());
    let request = ServerInput::JoinRequested { session, peer, rank, emulated, send_queue, permits: permits.clone() };
    if context.handle.send(request).is_err() {
        return;
    }
    let mut reader = SessionReader { context, session, permits: &permits, receiver };
    let reason = match reader.read() {
        Ok(()) => "connection closed".into(),
        Err(error) => error.to_string(),
    };
    // The coordinator refuses a session that broke the protocol, with this reason. It fails only if the run has ended.
    let _ = context.handle.send(ServerInput::Lost { session, reason });
    drain(reader.receiver);
}

fn report_refusal(context: &SessionContext, peer: String, reason: String) {
    // It fails only if the run has ended.
    let _ = context.handle.send(ServerInput::Refused { peer, reason });
}

/// Reads the hello, which must arrive completely within [`HANDSHAKE_TIMEOUT`] and carry the token if there are keys.
fn read_hello(receiver: &mut Receiver, keys: Option<&Keys>) -> io::Result<(Option<u32>, Option<String>)> {
    receiver.set_deadline(Some(Instant::now() + HANDSHAKE_TIMEOUT))?;
    let hello = match receiver.next::<ToServer>()? {
        Incoming::Message(ToServer::Hello { rank, emulated, token }) => {
            let denial = match (keys, token) {
                (Some(_), None) => Some("no token: start the worker with --keys DIR"),
                (Some(keys), Some(token)) if !keys.verify(&token) => {
                    Some("wrong token: start the worker with the --keys DIR of the server")
                }
                _ => None,
            };
            if let Some(reason) = denial {
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, reason));
            }
            (rank, emulated)
        }
        Incoming::End => {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "connection closed before the handshake"));
        }
        _ => return Err(invalid("expected a hello as the first message")),
    };
    receiver.set_deadline(None)?;
    Ok(hello)
}

/// Reads on for a while, so that the peer receives its last message: closing a connection with unread bytes resets it
/// and discards what was sent. Ends at once if the peer has closed.
fn drain(mut receiver: Receiver) {
    if receiver.set_deadline(Some(Instant::now() + CLOSE_TIMEOUT)).is_ok() {
        let _ = receiver.skip(MAX_DRAINED_BYTES);
    }
}

/// Text from a peer without control characters, which a terminal would interpret.
pub(super) fn printable(text: &str) -> String {
    text.replace(char::is_control, " ")
}

/// Turns a worker's message into an input of the coordinator; `locate` says where a reported gradient is.
pub(super) fn into_input(
    session: u64,
    message: ToServer,
    locate: impl FnOnce(u64, GradientLocation) -> io::Result<ReceivedGradient>,
) -> io::Result<ServerInput> {
    match message {
        ToServer::Hello { .. } => Err(invalid("second hello")),
        ToServer::Ready { fingerprint } => Ok(ServerInput::Ready { session, fingerprint }),
        ToServer::Failed { reason } => Err(io::Error::other(printable(&reason))),
        ToServer::Dropped { number } => Ok(ServerInput::Dropped { session, number }),
        ToServer::Asked { number, iterations, report } => {
            Ok(ServerInput::Asked { session, number, iterations, report: report.into() })
        }
        ToServer::Report { number, report, loss, gradient } => {
            let gradient = locate(number, gradient)?;
            Ok(ServerInput::Reported { session, number, report: report.into(), loss, gradient })
        }
    }
}

/// Reads the messages of a worker that has joined.
struct SessionReader<'a> {
    context: &'a SessionContext,
    session: u64,
    permits: &'a UploadPermits,
    receiver: Receiver,
}

impl SessionReader<'_> {
    /// Reads until the peer closes the connection or breaks the protocol.
    fn read(&mut self) -> io::Result<()> {
        while !self.permits.is_refused() {
            match self.receiver.next()? {
                Incoming::Message(message) => self.handle(message)?,
                Incoming::Chunk(_) => return Err(invalid("chunk of values outside a gradient")),
                Incoming::End => return Ok(()),
            }
        }
        Ok(())
    }

    fn handle(&mut self, message: ToServer) -> io::Result<()> {
        let mut dropped = false;
        let input = into_input(self.session, message, |number, gradient| match gradient {
            GradientLocation::InPlace => Ok(ReceivedGradient::InPlace),
            GradientLocation::Withheld => Ok(ReceivedGradient::NotSent),
            GradientLocation::Follows => {
                let received = self.receive(number)?;
                dropped = received.is_none();
                Ok(received.unwrap_or(ReceivedGradient::NotSent))
            }
        })?;
        if dropped { Ok(()) } else { self.send(input) }
    }

    fn send(&self, input: ServerInput) -> io::Result<()> {
        self.context.handle.send(input).map_err(|RunEnded| io::Error::other("the run is over"))
    }

    /// Receives a gradient; `None` if the worker dropped the task in the middle of it.
    fn receive(&mut self, number: u64) -> io::Result<Option<ReceivedGradient>> {
        let SessionContext { length, payload, ref pool, .. } = *self.context;
        let mut region = self.permits.take(number).then(|| pool.take(length)).transpose()?;
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
                    self.send(ServerInput::Dropped { session: self.session, number: dropped })?;
                    if dropped == number {
                        region.into_iter().for_each(|region| pool.give(region));
                        return Ok(None);
                    }
                }
                Incoming::Message(_) => return Err(invalid("message in the middle of a gradient")),
                Incoming::End => {
                    return Err(io::Error::new(
                        io::ErrorKind::UnexpectedEof,
                        "connection closed in the middle of a gradient",
                    ));
                }
            }
        }
        Ok(Some(region.map_or(ReceivedGradient::NotSent, ReceivedGradient::Received)))
    }
}
