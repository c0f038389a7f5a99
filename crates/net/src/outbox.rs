//! What is to be sent over one connection. Adding to it never blocks.
//!
//! The thread that waits for the connection, its owner, sends what is here whenever the socket takes more. Messages
//! overtake a vector of values between two of its chunks. Without encryption other threads may send as well: a small
//! message is sent at once by the thread that has it, since waking the owner would cost more than sending.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, IoSlice};
use std::net::Shutdown;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use paceline_core::Version;
use paceline_protocol::{Codec, EncodedChunk, PayloadFormat};
use serde::Serialize;

use crate::frame::{self, FrameHeader};
use crate::poller::Waker;
use crate::socket::{Socket, Stream, Traffic};

/// Messages that may be pending. A peer that lets more pile up is disconnected.
const MAX_PENDING_MESSAGES: usize = 256;

/// A vector that is sent from where it is.
pub(crate) type Values = Arc<dyn AsRef<[f32]> + Send + Sync>;

/// A message, and the vector that follows it in chunks.
pub(crate) struct Transfer {
    /// The number of the task it belongs to.
    pub(crate) number: u64,
    /// The message.
    pub(crate) frame: Vec<u8>,
    /// If the vector of this version was sent last, only the message is sent.
    pub(crate) version: Option<Version>,
    /// The message that announces the vector, if it is another one.
    pub(crate) announcement: Vec<u8>,
    pub(crate) values: Values,
    pub(crate) payload: PayloadFormat,
}

impl fmt::Debug for Transfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Transfer({})", self.number)
    }
}

/// How a transfer has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TransferEnd {
    Sent,
    /// It was withdrawn, before it or in the middle of it.
    Withdrawn,
    /// The connection has ended.
    Disconnected,
}

/// What is left after sending.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rest {
    /// Nothing, or another thread is sending it.
    Nothing,
    /// More than was allowed at once.
    More,
    /// The kernel takes no more now.
    Blocked,
    /// Nothing, and nothing more will be added.
    Closed,
}

impl Rest {
    /// Whether the socket is to be waited for.
    pub(crate) fn is_pending(self) -> bool {
        matches!(self, Rest::More | Rest::Blocked)
    }
}

