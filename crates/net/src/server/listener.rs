//! Accepts connections.

use std::collections::HashMap;
use std::io;
use std::net::{Shutdown, TcpListener};
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use paceline_protocol::SessionId;
use rustix::net::sockopt::socket_peercred;
use rustix::process::{Resource, Rlimit, getrlimit, getuid, setrlimit};
use rustls::{ServerConfig, ServerConnection};

use super::MAX_CONNECTIONS;
use super::event_source::ServerInput;
use super::session::{CLOSE_TIMEOUT, SessionContext, THREAD_STACK_SIZE, serve_session};
use crate::address::Address;
use crate::connection::Socket;

/// The delay before the next accept after the system could not provide another connection.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// Options of the TCP connections that are accepted.
#[derive(Debug, Default)]
pub(super) struct TcpOptions {
    pub(super) congestion: Option<String>,
    pub(super) encryption: Option<Arc<ServerConfig>>,
}

/// A listening socket.
#[derive(Debug)]
pub(super) enum Listener {
    Tcp(TcpListener),
    Local(UnixListener),
}

/// Raises this process's limit of open files to its maximum: every connection is one, and the usual limit is low.
pub(super) fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    // If the limit can't be raised, connections beyond it are refused.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

impl Listener {
    /// Binds to `address`. Also returns the address in use, whose port differs if 0 was requested.
    pub(super) fn bind(address: &Address) -> io::Result<(Self, Address)> {
        match address {
            Address::Tcp { host, port } => {
                let listener = TcpListener::bind((host.as_str(), *port))?;
                let port = listener.local_addr()?.port();
                Ok((Listener::Tcp(listener), Address::Tcp { host: host.clone(), port }))
            }
            Address::Local { name } => {
                let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)?;
                Ok((Listener::Local(listener), address.clone()))
            }
        }
    }

    fn accept(&self, options: &TcpOptions) -> io::Result<(Socket, String)> {
        match self {
            Listener::Tcp(listener) => {
                let (stream, peer) = listener.accept()?;
                let socket = Socket::tcp(stream, options.congestion.as_deref())?;
                let socket = match &options.encryption {
                    Some(config) => {
                        let connection = ServerConnection::new(config.clone()).map_err(io::Error::other)?;
                        socket.encrypted(connection)?
                    }
                    None => socket,
                };
                Ok((socket, peer.to_string()))
            }
            Listener::Local(listener) => {
                let (stream, _) = listener.accept()?;
                let peer = socket_peercred(&stream)?;
                // Any process on the host can reach an abstract name, but memory is shared with the same user only.
                if peer.uid != getuid() {
                    return Err(io::Error::new(io::ErrorKind::PermissionDenied, "the process belongs to another user"));
                }
                Ok((Socket::local(stream), format!("process {}", peer.pid)))
            }
        }
    }

    /// Wakes the thread that accepts on this socket.
    fn close(&self) {
        let socket = match self {
            Listener::Tcp(listener) => listener.as_fd(),
            Listener::Local(listener) => listener.as_fd(),
        };
        // It fails only if the socket is closed already.
        let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
    }
}

/// All open TCP connections, so that they can be closed with the run.
#[derive(Debug)]
pub(super) struct ConnectionRegistry {
    state: Mutex<RegistryState>,
    removed: Condvar,
}

#[derive(Debug)]
struct RegistryState {
    open: HashMap<SessionId, Socket>,
    closed: bool,
}

impl ConnectionRegistry {
    pub(super) fn new() -> Self {
        ConnectionRegistry {
            state: Mutex::new(RegistryState { open: HashMap::new(), closed: false }),
            removed: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, RegistryState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a connection. Fails if the limit is reached or the run has ended.
    fn register(&self, session: SessionId, socket: &Socket) -> io::Result<()> {
        let mut state = self.lock();
        if state.closed {
            return Err(io::Error::other("the run is over"));
        }
        if state.open.len() >= MAX_CONNECTIONS {
            return Err(io::Error::other(format!(
                "the server has {MAX_CONNECTIONS} connections already, which is the limit"
            )));
        }
        state.open.insert(session, socket.clone());
        Ok(())
    }

    fn unregister(&self, session: SessionId) {
        self.lock().open.remove(&session);
        self.removed.notify_all();
    }

    fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// Stops accepting, then closes the open connections. Nothing more is read from them; the last messages to them
    /// have [`CLOSE_TIMEOUT`] to be sent.
    fn close(&self, listeners: &[Listener]) {
        let mut state = self.lock();
        state.closed = true;
        listeners.iter().for_each(Listener::close);
        state.open.values().for_each(|socket| socket.shutdown(Shutdown::Read));
        let is_open = |state: &mut RegistryState| !state.open.is_empty();
        let waited = self.removed.wait_timeout_while(state, CLOSE_TIMEOUT, is_open);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.open.values().for_each(|socket| socket.shutdown(Shutdown::Both));
    }
}

/// Closes the registry when dropped.
pub(super) struct CloseOnDrop<'a> {
    pub(super) registry: &'a ConnectionRegistry,
    pub(super) listeners: &'a [Listener],
}

impl Drop for CloseOnDrop<'_> {
    fn drop(&mut self) {
        self.registry.close(self.listeners);
    }
}

/// Accepts connections until the registry is closed. Every TCP connection is served by a new thread.
pub(super) fn accept_all<'scope>(
    scope: &'scope thread::Scope<'scope, '_>,
    context: &'scope SessionContext,
    registry: &'scope ConnectionRegistry,
    sessions: &AtomicU64,
    listener: &'scope Listener,
    options: &TcpOptions,
) {
    while !registry.is_closed() {
        let refuse = |error: io::Error| {
            if registry.is_closed() {
                return;
            }
            let (is_system_error, reason) = (error.raw_os_error().is_some(), error.to_string());
            // It fails only if the run has ended.
            let _ = context.handle.send(ServerInput::Refused { peer: "a connection".into(), reason });
            if is_system_error {
                thread::sleep(ACCEPT_RETRY_DELAY);
            }
        };
        let (socket, peer) = match listener.accept(options) {
            Ok(accepted) => accepted,
            Err(error) => {
                refuse(error);
                continue;
            }
        };
        let session = SessionId(sessions.fetch_add(1, Ordering::Relaxed));
        if socket.is_local() {
            // The coordinator reads this socket. It fails only if the run has ended.
            let _ = context.handle.connect(session, peer, socket);
            continue;
        }
        if let Err(error) = registry.register(session, &socket) {
            refuse(error);
            continue;
        }
        let thread = thread::Builder::new().name(format!("from {peer}")).stack_size(THREAD_STACK_SIZE);
        let spawned = thread.spawn_scoped(scope, move || {
            serve_session(context, session, peer, socket);
            registry.unregister(session);
        });
        if let Err(error) = spawned {
            registry.unregister(session);
            refuse(error);
        }
    }
}
