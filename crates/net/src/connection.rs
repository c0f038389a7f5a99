//! One connection, as the thread sees it that waits for it: frames in, an outbox out. Nothing here blocks.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;

use crate::frame_reader::{FrameReader, Received};
use crate::outbox::{Outbox, Rest};
use crate::poller::{Interest, Poller, Waker};
use crate::socket::{Socket, Stream, Traffic};
use crate::tls::Tls;

/// Bytes that are read or sent before other connections of the thread get their turn.
const SHARE: usize = 4 * 1024 * 1024;

/// How long the last messages may take to be sent, and the peer to close its side.
pub(crate) const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// A connection. Its owner is the thread that has it.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: Stream,
    reader: FrameReader,
    outbox: Arc<Outbox>,
    token: u64,
    interest: Interest,
}

impl Connection {
    /// A connection whose owner waits for it under `token`.
    pub(crate) fn new(socket: Socket, tls: Option<Tls>, traffic: &Traffic, owner: &Waker, token: u64) -> Self {
        let stream = Stream::new(socket, tls);
        let outbox = Arc::new(Outbox::new(&stream, traffic.clone(), owner.clone(), token));
        let reader = FrameReader::new(traffic.clone());
        Connection { stream, reader, outbox, token, interest: Interest::default() }
    }

    pub(crate) fn outbox(&self) -> &Arc<Outbox> {
        &self.outbox
    }

    pub(crate) fn socket(&self) -> &Socket {
        self.stream.socket()
    }

    pub(crate) fn is_encrypted(&self) -> bool {
        self.stream.is_encrypted()
    }

    pub(crate) fn stream(&mut self) -> &mut Stream {
        &mut self.stream
    }

    /// The frames that arrive, to expect or abandon a vector.
    pub(crate) fn reader(&mut self) -> &mut FrameReader {
        &mut self.reader
    }

    /// Allows to read a share of what has arrived. To be called when the socket is readable.
    pub(crate) fn begin_reading(&mut self) {
        self.stream.allow(SHARE);
    }

    /// The next message or complete vector, if it has arrived and is within the share.
    pub(crate) fn receive<M: DeserializeOwned>(&mut self) -> io::Result<Option<Received<M>>> {
        would_block(self.reader.next(&mut self.stream))
    }

    /// Reads and forgets what has arrived; 0 means the end.
    pub(crate) fn skip(&mut self) -> io::Result<Option<usize>> {
        would_block(self.reader.skip(&mut self.stream))
    }

    /// Sends a share of what is in the outbox.
    pub(crate) fn send_pending(&mut self) -> io::Result<Rest> {
        let rest = self.outbox.send_pending(&mut self.stream, SHARE)?;
        let flushed = would_block(self.stream.flush())?;
        Ok(match rest {
            _ if flushed.is_none() => Rest::Blocked,
            // The peer's answer makes the connection readable.
            Rest::Blocked if self.stream.is_handshaking() => Rest::Nothing,
            rest => rest,
        })
    }

    /// Changes what the socket is waited for.
    pub(crate) fn wait_for(&mut self, poller: &Poller, interest: Interest) -> io::Result<()> {
        poller.change(self.stream.socket(), self.token, self.interest, interest)?;
        self.interest = interest;
        Ok(())
    }
}

