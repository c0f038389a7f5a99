//! A connection whose thread has nothing else to do than to wait for it.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::address::Address;
use crate::connect::dial;
use crate::connection::{Connection, Side};
use crate::frame_reader::{Received, invalid};
use crate::keys::Keys;
use crate::outbox::Outbox;
use crate::poller::{Interest, Lookout, Poller};
use crate::socket::{Socket, Traffic};
use crate::tls::Tls;

/// The token of the connection, the only one that is waited for.
const TOKEN: u64 = 0;

/// A connection. Other threads may add to its outbox; what they add is sent while this one waits.
#[derive(Debug)]
pub(crate) struct BlockingLink {
    pub(crate) poller: Poller,
    pub(crate) connection: Connection,
    lookout: Lookout,
}

impl BlockingLink {
    pub(crate) fn new(side: Side, socket: Socket, tls: Option<Tls>, traffic: &Traffic) -> io::Result<Self> {
        let poller = Poller::new()?;
        let connection = Connection::new(side, socket, tls, traffic, poller.waker(), TOKEN);
        Ok(BlockingLink { poller, connection, lookout: Lookout::default() })
    }

    /// Connects to the shard at a place. With keys, the connection is encrypted.
    pub(crate) fn to_shard(
        place: SocketAddr,
        congestion: Option<&str>,
        keys: Option<&Keys>,
        traffic: &Traffic,
    ) -> io::Result<Self> {
        let address = Address::Tcp { host: place.ip().to_string(), port: place.port() };
        let (socket, tls) = dial(&address, congestion, keys)?;
        BlockingLink::new(Side::Server, socket, tls, traffic)
    }

    pub(crate) fn outbox(&self) -> &Arc<Outbox> {
        self.connection.outbox()
    }

    /// Sends a message, as far as the kernel takes it now.
    pub(crate) fn send(&mut self, message: &impl Serialize) -> io::Result<()> {
        self.outbox().send(message)?;
        self.connection.send_pending().map(|_| ())
    }

    /// Sends all that is in the outbox, to a peer that sends nothing meanwhile.
    pub(crate) fn flush(&mut self, deadline: Instant) -> io::Result<()> {
        loop {
            let rest = self.connection.send_pending()?;
            let readable = self.connection.stream().is_handshaking();
            if !rest.is_pending() && !readable {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.wait(Interest { readable, writable: rest.is_pending() }, Some(deadline))?;
            if readable {
                self.connection.begin_reading();
                if let Some(received) = self.connection.receive::<()>()? {
                    return Err(invalid(format!("{received:?} during a handshake")));
                }
            }
        }
    }

    /// Sends what is in the outbox, and waits for a message or a complete vector until `deadline`.
    pub(crate) fn receive<M: DeserializeOwned>(&mut self, deadline: Option<Instant>) -> io::Result<Received<M>> {
        loop {
            self.connection.begin_reading();
            if let Some(received) = self.connection.receive()? {
                return Ok(received);
            }
            let rest = self.connection.send_pending()?;
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.wait(Interest { readable: true, writable: rest.is_pending() }, deadline)?;
        }
    }

    fn wait(&mut self, interest: Interest, deadline: Option<Instant>) -> io::Result<()> {
        self.connection.wait_for(&self.poller, interest)?;
        self.poller.wait(&mut self.lookout, deadline, &mut Vec::new())
    }
}
