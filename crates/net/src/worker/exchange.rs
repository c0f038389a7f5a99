//! A session's connection while it is open, read by one thread at a time: by the computing thread while it waits for the
//! server, so that no other thread has to wake it; else by a thread of its own.

use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use paceline_protocol::{HEARTBEAT_INTERVAL, SessionEnd};

use super::link::WorkerLink;
use super::lost;
use super::server_messages::ServerMessages;
use crate::blocking_link::BlockingLink;
use crate::connection::{CLOSE_TIMEOUT, Connection};
use crate::frame_reader::Received;
use crate::outbox::{Outbox, Rest};
use crate::poller::{Interest, Lookout, Poller, wait_for_reading};
use crate::socket::Socket;

/// The connection of a session.
pub(super) struct Exchange {
    /// What the connection's own thread waits with.
    poller: Poller,
    socket: Socket,
    outbox: Arc<Outbox>,
    state: Mutex<ExchangeState>,
    /// Of the computing thread.
    lookout: Mutex<Lookout>,
}

struct ExchangeState {
    connection: Connection,
    messages: ServerMessages,
    /// Whether the computing thread reads. The other thread then sends only.
    is_read_directly: bool,
    next_heartbeat: Instant,
    /// When the session ends, once the outbox is closed.
    closing: Option<Instant>,
    /// Why nothing can be sent.
    send_error: Option<io::Error>,
    has_ended: bool,
}

impl Exchange {
    pub(super) fn new(link: WorkerLink, messages: ServerMessages) -> Self {
        let BlockingLink { poller, connection, .. } = link.0;
        let (socket, outbox) = (connection.socket().clone(), connection.outbox().clone());
        let state = ExchangeState {
            connection,
            messages,
            is_read_directly: false,
            next_heartbeat: Instant::now() + interval(),
            closing: None,
            send_error: None,
            has_ended: false,
        };
        Exchange { poller, socket, outbox, state: Mutex::new(state), lookout: Mutex::default() }
    }

    pub(super) fn outbox(&self) -> &Outbox {
        &self.outbox
    }

    /// Whether the server is on this machine and shares memory.
    pub(super) fn is_shared(&self) -> bool {
        self.socket.is_local()
    }

    pub(super) fn socket(&self) -> &Socket {
        &self.socket
    }

    /// The file descriptor of the connection.
    pub(super) fn descriptor(&self) -> RawFd {
        self.socket.as_fd().as_raw_fd()
    }

    /// Exchanges messages until the session ends. This thread does not compute, so its heartbeats tell the server that the
    /// process is alive, however long a task takes.
    pub(super) fn run(&self) {
        let (mut ready, mut lookout) = (Vec::new(), Lookout::default());
        while let Some(deadline) = self.turn(|state| !state.is_read_directly) {
            ready.clear();
            if let Err(error) = self.poller.wait(&mut lookout, Some(deadline), &mut ready) {
                self.end(&mut self.lock(), lost(&error));
            }
        }
    }

    /// Lets the calling thread read, until the reader is dropped.
    pub(super) fn read_directly(&self) -> DirectReader<'_> {
        self.set_read_directly(true);
        DirectReader { exchange: self, lookout: self.lookout.lock().unwrap_or_else(PoisonError::into_inner) }
    }

    fn set_read_directly(&self, is_read_directly: bool) {
        self.turn(|state| {
            state.is_read_directly = is_read_directly;
            true
        });
    }

    fn lock(&self) -> MutexGuard<'_, ExchangeState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does what can be done without waiting; `reads` says whether that includes reading. Returns when the next turn is due
    /// at the latest, or `None` if the session has ended.
    fn turn(&self, reads: impl FnOnce(&mut ExchangeState) -> bool) -> Option<Instant> {
        let mut state = self.lock();
        let reads = reads(&mut state);
        if !state.has_ended {
            match state.turn(reads, &self.poller) {
                Ok(deadline) => return Some(deadline),
                Err(end) => self.end(&mut state, end),
            }
        }
        None
    }

    fn end(&self, state: &mut ExchangeState, end: SessionEnd) {
        state.has_ended = true;
        state.messages.end(end);
        self.outbox.disconnect();
        self.poller.waker().wake();
    }
}

impl ExchangeState {
    /// An error is the end of the session, in whichever way.
    fn turn(&mut self, reads: bool, poller: &Poller) -> Result<Instant, SessionEnd> {
        // What has arrived comes first: it may say why the connection has ended.
        if reads {
            self.read()?;
        }
        let now = Instant::now();
        if now >= self.next_heartbeat {
            self.next_heartbeat = now + interval();
            self.messages.send_heartbeat(self.connection.outbox());
        }
        let over = || SessionEnd::Lost("the session is over".into());
        if self.connection.outbox().is_closed() && *self.closing.get_or_insert(now + CLOSE_TIMEOUT) <= now {
            return Err(over());
        }
        let rest = match self.connection.send_pending() {
            Ok(Rest::Closed) => return Err(over()),
            Ok(rest) => rest,
            Err(error) => {
                self.send_error.get_or_insert(error);
                Rest::Nothing
            }
        };
        let interest = Interest { readable: !self.is_read_directly, writable: rest.is_pending() };
        self.connection.wait_for(poller, interest).map_err(|error| lost(&error))?;
        Ok(self.closing.unwrap_or(self.next_heartbeat))
    }

    fn read(&mut self) -> Result<(), SessionEnd> {
        self.connection.begin_reading();
        while let Some(received) = self.connection.receive().map_err(|error| lost(&error))? {
            match received {
                Received::Message(message) => self.messages.on_message(message, &mut self.connection)?,
                Received::Values(region) => self.messages.on_values(region, self.connection.outbox()),
                Received::End => {
                    let error = self.send_error.take();
                    return Err(error.map_or(SessionEnd::Lost("connection closed".into()), |error| lost(&error)));
                }
            }
        }
        self.messages.on_bytes(self.connection.reader().bytes());
        Ok(())
    }
}

fn interval() -> Duration {
    Duration::from_nanos(HEARTBEAT_INTERVAL.0)
}

/// While it exists, its thread reads the connection.
pub(super) struct DirectReader<'a> {
    exchange: &'a Exchange,
    lookout: MutexGuard<'a, Lookout>,
}

impl DirectReader<'_> {
    /// Waits until something has arrived or the deadline, and reads it.
    pub(super) fn wait(&mut self, deadline: Option<Instant>) {
        // If it fails, reading finds out why.
        let _ = wait_for_reading(&mut self.lookout, &self.exchange.socket, deadline);
        self.exchange.set_read_directly(true);
    }
}

impl Drop for DirectReader<'_> {
    fn drop(&mut self) {
        self.exchange.set_read_directly(false);
    }
}
