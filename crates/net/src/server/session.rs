//! The server's end of one connection: its messages and gradients become inputs of the coordinator.

use std::io;
use std::net::Shutdown;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use paceline_protocol::{FromMember, GradientLocation, PayloadRule, SessionId, ToServer};

use super::event_source::ServerInput;
use super::link::{Link, MODEL_PERMIT, UploadPermits};
use crate::connection::{CLOSE_TIMEOUT, Connection, Side};
use crate::frame_reader::{Received, invalid};
use crate::outbox::Rest;
use crate::poller::{Interest, Poller, Ready, Waker};
use crate::shared_memory::Region;
use crate::socket::{Socket, Traffic};
use crate::tls::Tls;

/// The time between two notifications that a gradient is arriving.
const TRANSFER_INTERVAL: Duration = Duration::from_millis(250);

/// How many bytes are still read from a refused peer before it is disconnected.
const MAX_SKIPPED_BYTES: usize = 64 * 1024 * 1024;

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
    pub(super) pool: GradientPool,
    pub(super) traffic: Traffic,
    pub(super) payload: PayloadRule,
    /// Whether some connections may share memory.
    pub(super) shares_memory: bool,
    /// The length of the parameter vector; `None` until a worker has sent the model.
    pub(super) length: Option<usize>,
    /// The number of open connections.
    pub(super) open: AtomicUsize,
}

/// How far a session is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reading {
    Open,
    /// What arrives is skipped, so that the peer receives its last message: closing a connection with unread bytes
    /// resets it and discards what was sent.
    Skipping {
        /// Bytes that may still be skipped.
        left: usize,
    },
    Ended,
}

/// One connection.
#[derive(Debug)]
pub(super) struct Session {
    id: SessionId,
    connection: Connection,
    context: Arc<SessionContext>,
    permits: Arc<UploadPermits>,
    reading: Reading,
    /// What was left to send.
    rest: Rest,
    /// Whether everything is sent and the sending direction is closed.
    has_sent_all: bool,
    /// Whether the coordinator knows that the connection is closed.
    is_reported: bool,
    /// Whether a message has arrived.
    has_greeted: bool,
    /// The message of the gradient or model that is arriving.
    report: Option<ToServer>,
    /// The bytes at the last notification about a gradient, and its time.
    notified: (u64, Instant),
    /// When the connection is closed at the latest.
    deadline: Option<Instant>,
}

impl Session {
    /// A session that the thread of `owner` waits for, and the coordinator's link to it.
    pub(super) fn new(
        id: SessionId,
        socket: Socket,
        tls: Option<Tls>,
        context: Arc<SessionContext>,
        owner: &Waker,
    ) -> (Session, Link) {
        let permits = Arc::new(UploadPermits::default());
        let connection = Connection::new(Side::Server, socket, tls, &context.traffic, owner, id.0);
        let link = Link::new(connection.outbox().clone(), permits.clone(), context.payload.first());
        context.open.fetch_add(1, Ordering::Relaxed);
        let session = Session {
            id,
            connection,
            context,
            permits,
            reading: Reading::Open,
            rest: Rest::Nothing,
            has_sent_all: false,
            is_reported: false,
            has_greeted: false,
            report: None,
            notified: (0, Instant::now()),
            deadline: None,
        };
        (session, link)
    }

