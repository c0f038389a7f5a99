//! An encrypted connection that one thread reads while another writes.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustls::Connection;

/// Read from the network at a time, in bytes: a record.
const PORTION: usize = 16 * 1024;

/// An encrypted connection. Neither side of it waits for the other: the lock on the cipher is never held while the network
/// is waited for.
pub(crate) struct Tls {
    stream: TcpStream,
    connection: Mutex<Connection>,
    /// What has arrived and is not decrypted yet.
    sealed: Mutex<VecDeque<u8>>,
    /// Whoever holds this writes to the network, so that records leave in the order they were sealed.
    turn: Mutex<()>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tls({:?})", self.stream)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Tls {
    pub(crate) fn new(stream: TcpStream, connection: Connection) -> Self {
        Tls { stream, connection: Mutex::new(connection), sealed: Mutex::default(), turn: Mutex::default() }
    }

    pub(crate) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    pub(crate) fn read(&self, bytes: &mut [u8]) -> io::Result<usize> {
        loop {
            match lock(&self.connection).reader().read(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // Frames say themselves where they end.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(0),
                read => return read,
            }
            let mut sealed = lock(&self.sealed);
            if sealed.is_empty() {
                let mut portion = [0; PORTION];
                let count = (&self.stream).read(&mut portion)?;
                if count == 0 {
                    return Ok(0);
                }
                sealed.extend(&portion[..count]);
            }
            let (answers, opened) = self.open(&mut sealed);
            // While hands are shaken the peer waits for this; later it can go with whatever is written next.
            if answers {
                self.write(&[])?;
            }
            opened?;
        }
    }

    /// Decrypts what has arrived until there is something to be read: the cipher holds a record or so, no more. Says
    /// whether there is something to answer at once.
    fn open(&self, sealed: &mut VecDeque<u8>) -> (bool, io::Result<()>) {
        let mut connection = lock(&self.connection);
        let greeting = connection.is_handshaking();
        let mut readable = Ok(0);
        while let Ok(0) = readable
            && !sealed.is_empty()
        {
            let invalid = |error| io::Error::new(io::ErrorKind::InvalidData, error);
            let taken = connection.read_tls(sealed);
            let opened = taken.and_then(|_| connection.process_new_packets().map_err(invalid));
            readable = opened.map(|state| state.plaintext_bytes_to_read());
        }
        (connection.wants_write() && (greeting || readable.is_err()), readable.map(drop))
    }

    pub(crate) fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        let _turn = lock(&self.turn);
        let mut sealed = Vec::new();
        let count = {
            let mut connection = lock(&self.connection);
            let count = connection.writer().write(bytes)?;
            while connection.wants_write() {
                connection.write_tls(&mut sealed)?;
            }
            count
        };
        (&self.stream).write_all(&sealed)?;
        Ok(count)
    }
}
