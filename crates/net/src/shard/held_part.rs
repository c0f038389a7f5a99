//! The part of the parameters that a shard holds, the updates that have arrived, and the workers that send them.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;

use paceline_core::{TaskId, Version};
use paceline_protocol::{FromShard, PayloadFormat, ShardSum, ShardUpdate};
use paceline_runtime::{PartStepper, StepPlan, WeightedValues, compensate};
use paceline_store::{Optimizer, ShardNorms};

use crate::frame;
use crate::outbox::{Outbox, Transfer};
use crate::shared_memory::Region;

/// The longest model that the coordinator's thread sends itself, in bytes. It fits the kernel's empty buffers.
const MAX_DIRECT_BYTES: usize = 64 * 1024;

/// Updates of one worker that may wait for their commit. A worker that sends more is disconnected.
const MAX_WAITING: usize = 8;

/// A version of the part.
type PartVersion = (Version, Arc<Region>);

/// An update, or this shard's part of it.
struct PushedPart {
    session: u64,
    values: Region,
    /// The model that it was computed from, if it is kept.
    model: Option<Arc<Region>>,
}

/// A worker's connection.
#[derive(Default)]
struct PushingWorker {
    /// `None` until it has connected.
    outbox: Option<Arc<Outbox>>,
    /// Models to be sent once it has connected.
    waiting: Vec<PartVersion>,
    /// The version that was sent last.
    last: Option<Version>,
    /// The models that its updates may be computed from, if they are kept.
    models: Vec<PartVersion>,
}

/// A version of the part that is to be written.
pub(super) struct RetainedPart {
    pub(super) version: Version,
    pub(super) values: Arc<Region>,
    pub(super) optimizer: Optimizer,
}

/// What a shard holds for one run.
pub(super) struct HeldPart {
    /// Identifies the run.
    pub(super) run: u64,
    pub(super) stepper: PartStepper,
    pub(super) version: Version,
    pub(super) current: Arc<Region>,
    /// Where the next version is written.
    next: Region,
    /// Versions that may still be read.
    old: Vec<Arc<Region>>,
    keeps_models: bool,
    payload: PayloadFormat,
    workers: HashMap<u64, PushingWorker>,
    arrived: HashMap<TaskId, PushedPart>,
    /// Updates that are not needed and may still arrive.
    unwanted: HashSet<TaskId>,
    /// Buffers for updates.
    free: Vec<Region>,
    /// The version that is to be written, until that begins.
    pub(super) retained: Option<RetainedPart>,
}

impl HeldPart {
    pub(super) fn new(
        run: u64,
        stepper: PartStepper,
        version: Version,
        current: Region,
        keeps_models: bool,
        payload: PayloadFormat,
    ) -> io::Result<Self> {
        let next = Region::private(current.values().len())?;
        Ok(HeldPart {
            run,
            stepper,
            version,
            current: Arc::new(current),
            next,
            old: Vec::new(),
            keeps_models,
            payload,
            workers: HashMap::new(),
            arrived: HashMap::new(),
            unwanted: HashSet::new(),
            free: Vec::new(),
            retained: None,
        })
    }

    // --- workers ---

    /// A worker has connected.
    pub(super) fn connect(&mut self, session: u64, outbox: Arc<Outbox>) {
        let payload = self.payload;
        let worker = self.workers.entry(session).or_default();
        for (version, part) in std::mem::take(&mut worker.waiting) {
            send_model(&outbox, version, part, payload);
        }
        worker.outbox = Some(outbox);
    }

    /// Its connection has ended. What has arrived stays.
    pub(super) fn disconnect(&mut self, session: u64) {
        self.workers.remove(&session);
    }

    /// Sends the newest version to a worker, now or when it connects.
    pub(super) fn deliver(&mut self, session: u64) {
        let newest = (self.version, self.current.clone());
        let worker = self.workers.entry(session).or_default();
        if worker.last.replace(newest.0) == Some(newest.0) {
            return;
        }
        if self.keeps_models {
            worker.models.push(newest.clone());
        }
        match &worker.outbox {
            Some(outbox) => send_model(outbox, newest.0, newest.1, self.payload),
            None => worker.waiting.push(newest),
        }
    }

    /// A worker has left the run.
    pub(super) fn forget(&mut self, session: u64) {
        if let Some(outbox) = self.workers.remove(&session).and_then(|worker| worker.outbox) {
            outbox.disconnect();
        }
        let left: Vec<TaskId> =
            self.arrived.iter().filter(|(_, update)| update.session == session).map(|(&task, _)| task).collect();
        left.into_iter().for_each(|task| self.settle(task));
    }

    // --- updates ---