    pub(super) fn id(&self) -> SessionId {
        self.id
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Whether it can be dropped when the run ends: its last messages are sent, or there are none.
    pub(super) fn can_be_dropped(&self) -> bool {
        self.has_sent_all || !self.connection.outbox().is_closed()
    }

    /// Starts to wait for messages.
    pub(super) fn begin(&mut self, poller: &Poller) -> io::Result<()> {
        self.connection.wait_for(poller, Interest::READABLE)
    }

    /// Reads and sends what is possible now. Returns whether the session has ended.
    pub(super) fn advance(&mut self, ready: Ready, poller: &Poller, on_input: &mut dyn FnMut(ServerInput)) -> bool {
        if ready.readable {
            self.read(on_input);
        }
        // What arrives adds nothing to send, except with encryption.
        if ready.writable || self.connection.is_encrypted() {
            self.rest = self.send();
        }
        if self.has_sent_all && self.reading == Reading::Ended {
            self.leave(poller);
            return true;
        }
        let interest = Interest { readable: self.reading != Reading::Ended, writable: self.rest.is_pending() };
        if let Err(error) = self.connection.wait_for(poller, interest) {
            self.report_closed(error.to_string(), on_input);
            return true;
        }
        false
    }

    /// Waits for nothing more. The socket may live on: the link has it too.
    pub(super) fn leave(&mut self, poller: &Poller) {
        // It fails only if the socket is broken, which ends the session as well.
        let _ = self.connection.wait_for(poller, Interest::default());
    }

    /// Ends a session that did not end by itself in time.
    pub(super) fn time_out(&mut self, poller: &Poller, on_input: &mut dyn FnMut(ServerInput)) {
        self.leave(poller);
        self.connection.outbox().disconnect();
        self.report_closed("connection closed".into(), on_input);
    }

    fn report_closed(&mut self, reason: String, on_input: &mut dyn FnMut(ServerInput)) {
        if !std::mem::replace(&mut self.is_reported, true) {
            on_input(ServerInput::Closed { session: self.id, reason });
        }
    }

    fn read(&mut self, on_input: &mut dyn FnMut(ServerInput)) {
        self.connection.begin_reading();
        match self.reading {
            Reading::Open => {
                if let Err(error) = self.receive(on_input) {
                    // The protocol refuses the session with this reason, unless the peer has closed it.
                    self.reading = Reading::Skipping { left: MAX_SKIPPED_BYTES };
                    self.report_closed(error.to_string(), on_input);
                }
            }
            Reading::Skipping { .. } => self.skip(on_input),
            Reading::Ended => {}
        }
        if self.reading != Reading::Open {
            self.limit_time();
        }
    }

    /// A connection that is about to end has [`CLOSE_TIMEOUT`]. A worker that shares memory has all the time it needs:
    /// until it has closed the connection, it may still use its buffers.
    fn limit_time(&mut self) {
        let is_waited_for = self.connection.socket().is_local() && !self.is_reported;
        if self.deadline.is_none() && !is_waited_for {
            self.deadline = Some(Instant::now() + CLOSE_TIMEOUT);
        }
    }

    /// Reads messages and gradients until there is nothing more, or the peer has had its share.
    fn receive(&mut self, on_input: &mut dyn FnMut(ServerInput)) -> io::Result<()> {
        while self.reading == Reading::Open {
            if self.permits.is_refused() {
                self.reading = Reading::Skipping { left: MAX_SKIPPED_BYTES };
                self.skip(on_input);
                return Ok(());
            }
            match self.connection.receive() {
                Ok(Some(Received::Message(message))) => self.handle(message, on_input)?,
                Ok(Some(Received::Values(gradient))) => {
                    if let Some(message) = self.report.take() {
                        on_input(ServerInput::Message { session: self.id, message, gradient });
                    }
                }
                Ok(Some(Received::End)) if !self.has_greeted => {
                    self.reading = Reading::Ended;
                    self.report_closed("connection closed before the handshake".into(), on_input);
                }
                Ok(Some(Received::End)) => self.end(on_input),
                // The peer was killed with unread messages.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => self.end(on_input),
                Err(error) => return Err(error),
                Ok(None) => break,
            }
        }
        self.notify_of_transfer(on_input);
        Ok(())
    }

    fn end(&mut self, on_input: &mut dyn FnMut(ServerInput)) {
        self.reading = Reading::Ended;
        self.report_closed("connection closed".into(), on_input);
    }

    /// A gradient that takes long is a sign of life, even if not one chunk of it is complete.
    fn notify_of_transfer(&mut self, on_input: &mut dyn FnMut(ServerInput)) {
        let (bytes, at) = self.notified;
        if self.report.is_some() && self.connection.reader().bytes() > bytes && at.elapsed() > TRANSFER_INTERVAL {
            self.notified = (self.connection.reader().bytes(), Instant::now());
            on_input(ServerInput::Transfer { session: self.id });
        }
    }

    fn skip(&mut self, on_input: &mut dyn FnMut(ServerInput)) {
        while let Reading::Skipping { left } = &mut self.reading {
            match self.connection.skip() {
                Ok(Some(bytes)) if bytes > 0 && bytes < *left => *left -= bytes,
                Ok(None) => break,
                Ok(_) | Err(_) => self.end(on_input),
            }
        }
    }

    fn handle(&mut self, message: ToServer, on_input: &mut dyn FnMut(ServerInput)) -> io::Result<()> {
        self.has_greeted = true;
        let is_arriving = self.report.is_some();
        let arriving = match &self.report {
            Some(ToServer::Report { number, .. }) => Some(*number),
            _ => None,
        };
        match message {
            ToServer::Report { number, gradient: GradientLocation::Follows, .. } if !is_arriving => {
                if self.connection.socket().is_local() {
                    return Err(invalid("gradient sent over a shared-memory connection"));
                }
                return self.expect_vector(number, message);
            }
            ToServer::Member(FromMember::Model(_)) if !is_arriving => return self.expect_vector(MODEL_PERMIT, message),
            ToServer::Offer { values, .. } if !is_arriving && self.context.length.is_none() => {
                return self.expect_model(values, message);
            }
            ToServer::Dropped { number } if arriving == Some(number) => {
                self.report = None;
                self.connection.reader().abandon().into_iter().for_each(|region| self.context.pool.give(region));
            }
            ToServer::Payload { .. } if self.context.payload != PayloadRule::Auto => {
                return Err(invalid("a format that this run does not use"));
            }
            ToServer::Payload { format } => self.connection.outbox().use_payload(format),
            ToServer::Dropped { .. } | ToServer::Heartbeat { .. } => {}
            // Another thread of a member's process sends the model.
            _ if matches!(self.report, Some(ToServer::Member(_)))
                && !matches!(message, ToServer::Member(FromMember::Model(_))) => {}
            _ if is_arriving => return Err(invalid("message in the middle of a gradient or model")),
            _ => {}
        }
        on_input(ServerInput::Message { session: self.id, message, gradient: None });
        Ok(())
    }

    /// A vector as long as the model follows. Its values are kept only if there is a permit for them.
    fn expect_vector(&mut self, number: u64, message: ToServer) -> io::Result<()> {
        let SessionContext { length, ref pool, .. } = *self.context;
        let length = length.ok_or_else(|| invalid("values before there is a model"))?;
        let region = self.permits.take(number).then(|| pool.take(length)).transpose()?;
        self.connection.reader().expect(region, length);
        self.report = Some(message);
        self.notified.1 = Instant::now();
        Ok(())
    }

    /// The values of a model follow.
    fn expect_model(&mut self, values: u64, message: ToServer) -> io::Result<()> {
        let length = usize::try_from(values).map_err(|_| invalid(format!("a model of {values} values")))?;
        self.connection.reader().expect(Some(Region::private(length)?), length);
        self.report = Some(message);
        self.notified.1 = Instant::now();
        Ok(())
    }

    /// Sends what is pending. After the last message it closes the sending direction.
    fn send(&mut self) -> Rest {
        if self.has_sent_all {
            return Rest::Nothing;
        }
        let rest = self.connection.send_pending();
        match rest {
            Ok(Rest::Closed) => {
                self.has_sent_all = true;
                self.connection.socket().shutdown(Shutdown::Write);
                self.limit_time();
            }
            // Reading finds the connection ended.
            Err(_) => {
                self.has_sent_all = true;
                self.connection.socket().shutdown(Shutdown::Both);
            }
            Ok(_) if self.connection.outbox().is_closed() => self.limit_time(),
            Ok(_) => {}
        }
        rest.unwrap_or(Rest::Nothing)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.context.open.fetch_sub(1, Ordering::Relaxed);
        for region in self.connection.reader().abandon() {
            self.context.pool.give(region);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::session_set::SessionSet;
    use super::*;
    use crate::frame::FrameHeader;
    use crate::scripted_peer::ScriptedPeer;
    use paceline_protocol::{PayloadFormat, ToWorker, WireReport};
    use std::io::Write as _;
    use std::net::{TcpListener, TcpStream};
    use std::thread;

    const LENGTH: usize = 100;

    /// A session over TCP in a set of its own, its link and its peer.
    fn session() -> (SessionSet, Link, ScriptedPeer<TcpStream>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let context = SessionContext {
            pool: GradientPool::default(),
            traffic: Traffic::default(),
            payload: PayloadRule::default(),
            shares_memory: false,
            length: Some(LENGTH),
            open: AtomicUsize::new(0),
        };
        let mut set = SessionSet::new().unwrap();
        let socket = Socket::tcp(near, None).unwrap();
        let (session, link) = Session::new(SessionId(3), socket, None, Arc::new(context), &set.waker());
        set.add(session, &mut |input| panic!("{input:?}"));
        (set, link, ScriptedPeer::new(listener.accept().unwrap().0))
    }

    /// The inputs of the set's next turns, until there is one.
    fn inputs(set: &mut SessionSet) -> Vec<ServerInput> {
        let mut inputs = Vec::new();
        while inputs.is_empty() && !set.is_empty() {
            set.turn(None, &mut |input| inputs.push(input)).unwrap();
        }
        inputs
    }

    fn report(number: u64) -> ToServer {
        ToServer::Report {
            number,
            report: WireReport::default(),
            loss: 1.0,
            gradient: GradientLocation::Follows,
            rates: vec![],
        }
    }

    #[test]
    fn a_gradient_is_a_sign_of_life_before_its_first_chunk_is_complete() {
        let (mut set, _link, mut peer) = session();
        peer.send(&report(0));
        peer.stream.write_all(&FrameHeader::of_chunk(PayloadFormat::F32, 4 * LENGTH)).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                // Until the session is gone: a byte now and then.
                while peer.stream.write_all(&[0]).is_ok() {
                    thread::sleep(Duration::from_millis(20));
                }
            });
            let inputs = inputs(&mut set);
            assert!(matches!(inputs[..], [ServerInput::Transfer { session: SessionId(3) }]), "{inputs:?}");
            drop((set, _link));
        });
    }

    #[test]
    fn a_gradient_that_nobody_wants_is_read_and_forgotten() {
        let (mut set, _link, mut peer) = session();
        peer.send(&report(0));
        peer.send_chunk(&[1.0; LENGTH]);
        let inputs = inputs(&mut set);
        assert!(matches!(inputs[..], [ServerInput::Message { gradient: None, .. }]), "{inputs:?}");
    }

    #[test]
    fn a_dismissed_peer_gets_its_last_message_whatever_it_has_sent() {
        let (mut set, link, mut peer) = session();
        // More than fits into all buffers, of a gradient that is not read to the end.
        peer.send(&report(0));
        let sender = thread::spawn({
            let mut stream = peer.stream.try_clone().unwrap();
            move || {
                let bytes = vec![0; 8 * 1024 * 1024];
                stream.write_all(&FrameHeader::of_chunk(PayloadFormat::F32, 4 * LENGTH)).unwrap();
                stream.write_all(&bytes).unwrap();
                stream.shutdown(Shutdown::Write).unwrap();
            }
        });
        link.close(&ToWorker::Refuse { reason: "enough".into(), may_rejoin: true });
        let inputs = inputs(&mut set);
        assert!(matches!(inputs[..], [ServerInput::Closed { .. }]), "{inputs:?}");
        assert!(set.is_empty());
        sender.join().unwrap();
        assert!(matches!(peer.message(), ToWorker::Refuse { reason, .. } if reason == "enough"));
    }

    #[test]
    fn what_breaks_the_protocol_is_reported_before_the_connection_ends() {
        let (mut set, link, mut peer) = session();
        peer.stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        let inputs = inputs(&mut set);
        let [ServerInput::Closed { reason, .. }] = &inputs[..] else { panic!("{inputs:?}") };
        assert!(reason.contains("does not speak the Paceline protocol"), "{reason}");
        link.close(&ToWorker::Refuse { reason: reason.clone(), may_rejoin: false });
        peer.stream.set_nonblocking(true).unwrap();
        while peer.next::<ToWorker>().is_err() {
            set.turn(Some(Instant::now() + Duration::from_millis(1)), &mut |input| panic!("{input:?}")).unwrap();
        }
        drop(peer);
        while !set.is_empty() {
            set.turn(None, &mut |input| panic!("{input:?}")).unwrap();
        }
    }
}
