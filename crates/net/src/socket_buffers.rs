//! How many bytes the kernel keeps of a TCP connection.
//!
//! Where the round trip is short, small buffers of a fixed size fill the link, and keep several connections from crowding
//! each other out of it. Where it is long, a link carries more than that in a round trip, so the kernel sizes the buffers.

use std::io;
use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use rustix::net::sockopt;
use socket2::SockRef;

/// The buffer per direction where the round trip is short, in bytes: two chunks, so that one is sent while the next is
/// prepared.
const FIXED: usize = 512 * 1024;

/// The least send buffer of one of several connections.
const LEAST_SHARE: usize = 64 * 1024;

/// The longest round trip that counts as short: as long as a link of 1 Gbit/s takes for [`FIXED`] bytes.
const SHORT_ROUND_TRIP: Duration = Duration::from_millis(4);

/// The bytes that wait to be sent where the kernel sizes the buffers. Messages do not overtake them.
const WAITING: u32 = 256 * 1024;

/// The buffers of a connection.
#[derive(Debug)]
pub(crate) struct SocketBuffers {
    /// Over how many connections a vector is sent in parts.
    connections: AtomicUsize,
    is_fixed: AtomicBool,
}

impl SocketBuffers {
    /// Those of a new connection.
    pub(crate) fn new(stream: &TcpStream) -> io::Result<Self> {
        let buffers = SocketBuffers { connections: AtomicUsize::new(1), is_fixed: AtomicBool::new(false) };
        SockRef::from(stream).set_tcp_notsent_lowat(WAITING)?;
        buffers.fit(stream)?;
        Ok(buffers)
    }

    /// The connection is one of several over which a vector is sent in parts: together they keep as many bytes on the way as
    /// one connection.
    pub(crate) fn share(&self, stream: &TcpStream, connections: usize) -> io::Result<()> {
        self.connections.store(connections, Ordering::Relaxed);
        self.is_fixed.store(false, Ordering::Relaxed);
        self.fit(stream)
    }

    /// Fixes the size of the buffers if the round trip is short. To be called before a vector: round trips seem long while a
    /// link is full, so what one looks like at first is not the last word.
    pub(crate) fn fit(&self, stream: &TcpStream) -> io::Result<()> {
        if self.is_fixed.load(Ordering::Relaxed) || shortest_round_trip(stream)? > SHORT_ROUND_TRIP {
            return Ok(());
        }
        let share = (FIXED / self.connections.load(Ordering::Relaxed).max(1)).max(LEAST_SHARE);
        sockopt::set_socket_send_buffer_size(stream, share)?;
        sockopt::set_socket_recv_buffer_size(stream, FIXED)?;
        SockRef::from(stream).set_tcp_notsent_lowat(u32::MAX)?;
        self.is_fixed.store(true, Ordering::Relaxed);
        Ok(())
    }
}

/// The shortest round trip of the last minutes, as the kernel measured it; zero if it has none.
fn shortest_round_trip(stream: &TcpStream) -> io::Result<Duration> {
    let mut info = MaybeUninit::<libc::tcp_info>::zeroed();
    let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes, which are there.
    let result = unsafe {
        libc::getsockopt(stream.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, info.as_mut_ptr().cast(), &mut length)
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: all fields are whole numbers, for which any bytes are valid, zeros included.
    let info = unsafe { info.assume_init() };
    let is_measured = info.tcpi_min_rtt != u32::MAX;
    Ok(Duration::from_micros(if is_measured { info.tcpi_min_rtt.into() } else { 0 }))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn connections_within_this_machine_have_small_buffers() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let buffers = SocketBuffers::new(&stream).unwrap();
        let whole = sockopt::socket_send_buffer_size(&stream).unwrap();
        buffers.share(&stream, 8).unwrap();
        assert!(sockopt::socket_send_buffer_size(&stream).unwrap() < whole);
    }
}
