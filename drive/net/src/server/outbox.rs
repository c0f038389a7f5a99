//! What the server sends to one worker, without ever waiting for it.
//!
//! Over a Unix socket everything is small and goes out at once. Over TCP, parameters take their time, so a thread
//! writes them; messages overtake them between chunks.

use std::collections::VecDeque;
use std::io;
use std::net::Shutdown;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use paceline_core::Version;

use super::ring::Parameters;
use crate::encoding::Encoding;
use crate::frame;
use crate::link::{Sender, Socket, Traffic};
use crate::message::ToWorker;
use crate::region::Region;

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
    /// The way through `socket`. Over TCP somebody must [`write`](Queue::write) the [queue](Outbox::queue).
    pub(super) fn new(socket: Socket) -> Self {
        let queue = (!socket.is_local()).then(Arc::default);
        Outbox { socket, queue }
    }

    pub(super) fn queue(&self) -> Option<Arc<Queue>> {
        self.queue.clone()
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
                let mut waiting = queue.lock();
                if waiting.messages.len() == WAITING {
                    drop(waiting);
                    return self.cut();
                }
                waiting.messages.push_back(frame);
                queue.changed.notify_one();
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
        queue.lock().parcels.push_back(Parcel { number, frame, version, parameters: parameters.clone() });
        queue.changed.notify_one();
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
            Some(queue) => {
                let mut waiting = queue.lock();
                waiting.closed = true;
                waiting.parcels.clear();
                queue.changed.notify_one();
            }
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
    /// Nothing more will come: what waits is written, then the writer ends.
    fn drop(&mut self) {
        if let Some(queue) = &self.queue {
            queue.lock().closed = true;
            queue.changed.notify_one();
        }
    }
}

/// What waits to be written to one TCP connection.
#[derive(Debug, Default)]
pub(super) struct Queue {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    messages: VecDeque<Vec<u8>>,
    parcels: VecDeque<Parcel>,
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
    Parcel(Parcel),
    Closed,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn abandon(&self) {
        let mut waiting = self.lock();
        *waiting = Waiting { closed: true, ..Waiting::default() };
        self.changed.notify_one();
    }

    fn next(&self) -> Next {
        let mut waiting = self.lock();
        loop {
            if let Some(message) = waiting.messages.pop_front() {
                return Next::Message(message);
            }
            if let Some(parcel) = waiting.parcels.pop_front() {
                return Next::Parcel(parcel);
            }
            if waiting.closed {
                return Next::Closed;
            }
            waiting = self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn pop_message(&self) -> Option<Vec<u8>> {
        self.lock().messages.pop_front()
    }

    /// Writes to `socket` whatever comes, until the outbox is closed or the connection fails.
    pub(super) fn write(&self, socket: Socket, encoding: Encoding, traffic: Traffic) {
        let mut sender = Sender::new(socket, traffic);
        let written = self.write_all(&mut sender, encoding);
        // After a failure the reader must wake up and say so; after a last message the peer may still read it.
        sender.socket().shutdown(if written.is_ok() { Shutdown::Write } else { Shutdown::Both });
        self.abandon();
    }

    fn write_all(&self, sender: &mut Sender, encoding: Encoding) -> io::Result<()> {
        let mut known = None;
        loop {
            match self.next() {
                Next::Message(frame) => sender.frame(&frame)?,
                Next::Parcel(Parcel { frame, version, .. }) if known == Some(version) => sender.frame(&frame)?,
                Next::Parcel(Parcel { frame, version, parameters, .. }) => {
                    sender.announce(&frame);
                    sender.announce(&frame::encode(&ToWorker::Model { version })?);
                    self.write_values(sender, parameters.region.values(), encoding)?;
                    known = Some(version);
                }
                Next::Closed => return Ok(()),
            }
        }
    }

    /// Writes values and, between chunks, the messages that have come; stops where the outbox is closed.
    fn write_values(&self, sender: &mut Sender, values: &[f32], encoding: Encoding) -> io::Result<()> {
        for part in values.chunks(encoding.values_per_chunk()) {
            while let Some(frame) = self.pop_message() {
                sender.frame(&frame)?;
            }
            if self.lock().closed {
                break;
            }
            sender.chunk(part, encoding)?;
        }
        Ok(())
    }
}
