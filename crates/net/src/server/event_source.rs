//! The inputs of the coordinator, and how it waits for them.
//!
//! Workers that share memory send few bytes, and often all at once, so the coordinator reads their sockets itself: one
//! `epoll` wake-up serves all of them. Every other thread (TCP sessions, listeners, the evaluator) puts its input into
//! a channel and wakes the coordinator through an `eventfd`.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::time::{Duration, Instant};

use paceline_core::Report;
use paceline_workload::Evaluation;
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io::Errno;

use super::MAX_CONNECTIONS;
use super::local_reader::LocalReader;
use super::remote_worker::UploadPermits;
use super::send_queue::SendQueue;
use super::session::HANDSHAKE_TIMEOUT;
use crate::connection::{Socket, Traffic};
use crate::fingerprint::Fingerprint;
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
    /// A worker has sent its hello and wants to join.
    JoinRequested {
        session: u64,
        peer: String,
        rank: Option<u32>,
        emulated: Option<String>,
        send_queue: SendQueue,
        permits: Arc<UploadPermits>,
    },
    /// The worker has built the workload.
    Ready { session: u64, fingerprint: Fingerprint },
    /// The worker has done a local iteration and asks whether to continue.
    Asked { session: u64, number: u64, iterations: u32, report: Report },
    /// The worker has finished a task.
    Reported { session: u64, number: u64, report: Report, loss: f64, gradient: ReceivedGradient },
    /// The worker has dropped a cancelled task.
    Dropped { session: u64, number: u64 },
    /// The connection of the worker is lost.
    Lost { session: u64, reason: String },
    /// A connection was refused before its handshake was complete.
    Refused { peer: String, reason: String },
    /// The model was evaluated on the held-out set.
    Evaluated(Evaluation),
    /// The run was asked to stop.
    Stop { reason: String },
}

/// Where a reported gradient is.
#[derive(Debug)]
pub(super) enum ReceivedGradient {
    /// In shared memory.
    InPlace,
    /// In this buffer, received over TCP.
    Received(Region),
    /// The worker did not send it since it is late, or the server skipped it since the task was cancelled.
    NotSent,
}

#[derive(Debug)]
enum Wakeup {
    Input(ServerInput),
    /// A new connection that shares memory, which the coordinator reads from now on.
    Connected {
        session: u64,
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
    pub(super) fn connect(&self, session: u64, peer: String, socket: Socket) -> Result<(), RunEnded> {
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
    local_readers: HashMap<u64, LocalReader>,
    /// Local connections whose hello is outstanding, with the deadline for it; oldest first.
    unidentified: VecDeque<(Instant, u64)>,
    ready: VecDeque<ServerInput>,
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
        let event_source = EventSource {
            receiver,
            wakeup_fd,
            epoll,
            local_readers: HashMap::new(),
            unidentified: VecDeque::new(),
            ready: VecDeque::new(),
            traffic,
        };
        Ok((handle, event_source))
    }

    /// The next input; `None` if `deadline` passes first.
    pub(super) fn next(&mut self, deadline: Option<Instant>) -> io::Result<Option<ServerInput>> {
        loop {
            if let Some(input) = self.ready.pop_front() {
                return Ok(Some(input));
            }
            match self.receiver.try_recv() {
                Ok(Wakeup::Input(input)) => return Ok(Some(input)),
                Ok(Wakeup::Connected { session, peer, socket }) => self.add_local(session, peer, socket),
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => {
                    if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                        return Ok(None);
                    }
                    self.wait(deadline)?;
                }
            }
        }
    }

    fn add_local(&mut self, session: u64, peer: String, socket: Socket) {
        let added = if self.local_readers.len() < MAX_CONNECTIONS {
            epoll::add(&self.epoll, &socket, EventData::new_u64(session), EventFlags::IN)
                .map_err(|error| error.to_string())
        } else {
            Err(format!("the server has {MAX_CONNECTIONS} connections already, which is the limit"))
        };
        match added {
            Ok(()) => {
                self.unidentified.push_back((Instant::now() + HANDSHAKE_TIMEOUT, session));
                self.local_readers.insert(session, LocalReader::new(session, peer, socket));
            }
            Err(reason) => self.ready.push_back(ServerInput::Refused { peer, reason }),
        }
    }

    /// Waits for a wake-up, and reads the sockets that are ready.
    fn wait(&mut self, deadline: Option<Instant>) -> io::Result<()> {
        let handshake_deadline = self.unidentified.front().map(|&(until, _)| until);
        let until = [deadline, handshake_deadline].into_iter().flatten().min();
        let timeout = until.map(|until| timespec(until.saturating_duration_since(Instant::now())));
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
                session => self.read(session),
            }
        }
        self.time_out_handshakes();
        Ok(())
    }

    fn read(&mut self, session: u64) {
        let Some(reader) = self.local_readers.get_mut(&session) else { return };
        if reader.read(&self.traffic, &mut self.ready).is_break() {
            self.remove(session);
        }
    }

    fn time_out_handshakes(&mut self) {
        while let Some(&(until, session)) = self.unidentified.front() {
            match self.local_readers.get(&session) {
                Some(reader) if !reader.is_identified() && until > Instant::now() => break,
                Some(reader) if !reader.is_identified() => {
                    self.ready.push_back(reader.refusal(handshake_timeout()));
                    self.remove(session);
                }
                _ => {}
            }
            self.unidentified.pop_front();
        }
    }

    fn remove(&mut self, session: u64) {
        if let Some(reader) = self.local_readers.remove(&session) {
            // The send queue may still hold the socket, to send a last message.
            let _ = epoll::delete(&self.epoll, reader.socket());
        }
    }
}

fn handshake_timeout() -> String {
    format!("no handshake within {} s", HANDSHAKE_TIMEOUT.as_secs())
}

fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}
