//! Accepts connections.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use paceline_protocol::{PeerTrust, SessionId};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::MAX_CONNECTIONS;
use super::event_source::ServerInput;
use super::io_thread::IoThreadHandle;
use super::session::{Session, SessionContext};
use super::session_set::SessionSet;
use crate::listener::{Accepted, Listener, TcpOptions};
use crate::poller::{Interest, Poller};

/// The delay before the next accept after the system could not provide another connection.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// Connections accepted before the sessions get their turn.
const MAX_ACCEPTED: usize = 64;

/// The token of the first listener. Sessions count from 0 and never get this high.
const FIRST_LISTENER: u64 = 1 << 63;

/// Raises this process's limit of open files to its maximum: every connection is one, and the usual limit is low.
pub(super) fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    // If the limit can't be raised, connections beyond it are refused.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// A listener, and what it is waited for.
#[derive(Debug)]
struct ListeningSocket {
    listener: Listener,
    interest: Interest,
    /// When it accepts again, after the system could not provide another connection.
    paused: Option<Instant>,
}

/// Accepts connections and makes sessions of them. Those that share memory stay with the coordinator; the others go to
/// the I/O threads in turn.
#[derive(Debug)]
pub(super) struct Acceptor {
    sockets: Vec<ListeningSocket>,
    options: TcpOptions,
    context: Arc<SessionContext>,
    io_threads: Vec<IoThreadHandle>,
    next_session: u64,
    /// Whether an attempt failed since all connections were accepted, so that a failure that lasts is reported once.
    has_failed: bool,
}

impl Acceptor {
    /// `io_threads` are needed if there is a TCP listener.
    pub(super) fn new(
        listeners: Vec<Listener>,
        options: TcpOptions,
        context: Arc<SessionContext>,
        io_threads: Vec<IoThreadHandle>,
        next_session: u64,
        poller: &Poller,
    ) -> io::Result<Self> {
        let socket = |listener| ListeningSocket { listener, interest: Interest::default(), paused: None };
        let sockets = listeners.into_iter().map(socket).collect();
        let mut acceptor = Acceptor { sockets, options, context, io_threads, next_session, has_failed: false };
        for (token, socket) in (FIRST_LISTENER..).zip(&mut acceptor.sockets) {
            socket.listener.set_nonblocking()?;
            socket.wait_for(poller, token, Interest::READABLE)?;
        }
        Ok(acceptor)
    }

    /// Accepts no more. Returns the listeners, their options, and the number of the next session.
    pub(super) fn stop(self, poller: &Poller) -> io::Result<(Vec<Listener>, TcpOptions, u64)> {
        let listeners = (FIRST_LISTENER..).zip(self.sockets).map(|(token, mut socket)| {
            socket.wait_for(poller, token, Interest::default())?;
            Ok(socket.listener)
        });
        Ok((listeners.collect::<io::Result<_>>()?, self.options, self.next_session))
    }

    /// When a paused listener accepts again.
    pub(super) fn next_retry(&self) -> Option<Instant> {
        self.sockets.iter().filter_map(|socket| socket.paused).min()
    }

    /// Waits again for listeners whose pause is over.
    pub(super) fn resume(&mut self, poller: &Poller) -> io::Result<()> {
        let now = Instant::now();
        for (token, socket) in (FIRST_LISTENER..).zip(&mut self.sockets) {
            if socket.paused.take_if(|until| *until <= now).is_some() {
                socket.wait_for(poller, token, Interest::READABLE)?;
            }
        }
        Ok(())
    }

    /// Accepts what waits at the listener with this token, if there is one.
    pub(super) fn accept(
        &mut self,
        token: u64,
        local: &mut SessionSet,
        on_input: &mut dyn FnMut(ServerInput),
    ) -> io::Result<()> {
        let Some(index) = token.checked_sub(FIRST_LISTENER) else { return Ok(()) };
        for _ in 0..MAX_ACCEPTED {
            let Some(socket) = self.sockets.get_mut(index as usize) else { return Ok(()) };
            let error = match socket.listener.accept(&self.options) {
                Ok(accepted) => {
                    self.connect(accepted, local, on_input);
                    continue;
                }
                Err(error) => error,
            };
            if error.kind() == io::ErrorKind::WouldBlock {
                // Without a free file handle there is another error, also if no connection waits.
                self.has_failed = false;
                break;
            }
            // E.g. too many open files: the connection stays in the queue of the listener.
            let is_system_error = error.raw_os_error().is_some();
            if is_system_error {
                socket.paused = Some(Instant::now() + ACCEPT_RETRY_DELAY);
                socket.wait_for(local.poller(), token, Interest::default())?;
            }
            if !(is_system_error && std::mem::replace(&mut self.has_failed, true)) {
                on_input(ServerInput::Refused { peer: "a connection".into(), reason: error.to_string() });
            }
            if is_system_error {
                break;
            }
        }
        Ok(())
    }

    fn connect(
        &mut self,
        Accepted { socket, tls, peer }: Accepted,
        local: &mut SessionSet,
        on_input: &mut dyn FnMut(ServerInput),
    ) {
        if self.context.open.load(Ordering::Relaxed) >= MAX_CONNECTIONS {
            let reason = format!("the server has {MAX_CONNECTIONS} connections already, which is the limit");
            return on_input(ServerInput::Refused { peer, reason });
        }
        let id = SessionId(self.next_session);
        self.next_session += 1;
        let is_local = socket.is_local();
        let io_thread = self.io_threads.get(id.0 as usize % self.io_threads.len().max(1)).filter(|_| !is_local);
        let waker = io_thread.map_or_else(|| local.waker(), |thread| thread.waker().clone());
        let (session, link) = Session::new(id, socket, tls, self.context.clone(), &waker);
        let trust = if is_local { PeerTrust::SameUser } else { PeerTrust::Network };
        // First of all inputs of the session.
        on_input(ServerInput::Connected { session: id, peer, trust, link });
        match io_thread {
            Some(thread) => thread.add(session),
            None => local.add(session, on_input),
        }
    }
}

impl ListeningSocket {
    fn wait_for(&mut self, poller: &Poller, token: u64, interest: Interest) -> io::Result<()> {
        poller.change(&self.listener, token, self.interest, interest)?;
        self.interest = interest;
        Ok(())
    }
}
