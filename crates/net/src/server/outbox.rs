//! What the server sends to one worker, without ever waiting for it.
//!
//! Over a Unix socket everything is small and goes out at once. Over TCP, parameters take their time, so a thread
//! writes them; messages overtake them between chunks. What is small goes out at once there too, if nothing is before it:
//! waking the thread would cost more than sending.

use std::collections::VecDeque;
use std::io;
use std::net::Shutdown;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use paceline_core::Version;

use super::ring::Parameters;
use crate::frame;
use crate::link::{Sender, Socket, Traffic, append_chunks};
use crate::message::ToWorker;
use crate::payload::PayloadFormat;
use crate::region::Region;

/// The longest that goes out at once over TCP, in bytes; it fits the system's buffers if nothing else is there.
const SMALL: usize = 64 * 1024;

/// Messages that may wait for a worker that does not read, beside its work. More are a lost cause.
const WAITING: usize = 256;

/// The way to one worker.
///
/// A worker that does not read what it is sent is cut off: its connection ends, which its reader will notice.
#[derive(Debug)]
pub(super) struct Outbox {
    socket: Socket,
    queue: Option<Arc<Queue>>,
}

impl Outbox {
    /// The way through a Unix socket.
    pub(super) fn local(socket: Socket) -> Self {
        Outbox { socket, queue: None }
    }

    /// The way through a TCP connection, whose queue somebody must [`write`](Queue::write).
    pub(super) fn tcp(socket: Socket, payload: PayloadFormat, traffic: Traffic) -> (Self, Arc<Queue>) {
        let (waiting, changed) = (Mutex::default(), Condvar::new());
        let queue = Arc::new(Queue { waiting, changed, socket: socket.clone(), payload, traffic });
        (Outbox { socket, queue: Some(queue.clone()) }, queue)
    }

    /// Whether values are shared instead of sent.
    pub(super) fn is_shared(&self) -> bool {
        self.queue.is_none()
    }

    /// Sends a message.
    pub(super) fn send(&self, message: &ToWorker) {
        let Ok(frame) = frame::encode(message) else { return self.cut() };
        match &self.queue {
            None => self.send_now(&frame, None),
            Some(queue) => {
                if queue.send(frame).is_err() {
                    self.cut();
                }
            }
        }
    }

    /// Sends a message about a shared buffer along with that buffer.
    pub(super) fn send_buffer(&self, message: &ToWorker, region: &Region) {
        match frame::encode(message) {
            Ok(frame) => self.send_now(&frame, Some(region)),
            Err(_) => self.cut(),
        }
    }

    fn send_now(&self, frame: &[u8], region: Option<&Region>) {
        if self.socket.send_now(frame, region.and_then(Region::file)).is_err() {
            self.cut();
        }
    }

    /// Sends the assignment of task `number`. Over TCP the parameters follow it, unless the worker has that version.
    pub(super) fn assign(&self, number: u64, message: &ToWorker, version: Version, parameters: &Arc<Parameters>) {
        let Some(queue) = &self.queue else { return self.send(message) };
        let Ok(frame) = frame::encode(message) else { return self.cut() };
        if queue.assign(Parcel { number, frame, version, parameters: parameters.clone() }).is_err() {
            self.cut();
        }
    }

    /// Takes an assignment back. Says whether that was possible: it was not on its way yet.
    pub(super) fn recall(&self, number: u64) -> bool {
        let Some(queue) = &self.queue else { return false };
        let mut waiting = queue.lock();
        let before = waiting.parcels.len();
        waiting.parcels.retain(|parcel| parcel.number != number);
        waiting.parcels.len() < before
    }

    /// Sends a last message, then ends this direction of the connection.
    pub(super) fn close(&self, last: &ToWorker) {
        self.send(last);
        match &self.queue {
            None => self.socket.shutdown(Shutdown::Write),
            Some(queue) => queue.close(),
        }
    }

    /// Ends the connection.
    pub(super) fn cut(&self) {
        self.socket.shutdown(Shutdown::Both);
        if let Some(queue) = &self.queue {
            queue.abandon();
        }
    }
}

impl Drop for Outbox {
    /// Nothing more will come: the messages that wait are written, then the writer ends.
    fn drop(&mut self) {
        if let Some(queue) = &self.queue {
            queue.close();
        }
    }
}

/// What waits to be written to one TCP connection.
#[derive(Debug)]
pub(super) struct Queue {
    waiting: Mutex<Waiting>,
    changed: Condvar,
    socket: Socket,
    payload: PayloadFormat,
    traffic: Traffic,
}

#[derive(Debug, Default)]
struct Waiting {
    /// Frames, or what is left of them.
    messages: VecDeque<Vec<u8>>,
    parcels: VecDeque<Parcel>,
    /// Whether the thread is writing something that it has taken.
    writing: bool,
    /// The version of the parameters that were sent last.
    known: Option<Version>,
    closed: bool,
}

/// An assignment and the parameters it is about.
#[derive(Debug)]
struct Parcel {
    number: u64,
    frame: Vec<u8>,
    version: Version,
    parameters: Arc<Parameters>,
}

enum Next {
    Message(Vec<u8>),
    /// An assignment; whether its parameters are known already.
    Parcel(Parcel, bool),
    Closed,
}

