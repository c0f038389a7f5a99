//! A worker's connections to the shards, which hold the parameters. A thread of its own puts models together from their
//! parts, and sends updates in parts. Memory is shared with shards on the same host.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use paceline_core::{TaskId, Version};
use paceline_protocol::{FromShard, SessionEnd, ShardGreeting, ShardPlace, ToServer, WorkerToShard};
use paceline_workload::Progress;

use super::payload_choice::PayloadChoice;
use super::shared_vectors::SharedVectors;
use super::task_queue::TaskQueue;
use super::update_push::{PartLink, UpdatePush};
use crate::address::Address;
use crate::connect::{dial, shared_place};
use crate::connection::{Connection, Side};
use crate::frame_reader::{Received, invalid};
use crate::keys::Keys;
use crate::outbox::{Outbox, Rest};
use crate::poller::{Interest, Lookout, Poller, Ready, Waker};
use crate::shared_memory::{Region, RegionWriter};
use crate::socket::{Socket, Traffic};
use crate::tls::Tls;

/// How long the server has to say why a shard has ended.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// How a worker reaches shards.
#[derive(Debug, Clone, Default)]
pub(super) struct ShardAccess {
    pub(super) keys: Option<Keys>,
    pub(super) congestion: Option<String>,
    /// Whether memory is shared with those on this host.
    pub(super) shares_memory: bool,
}

impl ShardAccess {
    /// Connects to a shard: by shared memory if it is on this host and of the same user, else over TCP.
    fn dial(&self, place: &ShardPlace) -> io::Result<(Socket, Option<Tls>)> {
        let (keys, congestion) = (self.keys.as_ref(), self.congestion.as_deref());
        let shared = place.address.parse().ok().filter(|_| self.shares_memory).map(shared_place);
        if let Some(Ok(connected)) = shared.map(|shared| dial(&shared, congestion, keys)) {
            return Ok(connected);
        }
        let address: Address = place.address.parse().map_err(|error| invalid(format!("{error}")))?;
        dial(&address, congestion, keys)
    }
}

/// What the server says about the shards of its run.
#[derive(Debug)]
pub(super) struct ShardMap {
    pub(super) places: Vec<ShardPlace>,
    pub(super) run: u64,
    pub(super) session: u64,
    pub(super) payload: Arc<PayloadChoice>,
}

