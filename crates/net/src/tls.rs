//! A TLS connection that one thread reads while another writes.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use rustls::Connection;

/// Bytes per read from the network: one TLS record.
const READ_SIZE: usize = 16 * 1024;

/// A TLS connection. Reading and writing do not block each other: the lock on the TLS state is never held during
/// network I/O.
pub(crate) struct TlsStream {
    stream: TcpStream,
    connection: Mutex<Connection>,
    /// Bytes that have arrived and are not decrypted yet.
    encrypted: Mutex<VecDeque<u8>>,
    /// Held while writing to the network, so that records are sent in the order of their encryption.
    write_lock: Mutex<()>,
}

impl fmt::Debug for TlsStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TlsStream({:?})", self.stream)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl TlsStream {
    pub(crate) fn new(stream: TcpStream, connection: Connection) -> Self {
        TlsStream {
            stream,
            connection: Mutex::new(connection),
            encrypted: Mutex::default(),
            write_lock: Mutex::default(),
        }
    }

    pub(crate) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Reads decrypted bytes. All reads from the network that this takes must be done by `deadline`.
    pub(crate) fn read(&self, bytes: &mut [u8], deadline: Option<Instant>) -> io::Result<usize> {
        loop {
            match lock(&self.connection).reader().read(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // Frames carry their length, so a missing TLS close message does no harm.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(0),
                read => return read,
            }
            let mut encrypted = lock(&self.encrypted);
            if encrypted.is_empty() {
                if let Some(deadline) = deadline {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Err(io::ErrorKind::WouldBlock.into());
                    }
                    self.stream.set_read_timeout(Some(left))?;
                }
                let mut buffer = [0; READ_SIZE];
                let count = (&self.stream).read(&mut buffer)?;
                if count == 0 {
                    return Ok(0);
                }
                encrypted.extend(&buffer[..count]);
            }
            let (must_write, decrypted) = self.decrypt(&mut encrypted);
            // During the handshake the peer waits for this reply; later it can be sent with the next write.
            if must_write {
                self.write(&[])?;
            }
            decrypted?;
        }
    }

    /// Decrypts until plaintext can be read, which buffers about one record. Also returns whether a reply must be sent
    /// at once.
    fn decrypt(&self, encrypted: &mut VecDeque<u8>) -> (bool, io::Result<()>) {
        let mut connection = lock(&self.connection);
        let handshaking = connection.is_handshaking();
        let mut readable = Ok(0);
        while let Ok(0) = readable
            && !encrypted.is_empty()
        {
            let invalid = |error| io::Error::new(io::ErrorKind::InvalidData, error);
            let taken = connection.read_tls(encrypted);
            let decrypted = taken.and_then(|_| connection.process_new_packets().map_err(invalid));
            readable = decrypted.map(|state| state.plaintext_bytes_to_read());
        }
        (connection.wants_write() && (handshaking || readable.is_err()), readable.map(drop))
    }

    pub(crate) fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        let _write_lock = lock(&self.write_lock);
        let mut encrypted = Vec::new();
        let count = {
            let mut connection = lock(&self.connection);
            let count = connection.writer().write(bytes)?;
            while connection.wants_write() {
                connection.write_tls(&mut encrypted)?;
            }
            count
        };
        (&self.stream).write_all(&encrypted)?;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::Keys;
    use rustls::ServerConnection;
    use std::net::TcpListener;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;
    use std::time::Duration;

    #[test]
    fn a_handshake_that_arrives_byte_by_byte_ends_at_the_deadline() {
        let folder = tempfile::tempdir().unwrap();
        Keys::generate(folder.path()).unwrap();
        let config = Keys::read(folder.path()).unwrap().server().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut slow = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let tls = TlsStream::new(listener.accept().unwrap().0, ServerConnection::new(config).unwrap().into());
        let ended = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                // The header of a record of 16 KiB, then one byte now and then.
                slow.write_all(&[22, 3, 1, 0x40, 0]).unwrap();
                while !ended.load(Ordering::Relaxed) && slow.write_all(&[1]).is_ok() {
                    thread::sleep(Duration::from_millis(20));
                }
            });
            let deadline = Instant::now() + Duration::from_millis(300);
            let error = tls.read(&mut [0; 16], Some(deadline)).unwrap_err();
            ended.store(true, Ordering::Relaxed);
            assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "{error}");
        });
    }
}
