//! A worker's connections to the shards, which hold the parameters. A thread of its own puts models together from their
//! parts, and sends updates in parts.

use std::collections::BTreeMap;
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
use super::task_queue::TaskQueue;
use crate::address::Address;
use crate::connect::dial;
use crate::connection::{Connection, Side};
use crate::frame;
use crate::frame_reader::{Received, invalid};
use crate::keys::Keys;
use crate::outbox::{Outbox, Rest, Transfer, TransferEnd};
use crate::poller::{Interest, Lookout, Poller, Ready, Waker};
use crate::shared_memory::Region;
use crate::socket::Traffic;

/// How long the server has to say why a shard has ended.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// How a worker reaches shards.
#[derive(Debug, Clone, Default)]
pub(super) struct ShardAccess {
    pub(super) keys: Option<Keys>,
    pub(super) congestion: Option<String>,
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
    ranges: Vec<Range<usize>>,
    /// Known once all are connected.
    outboxes: Arc<OnceLock<Vec<Arc<Outbox>>>>,
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
        let (outboxes, is_closed) = (Arc::new(OnceLock::new()), Arc::new(AtomicBool::new(false)));
        let (waker, payload, queue) = (poller.waker().clone(), map.payload.clone(), task_queue.clone());
        let (own_ranges, own_outboxes, own_closed) = (ranges.clone(), outboxes.clone(), is_closed.clone());
        let run = move || {
            let mut receiver = PartReceiver {
                poller,
                connections: Vec::new(),
                expected: vec![None; own_ranges.len()],
                ranges: own_ranges,
                arriving: BTreeMap::new(),
                models: Vec::new(),
                payload: map.payload.clone(),
                server: server.clone(),
            };
            let received = receiver.connect(&map, &access).and_then(|()| {
                let all = receiver.connections.iter().map(|connection| connection.outbox().clone()).collect();
                let _ = own_outboxes.set(all);
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
        Ok(ShardLinks { ranges, outboxes, payload, task_queue: queue, waker, is_closed, thread })
    }

    /// Sends an update to the shards, each its part, and waits until all of it is sent, or `is_cancelled`. Returns its buffer
    /// and how it ended.
    pub(super) fn push(
        &self,
        task: TaskId,
        version: Version,
        values: Region,
        is_cancelled: impl Fn() -> bool,
    ) -> io::Result<(Option<Region>, TransferEnd)> {
        let outboxes = self.outboxes.get().ok_or(io::ErrorKind::NotConnected)?;
        let parts: Vec<Arc<Region>> = values.split(&self.ranges).into_iter().map(Arc::new).collect();
        let (number, announcement, payload) = (task.number, Vec::new(), self.payload.format());
        for (outbox, part) in outboxes.iter().zip(&parts) {
            let frame = frame::encode(&WorkerToShard::Push { task, version })?;
            let (announcement, values) = (announcement.clone(), part.clone());
            outbox.transfer(Transfer { number, frame, version: None, announcement, values, payload }, 0);
        }
        // It may have been cancelled before the transfers were there to be stopped.
        if is_cancelled() {
            self.stop(number);
        }
        let ends: Vec<TransferEnd> = outboxes.iter().map(|outbox| outbox.wait_for_transfer()).collect();
        if ends.contains(&TransferEnd::Disconnected) {
            self.task_queue.wait_for_end();
            return Ok((None, TransferEnd::Disconnected));
        }
        for (outbox, end) in outboxes.iter().zip(&ends) {
            if *end == TransferEnd::Withdrawn {
                outbox.send(&WorkerToShard::Dropped)?;
            }
        }
        let whole = parts.into_iter().map(Arc::into_inner).collect::<Option<Vec<_>>>().and_then(Region::join);
        let end = if ends.contains(&TransferEnd::Withdrawn) { TransferEnd::Withdrawn } else { TransferEnd::Sent };
        Ok((whole, end))
    }

    /// Stops sending the update of a task.
    pub(super) fn stop(&self, number: u64) {
        self.outboxes.get().into_iter().flatten().for_each(|outbox| outbox.stop_transfer(number));
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

/// A model whose parts are arriving.
struct ArrivingModel {
    /// The parts that are not being received.
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
    /// Of which model each shard sends its part.
    expected: Vec<Option<Version>>,
    /// Buffers of models; one is used again when no task reads it.
    models: Vec<Arc<Region>>,
    payload: Arc<PayloadChoice>,
    server: Arc<Outbox>,
}

impl PartReceiver {
    fn connect(&mut self, map: &ShardMap, ShardAccess { keys, congestion }: &ShardAccess) -> io::Result<()> {
        for (token, place) in (0..).zip(&map.places) {
            let of_place = |error: io::Error| {
                io::Error::new(error.kind(), format!("can't reach the shard at {}: {error}", place.address))
            };
            let address: Address = place.address.parse().map_err(|error| invalid(format!("{error}")))?;
            let (socket, tls) = dial(&address, congestion.as_deref(), keys.as_ref()).map_err(of_place)?;
            socket.share_send_buffer(map.places.len())?;
            let mut connection =
                Connection::new(Side::Worker, socket, tls, &Traffic::default(), self.poller.waker(), token);
            let (run, session, shards) = (map.run, map.session, map.places.len() as u32);
            let greeting = ShardGreeting::Work { token: keys.as_ref().map(Keys::token), run, session, shards };
            connection.outbox().send(&greeting).map_err(of_place)?;
            connection.send_pending().map_err(of_place)?;
            connection.wait_for(&self.poller, Interest::READABLE)?;
            self.connections.push(connection);
        }
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
                    Received::Values(Some(part)) => self.complete(index, part, task_queue)?,
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

    /// A part of a model follows.
    fn expect(&mut self, index: usize, version: Version) -> io::Result<()> {
        self.payload.model_begins(Instant::now());
        if !self.arriving.contains_key(&version) {
            let free = self.models.iter_mut().position(|model| Arc::get_mut(model).is_some());
            let free = free.and_then(|free| Arc::into_inner(self.models.swap_remove(free)));
            let length = self.ranges.last().map_or(0, |range| range.end);
            let whole = free.map_or_else(|| Region::private(length), Ok)?;
            let parts = whole.split(&self.ranges).into_iter().map(Some).collect();
            self.arriving.insert(version, ArrivingModel { parts, left: self.ranges.len() });
        }
        let part = self.arriving.get_mut(&version).and_then(|model| model.parts[index].take());
        let part = part.ok_or_else(|| invalid("a part that has arrived already"))?;
        let length = part.values().len();
        self.connections[index].reader().expect(Some(part), length);
        self.expected[index] = Some(version);
        Ok(())
    }

    /// A part is complete.
    fn complete(&mut self, index: usize, part: Region, task_queue: &TaskQueue) -> io::Result<()> {
        let version = self.expected[index].take().ok_or_else(|| invalid("values that nobody expects"))?;
        let Some(model) = self.arriving.get_mut(&version) else { return Ok(()) };
        model.parts[index] = Some(part);
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
            task_queue.add_model(version, whole.clone());
            self.models.push(whole);
        }
        Ok(())
    }
}
