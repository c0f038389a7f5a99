//! Connected sockets. No call on them blocks.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg, sockopt,
};

use crate::socket_buffers::SocketBuffers;
use crate::tls::Tls;

/// File descriptors that may be pending before their message is read.
const MAX_PENDING_FILES: usize = 8;

/// Counts the bytes of all connections that share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Traffic(Arc<AtomicU64>);

impl Traffic {
    pub(crate) fn add(&self, bytes: usize) {
        self.0.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A connected socket. Clones share the connection and its file descriptor, since file descriptors are scarce.
#[derive(Debug, Clone)]
pub(crate) enum Socket {
    Tcp(Arc<TcpSocket>),
    Local(Arc<UnixStream>),
}

/// A connected TCP socket.
#[derive(Debug)]
pub(crate) struct TcpSocket {
    pub(crate) stream: TcpStream,
    buffers: SocketBuffers,
}

impl Socket {
    /// A TCP connection with options for tensors. `congestion` is the congestion control; `None` keeps that of the
    /// system.
    pub(crate) fn tcp(stream: TcpStream, congestion: Option<&str>) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        let buffers = SocketBuffers::new(&stream)?;
        // A peer whose machine vanished, or that reads nothing, is detected after about half a minute.
        sockopt::set_tcp_user_timeout(&stream, 30_000)?;
        sockopt::set_socket_keepalive(&stream, true)?;
        sockopt::set_tcp_keepidle(&stream, Duration::from_secs(10))?;
        sockopt::set_tcp_keepintvl(&stream, Duration::from_secs(5))?;
        sockopt::set_tcp_keepcnt(&stream, 4)?;
        if let Some(name) = congestion {
            sockopt::set_tcp_congestion(&stream, name)?;
        }
        Ok(Socket::Tcp(Arc::new(TcpSocket { stream, buffers })))
    }

    /// For one of several connections over which a vector is sent in parts.
    pub(crate) fn share_send_buffer(&self, connections: usize) -> io::Result<()> {
        match self {
            Socket::Tcp(tcp) => tcp.buffers.share(&tcp.stream, connections),
            Socket::Local(_) => Ok(()),
        }
    }

    /// To be called before a vector is sent.
    pub(crate) fn fit_buffers(&self) -> io::Result<()> {
        match self {
            Socket::Tcp(tcp) => tcp.buffers.fit(&tcp.stream),
            Socket::Local(_) => Ok(()),
        }
    }

    /// Whether the peer is on this host.
    pub(crate) fn is_within_host(&self) -> io::Result<bool> {
        Ok(match self {
            Socket::Tcp(tcp) => tcp.stream.peer_addr()?.ip() == tcp.stream.local_addr()?.ip(),
            Socket::Local(_) => true,
        })
    }

    /// A Unix socket.
    pub(crate) fn local(stream: UnixStream) -> Self {
        Socket::Local(Arc::new(stream))
    }

    pub(crate) fn is_local(&self) -> bool {
        matches!(self, Socket::Local(_))
    }

    /// Closes one or both directions. It is not an error if they are closed already.
    pub(crate) fn shutdown(&self, how: Shutdown) {
        let _ = match self {
            Socket::Tcp(tcp) => tcp.stream.shutdown(how),
            Socket::Local(stream) => stream.shutdown(how),
        };
    }

    /// Sends the bytes that the kernel takes now, and a file descriptor with the first of them. Returns their number.
    pub(crate) fn send(&self, slices: &[IoSlice<'_>], file: Option<BorrowedFd<'_>>) -> io::Result<usize> {
        let files = file.as_slice();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(files));
        }
        loop {
            match sendmsg(self, slices, &mut control, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Err(Errno::INTR) => {}
                other => return Ok(other?),
            }
        }
    }

    /// Receives the bytes that have arrived, and the file descriptors that came with them.
    fn receive(&self, slices: &mut [IoSliceMut<'_>], files: &mut VecDeque<OwnedFd>) -> io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_PENDING_FILES))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = loop {
            match recvmsg(self, slices, &mut control, RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC) {
                Err(Errno::INTR) => {}
                other => break other?.bytes,
            }
        };
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = message {
                files.extend(received);
            }
        }
        if files.len() > MAX_PENDING_FILES {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "more file descriptors than messages"));
        }
        Ok(received)
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Socket::Tcp(tcp) => tcp.stream.as_fd(),
            Socket::Local(stream) => stream.as_fd(),
        }
    }
}

/// A socket, encrypted or not, of the thread that waits for it. Reading takes no more than was allowed, and does not
/// ask for more after the kernel gave all it had: the next wait tells.
#[derive(Debug)]
pub(crate) struct Stream {
    plain: PlainStream,
    tls: Option<Box<Tls>>,
}

#[derive(Debug)]
struct PlainStream {
    socket: Socket,
    /// Bytes that may still be read before the next wait.
    allowance: usize,
    /// File descriptors that have arrived.
    files: VecDeque<OwnedFd>,
}

impl Stream {
    pub(crate) fn new(socket: Socket, tls: Option<Tls>) -> Self {
        let plain = PlainStream { socket, allowance: 0, files: VecDeque::new() };
        Stream { plain, tls: tls.map(Box::new) }
    }

    pub(crate) fn socket(&self) -> &Socket {
        &self.plain.socket
    }

    pub(crate) fn is_encrypted(&self) -> bool {
        self.tls.is_some()
    }

    /// Allows to read about this many bytes, until there are no more.
    pub(crate) fn allow(&mut self, bytes: usize) {
        self.plain.allowance = bytes;
    }

    /// The file descriptor that came with the last message.
    pub(crate) fn file(&mut self) -> io::Result<OwnedFd> {
        let file = self.plain.files.pop_front();
        file.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "message without its file descriptor"))
    }

    /// Sends as [`Socket::send`] does. With encryption, some bytes may wait for [`flush`](Write::flush).
    pub(crate) fn send(&mut self, slices: &[IoSlice<'_>], file: Option<BorrowedFd<'_>>) -> io::Result<usize> {
        match &mut self.tls {
            Some(tls) => tls.write(slices, &mut self.plain),
            None => self.plain.socket.send(slices, file),
        }
    }

    /// Whether what is to be sent waits for an answer of the peer.
    pub(crate) fn is_handshaking(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.is_handshaking())
    }

    /// Sends what encryption has held back.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.tls.as_mut().map_or(Ok(()), |tls| tls.flush(&mut self.plain))
    }
}

impl Read for Stream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.read_vectored(&mut [IoSliceMut::new(bytes)])
    }

    fn read_vectored(&mut self, slices: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        match &mut self.tls {
            Some(tls) => {
                let first = slices.iter_mut().find(|slice| !slice.is_empty());
                first.map_or(Ok(0), |slice| tls.read(slice, &mut self.plain))
            }
            None => self.plain.read_vectored(slices),
        }
    }
}

impl Read for PlainStream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.read_vectored(&mut [IoSliceMut::new(bytes)])
    }

    fn read_vectored(&mut self, slices: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        if self.allowance == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let asked: usize = slices.iter().map(|slice| slice.len()).sum();
        let before = self.files.len();
        let received = self.socket.receive(slices, &mut self.files)?;
        // File descriptors also end a read: more bytes may be there.
        let is_all = received < asked && self.files.len() == before;
        self.allowance = if is_all { 0 } else { self.allowance.saturating_sub(received) };
        Ok(received)
    }
}

impl Write for PlainStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.socket.send(slices, None)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
