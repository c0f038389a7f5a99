//! The messages to one worker. Sending never blocks the coordinator.
//!
//! Over a Unix socket every message is small and is sent at once. Over TCP a thread writes the parameters, which take
//! long; messages overtake them between two chunks. A small message is sent directly if nothing is queued before it:
//! waking the thread would cost more than sending.

use std::collections::VecDeque;
use std::io;
use std::net::Shutdown;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use paceline_core::Version;
use paceline_protocol::{PayloadFormat, ToWorker};

use super::parameter_ring::ParameterBuffer;
use crate::connection::{Sender, Socket, Traffic, append_chunks};
use crate::frame;
use crate::shared_memory::Region;

/// The longest assignment that is sent directly over TCP, in bytes. It fits the kernel's empty buffers.
const MAX_DIRECT_BYTES: usize = 64 * 1024;

/// Messages that may be queued, besides assignments. A worker that lets more pile up is disconnected.
const MAX_PENDING_MESSAGES: usize = 256;

/// The queue of messages to one worker.
///
/// A worker that does not read is disconnected; the reader of its connection notices that.
#[derive(Debug)]
pub(super) struct SendQueue {
    socket: Socket,
    writer: Option<Arc<WriterQueue>>,
}

impl SendQueue {
    /// A queue over a Unix socket.
    pub(super) fn local(socket: Socket) -> Self {
        SendQueue { socket, writer: None }
    }

    /// A queue over TCP. A thread must run [`write`](WriterQueue::write) on the second value.
    pub(super) fn tcp(socket: Socket, payload: PayloadFormat, traffic: Traffic) -> (Self, Arc<WriterQueue>) {
        let (state, changed) = (Mutex::default(), Condvar::new());
        let writer = Arc::new(WriterQueue { state, changed, socket: socket.clone(), payload, traffic });
        (SendQueue { socket, writer: Some(writer.clone()) }, writer)
    }

    /// Whether the worker shares memory, so that values are not sent.
    pub(super) fn is_shared(&self) -> bool {
        self.writer.is_none()
    }

    /// Sends a message.
    pub(super) fn send(&self, message: &ToWorker) {
        let Ok(frame) = frame::encode(message) else { return self.disconnect() };
        match &self.writer {
            None => self.send_now(&frame, None),
            Some(writer) => {
                if writer.send(frame).is_err() {
                    self.disconnect();
                }
            }
        }
    }

    /// Sends a message about a shared buffer together with its file descriptor.
    pub(super) fn send_buffer(&self, message: &ToWorker, region: &Region) {
        match frame::encode(message) {
            Ok(frame) => self.send_now(&frame, Some(region)),
            Err(_) => self.disconnect(),
        }
    }

    fn send_now(&self, frame: &[u8], region: Option<&Region>) {
        if self.socket.send_now(frame, region.and_then(Region::file)).is_err() {
            self.disconnect();
        }
    }

    /// Sends the assignment of task `number`. Over TCP the parameters follow, unless the worker has that version
    /// already.
    pub(super) fn assign(&self, number: u64, message: &ToWorker, version: Version, parameters: &Arc<ParameterBuffer>) {
        let Some(writer) = &self.writer else { return self.send(message) };
        let Ok(frame) = frame::encode(message) else { return self.disconnect() };
        if writer.assign(PendingAssignment { number, frame, version, parameters: parameters.clone() }).is_err() {
            self.disconnect();
        }
    }

    /// Removes an assignment from the queue. Returns `false` if it was sent already, entirely or in part.
    pub(super) fn withdraw(&self, number: u64) -> bool {
        let Some(writer) = &self.writer else { return false };
        let mut state = writer.lock();
        let before = state.assignments.len();
        state.assignments.retain(|assignment| assignment.number != number);
        state.assignments.len() < before
    }

    /// Sends a last message, then closes the sending direction of the connection.
    pub(super) fn close(&self, last: &ToWorker) {
        self.send(last);
        match &self.writer {
            None => self.socket.shutdown(Shutdown::Write),
            Some(writer) => writer.close(),
        }
    }

    /// Closes the connection.
    pub(super) fn disconnect(&self) {
        self.socket.shutdown(Shutdown::Both);
        if let Some(writer) = &self.writer {
            writer.discard_all();
        }
    }
}

