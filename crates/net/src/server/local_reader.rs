//! Reads a connection that shares memory. The coordinator calls it when bytes have arrived; it never blocks.

use std::collections::VecDeque;
use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use super::event_source::{ReceivedGradient, ServerInput};
use super::remote_worker::UploadPermits;
use super::send_queue::SendQueue;
use super::session::into_input;
use crate::connection::{Socket, Traffic, invalid};
use crate::frame::first_message;
use crate::message::{GradientLocation, ToServer, ToWorker};

/// Bytes per read: dozens of messages.
const READ_SIZE: usize = 4 * 1024;

/// The reading side of one connection.
#[derive(Debug)]
pub(super) struct LocalReader {
    session: u64,
    peer: String,
    socket: Socket,
    /// Bytes that are not parsed yet: the beginning of a frame.
    pending: Vec<u8>,
    permits: Option<Arc<UploadPermits>>,
}

impl LocalReader {
    pub(super) fn new(session: u64, peer: String, socket: Socket) -> Self {
        LocalReader { session, peer, socket, pending: Vec::new(), permits: None }
    }

    pub(super) fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Whether its hello has arrived.
    pub(super) fn is_identified(&self) -> bool {
        self.permits.is_some()
    }

    pub(super) fn refusal(&self, reason: String) -> ServerInput {
        ServerInput::Refused { peer: self.peer.clone(), reason }
    }

    /// Reads the bytes that have arrived and appends their inputs. Breaks if the connection has ended.
    pub(super) fn read(&mut self, traffic: &Traffic, inputs: &mut VecDeque<ServerInput>) -> ControlFlow<()> {
        let reason = match self.receive(traffic).and_then(|ended| self.parse(inputs).map(|()| ended)) {
            Ok(false) => return ControlFlow::Continue(()),
            Ok(true) => "connection closed".into(),
            Err(error) => error.to_string(),
        };
        inputs.push_back(if self.is_identified() {
            ServerInput::Lost { session: self.session, reason }
        } else {
            self.refuse(&reason);
            self.refusal(reason)
        });
        ControlFlow::Break(())
    }

    /// Sends the reason to a peer whose handshake failed. The peer may have closed already.
    fn refuse(&self, reason: &str) {
        SendQueue::local(self.socket.clone()).close(&ToWorker::Refuse { reason: reason.into(), may_rejoin: false });
    }

    /// Reads into `pending`. Returns whether the peer has closed.
    fn receive(&mut self, traffic: &Traffic) -> io::Result<bool> {
        let mut buffer = [0; READ_SIZE];
        match recv(&self.socket, &mut buffer, RecvFlags::DONTWAIT) {
            Ok((0, _)) => Ok(true),
            Ok((count, _)) => {
                traffic.add(count);
                self.pending.extend_from_slice(&buffer[..count]);
                Ok(false)
            }
            Err(Errno::INTR | Errno::AGAIN) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn parse(&mut self, inputs: &mut VecDeque<ServerInput>) -> io::Result<()> {
        let mut parsed = 0;
        while let Some((message, length)) = first_message(&self.pending[parsed..])? {
            if self.permits.as_ref().is_some_and(|permits| permits.is_refused()) {
                return Err(invalid("message after the refusal"));
            }
            parsed += length;
            let input = self.handle(message)?;
            inputs.push_back(input);
        }
        self.pending.drain(..parsed);
        Ok(())
    }

    fn handle(&mut self, message: ToServer) -> io::Result<ServerInput> {
        match message {
            // The process belongs to the same user, so it needs no token.
            ToServer::Hello { rank, emulated, .. } if self.permits.is_none() => {
                let send_queue = SendQueue::local(self.socket.clone());
                let permits = Arc::new(UploadPermits::default());
                self.permits = Some(permits.clone());
                Ok(ServerInput::JoinRequested {
                    session: self.session,
                    peer: self.peer.clone(),
                    rank,
                    emulated,
                    send_queue,
                    permits,
                })
            }
            _ if self.permits.is_none() => Err(invalid("expected a hello as the first message")),
            message => into_input(self.session, message, |_, gradient| match gradient {
                GradientLocation::InPlace => Ok(ReceivedGradient::InPlace),
                GradientLocation::Withheld => Ok(ReceivedGradient::NotSent),
                GradientLocation::Follows => Err(invalid("gradient sent over a shared-memory connection")),
            }),
        }
    }
}
