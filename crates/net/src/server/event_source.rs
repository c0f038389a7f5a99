//! The inputs of the coordinator, and how it waits for them.
//!
//! Workers that share memory send few bytes, and often all at once, so the coordinator reads their sockets itself: one
//! wake-up serves all of them. Every other thread (TCP, the evaluator, the planner) puts its input into a channel and wakes the
//! coordinator.

use std::io;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::time::Instant;

use paceline_core::{SchemePace, Time};
use paceline_protocol::{PeerTrust, SessionId, ToServer};
use paceline_runtime::StopReason;
use paceline_workload::Evaluation;

use super::acceptor::Acceptor;
use super::link::Link;
use super::session_set::SessionSet;
use crate::poller::{Poller, Waker};
use crate::shared_memory::Region;

/// Inputs that may be pending in the channel; senders block beyond that.
const MAX_PENDING_INPUTS: usize = 1_024;

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
    Evaluated {
        evaluation: Evaluation,
        /// When the model was made.
        at: Time,
    },
    /// The scheme's request for a plan is answered.
    Planned { paces: Vec<SchemePace> },
    /// The run was asked to stop.
    Stop { reason: StopReason },
    /// A system call that the server needs has failed.
    Failed(io::Error),
}

/// The run has ended, so the coordinator takes no more inputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RunEnded;

/// Sends inputs to the coordinator from other threads.
#[derive(Debug, Clone)]
pub(super) struct CoordinatorHandle {
    sender: SyncSender<ServerInput>,
    waker: Waker,
}

impl CoordinatorHandle {
    /// Sends an input; blocks while too many are pending.
    pub(super) fn send(&self, input: ServerInput) -> Result<(), RunEnded> {
        self.sender.send(input).map_err(|_| RunEnded)?;
        self.waker.wake();
        Ok(())
    }
}

/// Where the coordinator gets its inputs from.
#[derive(Debug)]
pub(super) struct EventSource {
    receiver: Receiver<ServerInput>,
    local_sessions: SessionSet,
    /// Accepts connections during the run.
    pub(super) acceptor: Option<Acceptor>,
}

impl EventSource {
    /// An event source, and the handle that sends to it.
    pub(super) fn new() -> io::Result<(CoordinatorHandle, EventSource)> {
        let local_sessions = SessionSet::new()?;
        let (sender, receiver) = sync_channel(MAX_PENDING_INPUTS);
        let handle = CoordinatorHandle { sender, waker: local_sessions.waker() };
        Ok((handle, EventSource { receiver, local_sessions, acceptor: None }))
    }

    pub(super) fn poller(&self) -> &Poller {
        self.local_sessions.poller()
    }

    /// Everything that has arrived. Waits for something until `deadline`.
    ///
    /// Every call looks at all sources, so that none of them keeps another waiting: workers that share memory, TCP, and
    /// the deadline itself. Also after the deadline, what has arrived comes first.
    pub(super) fn gather(&mut self, deadline: Option<Instant>) -> io::Result<Vec<ServerInput>> {
        let mut inputs = Vec::new();
        self.receive(&mut inputs);
        let retry = self.acceptor.as_ref().and_then(Acceptor::next_retry);
        let now = (!inputs.is_empty()).then(Instant::now);
        let deadline = [deadline, retry, now].into_iter().flatten().min();
        let mut on_input = |input| inputs.push(input);
        let listeners = self.local_sessions.turn(deadline, &mut on_input)?;
        if let Some(acceptor) = &mut self.acceptor {
            for token in listeners {
                acceptor.accept(token, &mut self.local_sessions, &mut on_input)?;
            }
            acceptor.resume(self.local_sessions.poller())?;
        }
        self.receive(&mut inputs);
        Ok(inputs)
    }

    /// Takes what the other threads have sent.
    fn receive(&mut self, inputs: &mut Vec<ServerInput>) {
        for _ in 0..MAX_PENDING_INPUTS {
            match self.receiver.try_recv() {
                Ok(input) => inputs.push(input),
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => break,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::session::{GradientPool, Session, SessionContext};
    use super::*;
    use crate::scripted_peer::ScriptedPeer;
    use crate::socket::{Socket, Traffic};
    use paceline_protocol::PayloadRule;
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;
    use std::thread;

    /// Adds a worker that shares memory, as session 7.
    fn add_worker(event_source: &mut EventSource) -> (Link, ScriptedPeer<UnixStream>) {
        let (near, far) = UnixStream::pair().unwrap();
        let context = SessionContext {
            pool: GradientPool::default(),
            traffic: Traffic::default(),
            payload: PayloadRule::default(),
            shares_memory: false,
            length: Some(1),
            open: AtomicUsize::new(0),
        };
        let waker = event_source.local_sessions.waker();
        let (session, link) = Session::new(SessionId(7), Socket::local(near), None, Arc::new(context), &waker);
        event_source.local_sessions.add(session, &mut |input| panic!("{input:?}"));
        (link, ScriptedPeer::new(far))
    }

    #[test]
    fn busy_tcp_keeps_neither_local_workers_nor_the_deadline_waiting() {
        let (handle, mut event_source) = EventSource::new().unwrap();
        let (_link, mut worker) = add_worker(&mut event_source);
        worker.send(&ToServer::Heartbeat { progress: 1 });
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
        let (_handle, mut event_source) = EventSource::new().unwrap();
        let (_link, mut worker) = add_worker(&mut event_source);
        worker.send(&ToServer::Heartbeat { progress: 1 });
        // The deadline has passed long ago, as after a stall.
        let inputs = event_source.gather(Some(Instant::now())).unwrap();
        assert!(matches!(inputs[..], [ServerInput::Message { .. }]), "{inputs:?}");
    }
}