    /// Where an update is to be written; `None` if it is not needed. An error if the worker has sent too many.
    pub(super) fn expect(&mut self, session: u64, task: TaskId) -> io::Result<Option<Region>> {
        // A worker's tasks come in their order.
        self.unwanted.retain(|other| other.worker != task.worker || other.number >= task.number);
        if self.unwanted.contains(&task) {
            return Ok(None);
        }
        if self.arrived.values().filter(|update| update.session == session).count() >= MAX_WAITING {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "more updates than tasks"));
        }
        self.free.pop().map_or_else(|| Region::private(self.current.values().len()), Ok).map(Some)
    }

    /// An update is complete.
    pub(super) fn arrive(&mut self, session: u64, task: TaskId, version: Version, values: Region) {
        if self.unwanted.remove(&task) {
            return self.free.push(values);
        }
        let models = self.workers.get_mut(&session).map(|worker| &mut worker.models);
        let model = models.and_then(|models| {
            models.retain(|(kept, _)| *kept >= version);
            models.first().filter(|(kept, _)| *kept == version).map(|(_, model)| model.clone())
        });
        self.arrived.insert(task, PushedPart { session, values, model });
    }

    /// A buffer is not needed.
    pub(super) fn give_back(&mut self, region: Region) {
        self.free.push(region);
    }

    /// An update is committed, or not needed.
    fn settle(&mut self, task: TaskId) {
        match self.arrived.remove(&task) {
            Some(update) => self.free.push(update.values),
            None => _ = self.unwanted.insert(task),
        }
    }

    /// These updates are not needed.
    pub(super) fn discard(&mut self, tasks: &[TaskId]) {
        tasks.iter().for_each(|&task| self.settle(task));
    }

    /// Whether an update may still arrive.
    pub(super) fn is_awaited(&self, update: &ShardUpdate) -> bool {
        !self.arrived.contains_key(&update.task)
            && self.workers.get(&update.session).is_some_and(|worker| worker.outbox.is_some())
    }

    // --- steps ---

    /// Sums the updates and, with a plan, writes the next version. Updates that are not there are broken.
    pub(super) fn add_up(&mut self, plan: Option<&StepPlan>, sum: &ShardSum) -> ShardNorms {
        let missing = |update: &ShardUpdate| {
            let arrived = self.arrived.get(&update.task);
            arrived.is_none_or(|arrived| sum.lambda.is_some() && arrived.model.is_none())
        };
        let broken: Vec<usize> = (0..sum.updates.len()).filter(|&index| missing(&sum.updates[index])).collect();
        if !broken.is_empty() {
            return ShardNorms::received(Vec::new(), sum.updates.len(), broken).expect("their indices are valid");
        }
        let trainable = self.stepper.optimizer().rules().trainable();
        let corrected: Vec<Vec<f32>> = match sum.lambda {
            None => Vec::new(),
            Some(lambda) => sum.updates.iter().map(|update| self.corrected(update.task, lambda, trainable)).collect(),
        };
        let values = |(index, update): (usize, &ShardUpdate)| -> WeightedValues<'_> {
            let values = corrected.get(index).map_or_else(|| self.arrived[&update.task].values.values(), Vec::as_slice);
            (values, update.weight)
        };
        let updates: Vec<WeightedValues<'_>> = sum.updates.iter().enumerate().map(values).collect();
        // The worker beside it may compute.
        self.stepper.spare_processors(updates.len(), || 1);
        match plan {
            Some(plan) => self.stepper.attempt(plan, self.current.values(), self.next.values_mut(), &updates),
            None => self.stepper.measure(self.current.values().len(), &updates),
        }
    }

    fn corrected(&self, task: TaskId, lambda: f32, trainable: usize) -> Vec<f32> {
        let PushedPart { values, model, .. } = &self.arrived[&task];
        let mut values = values.values().to_vec();
        if let Some(model) = model {
            compensate(&mut values[..trainable], lambda, self.current.values(), model.values());
        }
        values
    }

    /// What the last attempt has written is the next version.
    pub(super) fn accept(&mut self, plan: &StepPlan, tasks: &[TaskId]) -> io::Result<()> {
        self.stepper.accept(plan);
        self.discard(tasks);
        self.advance()
    }

    /// The next version has the same values.
    pub(super) fn keep(&mut self, tasks: &[TaskId]) -> io::Result<()> {
        self.next.values_mut().copy_from_slice(self.current.values());
        self.discard(tasks);
        self.advance()
    }

    /// Keeps the newest version until it is written.
    pub(super) fn retain(&mut self) {
        let (version, values) = (self.version, self.current.clone());
        self.retained = Some(RetainedPart { version, values, optimizer: self.stepper.optimizer().clone() });
    }

    fn advance(&mut self) -> io::Result<()> {
        self.version = Version(self.version.0 + 1);
        self.old.push(self.current.clone());
        // One that nobody reads any more.
        let free = self.old.iter().position(|old| Arc::strong_count(old) == 1);
        let free = free.and_then(|free| Arc::into_inner(self.old.swap_remove(free)));
        let spare = free.map_or_else(|| Region::private(self.current.values().len()), Ok)?;
        self.current = Arc::new(std::mem::replace(&mut self.next, spare));
        Ok(())
    }
}

impl Drop for HeldPart {
    /// Its workers find out.
    fn drop(&mut self) {
        self.workers.values().filter_map(|worker| worker.outbox.as_ref()).for_each(|outbox| outbox.disconnect());
    }
}

fn send_model(outbox: &Outbox, version: Version, values: Arc<Region>, payload: PayloadFormat) {
    // A message of a few bytes can be encoded.
    let Ok(announcement) = frame::encode(&FromShard::Model { version }) else { return };
    let (number, frame, version) = (version.0, Vec::new(), Some(version));
    outbox.transfer(Transfer { number, frame, version, announcement, values, payload }, MAX_DIRECT_BYTES);
}
