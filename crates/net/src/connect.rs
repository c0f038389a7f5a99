//! Connects to the server, and tries again until the join timeout.

use std::io;
use std::net::{SocketAddr as TcpAddress, TcpStream, ToSocketAddrs};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::thread;
use std::time::{Duration, Instant};

use paceline_runtime::is_interrupted;
use rustix::net::sockopt::socket_peercred;
use rustix::process::{Uid, getuid};
use rustls::ClientConnection;

use crate::address::Address;
use crate::keys::Keys;
use crate::socket::Socket;
use crate::tls::Tls;
use crate::worker::{MAX_RETRY_DELAY, MIN_RETRY_DELAY, WorkerError};

/// The time limit of one attempt to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Connects to the first of `addresses` where a server listens. If there is none, tries again for `join_timeout`, and calls
/// `on_waiting` before the first wait.
pub(crate) fn connect<'a>(
    addresses: &[&'a Address],
    congestion: Option<&str>,
    keys: Option<&Keys>,
    join_timeout: Duration,
    on_waiting: &mut dyn FnMut(&io::Error),
) -> Result<(&'a Address, Socket, Option<Tls>), WorkerError> {
    let started = Instant::now();
    let mut delay = MIN_RETRY_DELAY;
    loop {
        let mut absent = None;
        for &address in addresses {
            match dial(address, congestion, keys) {
                Ok((socket, tls)) => return Ok((address, socket, tls)),
                Err(error) if is_absence(&error) => _ = absent.get_or_insert((address, error)),
                Err(error) => return Err(WorkerError::Connect { address: address.clone(), error, waited: None }),
            }
        }
        let (address, error) = absent.expect("a worker has an address");
        let left = join_timeout.saturating_sub(started.elapsed());
        if left.is_zero() {
            return Err(WorkerError::Connect { address: address.clone(), error, waited: Some(started.elapsed()) });
        }
        if delay == MIN_RETRY_DELAY {
            on_waiting(&error);
        }
        if is_interrupted() {
            return Err(WorkerError::Interrupted);
        }
        thread::sleep(delay.min(left));
        delay = (delay * 2).min(MAX_RETRY_DELAY);
    }
}

/// Whether a server may be there later.
fn is_absence(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::HostUnreachable
            | io::ErrorKind::NetworkUnreachable
            | io::ErrorKind::NotFound
            | io::ErrorKind::TimedOut
    )
}

/// Connects to the first address of a host that accepts.
fn reach(host: &str, port: u16) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the host name has no address");
    // Names of containers and virtual machines have addresses once these are up.
    let unknown = |error: io::Error| io::Error::new(io::ErrorKind::NotFound, error);
    for address in (host, port).to_socket_addrs().map_err(unknown)? {
        match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Connects to an address. With keys, a TCP connection is encrypted.
pub(crate) fn dial(
    address: &Address,
    congestion: Option<&str>,
    keys: Option<&Keys>,
) -> io::Result<(Socket, Option<Tls>)> {
    match address {
        Address::Tcp { host, port } => {
            let socket = Socket::tcp(reach(host, *port)?, congestion)?;
            let Some(keys) = keys else { return Ok((socket, None)) };
            let (config, name) = keys.client().map_err(io::Error::other)?;
            let connection = ClientConnection::new(config, name).map_err(io::Error::other)?;
            Ok((socket, Some(Tls::new(connection))))
        }
        Address::Local { name } => {
            let stream = UnixStream::connect_addr(&SocketAddr::from_abstract_name(name)?)?;
            // Any user of the machine can listen on an abstract name. Nothing is sent before the owner is known.
            check_owner(socket_peercred(&stream)?.uid, getuid())?;
            Ok((Socket::local(stream), None))
        }
    }
}

/// Where workers on the same host share memory with the shard at this place.
pub(crate) fn shared_place(place: TcpAddress) -> Address {
    Address::Local { name: format!("paceline-shard-{}-{}", place.ip().to_canonical(), place.port()) }
}

fn check_owner(owner: Uid, own: Uid) -> io::Result<()> {
    if owner == own {
        return Ok(());
    }
    let (owner, own) = (owner.as_raw(), own.as_raw());
    let text = format!("the name belongs to a process of another user (uid {owner}; this is uid {own})");
    Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_server_of_the_same_user_is_joined() {
        let [own, other] = [1000, 1001].map(Uid::from_raw);
        assert!(check_owner(own, own).is_ok());
        let error = check_owner(other, own).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        assert!(error.to_string().contains("another user (uid 1001; this is uid 1000)"));
    }
}
