//! One connection: messages, chunks of values and file descriptors over TCP or a Unix socket.

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, send, sendmsg, sockopt,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use paceline_protocol::PayloadFormat;

use crate::frame::{self, FrameError, FrameHeader, FrameKind, HEADER_LEN};
use crate::tls::TlsStream;

/// The kernel buffer per direction of a TCP connection, in bytes: two chunks, so that one is sent while the next is
/// prepared.
const SOCKET_BUFFER: usize = 512 * 1024;

/// The read buffer for headers and messages, in bytes. Chunks are longer and bypass it.
const READ_BUFFER: usize = 4 * 1024;

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
    Tcp(Arc<TcpStream>),
    Tls(Arc<TlsStream>),
    Local(Arc<UnixStream>),
}

impl Socket {
    /// A TCP connection with options for tensors. `congestion` is the congestion control; `None` keeps that of the
    /// system.
    pub(crate) fn tcp(stream: TcpStream, congestion: Option<&str>) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        sockopt::set_socket_send_buffer_size(&stream, SOCKET_BUFFER)?;
        sockopt::set_socket_recv_buffer_size(&stream, SOCKET_BUFFER)?;
        // A peer whose machine vanished, or that reads nothing, is detected after about half a minute.
        sockopt::set_tcp_user_timeout(&stream, 30_000)?;
        sockopt::set_socket_keepalive(&stream, true)?;
        sockopt::set_tcp_keepidle(&stream, Duration::from_secs(10))?;
        sockopt::set_tcp_keepintvl(&stream, Duration::from_secs(5))?;
        sockopt::set_tcp_keepcnt(&stream, 4)?;
        if let Some(name) = congestion {
            sockopt::set_tcp_congestion(&stream, name)?;
        }
        Ok(Socket::Tcp(Arc::new(stream)))
    }

    /// The same TCP connection with encryption.
    pub(crate) fn encrypted(self, connection: impl Into<rustls::Connection>) -> io::Result<Self> {
        match self {
            Socket::Tcp(stream) => {
                let stream = Arc::try_unwrap(stream).or_else(|shared| shared.try_clone())?;
                Ok(Socket::Tls(Arc::new(TlsStream::new(stream, connection.into()))))
            }
            other => Ok(other),
        }
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
            Socket::Tcp(stream) => stream.shutdown(how),
            Socket::Tls(tls) => tls.stream().shutdown(how),
            Socket::Local(stream) => stream.shutdown(how),
        };
    }

    /// Sets the time limit of a read; `None` means no limit.
    pub(crate) fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        match self {
            Socket::Tcp(stream) => stream.set_read_timeout(timeout),
            Socket::Tls(tls) => tls.stream().set_read_timeout(timeout),
            Socket::Local(stream) => stream.set_read_timeout(timeout),
        }
    }

    /// Sends a small frame completely, with a file descriptor if one is given. Fails at once if the peer has not read
    /// what was sent before.
    pub(crate) fn send_now(&self, frame: &[u8], file: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let files = file.as_slice();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(files));
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let sent = loop {
            match sendmsg(self, &[IoSlice::new(frame)], &mut control, flags) {
                Err(Errno::INTR) => {}
                other => break other?,
            }
        };
        // A Unix socket takes a small message completely or not at all; after a part of one the stream would be
        // unusable.
        if sent == frame.len() { Ok(()) } else { Err(io::ErrorKind::WouldBlock.into()) }
    }

    /// Whether [`send_some`](Socket::send_some) can be used. It can't with TLS, which sends records.
    pub(crate) fn can_send_some(&self) -> bool {
        !matches!(self, Socket::Tls(_))
    }

    /// Sends the part that the kernel takes without blocking, and returns its length.
    pub(crate) fn send_some(&self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match send(self, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(0),
                other => return Ok(other?),
            }
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Socket::Tcp(stream) => stream.as_fd(),
            Socket::Tls(tls) => tls.stream().as_fd(),
            Socket::Local(stream) => stream.as_fd(),
        }
    }
}

impl Write for &Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => (&**stream).write_vectored(slices),
            Socket::Tls(tls) => tls.write(slices.iter().find(|slice| !slice.is_empty()).map_or(&[], |slice| slice)),
            Socket::Local(stream) => (&**stream).write_vectored(slices),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Reads bytes from a socket, and the file descriptors that come with them.
struct SocketReader {
    socket: Socket,
    files: VecDeque<OwnedFd>,
    /// When a read must have completed.
    deadline: Option<Instant>,
}

