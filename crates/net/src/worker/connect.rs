//! Finding the server, with join_timeout.

use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::thread;
use std::time::{Duration, Instant};

use rustls::ClientConnection;

use super::{FIRST_WAIT, LONGEST_WAIT, WorkError};
use crate::address::Address;
use crate::keys::Keys;
use crate::link::Socket;

/// How long a host may take to answer at all.
const ONE_ATTEMPT: Duration = Duration::from_secs(5);

/// Connects to `address`. While nobody listens there it tries again for as long as `join_timeout`, and calls `announce`
/// before the first wait.
pub(super) fn connect(
    address: &Address,
    congestion: Option<&str>,
    keys: Option<&Keys>,
    join_timeout: Duration,
    announce: &mut dyn FnMut(&io::Error),
) -> Result<Socket, WorkError> {
    let began = Instant::now();
    let mut wait = FIRST_WAIT;
    loop {
        let error = match attempt(address, congestion, keys) {
            Ok(socket) => return Ok(socket),
            Err(error) => error,
        };
        let absent = matches!(
            error.kind(),
            io::ErrorKind::ConnectionRefused
                | io::ErrorKind::ConnectionReset
                | io::ErrorKind::HostUnreachable
                | io::ErrorKind::NetworkUnreachable
                | io::ErrorKind::TimedOut
        );
        let left = join_timeout.saturating_sub(began.elapsed());
        if !absent || left.is_zero() {
            let waited = absent.then(|| began.elapsed());
            return Err(WorkError::Connect { address: address.clone(), error, waited });
        }
        if wait == FIRST_WAIT {
            announce(&error);
        }
        thread::sleep(wait.min(left));
        wait = (wait * 2).min(LONGEST_WAIT);
    }
}

/// Connects to the first of a host's addresses that answers.
fn reach(host: &str, port: u16) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, ONE_ATTEMPT) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn attempt(address: &Address, congestion: Option<&str>, keys: Option<&Keys>) -> io::Result<Socket> {
    match address {
        Address::Tcp { host, port } => {
            let socket = Socket::tcp(reach(host, *port)?, congestion)?;
            let Some(keys) = keys else { return Ok(socket) };
            let (config, name) = keys.client().map_err(io::Error::other)?;
            socket.encrypted(ClientConnection::new(config, name).map_err(io::Error::other)?)
        }
        Address::Local { name } => {
            let address = SocketAddr::from_abstract_name(name)?;
            Ok(Socket::local(UnixStream::connect_addr(&address)?))
        }
    }
}
