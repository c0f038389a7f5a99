//! Where workers come in.

use std::collections::HashMap;
use std::io;
use std::net::{Shutdown, TcpListener};
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::net::sockopt::socket_peercred;
use rustix::process::getuid;

use super::session::{Context, Input, STACK, attend};
use crate::address::Address;
use crate::link::Socket;

/// Connections at a time. Each costs two threads at most.
const CONNECTIONS: usize = 8_192;

/// How long to wait before accepting again when the system has no room for another connection.
const BREATH: Duration = Duration::from_millis(100);

/// A bound socket.
#[derive(Debug)]
pub(super) enum Listener {
    Tcp(TcpListener),
    Local(UnixListener),
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

    fn accept(&self, congestion: Option<&str>) -> io::Result<(Socket, String)> {
        match self {
            Listener::Tcp(listener) => {
                let (stream, peer) = listener.accept()?;
                Ok((Socket::tcp(stream, congestion)?, peer.to_string()))
            }
            Listener::Local(listener) => {
                let (stream, _) = listener.accept()?;
                let peer = socket_peercred(&stream)?;
                // Anyone on the host can reach an abstract name; memory is shared with the same user only.
                if peer.uid != getuid() {
                    return Err(io::Error::new(io::ErrorKind::PermissionDenied, "a process of another user"));
                }
                Ok((Socket::Local(stream), format!("process {}", peer.pid)))
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

/// All open connections, so that they can be ended with the run.
#[derive(Debug, Default)]
pub(super) struct Switchboard {
    open: Mutex<Option<HashMap<u64, Socket>>>,
}

impl Switchboard {
    pub(super) fn new() -> Self {
        Switchboard { open: Mutex::new(Some(HashMap::new())) }
    }

    fn lock(&self) -> MutexGuard<'_, Option<HashMap<u64, Socket>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes note of a connection; not of too many, and of none when the run is over.
    fn plug(&self, session: u64, socket: &Socket) -> io::Result<()> {
        match self.lock().as_mut() {
            Some(open) if open.len() < CONNECTIONS => {
                open.insert(session, socket.try_clone()?);
                Ok(())
            }
            Some(_) => Err(io::Error::other(format!("there are {CONNECTIONS} connections already"))),
            None => Err(io::Error::other("the run is over")),
        }
    }

    fn unplug(&self, session: u64) {
        if let Some(open) = self.lock().as_mut() {
            open.remove(&session);
        }
    }

    fn is_closed(&self) -> bool {
        self.lock().is_none()
    }

    /// Ends all connections and the waiting for more.
    pub(super) fn close(&self, listeners: &[Listener]) {
        let open = self.lock().take();
        open.iter().flatten().for_each(|(_, socket)| socket.shutdown(Shutdown::Both));
        listeners.iter().for_each(Listener::close);
    }
}

/// Accepts connections and has each attended to by a thread of its own, until the switchboard is closed.
pub(super) fn accept_all<'scope>(
    scope: &'scope thread::Scope<'scope, '_>,
    context: &'scope Context,
    switchboard: &'scope Switchboard,
    sessions: &'scope std::sync::atomic::AtomicU64,
    listener: &'scope Listener,
    congestion: Option<&str>,
) {
    while !switchboard.is_closed() {
        let turn_away = |error: io::Error| {
            if switchboard.is_closed() {
                return;
            }
            let reason = error.to_string();
            // Nobody listens any more when the run is over.
            let _ = context.inputs.send(Input::TurnedAway { peer: "a connection".into(), reason });
            thread::sleep(BREATH);
        };
        let (socket, peer) = match listener.accept(congestion) {
            Ok(accepted) => accepted,
            Err(error) => {
                turn_away(error);
                continue;
            }
        };
        let session = sessions.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        if let Err(error) = switchboard.plug(session, &socket) {
            turn_away(error);
            continue;
        }
        let thread = thread::Builder::new().name(format!("from {peer}")).stack_size(STACK);
        let spawned = thread.spawn_scoped(scope, move || {
            attend(scope, context, session, peer, socket);
            switchboard.unplug(session);
        });
        if let Err(error) = spawned {
            switchboard.unplug(session);
            turn_away(error);
        }
    }
}