impl Drop for SendQueue {
    /// Closes the queue: the writer sends the queued messages, then ends.
    fn drop(&mut self) {
        if let Some(writer) = &self.writer {
            writer.close();
        }
    }
}

/// The messages and assignments that a thread writes to one TCP connection.
#[derive(Debug)]
pub(super) struct WriterQueue {
    state: Mutex<WriterState>,
    changed: Condvar,
    socket: Socket,
    payload: PayloadFormat,
    traffic: Traffic,
}

#[derive(Debug, Default)]
struct WriterState {
    /// Frames, or the unsent rest of one.
    messages: VecDeque<Vec<u8>>,
    assignments: VecDeque<PendingAssignment>,
    /// Whether the thread is writing an item that it took from the queue.
    writing: bool,
    /// The version of the parameters that were sent last.
    last_sent: Option<Version>,
    closed: bool,
}

/// An assignment and its parameters.
#[derive(Debug)]
struct PendingAssignment {
    number: u64,
    frame: Vec<u8>,
    version: Version,
    parameters: Arc<ParameterBuffer>,
}

enum NextWrite {
    Message(Vec<u8>),
    /// An assignment, and whether the worker has its parameters already.
    Assignment(PendingAssignment, bool),
    Closed,
}

impl WriterState {
    /// Sets the version that was sent last, and returns whether it is the same as before.
    fn replace_last_sent(&mut self, version: Version) -> bool {
        self.last_sent.replace(version) == Some(version)
    }
}

