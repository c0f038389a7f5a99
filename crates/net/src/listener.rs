//! Sockets that listen.

use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::Arc;

use rustix::net::sockopt::socket_peercred;
use rustix::process::getuid;
use rustls::{ServerConfig, ServerConnection};

use crate::address::Address;
use crate::socket::Socket;
use crate::tls::Tls;

/// Options of the TCP connections that are accepted.
#[derive(Debug, Default)]
pub(crate) struct TcpOptions {
    pub(crate) congestion: Option<String>,
    pub(crate) encryption: Option<Arc<ServerConfig>>,
}

/// A listening socket.
#[derive(Debug)]
pub(crate) enum Listener {
    Tcp(TcpListener),
    Local(UnixListener),
}

impl Listener {
    /// Binds to `address`. Also returns the address in use, whose port differs if 0 was requested.
    pub(crate) fn bind(address: &Address) -> io::Result<(Self, Address)> {
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

    pub(crate) fn set_nonblocking(&self) -> io::Result<()> {
        match self {
            Listener::Tcp(listener) => listener.set_nonblocking(true),
            Listener::Local(listener) => listener.set_nonblocking(true),
        }
    }

    /// A connection that waits.
    pub(crate) fn accept(&self, options: &TcpOptions) -> io::Result<Accepted> {
        match self {
            Listener::Tcp(listener) => {
                let (stream, peer) = listener.accept()?;
                let socket = Socket::tcp(stream, options.congestion.as_deref())?;
                let connection = options.encryption.clone().map(ServerConnection::new).transpose();
                let tls = connection.map_err(io::Error::other)?.map(Tls::new);
                Ok(Accepted { socket, tls, peer: peer.to_string() })
            }
            Listener::Local(listener) => {
                let (stream, _) = listener.accept()?;
                let peer = socket_peercred(&stream)?;
                // Any process on the host can reach an abstract name, but memory is shared with the same user only.
                if peer.uid != getuid() {
                    return Err(io::Error::new(io::ErrorKind::PermissionDenied, "the process belongs to another user"));
                }
                Ok(Accepted { socket: Socket::local(stream), tls: None, peer: format!("process {}", peer.pid) })
            }
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Tcp(listener) => listener.as_fd(),
            Listener::Local(listener) => listener.as_fd(),
        }
    }
}

/// A new connection.
pub(crate) struct Accepted {
    pub(crate) socket: Socket,
    pub(crate) tls: Option<Tls>,
    /// Who it is.
    pub(crate) peer: String,
}