/// The connections to all shards, in the order of their parts.
pub(super) struct ShardLinks {
    /// Known once all are connected.
    links: Arc<OnceLock<Arc<Vec<PartLink>>>>,
    payload: Arc<PayloadChoice>,
    task_queue: Arc<TaskQueue>,
    waker: Waker,
    is_closed: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl ShardLinks {
    /// Connects to the shards of a model of `length` values. Models go to `task_queue`. If a connection fails or ends, the
    /// session does, and with it the connection to the server, whose outbox is given.
    pub(super) fn start(
        map: ShardMap,
        access: ShardAccess,
        length: usize,
        task_queue: Arc<TaskQueue>,
        progress: Progress,
        server: Arc<Outbox>,
    ) -> io::Result<Self> {
        let ranges = ranges(&map.places, length)?;
        let poller = Poller::new()?;
        let (links, is_closed) = (Arc::new(OnceLock::new()), Arc::new(AtomicBool::new(false)));
        let (waker, payload, queue) = (poller.waker().clone(), map.payload.clone(), task_queue.clone());
        let (own_links, own_closed) = (links.clone(), is_closed.clone());
        let run = move || {
            let mut receiver = PartReceiver {
                poller,
                connections: Vec::new(),
                links: Arc::default(),
                expected: Vec::new(),
                ranges,
                arriving: BTreeMap::new(),
                models: Vec::new(),
                payload: map.payload.clone(),
                server: server.clone(),
            };
            let received = receiver.connect(&map, &access).and_then(|()| {
                let _ = own_links.set(receiver.links.clone());
                receiver.run(&task_queue, &progress, &own_closed)
            });
            receiver.connections.iter().for_each(|connection| connection.outbox().disconnect());
            if let Err(error) = received {
                // At the end of a run, its shards end too. The server says what it is.
                let deadline = Instant::now() + END_TIMEOUT;
                while !task_queue.has_ended() && !own_closed.load(Ordering::Acquire) && Instant::now() < deadline {
                    let seen = task_queue.changes();
                    task_queue.wait_for_change(seen, Some(Instant::now() + END_TIMEOUT / 100));
                }
                task_queue.end(SessionEnd::Lost(error.to_string()));
            }
            server.disconnect();
        };
        let thread = Some(thread::Builder::new().name("shards".into()).spawn(run)?);
        Ok(ShardLinks { links, payload, task_queue: queue, waker, is_closed, thread })
    }

    /// A vector as long as the model. A shard on this host can read it.
    pub(super) fn vector(&self) -> io::Result<Region> {
        let links = self.links.get().ok_or(io::ErrorKind::NotConnected)?;
        new_vector(links)
    }

    /// Begins to send an update to the shards, each its part. Returns it if they are not connected yet.
    pub(super) fn push(&self, task: TaskId, version: Version, values: Region) -> Result<UpdatePush, Region> {
        match self.links.get() {
            Some(links) => Ok(UpdatePush::new(links.clone(), task, version, self.payload.format(), values)),
            None => Err(values),
        }
    }

    /// Waits until the session has ended: a connection to a shard has.
    pub(super) fn wait_for_end(&self) {
        self.task_queue.wait_for_end();
    }

    /// Stops sending the update of a task.
    pub(super) fn stop(&self, number: u64) {
        let links = self.links.get().into_iter().flat_map(|links| links.iter());
        links.for_each(|link| link.outbox.stop_transfer(number));
    }
}

impl Drop for ShardLinks {
    fn drop(&mut self) {
        self.is_closed.store(true, Ordering::Release);
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The parts of the shards. An error if they are not a model of this length.
fn ranges(places: &[ShardPlace], length: usize) -> io::Result<Vec<Range<usize>>> {
    let mut end = 0;
    let mut ranges = Vec::with_capacity(places.len());
    for place in places {
        let range = place.start as usize..(place.start.saturating_add(place.length)) as usize;
        if range.start != end || range.end > length {
            break;
        }
        end = range.end;
        ranges.push(range);
    }
    let is_whole = end == length && ranges.len() == places.len();
    is_whole.then_some(ranges).ok_or_else(|| invalid(format!("the shards do not hold a model of {length} values")))
}

/// A vector as long as the model. A shard on this host can read and write it.
fn new_vector(links: &[PartLink]) -> io::Result<Region> {
    let length = links.last().map_or(0, |link| link.range.end);
    let is_shared = links.iter().any(|link| link.shared.is_some());
    if is_shared { Region::shared(length, RegionWriter::Peer) } else { Region::private(length) }
}

/// A model whose parts are arriving.
struct ArrivingModel {
    /// The parts that are not being received or written.
    parts: Vec<Option<Region>>,
    /// How many have not arrived.
    left: usize,
}

/// What the thread has.
struct PartReceiver {
    poller: Poller,
    connections: Vec<Connection>,
    ranges: Vec<Range<usize>>,
    arriving: BTreeMap<Version, ArrivingModel>,
    links: Arc<Vec<PartLink>>,
    /// The models of which each shard sends its part, or writes it to the part that is here.
    expected: Vec<VecDeque<(Version, Option<Region>)>>,
    /// Buffers of models; one is used again when no task reads it.
    models: Vec<Arc<Region>>,
    payload: Arc<PayloadChoice>,
    server: Arc<Outbox>,
}

impl PartReceiver {
    fn connect(&mut self, map: &ShardMap, access: &ShardAccess) -> io::Result<()> {
        let (run, session, shards) = (map.run, map.session, map.places.len() as u32);
        let length = self.ranges.last().map_or(0, |range| range.end);
        let mut links = Vec::new();
        for ((token, place), range) in (0..).zip(&map.places).zip(&self.ranges) {
            let of_place = |error: io::Error| {
                io::Error::new(error.kind(), format!("can't reach the shard at {}: {error}", place.address))
            };
            let (socket, tls) = access.dial(place).map_err(of_place)?;
            socket.share_send_buffer(map.places.len())?;
            let mut connection =
                Connection::new(Side::Worker, socket, tls, &Traffic::default(), self.poller.waker(), token);
            let greeting = ShardGreeting::Work { token: access.keys.as_ref().map(Keys::token), run, session, shards };
            connection.outbox().send(&greeting).map_err(of_place)?;
            connection.send_pending().map_err(of_place)?;
            connection.wait_for(&self.poller, Interest::READABLE)?;
            let outbox = connection.outbox().clone();
            let shared = outbox.is_local().then(|| SharedVectors::new(outbox.clone(), range.start, length));
            links.push(PartLink { range: range.clone(), outbox, shared });
            self.connections.push(connection);
            self.expected.push(VecDeque::new());
        }
        self.links = Arc::new(links);
        Ok(())
    }

    fn run(&mut self, task_queue: &TaskQueue, progress: &Progress, is_closed: &AtomicBool) -> io::Result<()> {
        let (mut lookout, mut ready) = (Lookout::default(), Vec::new());
        loop {
            ready.clear();
            self.poller.wait(&mut lookout, None, &mut ready)?;
            if is_closed.load(Ordering::Acquire) {
                return Ok(());
            }
            if !ready.is_empty() {
                progress.step();
            }
            for one in &ready {
                self.advance(*one, task_queue)?;
            }
        }
    }

    fn advance(&mut self, Ready { token, readable, writable }: Ready, task_queue: &TaskQueue) -> io::Result<()> {
        let index = token as usize;
        if readable {
            self.connections[index].begin_reading();
            while let Some(received) = self.connections[index].receive::<FromShard>()? {
                match received {
                    Received::Message(FromShard::Model { version }) => self.expect(index, version)?,
                    Received::Message(FromShard::Written) => self.complete(index, None, task_queue)?,
                    Received::Values(Some(part)) => self.complete(index, Some(part), task_queue)?,
                    Received::Message(FromShard::Taken) => self.connections[index].outbox().handed_over(),
                    Received::End => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "a shard has ended")),
                    Received::Values(None) | Received::Message(_) => {
                        return Err(invalid("unexpected message of a shard"));
                    }
                }
            }
        }
        let connection = &mut self.connections[index];
        if writable || connection.is_encrypted() {
            let rest: Rest = connection.send_pending()?;
            connection.wait_for(&self.poller, Interest { readable: true, writable: rest.is_pending() })?;
        }
        Ok(())
    }