impl WriterQueue {
    fn lock(&self) -> MutexGuard<'_, WriterState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the writer end after the queued messages. Assignments are discarded.
    fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.assignments.clear();
        self.changed.notify_one();
    }

    fn discard_all(&self) {
        let mut state = self.lock();
        *state = WriterState { closed: true, ..WriterState::default() };
        self.changed.notify_one();
    }

    fn send(&self, frame: Vec<u8>) -> io::Result<()> {
        let mut state = self.lock();
        if state.messages.len() == MAX_PENDING_MESSAGES {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        if self.can_send_directly(&state) {
            self.send_directly(&mut state, frame)
        } else {
            self.enqueue(&mut state, frame)
        }
    }

    fn assign(&self, assignment: PendingAssignment) -> io::Result<()> {
        let mut state = self.lock();
        let values = assignment.parameters.region.values();
        if values.len() * self.payload.width() <= MAX_DIRECT_BYTES && self.can_send_directly(&state) {
            let mut bytes = assignment.frame;
            if !state.replace_last_sent(assignment.version) {
                bytes.extend_from_slice(&frame::encode(&ToWorker::Model { version: assignment.version })?);
                append_chunks(&mut bytes, values, self.payload);
            }
            return self.send_directly(&mut state, bytes);
        }
        state.assignments.push_back(assignment);
        self.changed.notify_one();
        Ok(())
    }

    /// Whether the queue is empty and idle, so that sending directly keeps the order.
    fn can_send_directly(&self, state: &WriterState) -> bool {
        let is_empty = state.messages.is_empty() && state.assignments.is_empty();
        is_empty && !state.writing && !state.closed && self.socket.can_send_some()
    }

    /// Sends the part that the kernel takes without blocking, and queues the rest.
    fn send_directly(&self, state: &mut WriterState, mut bytes: Vec<u8>) -> io::Result<()> {
        let sent = self.socket.send_some(&bytes)?;
        self.traffic.add(sent);
        if sent == bytes.len() { Ok(()) } else { self.enqueue(state, bytes.split_off(sent)) }
    }

    fn enqueue(&self, state: &mut WriterState, bytes: Vec<u8>) -> io::Result<()> {
        state.messages.push_back(bytes);
        self.changed.notify_one();
        Ok(())
    }

    fn next(&self) -> NextWrite {
        let mut state = self.lock();
        state.writing = false;
        loop {
            let next = if let Some(message) = state.messages.pop_front() {
                Some(NextWrite::Message(message))
            } else if let Some(assignment) = state.assignments.pop_front() {
                let is_known = state.replace_last_sent(assignment.version);
                Some(NextWrite::Assignment(assignment, is_known))
            } else {
                state.closed.then_some(NextWrite::Closed)
            };
            if let Some(next) = next {
                state.writing = true;
                return next;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn pop_message(&self) -> Option<Vec<u8>> {
        self.lock().messages.pop_front()
    }

    /// Writes everything that is queued, until the queue is closed or the connection fails.
    pub(super) fn write(&self) {
        let mut sender = Sender::new(self.socket.clone(), self.traffic.clone());
        let written = self.write_all(&mut sender);
        // After a failure the reader must wake up and report it; after a last message the peer may still read.
        self.socket.shutdown(if written.is_ok() { Shutdown::Write } else { Shutdown::Both });
        self.discard_all();
    }

    fn write_all(&self, sender: &mut Sender) -> io::Result<()> {
        loop {
            match self.next() {
                NextWrite::Message(frame) => sender.frame(&frame)?,
                NextWrite::Assignment(PendingAssignment { frame, .. }, true) => sender.frame(&frame)?,
                NextWrite::Assignment(PendingAssignment { frame, version, parameters, .. }, false) => {
                    sender.hold(&frame);
                    sender.hold(&frame::encode(&ToWorker::Model { version })?);
                    self.write_values(sender, parameters.region.values())?;
                }
                NextWrite::Closed => return Ok(()),
            }
        }
    }

    /// Writes values and, between chunks, the queued messages. Stops if the queue is closed.
    fn write_values(&self, sender: &mut Sender, values: &[f32]) -> io::Result<()> {
        for part in values.chunks(self.payload.values_per_chunk()) {
            while let Some(frame) = self.pop_message() {
                sender.frame(&frame)?;
            }
            if self.lock().closed {
                break;
            }
            sender.chunk(part, self.payload)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::{Incoming, Receiver};
    use crate::server::parameter_ring::ParameterRing;
    use std::net::{TcpListener, TcpStream};
    use std::thread;

    #[test]
    fn direct_and_queued_messages_arrive_in_order() {
        const MODELS: u64 = 100;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let far = Socket::tcp(listener.accept().unwrap().0, None).unwrap();
        let (send_queue, writer) =
            SendQueue::tcp(Socket::tcp(near, None).unwrap(), PayloadFormat::F32, Traffic::default());
        // Small enough to be sent directly, until the kernel's buffers are full.
        let mut ring = ParameterRing::new(&[0.0; 16_000], false).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| writer.write());
            for version in 0..MODELS {
                let message = ToWorker::Continue { number: version };
                send_queue.assign(version, &message, Version(version), ring.newest());
                send_queue.assign(version, &message, Version(version), ring.newest());
                send_queue.send(&ToWorker::Collect { number: version });
                ring.advance(|_, next| next.fill(version as f32 + 1.0)).unwrap();
            }
            assert!(!send_queue.withdraw(0), "sent already");
            assert!(send_queue.withdraw(MODELS - 1), "still queued");

            let mut receiver = Receiver::new(far, Traffic::default());
            let mut values = [0.0; 16_000];
            let (mut continued, mut collected, mut models, mut chunks) = (Vec::new(), Vec::new(), Vec::new(), 0);
            while chunks < MODELS - 1 || continued.len() < 2 * chunks as usize {
                match receiver.next().unwrap() {
                    Incoming::Message(ToWorker::Continue { number }) => continued.push(number),
                    Incoming::Message(ToWorker::Collect { number }) => collected.push(number),
                    Incoming::Message(ToWorker::Model { version }) => models.push(version.0),
                    Incoming::Message(other) => panic!("{other:?} was never sent"),
                    Incoming::Chunk(bytes) => {
                        assert_eq!(receiver.chunk(bytes, &mut values, PayloadFormat::F32).unwrap(), values.len());
                        assert_eq!(values, [*models.last().unwrap() as f32; 16_000]);
                        chunks += 1;
                    }
                    Incoming::End => panic!("the connection ended early"),
                }
            }
            send_queue.close(&ToWorker::Interrupt { number: 0 });
            assert_eq!(receiver.message::<ToWorker>().unwrap(), ToWorker::Interrupt { number: 0 });
            assert_eq!(receiver.next::<ToWorker>().unwrap(), Incoming::End);
            assert_eq!(collected, (0..MODELS).collect::<Vec<_>>());
            assert_eq!(models, (0..MODELS - 1).collect::<Vec<_>>());
            assert_eq!(continued, (0..MODELS - 1).flat_map(|number| [number; 2]).collect::<Vec<_>>());
        });
    }
}
