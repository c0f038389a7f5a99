//! The inputs of the coordinator, and how it waits for them.
//!
//! Workers that share memory send few bytes, and often all at once, so the coordinator reads their sockets itself: one
//! `epoll` wake-up serves all of them. Every other thread (TCP sessions, listeners, the evaluator) puts its input into
//! a channel and wakes the coordinator through an `eventfd`.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::time::{Duration, Instant};

use paceline_protocol::{PeerTrust, SessionId, ToServer};
use paceline_runtime::StopReason;
use paceline_workload::Evaluation;
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io::Errno;

use super::MAX_CONNECTIONS;
use super::link::{Link, UploadPermits};
use super::local_reader::LocalReader;
use super::send_queue::SendQueue;
use crate::connection::{Socket, Traffic};
use crate::shared_memory::Region;

/// Inputs that may be pending in the channel; senders block beyond that.
const MAX_PENDING_INPUTS: usize = 1_024;

/// Sockets served per wake-up.
const MAX_EVENTS: usize = 256;

/// The `epoll` token of the `eventfd`. Sockets use their session number, which counts from 0 and never gets this high.
const WAKEUP_TOKEN: u64 = u64::MAX;

/// An input of the coordinator.
#[derive(Debug)]
pub(super) enum ServerInput {
    /// A peer has connected.
    Connected { session: SessionId, peer: String, trust: PeerTrust, link: Link },
    /// A message has arrived, with the gradient that followed it over TCP.
    Message { session: SessionId, message: ToServer, gradient: Option<Region> },
    /// A part of a gradient has arrived.
    Transfer { session: SessionId },
    /// The connection is closed, or has failed.
    Closed { session: SessionId, reason: String },
    /// A connection could not be accepted.
    Refused { peer: String, reason: String },
    /// The model was evaluated on the held-out set.
    Evaluated(Evaluation),
    /// The run was asked to stop.
    Stop { reason: StopReason },
}

#[derive(Debug)]
enum Wakeup {
    Input(ServerInput),
    /// A new connection that shares memory, which the coordinator reads from now on.
    Connected {
        session: SessionId,
        peer: String,
        socket: Socket,
    },
}

/// The run has ended, so the coordinator takes no more inputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RunEnded;

/// Sends inputs to the coordinator from other threads.
#[derive(Debug, Clone)]
pub(super) struct CoordinatorHandle {
    sender: SyncSender<Wakeup>,
    wakeup_fd: Arc<OwnedFd>,
}

impl CoordinatorHandle {
    /// Sends an input; blocks while too many are pending.
    pub(super) fn send(&self, input: ServerInput) -> Result<(), RunEnded> {
        self.notify(Wakeup::Input(input))
    }

    /// Passes on a connection that shares memory.
    pub(super) fn connect(&self, session: SessionId, peer: String, socket: Socket) -> Result<(), RunEnded> {
        self.notify(Wakeup::Connected { session, peer, socket })
    }

    fn notify(&self, wakeup: Wakeup) -> Result<(), RunEnded> {
        self.sender.send(wakeup).map_err(|_| RunEnded)?;
        // It fails only if the counter of the eventfd would exceed 2⁶⁴ − 2; the coordinator is awake then.
        let _ = rustix::io::write(&self.wakeup_fd, &1_u64.to_ne_bytes());
        Ok(())
    }
}

/// Where the coordinator gets its inputs from.
#[derive(Debug)]
pub(super) struct EventSource {
    receiver: Receiver<Wakeup>,
    wakeup_fd: Arc<OwnedFd>,
    epoll: OwnedFd,
    local_readers: HashMap<SessionId, LocalReader>,
    traffic: Traffic,
}