    /// A part of a model follows, or is to be written here.
    fn expect(&mut self, index: usize, version: Version) -> io::Result<()> {
        self.payload.model_begins(Instant::now());
        if !self.arriving.contains_key(&version) {
            let free = self.models.iter_mut().position(|model| Arc::get_mut(model).is_some());
            let free = free.and_then(|free| Arc::into_inner(self.models.swap_remove(free)));
            let whole = free.map_or_else(|| new_vector(&self.links), Ok)?;
            let parts = whole.split(&self.ranges).into_iter().map(Some).collect();
            self.arriving.insert(version, ArrivingModel { parts, left: self.ranges.len() });
        }
        let part = self.arriving.get_mut(&version).and_then(|model| model.parts[index].take());
        let part = part.ok_or_else(|| invalid("a part that has arrived already"))?;
        let (link, length) = (&self.links[index], part.values().len());
        if let Some(shared) = &link.shared {
            shared.send(&part, |vector| link.outbox.send(&WorkerToShard::WriteModel { vector }))?;
            self.expected[index].push_back((version, Some(part)));
        } else {
            self.connections[index].reader().expect(Some(part), length);
            self.expected[index].push_back((version, None));
        }
        Ok(())
    }

    /// A part is complete.
    fn complete(&mut self, index: usize, received: Option<Region>, task_queue: &TaskQueue) -> io::Result<()> {
        let expected = self.expected[index].pop_front().ok_or_else(|| invalid("values that nobody expects"))?;
        let (version, written) = expected;
        let Some(model) = self.arriving.get_mut(&version) else { return Ok(()) };
        model.parts[index] = received.or(written);
        model.left -= 1;
        if model.left == 0 {
            if let Some(format) = self.payload.model_arrived(Instant::now()) {
                self.server.send(&ToServer::Payload { format })?;
                let connections = self.connections.iter();
                connections.map(Connection::outbox).try_for_each(|one| one.send(&WorkerToShard::Payload { format }))?;
            }
            let parts = self.arriving.remove(&version).map(|model| model.parts.into_iter().flatten().collect());
            let whole =
                parts.and_then(Region::join).map(Arc::new).ok_or_else(|| invalid("parts of different models"))?;
            task_queue.add_model(version, Some(whole.clone()));
            self.models.push(whole);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;
    use crate::shard::Shard;

    #[test]
    fn memory_is_shared_with_a_shard_on_the_same_host_unless_the_worker_does_not_want_it() {
        let shard = Shard::start(IpAddr::V4(Ipv4Addr::LOCALHOST), None, None).unwrap();
        let place = ShardPlace { address: format!("127.0.0.1:{}", shard.port()), start: 0, length: 1 };
        for shares_memory in [true, false] {
            let access = ShardAccess { shares_memory, ..ShardAccess::default() };
            assert_eq!(access.dial(&place).unwrap().0.is_local(), shares_memory);
        }
        drop(shard);
        let error = ShardAccess { shares_memory: true, ..ShardAccess::default() }.dial(&place).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    }
}
