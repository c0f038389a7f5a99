//! Reads a connection that shares memory. The coordinator calls it when bytes have arrived; it never blocks.

use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;

use paceline_protocol::{GradientLocation, SessionId, ToServer};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use super::event_source::ServerInput;
use super::link::UploadPermits;
use crate::connection::{Socket, Traffic, invalid};
use crate::frame::first_message;

/// Bytes per read: dozens of messages.
const READ_SIZE: usize = 4 * 1024;

/// The reading side of one connection.
#[derive(Debug)]
pub(super) struct LocalReader {
    session: SessionId,
    socket: Socket,
    /// Bytes that are not parsed yet: the beginning of a frame.
    pending: Vec<u8>,
    permits: Arc<UploadPermits>,
}

impl LocalReader {
    pub(super) fn new(session: SessionId, socket: Socket, permits: Arc<UploadPermits>) -> Self {
        LocalReader { session, socket, pending: Vec::new(), permits }
    }

    pub(super) fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Reads the bytes that have arrived and appends their inputs. Breaks if the connection has ended.
    pub(super) fn read(&mut self, traffic: &Traffic, inputs: &mut Vec<ServerInput>) -> ControlFlow<()> {
        let reason = match self.receive(traffic).and_then(|ended| self.parse(inputs).map(|()| ended)) {
            Ok(false) => return ControlFlow::Continue(()),
            Ok(true) => "connection closed".into(),
            Err(error) => error.to_string(),
        };
        inputs.push(ServerInput::Closed { session: self.session, reason });
        ControlFlow::Break(())
    }

    /// Reads into `pending`. Returns whether the peer has closed.
    fn receive(&mut self, traffic: &Traffic) -> io::Result<bool> {
        let mut buffer = [0; READ_SIZE];
        match recv(&self.socket, &mut buffer, RecvFlags::DONTWAIT) {
            Ok((0, _)) => Ok(true),
            Ok((count, _)) => {
                traffic.add(count);
                // A refused worker may send until it notices. Its connection is only waited for.
                if !self.permits.is_refused() {
                    self.pending.extend_from_slice(&buffer[..count]);
                }
                Ok(false)
            }
            Err(Errno::INTR | Errno::AGAIN) => Ok(false),
            // The peer was killed with unread messages.
            Err(Errno::CONNRESET) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }

    fn parse(&mut self, inputs: &mut Vec<ServerInput>) -> io::Result<()> {
        let mut parsed = 0;
        while let Some((message, length)) = first_message(&self.pending[parsed..])? {
            parsed += length;
            if matches!(message, ToServer::Report { gradient: GradientLocation::Follows, .. }) {
                return Err(invalid("gradient sent over a shared-memory connection"));
            }
            inputs.push(ServerInput::Message { session: self.session, message, gradient: None });
        }
        self.pending.drain(..parsed);
        Ok(())
    }
}