impl Waiting {
    /// Whether `version` is what was sent last, which it is from now on.
    fn knows(&mut self, version: Version) -> bool {
        self.known.replace(version) == Some(version)
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the writer end when it has written the messages that wait. Work is of no use any more.
    fn close(&self) {
        let mut waiting = self.lock();
        waiting.closed = true;
        waiting.parcels.clear();
        self.changed.notify_one();
    }

    fn abandon(&self) {
        let mut waiting = self.lock();
        *waiting = Waiting { closed: true, ..Waiting::default() };
        self.changed.notify_one();
    }

    fn send(&self, frame: Vec<u8>) -> io::Result<()> {
        let mut waiting = self.lock();
        if waiting.messages.len() == WAITING {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        if self.is_free(&waiting) { self.send_at_once(&mut waiting, frame) } else { self.put(&mut waiting, frame) }
    }

    fn assign(&self, parcel: Parcel) -> io::Result<()> {
        let mut waiting = self.lock();
        let values = parcel.parameters.region.values();
        if values.len() * self.payload.width() <= SMALL && self.is_free(&waiting) {
            let mut bytes = parcel.frame;
            if !waiting.knows(parcel.version) {
                bytes.extend_from_slice(&frame::encode(&ToWorker::Model { version: parcel.version })?);
                append_chunks(&mut bytes, values, self.payload);
            }
            return self.send_at_once(&mut waiting, bytes);
        }
        waiting.parcels.push_back(parcel);
        self.changed.notify_one();
        Ok(())
    }

    /// Whether what is sent at once comes after everything else.
    fn is_free(&self, waiting: &Waiting) -> bool {
        let nothing_waits = waiting.messages.is_empty() && waiting.parcels.is_empty();
        nothing_waits && !waiting.writing && !waiting.closed && self.socket.can_send_some()
    }

    /// Sends what the system takes at once; the rest waits.
    fn send_at_once(&self, waiting: &mut Waiting, mut bytes: Vec<u8>) -> io::Result<()> {
        let sent = self.socket.send_some(&bytes)?;
        self.traffic.add(sent);
        if sent == bytes.len() { Ok(()) } else { self.put(waiting, bytes.split_off(sent)) }
    }

    fn put(&self, waiting: &mut Waiting, bytes: Vec<u8>) -> io::Result<()> {
        waiting.messages.push_back(bytes);
        self.changed.notify_one();
        Ok(())
    }

    fn next(&self) -> Next {
        let mut waiting = self.lock();
        waiting.writing = false;
        loop {
            let next = if let Some(message) = waiting.messages.pop_front() {
                Some(Next::Message(message))
            } else if let Some(parcel) = waiting.parcels.pop_front() {
                let known = waiting.knows(parcel.version);
                Some(Next::Parcel(parcel, known))
            } else {
                waiting.closed.then_some(Next::Closed)
            };
            if let Some(next) = next {
                waiting.writing = true;
                return next;
            }
            waiting = self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn pop_message(&self) -> Option<Vec<u8>> {
        self.lock().messages.pop_front()
    }

    /// Writes whatever comes, until the outbox is closed or the connection fails.
    pub(super) fn write(&self) {
        let mut sender = Sender::new(self.socket.clone(), self.traffic.clone());
        let written = self.write_all(&mut sender);
        // After a failure the reader must wake up and say so; after a last message the peer may still read it.
        self.socket.shutdown(if written.is_ok() { Shutdown::Write } else { Shutdown::Both });
        self.abandon();
    }

    fn write_all(&self, sender: &mut Sender) -> io::Result<()> {
        loop {
            match self.next() {
                Next::Message(frame) => sender.frame(&frame)?,
                Next::Parcel(Parcel { frame, .. }, true) => sender.frame(&frame)?,
                Next::Parcel(Parcel { frame, version, parameters, .. }, false) => {
                    sender.announce(&frame);
                    sender.announce(&frame::encode(&ToWorker::Model { version })?);
                    self.write_values(sender, parameters.region.values())?;
                }
                Next::Closed => return Ok(()),
            }
        }
    }

    /// Writes values and, between chunks, the messages that have come; stops where the outbox is closed.
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
    use crate::link::{Incoming, Receiver};
    use crate::server::ring::Ring;
    use std::net::{TcpListener, TcpStream};
    use std::thread;

    #[test]
    fn what_goes_at_once_and_what_has_to_wait_arrive_in_order() {
        const MODELS: u64 = 100;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let far = Socket::tcp(listener.accept().unwrap().0, None).unwrap();
        let (outbox, queue) = Outbox::tcp(Socket::tcp(near, None).unwrap(), PayloadFormat::F32, Traffic::default());
        // Small enough to go at once, until nobody has read for a while.
        let mut ring = Ring::new(&[0.0; 16_000], false).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| queue.write());
            for version in 0..MODELS {
                let message = ToWorker::Continue { number: version };
                outbox.assign(version, &message, Version(version), ring.newest());
                outbox.assign(version, &message, Version(version), ring.newest());
                outbox.send(&ToWorker::Collect { number: version });
                ring.advance(|values| values.fill(version as f32 + 1.0)).unwrap();
            }
            assert!(!outbox.recall(0), "it is on its way");
            assert!(outbox.recall(MODELS - 1), "it had to wait");

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
                    Incoming::End => panic!("it was not closed"),
                }
            }
            outbox.close(&ToWorker::Interrupt { number: 0 });
            assert_eq!(receiver.message::<ToWorker>().unwrap(), ToWorker::Interrupt { number: 0 });
            assert_eq!(receiver.next::<ToWorker>().unwrap(), Incoming::End);
            assert_eq!(collected, (0..MODELS).collect::<Vec<_>>());
            assert_eq!(models, (0..MODELS - 1).collect::<Vec<_>>());
            assert_eq!(continued, (0..MODELS - 1).flat_map(|number| [number; 2]).collect::<Vec<_>>());
        });
    }
}
