//! The worker's connection to its server, and the thread that waits for it.

use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use paceline_protocol::{HEARTBEAT_INTERVAL, PayloadFormat, SessionEnd, ToServer, ToWorker};
use paceline_runtime::OfferedModel;
use paceline_store::TensorEntry;

use super::lost;
use super::server_messages::ServerMessages;
use crate::connection::{CLOSE_TIMEOUT, Connection, Side};
use crate::frame;
use crate::frame_reader::{Received, invalid};
use crate::outbox::{Outbox, Rest, Transfer};
use crate::poller::{Interest, Waker};
use crate::shared_memory::Region;
use crate::socket::{Socket, Traffic};
use crate::tls::Tls;

/// The token of the connection, the only one that is waited for.
const TOKEN: u64 = 0;

/// How long a model may take to be sent.
const OFFER_TIMEOUT: Duration = Duration::from_secs(600);

/// The connection to the server.
pub(super) struct WorkerLink {
    waker: Waker,
    connection: Connection,
}

impl WorkerLink {
    pub(super) fn new(socket: Socket, tls: Option<Tls>) -> io::Result<Self> {
        let waker = Waker::new()?;
        let connection = Connection::new(Side::Worker, socket, tls, &Traffic::default(), &waker, TOKEN);
        Ok(WorkerLink { waker, connection })
    }

    pub(super) fn outbox(&self) -> &Arc<Outbox> {
        self.connection.outbox()
    }

    /// The file descriptor of the connection.
    pub(super) fn socket(&self) -> RawFd {
        self.connection.socket().as_fd().as_raw_fd()
    }

    /// Whether the server is on this machine and shares memory.
    pub(super) fn is_shared(&self) -> bool {
        self.connection.socket().is_local()
    }

    /// Sends the first message and waits for the answer until `deadline`.
    pub(super) fn ask(&mut self, message: &ToServer, deadline: Instant) -> io::Result<ToWorker> {
        self.outbox().send(message)?;
        self.answer(deadline)
    }

    /// Sends what is in the outbox, and waits for a message until `deadline`.
    fn answer(&mut self, deadline: Instant) -> io::Result<ToWorker> {
        loop {
            let rest = self.connection.send_pending()?;
            self.wait(rest, deadline)?;
            self.connection.begin_reading();
            match self.connection.receive()? {
                Some(Received::Message(answer)) => return Ok(answer),
                Some(Received::Values(_)) => return Err(invalid("values before the welcome")),
                Some(Received::End) => return Err(io::ErrorKind::UnexpectedEof.into()),
                None if Instant::now() >= deadline => return Err(io::ErrorKind::TimedOut.into()),
                None => {}
            }
        }
    }

    /// Sends a model to a server that asked for it. Returns the answer.
    pub(super) fn offer(mut self, model: &OfferedModel) -> io::Result<ToWorker> {
        let OfferedModel { layout, initial, training } = model;
        for TensorEntry { name, shape, range } in layout.entries() {
            let shape = shape.iter().map(|&side| side as u64).collect();
            let trainable = range.end <= layout.trainable();
            self.outbox().send(&ToServer::Tensor { name: name.clone(), shape, trainable })?;
        }
        let mut values = Region::private(initial.len())?;
        values.values_mut().copy_from_slice(initial);
        let offer = ToServer::Offer { values: initial.len() as u64, training: training.clone() };
        self.outbox().transfer(
            Transfer {
                number: 0,
                frame: frame::encode(&offer)?,
                version: None,
                announcement: Vec::new(),
                values: Arc::new(values),
                payload: PayloadFormat::F32,
            },
            usize::MAX,
        );
        self.answer(Instant::now() + OFFER_TIMEOUT)
    }

    /// Waits until the connection can be read, or written if something is left, a wake-up or the deadline.
    fn wait(&mut self, rest: Rest, deadline: Instant) -> io::Result<()> {
        let interest = Interest { readable: true, writable: rest.is_pending() };
        self.waker.wait_for_one(self.connection.socket(), interest, deadline)
    }

    /// Sends what is in the outbox and passes on what arrives, until the session ends. This thread does not compute, so
    /// its heartbeats tell the server that the process is alive, however long a task takes.
    pub(super) fn run(mut self, mut messages: ServerMessages) {
        let end = self.exchange(&mut messages).unwrap_or_else(|end| end);
        messages.end(end);
        self.outbox().disconnect();
    }

    /// Returns the end of the session, in whichever way.
    fn exchange(&mut self, messages: &mut ServerMessages) -> Result<SessionEnd, SessionEnd> {
        let interval = Duration::from_nanos(HEARTBEAT_INTERVAL.0);
        let mut next_heartbeat = Instant::now() + interval;
        let mut closing: Option<Instant> = None;
        let mut send_error = None;
        loop {
            // What has arrived comes first: it may say why the connection has ended.
            self.connection.begin_reading();
            while let Some(received) = self.connection.receive().map_err(|error| lost(&error))? {
                match received {
                    Received::Message(message) => messages.on_message(message, &mut self.connection)?,
                    Received::Values(region) => messages.on_values(region),
                    Received::End => {
                        let text = send_error.map_or("connection closed".into(), |error: io::Error| error.to_string());
                        return Ok(SessionEnd::Lost(text));
                    }
                }
            }
            messages.on_bytes(self.connection.reader().bytes());
            let now = Instant::now();
            if now >= next_heartbeat {
                next_heartbeat = now + interval;
                messages.send_heartbeat(self.connection.outbox());
            }
            if self.outbox().is_closed() && *closing.get_or_insert(now + CLOSE_TIMEOUT) <= now {
                return Ok(SessionEnd::Lost("the session is over".into()));
            }
            let rest = match self.connection.send_pending() {
                Ok(Rest::Closed) => return Ok(SessionEnd::Lost("the session is over".into())),
                Ok(rest) => rest,
                Err(error) => {
                    send_error.get_or_insert(error);
                    Rest::Nothing
                }
            };
            self.wait(rest, closing.unwrap_or(next_heartbeat)).map_err(|error| lost(&error))?;
        }
    }
}
