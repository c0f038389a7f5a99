//! What reaches the coordinator, and how it waits for it.
//!
//! Workers that share memory say little, and often all at once, so the coordinator reads their sockets itself: one
//! wake-up hears them all. Everyone else (readers of TCP connections, listeners, the evaluator) rings a bell.

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

use super::CONNECTIONS;
use super::local::LocalReader;
use super::member::Desk;
use super::outbox::Outbox;
use super::session::HELLO;
use crate::fingerprint::Fingerprint;
use crate::link::{Socket, Traffic};
use crate::region::Region;

/// Inputs that may wait for the coordinator; beyond that, connections wait to be read.
const WAITING: usize = 1_024;

/// Sockets heard per wake-up.
const EVENTS: usize = 256;

/// The bell among the sockets, which are numbered from 0 and never so far.
const BELL: u64 = u64::MAX;

/// Something for the coordinator.
#[derive(Debug)]
pub(super) enum Input {
    /// Somebody wants to take part.
    Arrived { session: u64, peer: String, rank: Option<u32>, emulated: Option<String>, outbox: Outbox, desk: Arc<Desk> },
    /// It has made the workload.
    Ready { session: u64, fingerprint: Fingerprint },
    /// It has done a local iteration and asks whether to go on.
    Asked { session: u64, number: u64, iterations: u32, report: Report },
    /// It has finished a task.
    Reported { session: u64, number: u64, report: Report, loss: f64, gradient: Landed },
    /// It has dropped a task.
    Dropped { session: u64, number: u64 },
    /// It is gone.
    Lost { session: u64, reason: String },
    /// Somebody was turned away before it could take part.
    TurnedAway { peer: String, reason: String },
    /// The model was measured on the held-out set.
    Evaluated(Evaluation),
    /// The run is to end.
    Stop { reason: String },
}

/// Where a reported gradient is.
#[derive(Debug)]
pub(super) enum Landed {
    /// In shared memory.
    InPlace,
    /// Received.
    Here(Region),
    /// Nowhere: the worker kept it, or it was called off.
    Nowhere,
}

#[derive(Debug)]
enum Ring {
    Input(Input),
    /// A connection that shares memory: read it from now on.
    Connected {
        session: u64,
        peer: String,
        socket: Socket,
    },
}

/// The run is over: nobody listens any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Over;

/// The way to the coordinator.
#[derive(Debug, Clone)]
pub(super) struct Door {
    sender: SyncSender<Ring>,
    bell: Arc<OwnedFd>,
}

impl Door {
    /// Hands an input over; waits while too many are there.
    pub(super) fn send(&self, input: Input) -> Result<(), Over> {
        self.ring(Ring::Input(input))
    }

    /// Hands over a connection that shares memory.
    pub(super) fn connect(&self, session: u64, peer: String, socket: Socket) -> Result<(), Over> {
        self.ring(Ring::Connected { session, peer, socket })
    }

    fn ring(&self, ring: Ring) -> Result<(), Over> {
        self.sender.send(ring).map_err(|_| Over)?;
        // It fails only where it has been rung 2⁶⁴ times without being heard.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
        Ok(())
    }
}

/// The coordinator's ear.
#[derive(Debug)]
pub(super) struct Inputs {
    receiver: Receiver<Ring>,
    bell: Arc<OwnedFd>,
    epoll: OwnedFd,
    locals: HashMap<u64, LocalReader>,
    /// Connections that have not said hello, and when they must have; oldest first.
    silent: VecDeque<(Instant, u64)>,
    ready: VecDeque<Input>,
    traffic: Traffic,
}

impl Inputs {
    /// An ear and its door.
    pub(super) fn new(traffic: Traffic) -> io::Result<(Door, Inputs)> {
        let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &bell, EventData::new_u64(BELL), EventFlags::IN)?;
        let (sender, receiver) = sync_channel(WAITING);
        let door = Door { sender, bell: bell.clone() };
        let inputs = Inputs {
            receiver,
            bell,
            epoll,
            locals: HashMap::new(),
            silent: VecDeque::new(),
            ready: VecDeque::new(),
            traffic,
        };
        Ok((door, inputs))
    }

    /// The next input; `None` when there is none until `deadline`.
    pub(super) fn next(&mut self, deadline: Option<Instant>) -> io::Result<Option<Input>> {
        loop {
            if let Some(input) = self.ready.pop_front() {
                return Ok(Some(input));
            }
            match self.receiver.try_recv() {
                Ok(Ring::Input(input)) => return Ok(Some(input)),
                Ok(Ring::Connected { session, peer, socket }) => self.listen_to(session, peer, socket),
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => {
                    if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                        return Ok(None);
                    }
                    self.wait(deadline)?;
                }
            }
        }
    }

    fn listen_to(&mut self, session: u64, peer: String, socket: Socket) {
        let added = if self.locals.len() < CONNECTIONS {
            epoll::add(&self.epoll, &socket, EventData::new_u64(session), EventFlags::IN)
                .map_err(|error| error.to_string())
        } else {
            Err(format!("there are {CONNECTIONS} connections already"))
        };
        match added {
            Ok(()) => {
                self.silent.push_back((Instant::now() + HELLO, session));
                self.locals.insert(session, LocalReader::new(session, peer, socket));
            }
            Err(reason) => self.ready.push_back(Input::TurnedAway { peer, reason }),
        }
    }

    /// Waits until something is heard, and reads it.
    fn wait(&mut self, deadline: Option<Instant>) -> io::Result<()> {
        let silence = self.silent.front().map(|&(until, _)| until);
        let until = [deadline, silence].into_iter().flatten().min();
        let timeout = until.map(|until| timespec(until.saturating_duration_since(Instant::now())));
        let mut events = Vec::with_capacity(EVENTS);
        match epoll::wait(&self.epoll, spare_capacity(&mut events), timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for event in events {
            // Copied out, for the kernel packs this structure.
            let data = event.data;
            match data.u64() {
                BELL => {
                    let mut count = [0; 8];
                    // Whoever rang is in the channel; the count itself says nothing.
                    let _ = rustix::io::read(&self.bell, &mut count);
                }
                session => self.read(session),
            }
        }
        self.lose_patience();
        Ok(())
    }

    fn read(&mut self, session: u64) {
        let Some(reader) = self.locals.get_mut(&session) else { return };
        if reader.read(&self.traffic, &mut self.ready).is_break() {
            self.forget(session);
        }
    }

    fn lose_patience(&mut self) {
        while let Some(&(until, session)) = self.silent.front() {
            match self.locals.get(&session) {
                Some(reader) if !reader.has_arrived() && until > Instant::now() => break,
                Some(reader) if !reader.has_arrived() => {
                    self.ready.push_back(reader.turned_away("it said nothing".into()));
                    self.forget(session);
                }
                _ => {}
            }
            self.silent.pop_front();
        }
    }

    fn forget(&mut self, session: u64) {
        if let Some(reader) = self.locals.remove(&session) {
            // The socket itself may live on in the outbox, for a last word.
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