/// `None` if the call would have to wait.
fn would_block<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame;
    use crate::keys::Keys;
    use crate::outbox::{Transfer, TransferEnd};
    use crate::poller::{Lookout, Poller, Ready};
    use crate::scripted_peer::ScriptedPeer;
    use crate::shared_memory::{ModelMapping, Region, RegionWriter};
    use paceline_core::Version;
    use paceline_protocol::{PayloadFormat, ToServer, ToWorker};
    use std::net::{Shutdown, TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;
    use std::thread;

    /// Longer than all buffers of a connection.
    const LENGTH: usize = 2_000_000;

    fn tcp_pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (near, listener.accept().unwrap().0)
    }

    fn connection(socket: Socket, tls: Option<Tls>) -> (Poller, Connection) {
        let poller = Poller::new().unwrap();
        let connection = Connection::new(socket, tls, &Traffic::default(), poller.waker(), 5);
        (poller, connection)
    }

    /// Does what the owner of a connection does, until the outbox is closed and the peer has closed its side too.
    /// Returns the messages and the last vector; every `Model` announces one.
    fn own(poller: &Poller, connection: &mut Connection, payload: PayloadFormat) -> (Vec<ToWorker>, Option<Region>) {
        let (mut messages, mut vector) = (Vec::new(), None);
        let (mut has_sent_all, mut has_ended) = (false, false);
        let mut ready: Vec<Ready> = Vec::new();
        while !has_sent_all || !has_ended {
            let rest = if has_sent_all { Rest::Nothing } else { connection.send_pending().unwrap() };
            if rest == Rest::Closed {
                has_sent_all = true;
                connection.socket().shutdown(Shutdown::Write);
            }
            let writable = rest.is_pending();
            connection.wait_for(poller, Interest { readable: !has_ended, writable }).unwrap();
            if has_sent_all && has_ended {
                break;
            }
            ready.clear();
            poller.wait(&mut Lookout::default(), None, &mut ready).unwrap();
            assert!(ready.iter().all(|ready| ready.token == 5));
            if has_ended {
                continue;
            }
            connection.begin_reading();
            while let Some(received) = connection.receive().unwrap() {
                match received {
                    Received::Message(message) => {
                        if let ToWorker::Model { .. } = message {
                            let region = Region::private(LENGTH).unwrap();
                            connection.reader().expect(Some(region), LENGTH, payload);
                        }
                        messages.push(message);
                    }
                    Received::Values(region) => vector = region,
                    Received::End => {
                        has_ended = true;
                        break;
                    }
                }
            }
        }
        (messages, vector)
    }

    fn transfer(number: u64, values: Arc<Region>, payload: PayloadFormat) -> Transfer {
        let frame = frame::encode(&ToWorker::Continue { number }).unwrap();
        let version = Version(number);
        let announcement = frame::encode(&ToWorker::Model { version }).unwrap();
        Transfer { number, frame, version: Some(version), announcement, values, payload }
    }

    fn counted(length: usize) -> Arc<Region> {
        let mut region = Region::private(length).unwrap();
        (0..).zip(region.values_mut()).for_each(|(index, value)| *value = (index % 1000) as f32);
        Arc::new(region)
    }

    /// Both sides send more than fits into all buffers before either has received anything.
    fn exchange(near: (Socket, Option<Tls>), far: (Socket, Option<Tls>), payload: PayloadFormat) {
        thread::scope(|scope| {
            for (socket, tls) in [near, far] {
                scope.spawn(move || {
                    let (poller, mut connection) = connection(socket, tls);
                    let (outbox, values) = (connection.outbox().clone(), counted(LENGTH));
                    let sender = thread::spawn(move || {
                        outbox.transfer(transfer(0, values, payload), usize::MAX);
                        for number in 1..100 {
                            outbox.send(&ToWorker::Collect { number }).unwrap();
                        }
                        assert_eq!(outbox.wait_for_transfer(), TransferEnd::Sent);
                        outbox.close(Some(frame::encode(&ToWorker::Interrupt { number: 0 }).unwrap()));
                    });
                    let (messages, vector) = own(&poller, &mut connection, payload);
                    sender.join().unwrap();
                    assert_eq!(messages.len(), 2 + 99 + 1);
                    assert_eq!(messages.last(), Some(&ToWorker::Interrupt { number: 0 }));
                    assert_eq!(vector.unwrap().values(), counted(LENGTH).values());
                });
            }
        });
    }

    #[test]
    fn two_peers_that_both_send_do_not_block_each_other() {
        for payload in [PayloadFormat::F32, PayloadFormat::F16] {
            let (near, far) = tcp_pair();
            exchange((Socket::tcp(near, None).unwrap(), None), (Socket::tcp(far, None).unwrap(), None), payload);
            let folder = tempfile::tempdir().unwrap();
            Keys::generate(folder.path()).unwrap();
            let keys = Keys::read(folder.path()).unwrap();
            let (config, name) = keys.client().unwrap();
            let client = Tls::new(rustls::ClientConnection::new(config, name).unwrap());
            let server = Tls::new(rustls::ServerConnection::new(keys.server().unwrap()).unwrap());
            let (near, far) = tcp_pair();
            let (near, far) = (Socket::tcp(near, None).unwrap(), Socket::tcp(far, None).unwrap());
            exchange((near, Some(client)), (far, Some(server)), payload);
        }
    }

    #[test]
    fn direct_and_queued_messages_arrive_in_order_and_known_models_once() {
        const MODELS: u64 = 100;
        const SMALL: usize = 16_000;
        let (near, far) = tcp_pair();
        let (poller, mut connection) = connection(Socket::tcp(near, None).unwrap(), None);
        let outbox = connection.outbox().clone();
        let mut peer = ScriptedPeer::new(far);
        // Small enough to be sent directly, until the kernel's buffers are full. The owner does nothing yet.
        for number in 0..MODELS {
            let mut values = Region::private(SMALL).unwrap();
            values.values_mut().fill(number as f32);
            let values = Arc::new(values);
            for _ in 0..2 {
                outbox.transfer(transfer(number, values.clone(), PayloadFormat::F32), SMALL * 4);
            }
            outbox.send(&ToWorker::Collect { number }).unwrap();
        }
        assert!(!outbox.withdraw(0), "sent already");
        assert!(outbox.withdraw(MODELS - 1), "still queued");
        thread::scope(|scope| {
            scope.spawn(|| own(&poller, &mut connection, PayloadFormat::F32));
            let (mut continued, mut collected, mut models) = (Vec::new(), Vec::new(), Vec::new());
            let mut is_closed = false;
            loop {
                match peer.next().unwrap() {
                    Received::Message(ToWorker::Continue { number }) => continued.push(number),
                    Received::Message(ToWorker::Collect { number }) => collected.push(number),
                    Received::Message(ToWorker::Model { version }) => {
                        models.push(version.0);
                        peer.expect(SMALL);
                    }
                    Received::Message(ToWorker::Interrupt { .. }) => {}
                    Received::Message(other) => panic!("{other:?} was never sent"),
                    Received::Values(region) => {
                        assert_eq!(region.unwrap().values(), [*models.last().unwrap() as f32; SMALL]);
                    }
                    Received::End => break,
                }
                // All but the withdrawn assignments have arrived.
                if continued.len() as u64 == 2 * (MODELS - 1) && !is_closed {
                    is_closed = true;
                    outbox.close(Some(frame::encode(&ToWorker::Interrupt { number: 0 }).unwrap()));
                }
            }
            drop(peer);
            assert_eq!(collected, (0..MODELS).collect::<Vec<_>>());
            assert_eq!(models, (0..MODELS - 1).collect::<Vec<_>>());
            assert_eq!(continued, (0..MODELS - 1).flat_map(|number| [number; 2]).collect::<Vec<_>>());
        });
    }

    #[test]
    fn a_transfer_is_stopped_between_two_chunks() {
        let (near, far) = tcp_pair();
        let (poller, mut connection) = connection(Socket::tcp(near, None).unwrap(), None);
        let outbox = connection.outbox().clone();
        let mut peer = ScriptedPeer::new(far);
        outbox.transfer(transfer(0, counted(LENGTH), PayloadFormat::F32), usize::MAX);
        // The peer reads nothing, so a part is unsent.
        outbox.stop_transfer(0);
        assert_eq!(outbox.wait_for_transfer(), TransferEnd::Withdrawn);
        outbox.send(&ToWorker::Interrupt { number: 0 }).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| own(&poller, &mut connection, PayloadFormat::F32));
            assert_eq!(peer.message::<ToWorker>(), ToWorker::Continue { number: 0 });
            assert_eq!(peer.message::<ToWorker>(), ToWorker::Model { version: Version(0) });
            peer.expect(LENGTH);
            assert_eq!(peer.message::<ToWorker>(), ToWorker::Interrupt { number: 0 });
            outbox.close(None);
            assert!(peer.next::<ToWorker>().is_err(), "it ends in the middle of the model");
            drop(peer);
        });
    }

    #[test]
    fn file_descriptors_arrive_with_their_message() {
        let (near, far) = UnixStream::pair().unwrap();
        let (_, sending) = connection(Socket::local(near), None);
        let (_, mut receiving) = connection(Socket::local(far), None);
        let mut region = Region::shared(3, RegionWriter::Owner).unwrap();
        region.values_mut()[2] = 4.0;
        for with_file in [false, true, false] {
            let file = region.file().filter(|_| with_file).map(|file| file.try_clone_to_owned().unwrap());
            sending.outbox().send_with(&ToServer::Dropped { number: 1 }, file).unwrap();
        }
        receiving.begin_reading();
        for with_file in [false, true, false] {
            let Ok(Some(Received::Message(message))) = receiving.receive::<ToServer>() else {
                panic!("expected a message")
            };
            assert_eq!(message, ToServer::Dropped { number: 1 });
            if with_file {
                let file = receiving.stream().file().unwrap();
                assert_eq!(Region::open_model(file, 3, ModelMapping::Private).unwrap().values()[2], 4.0);
            }
        }
        assert!(receiving.stream().file().is_err());
    }

    #[test]
    fn a_peer_that_never_reads_is_disconnected() {
        let (near, _far) = UnixStream::pair().unwrap();
        let (_, connection) = connection(Socket::local(near), None);
        let send = |number| connection.outbox().send(&ToServer::Dropped { number });
        let error = (0..100_000).find_map(|number| send(number).err()).unwrap();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(send(0).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