impl EventSource {
    /// An event source, and the handle that sends to it.
    pub(super) fn new(traffic: Traffic) -> io::Result<(CoordinatorHandle, EventSource)> {
        let wakeup_fd = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &wakeup_fd, EventData::new_u64(WAKEUP_TOKEN), EventFlags::IN)?;
        let (sender, receiver) = sync_channel(MAX_PENDING_INPUTS);
        let handle = CoordinatorHandle { sender, wakeup_fd: wakeup_fd.clone() };
        Ok((handle, EventSource { receiver, wakeup_fd, epoll, local_readers: HashMap::new(), traffic }))
    }

    /// Everything that has arrived. Waits for something until `deadline`.
    ///
    /// Every call looks at all sources, so that none of them keeps another waiting: workers that share memory, TCP, and
    /// the deadline itself. Also after the deadline, what has arrived comes first.
    pub(super) fn gather(&mut self, deadline: Option<Instant>) -> io::Result<Vec<ServerInput>> {
        let mut inputs = Vec::new();
        self.receive(&mut inputs);
        let deadline = if inputs.is_empty() { deadline } else { Some(Instant::now()) };
        self.wait(deadline, &mut inputs)?;
        self.receive(&mut inputs);
        Ok(inputs)
    }

    /// Takes what the other threads have sent.
    fn receive(&mut self, inputs: &mut Vec<ServerInput>) {
        for _ in 0..MAX_PENDING_INPUTS {
            match self.receiver.try_recv() {
                Ok(Wakeup::Input(input)) => inputs.push(input),
                Ok(Wakeup::Connected { session, peer, socket }) => inputs.push(self.add_local(session, peer, socket)),
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => break,
            }
        }
    }

    fn add_local(&mut self, session: SessionId, peer: String, socket: Socket) -> ServerInput {
        let added = if self.local_readers.len() < MAX_CONNECTIONS {
            epoll::add(&self.epoll, &socket, EventData::new_u64(session.0), EventFlags::IN)
                .map_err(|error| error.to_string())
        } else {
            Err(format!("the server has {MAX_CONNECTIONS} connections already, which is the limit"))
        };
        match added {
            Ok(()) => {
                let permits = Arc::new(UploadPermits::default());
                let link = Link::new(SendQueue::local(socket.clone()), permits.clone());
                self.local_readers.insert(session, LocalReader::new(session, socket, permits));
                ServerInput::Connected { session, peer, trust: PeerTrust::SameUser, link }
            }
            Err(reason) => ServerInput::Refused { peer, reason },
        }
    }

    /// Waits for a wake-up, and reads the sockets that are ready.
    fn wait(&mut self, deadline: Option<Instant>, inputs: &mut Vec<ServerInput>) -> io::Result<()> {
        let timeout = deadline.map(|until| timespec(until.saturating_duration_since(Instant::now())));
        let mut events = Vec::with_capacity(MAX_EVENTS);
        match epoll::wait(&self.epoll, spare_capacity(&mut events), timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for event in events {
            // Copied out: the structure is packed.
            let data = event.data;
            match data.u64() {
                WAKEUP_TOKEN => {
                    let mut count = [0; 8];
                    // Only resets the counter: the inputs are in the channel.
                    let _ = rustix::io::read(&self.wakeup_fd, &mut count);
                }
                session => self.read(SessionId(session), inputs),
            }
        }
        Ok(())
    }

    fn read(&mut self, session: SessionId, inputs: &mut Vec<ServerInput>) {
        let Some(reader) = self.local_readers.get_mut(&session) else { return };
        if reader.read(&self.traffic, inputs).is_break()
            && let Some(reader) = self.local_readers.remove(&session)
        {
            // The send queue may still hold the socket, to send a last message.
            let _ = epoll::delete(&self.epoll, reader.socket());
        }
    }
}

fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame;
    use std::io::Write as _;
    use std::os::unix::net::UnixStream;
    use std::thread;

    #[test]
    fn busy_tcp_keeps_neither_local_workers_nor_the_deadline_waiting() {
        let (handle, mut event_source) = EventSource::new(Traffic::default()).unwrap();
        let (near, mut far) = UnixStream::pair().unwrap();
        handle.connect(SessionId(7), "a worker".into(), Socket::local(near)).unwrap();
        far.write_all(&frame::encode(&ToServer::Heartbeat { progress: 1 }).unwrap()).unwrap();
        thread::scope(|scope| {
            // Sends without a pause until the event source is gone.
            scope.spawn(|| while handle.send(ServerInput::Transfer { session: SessionId(1) }).is_ok() {});
            let is_local = |input: &ServerInput| matches!(input, ServerInput::Message { session: SessionId(7), .. });
            let read = (0..10).any(|_| event_source.gather(None).unwrap().iter().any(is_local));
            drop(event_source);
            assert!(read, "the worker in shared memory was not read in ten turns");
        });
    }

    #[test]
    fn what_has_arrived_comes_before_the_deadline() {
        let (handle, mut event_source) = EventSource::new(Traffic::default()).unwrap();
        let (near, mut far) = UnixStream::pair().unwrap();
        handle.connect(SessionId(7), "a worker".into(), Socket::local(near)).unwrap();
        event_source.gather(None).unwrap();
        far.write_all(&frame::encode(&ToServer::Heartbeat { progress: 1 }).unwrap()).unwrap();
        // The deadline has passed long ago, as after a stall.
        let inputs = event_source.gather(Some(Instant::now())).unwrap();
        assert!(matches!(inputs[..], [ServerInput::Message { .. }]), "{inputs:?}");
    }
}
