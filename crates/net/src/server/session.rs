//! One TCP connection, read by its own thread from the handshake to the end.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use paceline_protocol::{GradientLocation, HANDSHAKE_TIMEOUT, PayloadFormat, PeerTrust, SessionId, ToServer, Token};

use super::event_source::{CoordinatorHandle, RunEnded, ServerInput};
use super::link::{Link, UploadPermits};
use super::send_queue::SendQueue;
use crate::connection::{Incoming, Receiver, Socket, Traffic, invalid};
use crate::shared_memory::Region;

/// The time between two notifications that a gradient is arriving.
const TRANSFER_INTERVAL: Duration = Duration::from_millis(250);

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
    /// The token that a worker must have to join over TCP; without one every worker may join.
    pub(super) token: Option<Token>,
    /// The length of the parameter vector.
    pub(super) length: usize,
}

/// Serves a connection until the peer has closed it and the last messages are sent.
pub(super) fn serve_session(context: &SessionContext, session: SessionId, peer: String, socket: Socket) {
    let (send_queue, writer) = SendQueue::tcp(socket.clone(), context.payload, context.traffic.clone());
    let receiver = Receiver::new(socket, context.traffic.clone());
    thread::scope(|scope| {
        let thread = thread::Builder::new().name(format!("to {peer}")).stack_size(THREAD_STACK_SIZE);
        match thread.spawn_scoped(scope, move || writer.write()) {
            Ok(_) => run_session(context, session, peer, send_queue, receiver),
            Err(error) => {
                // It fails only if the run has ended.
                let _ = context.handle.send(ServerInput::Refused { peer, reason: error.to_string() });
            }
        }
    });
}

/// Reads a connection from the handshake to its end.
fn run_session(context: &SessionContext, session: SessionId, peer: String, send_queue: SendQueue, receiver: Receiver) {
    let permits = Arc::new(UploadPermits::default());
    let link = Link::new(send_queue, permits.clone());
    let connected = ServerInput::Connected { session, peer, trust: PeerTrust::Network, link };
    if context.handle.send(connected).is_err() {
        return;
    }
    let mut reader = SessionReader { context, session, permits: &permits, receiver };
    let reason = match reader.read() {
        Ok(()) => "connection closed".into(),
        // The peer was killed with unread messages.
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => "connection closed".into(),
        Err(error) => error.to_string(),
    };
    // The protocol refuses a session that sent something invalid, with this reason. It fails only if the run has ended.
    let _ = context.handle.send(ServerInput::Closed { session, reason });
    drain(reader.receiver);
}

/// Reads on for a while, so that the peer receives its last message: closing a connection with unread bytes resets it
/// and discards what was sent. Ends at once if the peer has closed.
fn drain(mut receiver: Receiver) {
    if receiver.set_deadline(Some(Instant::now() + CLOSE_TIMEOUT)).is_ok() {
        let _ = receiver.skip(MAX_DRAINED_BYTES);
    }
}

/// Reads the messages of a peer.
struct SessionReader<'a> {
    context: &'a SessionContext,
    session: SessionId,
    permits: &'a UploadPermits,
    receiver: Receiver,
}

impl SessionReader<'_> {
    /// Reads until the peer closes the connection, breaks the protocol or is dismissed. Its first message, and the
    /// handshake of the encryption before it, must be complete within [`HANDSHAKE_TIMEOUT`].
    fn read(&mut self) -> io::Result<()> {
        self.receiver.set_deadline(Some(Instant::now() + Duration::from_nanos(HANDSHAKE_TIMEOUT.0)))?;
        let mut is_first = true;
        while !self.permits.is_refused() {
            match self.receiver.next()? {
                Incoming::Message(message) => self.handle(message)?,
                Incoming::Chunk(_) => return Err(invalid("chunk of values outside a gradient")),
                Incoming::End if is_first => {
                    let text = "connection closed before the handshake";
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, text));
                }
                Incoming::End => return Ok(()),
            }
            if std::mem::take(&mut is_first) {
                self.receiver.set_deadline(None)?;
            }
        }
        Ok(())
    }

    fn handle(&mut self, message: ToServer) -> io::Result<()> {
        let ToServer::Report { number, gradient: GradientLocation::Follows, .. } = message else {
            return self.send(message, None);
        };
        match self.receive(number)? {
            Some(gradient) => self.send(message, gradient),
            None => Ok(()),
        }
    }

    fn send(&self, message: ToServer, gradient: Option<Region>) -> io::Result<()> {
        self.notify(ServerInput::Message { session: self.session, message, gradient })
    }

    fn notify(&self, input: ServerInput) -> io::Result<()> {
        self.context.handle.send(input).map_err(|RunEnded| io::Error::other("the run is over"))
    }

    /// Receives a gradient; its values only if they are wanted. `None` if the worker dropped the task in the middle of
    /// it. Other messages may arrive between its chunks.
    fn receive(&mut self, number: u64) -> io::Result<Option<Option<Region>>> {
        let SessionContext { length, payload, ref pool, .. } = *self.context;
        let mut region = self.permits.take(number).then(|| pool.take(length)).transpose()?;
        let mut filled = 0;
        let mut notified = Instant::now();
        while filled < length {
            if self.permits.is_refused() {
                return Err(io::Error::other("dismissed in the middle of a gradient"));
            }
            match self.receiver.next()? {
                Incoming::Chunk(bytes) => {
                    filled += match &mut region {
                        Some(region) => self.receiver.chunk(bytes, &mut region.values_mut()[filled..], payload)?,
                        None => self.receiver.skip_chunk(bytes, payload)?,
                    };
                    if notified.elapsed() > TRANSFER_INTERVAL {
                        notified = Instant::now();
                        self.notify(ServerInput::Transfer { session: self.session })?;
                    }
                }
                Incoming::Message(message @ ToServer::Dropped { number: dropped }) => {
                    self.send(message, None)?;
                    if dropped == number {
                        region.into_iter().for_each(|region| pool.give(region));
                        return Ok(None);
                    }
                }
                Incoming::Message(message @ ToServer::Heartbeat { .. }) => self.send(message, None)?,
                Incoming::Message(_) => return Err(invalid("message in the middle of a gradient")),
                Incoming::End => {
                    return Err(io::Error::new(
                        io::ErrorKind::UnexpectedEof,
                        "connection closed in the middle of a gradient",
                    ));
                }
            }
        }
        Ok(Some(region))
    }
}
