//! Where workers come in.

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

use rustix::net::sockopt::socket_peercred;
use rustix::process::{Resource, Rlimit, getrlimit, getuid, setrlimit};
use rustls::{ServerConfig, ServerConnection};

use super::CONNECTIONS;
use super::inputs::Input;
use super::session::{Context, FAREWELL, STACK, attend};
use crate::address::Address;
use crate::link::Socket;

/// How long to wait before accepting again when the system has no room for another connection.
const BREATH: Duration = Duration::from_millis(100);

/// How TCP connections are set up.
#[derive(Debug, Default)]
pub(super) struct Terms {
    pub(super) congestion: Option<String>,
    pub(super) encryption: Option<Arc<ServerConfig>>,
}

/// A bound socket.
#[derive(Debug)]
pub(super) enum Listener {
    Tcp(TcpListener),
    Local(UnixListener),
}

/// Lets this process have as many open files as it may: every connection is one, and the usual limit is low.
pub(super) fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    // If it can't be raised, connections are turned away when it is reached.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

impl Listener {
    /// Binds; returns also the address in use, which may differ in its port.
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

    fn accept(&self, terms: &Terms) -> io::Result<(Socket, String)> {
        match self {
            Listener::Tcp(listener) => {
                let (stream, peer) = listener.accept()?;
                let socket = Socket::tcp(stream, terms.congestion.as_deref())?;
                let socket = match &terms.encryption {
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
                // Anyone on the host can reach an abstract name; memory is shared with the same user only.
                if peer.uid != getuid() {
                    return Err(io::Error::new(io::ErrorKind::PermissionDenied, "a process of another user"));
                }
                Ok((Socket::local(stream), format!("process {}", peer.pid)))
            }
        }
    }

    /// Ends the waiting of whoever accepts.
    fn close(&self) {
        let socket = match self {
            Listener::Tcp(listener) => listener.as_fd(),
            Listener::Local(listener) => listener.as_fd(),
        };
        // It can fail only if it is closed already.
        let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
    }
}

/// All open TCP connections, so that they can be ended with the run.
#[derive(Debug)]
pub(super) struct Switchboard {
    board: Mutex<Board>,
    unplugged: Condvar,
}

#[derive(Debug)]
struct Board {
    open: HashMap<u64, Socket>,
    closed: bool,
}

impl Switchboard {
    pub(super) fn new() -> Self {
        Switchboard { board: Mutex::new(Board { open: HashMap::new(), closed: false }), unplugged: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Board> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes note of a connection; not of too many, and of none when the run is over.
    fn plug(&self, session: u64, socket: &Socket) -> io::Result<()> {
        let mut board = self.lock();
        if board.closed {
            return Err(io::Error::other("the run is over"));
        }
        if board.open.len() >= CONNECTIONS {
            return Err(io::Error::other(format!("there are {CONNECTIONS} connections already")));
        }
        board.open.insert(session, socket.clone());
        Ok(())
    }

    fn unplug(&self, session: u64) {
        self.lock().open.remove(&session);
        self.unplugged.notify_all();
    }

    fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// Ends the waiting for connections, then those that are open: they are heard no more, and have a moment to be told
    /// what there is to tell.
    fn close(&self, listeners: &[Listener]) {
        let mut board = self.lock();
        board.closed = true;
        listeners.iter().for_each(Listener::close);
        board.open.values().for_each(|socket| socket.shutdown(Shutdown::Read));
        let busy = |board: &mut Board| !board.open.is_empty();
        let waited = self.unplugged.wait_timeout_while(board, FAREWELL, busy);
        let (board, _) = waited.unwrap_or_else(PoisonError::into_inner);
        board.open.values().for_each(|socket| socket.shutdown(Shutdown::Both));
    }
}

/// Closes the switchboard when it goes.
pub(super) struct Closing<'a> {
    pub(super) switchboard: &'a Switchboard,
    pub(super) listeners: &'a [Listener],
}

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.switchboard.close(self.listeners);
    }
}

/// Accepts connections and has each attended to, over TCP by a thread of its own, until the switchboard is closed.
pub(super) fn accept_all<'scope>(
    scope: &'scope thread::Scope<'scope, '_>,
    context: &'scope Context,
    switchboard: &'scope Switchboard,
    sessions: &AtomicU64,
    listener: &'scope Listener,
    terms: &Terms,
) {
    while !switchboard.is_closed() {
        let turn_away = |error: io::Error| {
            if switchboard.is_closed() {
                return;
            }
            let (full, reason) = (error.raw_os_error().is_some(), error.to_string());
            // Nobody listens any more when the run is over.
            let _ = context.door.send(Input::TurnedAway { peer: "a connection".into(), reason });
            if full {
                thread::sleep(BREATH);
            }
        };
        let (socket, peer) = match listener.accept(terms) {
            Ok(accepted) => accepted,
            Err(error) => {
                turn_away(error);
                continue;
            }
        };
        let session = sessions.fetch_add(1, Ordering::Relaxed);
        if socket.is_local() {
            // The coordinator itself reads it, until the run is over.
            let _ = context.door.connect(session, peer, socket);
            continue;
        }
        if let Err(error) = switchboard.plug(session, &socket) {
            turn_away(error);
            continue;
        }
        let thread = thread::Builder::new().name(format!("from {peer}")).stack_size(STACK);
        let spawned = thread.spawn_scoped(scope, move || {
            attend(context, session, peer, socket);
            switchboard.unplug(session);
        });
        if let Err(error) = spawned {
            switchboard.unplug(session);
            turn_away(error);
        }
    }
}