impl Read for SocketReader {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let timed_out = || io::Error::new(io::ErrorKind::TimedOut, "timed out before a message was complete");
        if let Some(deadline) = self.deadline {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(timed_out());
            }
            self.socket.set_read_timeout(Some(left))?;
        }
        // A read that exceeds its time limit returns `WouldBlock`.
        let with_timeout =
            |error: io::Error| if error.kind() == io::ErrorKind::WouldBlock { timed_out() } else { error };
        match &self.socket {
            Socket::Tcp(stream) => (&**stream).read(bytes).map_err(with_timeout),
            Socket::Tls(tls) => tls.read(bytes, self.deadline).map_err(with_timeout),
            Socket::Local(stream) => {
                let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_PENDING_FILES))];
                let mut control = RecvAncillaryBuffer::new(&mut space);
                let slices = &mut [IoSliceMut::new(bytes)];
                // A blocking read of a Unix socket wakes up even when the peer has merely read what was sent. `poll`
                // does not.
                loop {
                    let left = self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
                    let timeout = left.map(|left| Timespec::try_from(left).unwrap_or_default());
                    match poll(&mut [PollFd::new(stream, PollFlags::IN)], timeout.as_ref()) {
                        Ok(0) => return Err(timed_out()),
                        Ok(_) => break,
                        Err(Errno::INTR) => {}
                        Err(error) => return Err(error.into()),
                    }
                }
                let received = recvmsg(stream, slices, &mut control, RecvFlags::CMSG_CLOEXEC)?;
                for message in control.drain() {
                    if let RecvAncillaryMessage::ScmRights(files) = message {
                        self.files.extend(files);
                    }
                }
                if self.files.len() > MAX_PENDING_FILES {
                    return Err(io::Error::new(io::ErrorKind::InvalidData, "more file descriptors than messages"));
                }
                Ok(received.bytes)
            }
        }
    }
}

/// A frame that has arrived.
#[derive(Debug, PartialEq)]
pub(crate) enum Incoming<M> {
    Message(M),
    /// A chunk of this many bytes, which the caller reads next.
    Chunk(usize),
    /// The peer has closed the connection between two frames.
    End,
}

/// The receiving side of a connection.
pub(crate) struct Receiver {
    source: BufReader<SocketReader>,
    body: Vec<u8>,
    scratch: Vec<u16>,
    traffic: Traffic,
}

impl Receiver {
    pub(crate) fn new(socket: Socket, traffic: Traffic) -> Self {
        let source =
            BufReader::with_capacity(READ_BUFFER, SocketReader { socket, files: VecDeque::new(), deadline: None });
        Receiver { source, body: Vec::new(), scratch: Vec::new(), traffic }
    }

    /// Sets the deadline of all following reads together; `None` removes it.
    pub(crate) fn set_deadline(&mut self, deadline: Option<Instant>) -> io::Result<()> {
        let source = self.source.get_mut();
        source.deadline = deadline;
        source.socket.set_read_timeout(None)
    }

    /// Reads the next frame; of a chunk only the header.
    pub(crate) fn next<M: DeserializeOwned>(&mut self) -> io::Result<Incoming<M>> {
        let first = self.source.fill_buf()?;
        if first.is_empty() {
            return Ok(Incoming::End);
        }
        // A peer with another protocol may send fewer bytes than a header.
        FrameHeader::check_prefix(first)?;
        let mut head = [0; HEADER_LEN];
        self.source.read_exact(&mut head)?;
        let header = FrameHeader::decode(&head)?;
        self.traffic.add(HEADER_LEN + header.length);
        if header.kind == FrameKind::Chunk {
            return Ok(Incoming::Chunk(header.length));
        }
        self.body.resize(header.length, 0);
        self.source.read_exact(&mut self.body)?;
        Ok(Incoming::Message(header.message(&head, &self.body)?))
    }

