//! TLS over a socket that never blocks.

use std::fmt;
use std::io::{self, IoSlice, Read, Write};

use rustls::Connection;

/// Bytes per read from the network: one TLS record.
const READ_SIZE: usize = 16 * 1024;

/// The state of one TLS connection. The thread that owns the connection reads and writes; the two directions do not wait
/// for each other, so two peers that both send can't block each other.
pub(crate) struct Tls {
    connection: Connection,
    /// Bytes that have arrived; those from `decrypted` on are not decrypted yet.
    encrypted: Vec<u8>,
    decrypted: usize,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls")
    }
}

impl Tls {
    pub(crate) fn new(connection: impl Into<Connection>) -> Self {
        Tls { connection: connection.into(), encrypted: Vec::new(), decrypted: 0 }
    }

    /// Reads decrypted bytes; `socket` supplies the encrypted ones, and takes replies of the handshake.
    pub(crate) fn read(&mut self, bytes: &mut [u8], mut socket: impl Read + Write) -> io::Result<usize> {
        loop {
            match self.connection.reader().read(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // Frames carry their length, so a missing TLS close message does no harm.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(0),
                read => return read,
            }
            if self.decrypted == self.encrypted.len() {
                self.decrypted = 0;
                self.encrypted.resize(READ_SIZE, 0);
                let read = socket.read(&mut self.encrypted);
                self.encrypted.truncate(*read.as_ref().unwrap_or(&0));
                if read? == 0 {
                    return Ok(0);
                }
            }
            let mut rest = &self.encrypted[self.decrypted..];
            let taken = self.connection.read_tls(&mut rest)?;
            self.decrypted += taken;
            let processed = self.connection.process_new_packets();
            // During the handshake the peer waits for this reply, or for the reason of a failure.
            let replied = self.flush(&mut socket);
            processed.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            match replied {
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
                _ => {}
            }
        }
    }

    /// Encrypts and sends as many bytes as the connection takes now. Some of them may wait for [`flush`](Tls::flush), or
    /// for the end of the handshake.
    pub(crate) fn write(&mut self, slices: &[IoSlice<'_>], mut socket: impl Write) -> io::Result<usize> {
        self.flush(&mut socket)?;
        let written = self.connection.writer().write_vectored(slices)?;
        if written == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        match self.flush(&mut socket) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(written),
        }
    }

    /// Whether what is to be sent waits for an answer of the peer.
    pub(crate) fn is_handshaking(&self) -> bool {
        self.connection.is_handshaking()
    }

    /// Sends what is encrypted already.
    pub(crate) fn flush(&mut self, mut socket: impl Write) -> io::Result<()> {
        while self.connection.wants_write() {
            self.connection.write_tls(&mut socket)?;
        }
        Ok(())
    }
}
