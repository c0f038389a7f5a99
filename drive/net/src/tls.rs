//! An encrypted connection that one thread reads while another writes.

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
        Tls { stream, connection: Mutex::new(connection), turn: Mutex::new(()) }
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
            let mut portion = [0; PORTION];
            let count = (&self.stream).read(&mut portion)?;
            if count == 0 {
                return Ok(0);
            }
            let (answers, opened) = self.open(&portion[..count]);
            // While hands are shaken the peer waits for this; later it can go with whatever is written next.
            if answers {
                self.write(&[])?;
            }
            opened?;
        }
    }

    /// Decrypts what has arrived. Says whether there is something to answer at once.
    fn open(&self, mut sealed: &[u8]) -> (bool, io::Result<()>) {
        let mut connection = lock(&self.connection);
        let greeting = connection.is_handshaking();
        let mut opened = Ok(());
        while !sealed.is_empty() && opened.is_ok() {
            let invalid = |error| io::Error::new(io::ErrorKind::InvalidData, error);
            opened = connection.read_tls(&mut sealed).map(drop);
            opened = opened.and_then(|()| connection.process_new_packets().map(drop).map_err(invalid));
        }
        (connection.wants_write() && (greeting || opened.is_err()), opened)
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