/// Where an outbox sends: the socket itself, or the stream of its owner.
trait Destination {
    fn send(&mut self, slices: &[IoSlice<'_>], file: Option<BorrowedFd<'_>>) -> io::Result<usize>;
}

impl Destination for &Socket {
    fn send(&mut self, slices: &[IoSlice<'_>], file: Option<BorrowedFd<'_>>) -> io::Result<usize> {
        Socket::send(self, slices, file)
    }
}

impl Destination for Stream {
    fn send(&mut self, slices: &[IoSlice<'_>], file: Option<BorrowedFd<'_>>) -> io::Result<usize> {
        Stream::send(self, slices, file)
    }
}

/// The bytes that are sent next: frames, and perhaps a chunk of values.
#[derive(Default)]
struct Piece {
    frames: Vec<u8>,
    /// Where the chunk's bytes are, if they are sent as they are in memory.
    values: Option<(Values, Range<usize>)>,
    /// The chunk's bytes, if they are converted.
    encoded: EncodedChunk,
    file: Option<OwnedFd>,
    sent: usize,
}

impl Piece {
    /// Sends as much as possible. Returns whether all of it is sent.
    fn send(&mut self, destination: &mut impl Destination, traffic: &Traffic) -> io::Result<bool> {
        loop {
            let chunk: &[u8] = match &self.values {
                Some((values, range)) => bytemuck::cast_slice(&values.as_ref().as_ref()[range.clone()]),
                None => self.encoded.bytes(),
            };
            let from_chunk = self.sent.saturating_sub(self.frames.len());
            let slices = [&self.frames[self.sent.min(self.frames.len())..], &chunk[from_chunk..]];
            if slices.iter().all(|slice| slice.is_empty()) {
                return Ok(true);
            }
            match destination.send(&slices.map(IoSlice::new), self.file.as_ref().map(AsFd::as_fd)) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(sent) => {
                    self.sent += sent;
                    self.file = None;
                    traffic.add(sent);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
    }
}

/// A transfer that has begun.
struct CurrentTransfer {
    number: u64,
    values: Values,
    payload: PayloadFormat,
    /// Values that are sent, or in the piece at hand.
    sent: usize,
}

impl CurrentTransfer {
    /// Whether nothing follows the piece at hand.
    fn is_last(&self) -> bool {
        self.sent == self.values.as_ref().as_ref().len()
    }
}

struct Queue {
    codec: Codec,
    /// The format of all transfers, in place of their own.
    payload: Option<PayloadFormat>,
    /// Encoded messages, each perhaps with a file descriptor.
    messages: VecDeque<(Vec<u8>, Option<OwnedFd>)>,
    transfers: VecDeque<Transfer>,
    current: Option<CurrentTransfer>,
    /// A piece that is sent in part.
    unsent: Option<Piece>,
    /// Whether a thread is sending. It has `unsent`.
    sending: bool,
    /// How the last transfer ended.
    last_end: Option<TransferEnd>,
    /// The version of the vector that was sent last.
    last_sent: Option<Version>,
    /// Nothing more is added; what is here is still sent.
    closed: bool,
    /// The connection has failed; nothing is sent any more.
    failed: bool,
}

impl Queue {
    fn new(codec: Codec) -> Self {
        Queue {
            codec,
            payload: None,
            messages: VecDeque::new(),
            transfers: VecDeque::new(),
            current: None,
            unsent: None,
            sending: false,
            last_end: None,
            last_sent: None,
            closed: false,
            failed: false,
        }
    }

    fn is_idle(&self) -> bool {
        !self.sending && self.is_empty()
    }

    fn is_empty(&self) -> bool {
        let is_empty = self.messages.is_empty() && self.transfers.is_empty();
        is_empty && self.current.is_none() && self.unsent.is_none()
    }

    /// Takes what is sent next.
    fn next_piece(&mut self) -> Option<Piece> {
        if let Some(unsent) = self.unsent.take() {
            return Some(unsent);
        }
        if let Some((frames, file)) = self.messages.pop_front() {
            return Some(Piece { frames, file, ..Piece::default() });
        }
        if self.current.is_none() {
            let Transfer { number, frame, version, announcement, values, payload } = self.transfers.pop_front()?;
            let mut frames = frame;
            if version.is_some() && self.last_sent == version {
                self.end_transfer(TransferEnd::Sent);
                return Some(Piece { frames, ..Piece::default() });
            }
            self.last_sent = version;
            frames.extend_from_slice(&announcement);
            let payload = self.payload.unwrap_or(payload);
            self.current = Some(CurrentTransfer { number, values, payload, sent: 0 });
            return Some(self.next_chunk(frames));
        }
        Some(self.next_chunk(Vec::new()))
    }

    /// The next chunk of the current transfer, after these frames.
    fn next_chunk(&mut self, mut frames: Vec<u8>) -> Piece {
        let mut piece = Piece::default();
        if let Some(current) = &mut self.current {
            let payload = current.payload;
            let values = current.values.as_ref().as_ref();
            let range = current.sent..values.len().min(current.sent + payload.values_per_chunk());
            if !range.is_empty() {
                frames.extend_from_slice(&FrameHeader::of_chunk(payload, payload.bytes(range.len())));
            }
            current.sent = range.end;
            if payload == PayloadFormat::F32 {
                piece.values = Some((current.values.clone(), range));
            } else {
                self.codec.encode(payload, values, range, &mut piece.encoded);
            }
        }
        Piece { frames, ..piece }
    }

    /// After a piece: ends the current transfer if that was its last.
    fn end_complete(&mut self) {
        if self.current.as_ref().is_some_and(CurrentTransfer::is_last) {
            self.end_transfer(TransferEnd::Sent);
        }
    }

    fn end_transfer(&mut self, end: TransferEnd) {
        self.current = None;
        self.last_end = Some(end);
    }

    /// After a failure: the current transfer never ends otherwise.
    fn end_failed(&mut self) {
        self.current = None;
        self.last_end.get_or_insert(TransferEnd::Disconnected);
    }

    fn withdraw_all(&mut self) {
        if self.current.is_some() || !self.transfers.is_empty() {
            self.transfers.clear();
            // The peer has a part of it.
            self.last_sent = None;
            self.end_transfer(TransferEnd::Withdrawn);
        }
    }
}

/// What is to be sent over one connection.
pub(crate) struct Outbox {
    queue: Mutex<Queue>,
    /// Signals the end of a transfer.
    ended: Condvar,
    socket: Socket,
    is_encrypted: bool,
    traffic: Traffic,
    owner: Waker,
    /// The token of the socket at its owner.
    token: u64,
}

impl fmt::Debug for Outbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Outbox({:?})", self.socket)
    }
}

impl Outbox {
    /// The outbox of a stream that `owner` wakes the thread of, where it has this token. `codec` encodes vectors.
    pub(crate) fn new(stream: &Stream, codec: Codec, traffic: Traffic, owner: Waker, token: u64) -> Self {
        let (socket, is_encrypted) = (stream.socket().clone(), stream.is_encrypted());
        let (queue, ended) = (Mutex::new(Queue::new(codec)), Condvar::new());
        Outbox { queue, ended, socket, is_encrypted, traffic, owner, token }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the peer shares memory.
    pub(crate) fn is_local(&self) -> bool {
        self.socket.is_local()
    }

    /// Whether a message is pending.
    pub(crate) fn has_messages(&self) -> bool {
        !self.lock().messages.is_empty()
    }

    /// Adds a message. Fails if the connection has ended.
    pub(crate) fn send(&self, message: &impl Serialize) -> io::Result<()> {
        self.send_with(message, None)
    }

    /// Adds a message, with a file descriptor if one is given.
    pub(crate) fn send_with(&self, message: &impl Serialize, file: Option<OwnedFd>) -> io::Result<()> {
        let frame = frame::encode(message)?;
        let mut queue = self.lock();
        if queue.failed || queue.closed {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        if queue.messages.len() == MAX_PENDING_MESSAGES {
            drop(queue);
            self.disconnect();
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the peer does not read"));
        }
        let was_idle = queue.is_idle();
        queue.messages.push_back((frame, file));
        drop(queue);
        if was_idle {
            self.begin(true);
        }
        Ok(())
    }

    /// From the next transfer on, all have this format.
    pub(crate) fn use_payload(&self, format: PayloadFormat) {
        self.lock().payload = Some(format);
    }

    /// Adds a transfer. It is sent at once, as far as the kernel takes it, if it has at most `direct` bytes.
    pub(crate) fn transfer(&self, transfer: Transfer, direct: usize) {
        let bytes = transfer.payload.bytes(transfer.values.as_ref().as_ref().len());
        // If that fails, so does sending.
        let _ = self.socket.fit_buffers();
        let mut queue = self.lock();
        if queue.failed || queue.closed {
            queue.end_transfer(TransferEnd::Disconnected);
            return;
        }
        let was_idle = queue.is_idle();
        queue.last_end = None;
        queue.transfers.push_back(transfer);
        drop(queue);
        if was_idle {
            self.begin(bytes <= direct);
        }
    }

    /// Adds a message about values in shared memory. The transfer ends with [`handed_over`](Outbox::handed_over).
    pub(crate) fn hand_over(&self, message: &impl Serialize) {
        self.lock().last_end = None;
        if self.send(message).is_err() {
            self.lock().end_transfer(TransferEnd::Disconnected);
        }
    }

    /// The peer has taken the values.
    pub(crate) fn handed_over(&self) {
        self.lock().last_end = Some(TransferEnd::Sent);
        self.ended.notify_all();
    }

    /// Sends from this thread, if `direct` and not encrypted; otherwise, and with what the kernel does not take, wakes
    /// the owner. To be called when the queue was idle: a thread that is sending goes on by itself.
    fn begin(&self, direct: bool) {
        let direct = direct && !self.is_encrypted;
        let rest = if direct { self.advance(&mut &self.socket, usize::MAX) } else { Ok(Rest::More) };
        match rest {
            Ok(rest) if rest.is_pending() => self.owner.wake_to_write(self.token),
            Ok(_) => {}
            Err(_) => self.disconnect(),
        }
    }

    /// Removes the transfer of a task that was not begun. Returns `false` if it was sent already, entirely or in part.
    pub(crate) fn withdraw(&self, number: u64) -> bool {
        let mut queue = self.lock();
        let before = queue.transfers.len();
        queue.transfers.retain(|transfer| transfer.number != number);
        queue.transfers.len() < before
    }

    /// Stops the transfer of a task, also in the middle of it, unless its last chunk is being sent.
    pub(crate) fn stop_transfer(&self, number: u64) {
        let mut queue = self.lock();
        let is_current = queue.current.as_ref().is_some_and(|current| current.number == number && !current.is_last());
        if is_current || queue.transfers.iter().any(|transfer| transfer.number == number) {
            queue.withdraw_all();
            self.ended.notify_all();
        }
    }

    /// Waits for the end of the last transfer.
    pub(crate) fn wait_for_transfer(&self) -> TransferEnd {
        let mut queue = self.lock();
        loop {
            match queue.last_end {
                // A thread that is sending still has a part of the values.
                Some(end) if !queue.sending => return end,
                _ => queue = self.ended.wait(queue).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    /// Adds a last message and closes the outbox: what is pending is sent, except vectors.
    pub(crate) fn close(&self, last: Option<Vec<u8>>) {
        let mut queue = self.lock();
        if !queue.closed {
            queue.messages.extend(last.map(|frame| (frame, None)));
            queue.closed = true;
            queue.withdraw_all();
            self.ended.notify_all();
            drop(queue);
            self.owner.wake_to_write(self.token);
        }
    }

    /// Closes the outbox: what is pending is sent, vectors too.
    pub(crate) fn close_after_transfers(&self) {
        self.lock().closed = true;
        self.owner.wake_to_write(self.token);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// Ends the connection. Its owner finds it ended when it reads.
    pub(crate) fn disconnect(&self) {
        self.socket.shutdown(Shutdown::Both);
        self.fail();
    }

    /// Nothing is sent any more. What a thread is sending may still arrive, and counts as sent then.
    fn fail(&self) {
        let mut queue = self.lock();
        let sending = queue.sending;
        queue.messages.clear();
        queue.transfers.clear();
        (queue.unsent, queue.last_sent) = (None, None);
        (queue.closed, queue.failed) = (true, true);
        if !sending {
            queue.end_failed();
        }
        self.ended.notify_all();
    }

    /// Sends what is pending, up to about `limit` bytes.
    pub(crate) fn send_pending(&self, stream: &mut Stream, limit: usize) -> io::Result<Rest> {
        self.advance(stream, limit).inspect_err(|_| self.fail())
    }

    fn advance(&self, destination: &mut impl Destination, limit: usize) -> io::Result<Rest> {
        let mut left = limit;
        let mut queue = self.lock();
        if queue.sending {
            return Ok(Rest::Nothing);
        }
        loop {
            if queue.failed {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            if left == 0 && !queue.is_empty() {
                return Ok(Rest::More);
            }
            let Some(mut piece) = queue.next_piece() else {
                return Ok(if queue.closed { Rest::Closed } else { Rest::Nothing });
            };
            queue.sending = true;
            drop(queue);
            let before = piece.sent;
            let sent = piece.send(destination, &self.traffic);
            left = left.saturating_sub(piece.sent - before);
            let is_sent = *sent.as_ref().unwrap_or(&false);
            let unsent = (!is_sent).then_some(piece);
            queue = self.lock();
            queue.sending = false;
            if !queue.failed {
                queue.unsent = unsent;
            }
            if is_sent {
                queue.end_complete();
            }
            if queue.failed {
                queue.end_failed();
            }
            if queue.last_end.is_some() {
                self.ended.notify_all();
            }
            if !sent? {
                return Ok(Rest::Blocked);
            }
        }
    }
}
