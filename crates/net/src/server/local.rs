//! A connection that shares memory, as the coordinator reads it: a little at a time, never waiting.

use std::collections::VecDeque;
use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use super::inputs::{Input, Landed};
use super::member::Desk;
use super::outbox::Outbox;
use super::session::translate;
use crate::frame::first_message;
use crate::link::{Socket, Traffic, invalid};
use crate::message::{Gradient, ToServer, ToWorker};

/// Read at a time, in bytes: dozens of messages.
const PORTION: usize = 4 * 1024;

/// What has been read of one connection.
#[derive(Debug)]
pub(super) struct LocalReader {
    session: u64,
    peer: String,
    socket: Socket,
    /// Read and not understood yet: the beginning of a frame.
    pending: Vec<u8>,
    desk: Option<Arc<Desk>>,
}

impl LocalReader {
    pub(super) fn new(session: u64, peer: String, socket: Socket) -> Self {
        LocalReader { session, peer, socket, pending: Vec::new(), desk: None }
    }

    pub(super) fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Whether it has said hello.
    pub(super) fn has_arrived(&self) -> bool {
        self.desk.is_some()
    }

    pub(super) fn turned_away(&self, reason: String) -> Input {
        Input::TurnedAway { peer: self.peer.clone(), reason }
    }

    /// Reads what is there and puts what it means into `inputs`; breaks when there will be nothing more.
    pub(super) fn read(&mut self, traffic: &Traffic, inputs: &mut VecDeque<Input>) -> ControlFlow<()> {
        let reason = match self.receive(traffic).and_then(|ended| self.understand(inputs).map(|()| ended)) {
            Ok(false) => return ControlFlow::Continue(()),
            Ok(true) => "it closed the connection".into(),
            Err(error) => error.to_string(),
        };
        inputs.push_back(if self.has_arrived() {
            Input::Lost { session: self.session, reason }
        } else {
            self.refuse(&reason);
            self.turned_away(reason)
        });
        ControlFlow::Break(())
    }

    /// Tells a stranger why. One that is gone can't be told.
    fn refuse(&self, reason: &str) {
        Outbox::local(self.socket.clone()).close(&ToWorker::Refuse { reason: reason.into(), again: false });
    }

    /// Says whether the peer has closed.
    fn receive(&mut self, traffic: &Traffic) -> io::Result<bool> {
        let mut portion = [0; PORTION];
        match recv(&self.socket, &mut portion, RecvFlags::DONTWAIT) {
            Ok((0, _)) => Ok(true),
            Ok((count, _)) => {
                traffic.add(count);
                self.pending.extend_from_slice(&portion[..count]);
                Ok(false)
            }
            Err(Errno::INTR | Errno::AGAIN) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn understand(&mut self, inputs: &mut VecDeque<Input>) -> io::Result<()> {
        let mut understood = 0;
        while let Some((message, length)) = first_message(&self.pending[understood..])? {
            if self.desk.as_ref().is_some_and(|desk| desk.is_refused()) {
                return Err(invalid("it goes on though it was refused"));
            }
            understood += length;
            let input = self.hear(message)?;
            inputs.push_back(input);
        }
        self.pending.drain(..understood);
        Ok(())
    }

    fn hear(&mut self, message: ToServer) -> io::Result<Input> {
        match message {
            // It is the same user's: there is nothing to show.
            ToServer::Hello { rank, emulated, .. } if self.desk.is_none() => {
                let outbox = Outbox::local(self.socket.clone());
                let desk = Arc::new(Desk::default());
                self.desk = Some(desk.clone());
                Ok(Input::Arrived { session: self.session, peer: self.peer.clone(), rank, emulated, outbox, desk })
            }
            _ if self.desk.is_none() => Err(invalid("expected a hello first")),
            message => translate(self.session, message, |_, gradient| match gradient {
                Gradient::InPlace => Ok(Landed::InPlace),
                Gradient::Withheld => Ok(Landed::Nowhere),
                Gradient::Follows => Err(invalid("a gradient sent where memory is shared")),
            }),
        }
    }
}
