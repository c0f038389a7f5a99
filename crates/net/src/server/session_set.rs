//! The sessions of one thread: the coordinator has those that share memory, each I/O thread a part of those over TCP.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::time::Instant;

use paceline_protocol::SessionId;

use super::event_source::ServerInput;
use super::session::Session;
use crate::poller::{Lookout, Poller, Ready, Waker};

/// The sessions that one thread waits for.
#[derive(Debug)]
pub(super) struct SessionSet {
    poller: Poller,
    lookout: Lookout,
    sessions: HashMap<SessionId, Session>,
    /// The sessions that are about to end, by the time when they are given up.
    closing: VecDeque<(Instant, SessionId)>,
    ready: Vec<Ready>,
}

impl SessionSet {
    pub(super) fn new() -> io::Result<Self> {
        let (sessions, closing, ready) = (HashMap::new(), VecDeque::new(), Vec::new());
        Ok(SessionSet { poller: Poller::new()?, lookout: Lookout::default(), sessions, closing, ready })
    }

    pub(super) fn poller(&self) -> &Poller {
        &self.poller
    }

    pub(super) fn waker(&self) -> Waker {
        self.poller.waker().clone()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sessions.is_empty()
    }

    /// Adds a session.
    pub(super) fn add(&mut self, mut session: Session, on_input: &mut dyn FnMut(ServerInput)) {
        match session.begin(&self.poller) {
            Ok(()) => {
                // What was to be sent before it was here woke nobody.
                self.poller.waker().wake_to_write(session.id().0);
                self.sessions.insert(session.id(), session);
            }
            Err(error) => on_input(ServerInput::Closed { session: session.id(), reason: error.to_string() }),
        }
    }

    /// Waits until something can be done, a wake-up or the deadline. Does all of it, and returns the tokens of ready
    /// sockets that are not sessions.
    pub(super) fn turn(
        &mut self,
        deadline: Option<Instant>,
        on_input: &mut dyn FnMut(ServerInput),
    ) -> io::Result<Vec<u64>> {
        let closing = self.closing.front().map(|(at, _)| *at);
        let deadline = [deadline, closing].into_iter().flatten().min();
        self.poller.wait(&mut self.lookout, deadline, &mut self.ready)?;
        let mut others = Vec::new();
        for ready in self.ready.drain(..) {
            let Some(session) = self.sessions.get_mut(&SessionId(ready.token)) else {
                others.push(ready.token);
                continue;
            };
            let was_closing = session.deadline().is_some();
            if session.advance(ready, &self.poller, on_input) {
                self.sessions.remove(&SessionId(ready.token));
            } else if let Some(at) = session.deadline().filter(|_| !was_closing) {
                self.closing.push_back((at, SessionId(ready.token)));
            }
        }
        let now = Instant::now();
        while let Some((_, id)) = self.closing.pop_front_if(|(at, _)| *at <= now) {
            if let Some(mut session) = self.sessions.remove(&id) {
                session.time_out(&self.poller, on_input);
            }
        }
        Ok(others)
    }

    /// Drops the sessions that have nothing left to send.
    pub(super) fn drop_idle(&mut self) {
        self.sessions.retain(|_, session| {
            let is_idle = session.can_be_dropped();
            if is_idle {
                session.leave(&self.poller);
            }
            !is_idle
        });
    }
}
