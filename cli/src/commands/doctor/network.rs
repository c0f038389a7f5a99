//! The network, and a server that is to be joined.

use std::io;
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use paceline_net::{Address, Keys};

use super::Finding;
use super::machine::read;

/// How long to wait for a server.
const TIMEOUT: Duration = Duration::from_secs(5);

/// How often a server is connected to, for the shortest time of a round trip.
const CONNECTIONS: usize = 5;

/// What is found of the network.
pub fn findings() -> Vec<Finding> {
    vec![loopback(), tcp()]
}

fn loopback() -> Finding {
    let name = "loopback";
    let connected = TcpListener::bind("127.0.0.1:0").and_then(|listener| {
        let address = listener.local_addr()?;
        TcpStream::connect_timeout(&address, TIMEOUT)
    });
    match connected {
        Ok(_) => Finding::fine(name, "works"),
        Err(error) => Finding::wrong(name, error.to_string(), "bring it up: ip link set lo up"),
    }
}

fn tcp() -> Finding {
    let name = "TCP";
    let setting = |key: &str| read(Path::new("/proc/sys/net").join(key)).unwrap_or_else(|| "unknown".into());
    let largest = |key: &str| setting(key).split_whitespace().next_back().and_then(|text| text.parse::<u64>().ok());
    let buffers = [largest("ipv4/tcp_rmem"), largest("ipv4/tcp_wmem")];
    let mib = |bytes: Option<u64>| {
        bytes.map_or_else(|| "?".into(), |bytes| format!("{:.1}", bytes as f64 / (1 << 20) as f64))
    };
    let [receive, send] = buffers.map(mib);
    let congestion = setting("ipv4/tcp_congestion_control");
    let found = format!("{congestion}, buffers up to {receive} MiB to receive, {send} MiB to send");
    match buffers.into_iter().flatten().min() {
        Some(bytes) if bytes < 1 << 20 => Finding::note(
            name,
            found,
            "links that are both fast and long need more: sysctl net.ipv4.tcp_rmem, tcp_wmem",
        ),
        _ => Finding::fine(name, found),
    }
}

/// Whether the keys in a folder can be used by a worker.
pub fn keys(folder: &Path) -> Finding {
    let name = "keys";
    match Keys::read(folder) {
        Ok(_) if folder.join("key.pem").exists() => Finding::fine(name, "for a server and its workers"),
        Ok(_) => Finding::fine(name, "for a worker"),
        Err(error) => Finding::wrong(name, error.to_string(), "copy certificate.pem and token from the server"),
    }
}

/// Whether a server can be reached, and how fast.
pub fn server(address: &Address) -> Finding {
    let name = "server";
    let times = (0..CONNECTIONS).map(|_| time_of_connection(address)).collect::<io::Result<Vec<_>>>();
    match times {
        Ok(times) => {
            let shortest = times.into_iter().min().unwrap_or_default();
            Finding::fine(name, format!("{address} accepts a connection within {:.2} ms", shortest.as_secs_f64() * 1e3))
        }
        Err(error) => {
            let advice =
                "start it, listen beyond the machine (--listen 0.0.0.0), and open its port in firewalls between";
            Finding::wrong(name, format!("{address}: {error}"), advice)
        }
    }
}

fn time_of_connection(address: &Address) -> io::Result<Duration> {
    match address {
        Address::Local { name } => {
            let start = Instant::now();
            UnixStream::connect_addr(&SocketAddr::from_abstract_name(name)?)?;
            Ok(start.elapsed())
        }
        Address::Tcp { host, port } => {
            let mut last = io::Error::new(io::ErrorKind::NotFound, "the host name has no address");
            for address in (host.as_str(), *port).to_socket_addrs()? {
                let start = Instant::now();
                match TcpStream::connect_timeout(&address, TIMEOUT) {
                    Ok(_) => return Ok(start.elapsed()),
                    Err(error) => last = error,
                }
            }
            Err(last)
        }
    }
}
