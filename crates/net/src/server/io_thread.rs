//! The threads that read and write the TCP connections. There are few of them, whatever the number of connections.

use std::io;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::available_parallelism;

use super::event_source::{CoordinatorHandle, ServerInput};
use super::session::Session;
use super::session_set::SessionSet;
use crate::poller::Waker;

/// More threads than this do not make the network faster.
const MAX_THREADS: usize = 8;

/// The number of I/O threads: one per processor, up to [`MAX_THREADS`].
pub(super) fn thread_count() -> usize {
    available_parallelism().map_or(1, |processors| processors.get().min(MAX_THREADS))
}

/// Gives sessions to an I/O thread. When it is dropped, the thread sends what is pending, then ends.
#[derive(Debug)]
pub(super) struct IoThreadHandle {
    sessions: Option<Sender<Session>>,
    waker: Waker,
}

impl IoThreadHandle {
    pub(super) fn waker(&self) -> &Waker {
        &self.waker
    }

    pub(super) fn add(&self, session: Session) {
        if let Some(sessions) = &self.sessions {
            // It fails only if the thread has failed, which ends the run.
            let _ = sessions.send(session);
            self.waker.wake();
        }
    }
}

impl Drop for IoThreadHandle {
    fn drop(&mut self) {
        self.sessions = None;
        self.waker.wake();
    }
}

/// A thread for a part of the connections.
#[derive(Debug)]
pub(super) struct IoThread {
    set: SessionSet,
    new: Receiver<Session>,
    coordinator: CoordinatorHandle,
}

impl IoThread {
    pub(super) fn new(coordinator: CoordinatorHandle) -> io::Result<(IoThread, IoThreadHandle)> {
        let (sender, new) = channel();
        let set = SessionSet::new()?;
        let handle = IoThreadHandle { sessions: Some(sender), waker: set.waker() };
        Ok((IoThread { set, new, coordinator }, handle))
    }

    /// Serves its sessions until the handle is dropped and every last message is sent.
    pub(super) fn run(mut self) {
        let coordinator = self.coordinator;
        let mut on_input = |input: ServerInput| {
            // It fails only if the run has ended.
            let _ = coordinator.send(input);
        };
        let mut is_ending = false;
        while !is_ending || !self.set.is_empty() {
            if let Err(error) = self.set.turn(None, &mut on_input) {
                return on_input(ServerInput::Failed(error));
            }
            is_ending = loop {
                match self.new.try_recv() {
                    Ok(session) => self.set.add(session, &mut on_input),
                    Err(TryRecvError::Empty) => break false,
                    Err(TryRecvError::Disconnected) => break true,
                }
            };
            if is_ending {
                self.set.drop_idle();
            }
        }
    }
}