    /// Reads the next frame, which must be a message.
    pub(crate) fn message<M: DeserializeOwned>(&mut self) -> io::Result<M> {
        match self.next()? {
            Incoming::Message(message) => Ok(message),
            Incoming::Chunk(_) => Err(unexpected(FrameKind::Message, FrameKind::Chunk)),
            Incoming::End => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Reads the chunk of `length` bytes whose header was read into the beginning of `values`. Returns the number of
    /// values.
    pub(crate) fn chunk(&mut self, length: usize, values: &mut [f32], payload: PayloadFormat) -> io::Result<usize> {
        let count = length / payload.width();
        if !length.is_multiple_of(payload.width()) || count == 0 || count > values.len() {
            let limit = values.len() * payload.width();
            return Err(FrameError::TooLong { length, limit }.into());
        }
        let source = &mut self.source;
        payload.decode(&mut values[..count], &mut self.scratch, |bytes| source.read_exact(bytes))?;
        Ok(count)
    }

    /// Skips the chunk of `length` bytes whose header was read.
    pub(crate) fn skip(&mut self, length: usize) -> io::Result<()> {
        let skipped = io::copy(&mut (&mut self.source).take(length as u64), &mut io::sink())?;
        if skipped == length as u64 { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }

    /// Skips the chunk of `length` bytes whose header was read. Returns the number of values.
    pub(crate) fn skip_chunk(&mut self, length: usize, payload: PayloadFormat) -> io::Result<usize> {
        if length < payload.width() {
            return Err(invalid("chunk without values"));
        }
        self.skip(length).map(|()| length / payload.width())
    }

    /// The file descriptor that came with the last message.
    pub(crate) fn file(&mut self) -> io::Result<OwnedFd> {
        let file = self.source.get_mut().files.pop_front();
        file.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "message without its file descriptor"))
    }
}

/// The error for a message that breaks the protocol.
pub(crate) fn invalid(text: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text.into())
}

pub(crate) fn unexpected(expected: FrameKind, found: FrameKind) -> io::Error {
    FrameError::Unexpected { expected: expected.name(), found: found.name() }.into()
}

/// The sending side of a connection. It blocks while the peer is slow.
pub(crate) struct Sender {
    socket: Socket,
    /// Held back until the next frame is sent.
    held: Vec<u8>,
    scratch: Vec<u16>,
    traffic: Traffic,
}

impl Sender {
    pub(crate) fn new(socket: Socket, traffic: Traffic) -> Self {
        Sender { socket, held: Vec::new(), scratch: Vec::new(), traffic }
    }

    pub(crate) fn socket(&self) -> &Socket {
        &self.socket
    }

    pub(crate) fn message<M: Serialize>(&mut self, message: &M) -> io::Result<()> {
        self.frame(&frame::encode(message)?)
    }

    /// Sends an encoded frame.
    pub(crate) fn frame(&mut self, frame: &[u8]) -> io::Result<()> {
        self.traffic.add(self.held.len() + frame.len());
        write_all(&self.socket, &mut [IoSlice::new(&self.held), IoSlice::new(frame)])?;
        self.held.clear();
        Ok(())
    }

    /// Holds a frame back until the next frame or chunk is sent: small models are sent in a single call.
    pub(crate) fn hold(&mut self, frame: &[u8]) {
        self.held.extend_from_slice(frame);
    }

    /// Sends a chunk of values; there must not be more than fit in one.
    pub(crate) fn chunk(&mut self, values: &[f32], payload: PayloadFormat) -> io::Result<()> {
        let bytes = payload.encode(values, &mut self.scratch);
        let header = FrameHeader::of_chunk(bytes.len());
        self.traffic.add(self.held.len() + HEADER_LEN + bytes.len());
        write_all(&self.socket, &mut [IoSlice::new(&self.held), IoSlice::new(&header), IoSlice::new(bytes)])?;
        self.held.clear();
        Ok(())
    }
}

/// Appends values to `bytes` as the chunks that a [`Sender`] would send.
pub(crate) fn append_chunks(bytes: &mut Vec<u8>, values: &[f32], payload: PayloadFormat) {
    let mut scratch = Vec::new();
    for part in values.chunks(payload.values_per_chunk()) {
        let encoded = payload.encode(part, &mut scratch);
        bytes.extend_from_slice(&FrameHeader::of_chunk(encoded.len()));
        bytes.extend_from_slice(encoded);
    }
}

/// Sends all slices in one call if possible: a header alone would cost a packet and a wake-up.
fn write_all(mut socket: &Socket, mut slices: &mut [IoSlice<'_>]) -> io::Result<()> {
    // Skips empty slices.
    IoSlice::advance_slices(&mut slices, 0);
    while !slices.is_empty() {
        match socket.write_vectored(slices) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => IoSlice::advance_slices(&mut slices, written),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::Keys;
    use crate::shared_memory::{Region, RegionWriter};
    use paceline_protocol::{ToServer, ToWorker};
    use std::net::TcpListener;

    fn tcp_sockets() -> (Socket, Socket) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let far = listener.accept().unwrap().0;
        (Socket::tcp(near, None).unwrap(), Socket::tcp(far, None).unwrap())
    }

    fn ends((near, far): (Socket, Socket)) -> (Sender, Receiver) {
        (Sender::new(near, Traffic::default()), Receiver::new(far, Traffic::default()))
    }

    fn tcp_pair() -> (Sender, Receiver) {
        ends(tcp_sockets())
    }

    fn tls_pair() -> (Sender, Receiver) {
        let folder = tempfile::tempdir().unwrap();
        Keys::generate(folder.path()).unwrap();
        let keys = Keys::read(folder.path()).unwrap();
        let (near, far) = tcp_sockets();
        let (config, name) = keys.client().unwrap();
        let near = near.encrypted(rustls::ClientConnection::new(config, name).unwrap()).unwrap();
        let far = far.encrypted(rustls::ServerConnection::new(keys.server().unwrap()).unwrap()).unwrap();
        // A TLS handshake needs both sides to send and receive.
        let (mut to_near, mut from_far) = ends((far.clone(), near.clone()));
        let (mut sender, mut receiver) = ends((near, far));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                sender.message(&ToServer::Dropped { number: 0 }).and_then(|()| from_far.message::<ToWorker>())
            });
            receiver.message::<ToServer>().unwrap();
            to_near.message(&ToWorker::Continue { number: 0 }).unwrap();
        });
        (sender, Receiver { traffic: Traffic::default(), ..receiver })
    }

    #[test]
    fn values_arrive_in_chunks_between_messages() {
        for (sender, receiver) in [tcp_pair(), tls_pair()] {
            check_values_arrive(sender, receiver);
        }
    }

    fn check_values_arrive(sender: Sender, mut receiver: Receiver) {
        let values: Vec<f32> = (0..200_000).map(|index| index as f32).collect();
        std::thread::scope(|scope| {
            let values = &values;
            scope.spawn(move || {
                let mut sender = sender;
                for (number, part) in (0..).zip(values.chunks(PayloadFormat::F32.values_per_chunk())) {
                    sender.message(&ToServer::Dropped { number }).unwrap();
                    sender.chunk(part, PayloadFormat::F32).unwrap();
                }
            });
            let (mut received, mut filled, mut messages) = (vec![0.0; 200_000], 0, 0);
            loop {
                match receiver.next::<ToServer>().unwrap() {
                    Incoming::Message(_) => messages += 1,
                    Incoming::Chunk(length) => {
                        filled += receiver.chunk(length, &mut received[filled..], PayloadFormat::F32).unwrap();
                    }
                    Incoming::End => break,
                }
            }
            assert_eq!((filled, messages), (200_000, 4));
            assert_eq!(&received, values);
            let overhead = 4 * 2 * HEADER_LEN as u64;
            assert!((800_000 + overhead..801_000).contains(&receiver.traffic.bytes()));
        });
    }

    #[test]
    fn chunks_that_do_not_fit_are_refused() {
        let (mut sender, mut receiver) = tcp_pair();
        sender.chunk(&[1.0; 10], PayloadFormat::F32).unwrap();
        assert_eq!(receiver.next::<ToServer>().unwrap(), Incoming::Chunk(40));
        let error = receiver.chunk(40, &mut [0.0; 9], PayloadFormat::F32).unwrap_err();
        assert_eq!(error.to_string(), "frame of 40 bytes: expected at most 36");
    }

    #[test]
    fn file_descriptors_arrive_with_their_message() {
        let (near, far) = UnixStream::pair().unwrap();
        let near = Socket::local(near);
        let mut receiver = Receiver::new(Socket::local(far), Traffic::default());
        let frame = frame::encode(&ToServer::Dropped { number: 1 }).unwrap();
        let mut region = Region::shared(3, RegionWriter::Owner).unwrap();
        region.values_mut()[2] = 4.0;
        near.send_now(&frame, None).unwrap();
        near.send_now(&frame, region.file()).unwrap();
        near.send_now(&frame, None).unwrap();
        for with_file in [false, true, false] {
            assert_eq!(receiver.message::<ToServer>().unwrap(), ToServer::Dropped { number: 1 });
            if with_file {
                let opened = Region::open(receiver.file().unwrap(), 3, RegionWriter::Owner).unwrap();
                assert_eq!(opened.values()[2], 4.0);
            }
        }
        assert!(receiver.file().is_err());
    }

    #[test]
    fn sending_fails_at_once_if_the_peer_never_reads() {
        let (near, _far) = UnixStream::pair().unwrap();
        let near = Socket::local(near);
        let frame = frame::encode(&ToServer::Dropped { number: 1 }).unwrap();
        let error = (0..100_000).find_map(|_| near.send_now(&frame, None).err()).unwrap();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    }
}
