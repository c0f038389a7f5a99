//! The part of the parameters that a shard holds, the updates that have arrived, and the workers that send them.
//!
//! Updates arrive in pieces, so that a step can begin before they are complete.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::ops::Range;
use std::sync::Arc;

use paceline_core::{TaskId, Version};
use paceline_protocol::{FromShard, PayloadFormat, PayloadRule, PushedUpdate, ShardSum, ShardUpdate};
use paceline_runtime::{PartStepper, StepPiece, StepPlan, SummedWorkers, WeightedValues, compensate};
use paceline_store::{Optimizer, ShardNorms};

use super::early_step::EarlyStep;
use crate::frame;
use crate::outbox::{Outbox, Transfer};
use crate::shared_memory::Region;

/// The longest model that the coordinator's thread sends itself, in bytes. It fits the kernel's empty buffers.
const MAX_DIRECT_BYTES: usize = 64 * 1024;

/// Updates of one worker that may wait for their commit. A worker that sends more is disconnected.
const MAX_WAITING: usize = 8;

/// Values in a piece of an update. A multiple of the blocks of sums and, in every format, of the values of a chunk.
const PIECE: usize = 1 << 17;

/// A version of the part.
type PartVersion = (Version, Arc<Region>);

/// This shard's part of an update.
struct PushedPart {
    session: u64,
    /// The version that it was computed from.
    version: Version,
    /// Whether it may still change.
    is_draft: bool,
    /// The pieces that have arrived, in order.
    pieces: Vec<Region>,
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
    /// Models that were announced to a worker on this host, and are not written to its memory yet.
    announced: VecDeque<Arc<Region>>,
}

impl PushingWorker {
    /// Sends a model, or announces it to a worker on this host.
    fn send(&mut self, outbox: &Outbox, (version, values): PartVersion, payload: PayloadFormat) {
        let message = FromShard::Model { version };
        if outbox.is_local() {
            self.announced.push_back(values);
            // If it fails, the connection has ended.
            let _ = outbox.send(&message);
            return;
        }
        // A message of a few bytes can be encoded.
        let Ok(announcement) = frame::encode(&message) else { return };
        let (number, frame, version) = (version.0, Vec::new(), Some(version));
        outbox.transfer(Transfer { number, frame, version, announcement, values, payload }, MAX_DIRECT_BYTES);
    }
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
    pub(super) payload: PayloadRule,
    /// The ranges of the pieces.
    pieces: Vec<Range<usize>>,
    workers: HashMap<u64, PushingWorker>,
    /// Updates that have arrived, or have begun to.
    pushed: HashMap<TaskId, PushedPart>,
    /// Updates that are not needed and may still arrive.
    unwanted: HashSet<TaskId>,
    /// Buffers for updates.
    free: Vec<Region>,
    early: Option<EarlyStep>,
    /// By session.
    summed: SummedWorkers<u64>,
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
        payload: PayloadRule,
    ) -> io::Result<Self> {
        let length = current.values().len();
        let next = Region::private(length)?;
        Ok(HeldPart {
            run,
            stepper,
            version,
            current: Arc::new(current),
            next,
            old: Vec::new(),
            keeps_models,
            payload,
            pieces: (0..length).step_by(PIECE).map(|start| start..(start + PIECE).min(length)).collect(),
            workers: HashMap::new(),
            pushed: HashMap::new(),
            unwanted: HashSet::new(),
            free: Vec::new(),
            early: None,
            summed: SummedWorkers::default(),
            retained: None,
        })
    }

    // --- workers ---

    /// A worker has connected.
    pub(super) fn connect(&mut self, session: u64, outbox: Arc<Outbox>) {
        let payload = self.payload.first();
        let worker = self.workers.entry(session).or_default();
        for model in std::mem::take(&mut worker.waiting) {
            worker.send(&outbox, model, payload);
        }
        worker.outbox = Some(outbox);
    }

    /// Its connection has ended. Updates that have arrived stay.
    pub(super) fn disconnect(&mut self, session: u64) {
        self.workers.remove(&session);
        let (pieces, before) = (self.pieces.len(), self.pushed.len());
        let is_complete = |update: &PushedPart| !update.is_draft && update.pieces.len() == pieces;
        self.pushed.retain(|_, update| update.session != session || is_complete(update));
        if self.pushed.len() < before {
            // The step may have begun with what was cut off.
            self.early = None;
        }
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
        match worker.outbox.clone() {
            Some(outbox) => worker.send(&outbox, newest, self.payload.first()),
            None => worker.waiting.push(newest),
        }
    }

    /// The model that was announced first to a worker on this host, and is not written yet.
    pub(super) fn announced(&mut self, session: u64) -> Option<Arc<Region>> {
        self.workers.get_mut(&session)?.announced.pop_front()
    }

    /// A worker has left the run.
    pub(super) fn forget(&mut self, session: u64) {
        if let Some(outbox) = self.workers.remove(&session).and_then(|worker| worker.outbox) {
            outbox.disconnect();
        }
        let left: Vec<TaskId> = self.tasks_of(session).collect();
        left.into_iter().for_each(|task| self.settle(task));
    }

    /// The updates of a worker that have arrived, or have begun to.
    fn tasks_of(&self, session: u64) -> impl Iterator<Item = TaskId> {
        self.pushed.iter().filter(move |(_, update)| update.session == session).map(|(&task, _)| task)
    }

    // --- updates ---

    /// An update begins to arrive. Returns where its pieces are to be written; nothing if it is not needed. An error if the
    /// worker has sent too many.
    pub(super) fn expect(&mut self, session: u64, update: PushedUpdate) -> io::Result<Vec<Region>> {
        let PushedUpdate { task, version, is_draft } = update;
        if self.pushed.get(&task).is_some_and(|draft| draft.is_draft && draft.session == session) {
            self.abandon(task, Vec::new());
        }
        // A worker's tasks come in their order.
        self.unwanted.retain(|other| other.worker != task.worker || other.number >= task.number);
        if self.unwanted.contains(&task) {
            return Ok(Vec::new());
        }
        if self.tasks_of(session).count() >= MAX_WAITING || self.pushed.contains_key(&task) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "more updates than tasks"));
        }
        let buffer = self.free.pop().map_or_else(|| Region::private(self.current.values().len()), Ok)?;
        self.pushed.insert(task, PushedPart { session, version, is_draft, pieces: Vec::new(), model: None });
        self.early.iter_mut().for_each(|early| early.begin(session, task));
        Ok(buffer.split(&self.pieces))
    }

    /// The next piece of an update has arrived. Returns whether that was the last one.
    pub(super) fn arrive(&mut self, task: TaskId, piece: Region) -> bool {
        let Some(update) = self.pushed.get_mut(&task) else { return false };
        let (session, version, index) = (update.session, update.version, update.pieces.len());
        update.pieces.push(piece);
        self.early.iter_mut().for_each(|early| early.arrive(session, task, index));
        self.step_early();
        if index + 1 < self.pieces.len() {
            return false;
        }
        let models = self.workers.get_mut(&session).map(|worker| &mut worker.models);
        let model = models.and_then(|models| {
            models.retain(|(kept, _)| *kept >= version);
            models.first().filter(|(kept, _)| *kept == version).map(|(_, model)| model.clone())
        });
        self.pushed.get_mut(&task).into_iter().for_each(|update| update.model = model.clone());
        if self.unwanted.contains(&task) {
            self.remove(task);
        }
        true
    }

    /// A draft is the update.
    pub(super) fn confirm(&mut self, task: TaskId) {
        self.pushed.get_mut(&task).into_iter().for_each(|update| update.is_draft = false);
    }

    /// An update does not arrive, or no more of it. The rest of its buffer is not needed.
    pub(super) fn abandon(&mut self, task: TaskId, rest: Vec<Region>) {
        if let Some(update) = self.pushed.remove(&task) {
            self.free.extend(Region::join(update.pieces.into_iter().chain(rest).collect()));
            self.early = None;
        }
    }

    fn is_complete(&self, task: TaskId) -> bool {
        self.has_arrived(task) && !self.pushed[&task].is_draft
    }

    fn has_arrived(&self, task: TaskId) -> bool {
        self.pushed.get(&task).is_some_and(|update| update.pieces.len() == self.pieces.len())
    }

    fn remove(&mut self, task: TaskId) {
        if let Some(update) = self.pushed.remove(&task) {
            self.free.extend(Region::join(update.pieces));
        }
    }

    /// An update is committed, or not needed.
    fn settle(&mut self, task: TaskId) {
        self.early.take_if(|early| early.updates().any(|(other, _)| other == task));
        if !self.is_complete(task) {
            self.unwanted.insert(task);
        }
        if self.has_arrived(task) {
            self.remove(task);
        }
    }

    /// These updates are not needed.
    pub(super) fn discard(&mut self, tasks: &[TaskId]) {
        tasks.iter().for_each(|&task| self.settle(task));
    }

    /// Whether an update may still arrive.
    pub(super) fn is_awaited(&self, update: &ShardUpdate) -> bool {
        !self.is_complete(update.task)
            && self.workers.get(&update.session).is_some_and(|worker| worker.outbox.is_some())
    }

    // --- steps ---

    /// Sums the updates and, with a plan, writes the next version. Updates that are not there are broken.
    pub(super) fn add_up(&mut self, plan: Option<&StepPlan>, sum: &ShardSum) -> ShardNorms {
        let is_missing = |update: &ShardUpdate| {
            !self.is_complete(update.task) || sum.lambda.is_some() && self.pushed[&update.task].model.is_none()
        };
        let broken: Vec<usize> = (0..sum.updates.len()).filter(|&index| is_missing(&sum.updates[index])).collect();
        if !broken.is_empty() {
            return ShardNorms::received(Vec::new(), sum.updates.len(), broken).expect("their indices are valid");
        }
        let is_begun = |early: &EarlyStep| early.is_of(sum) && plan.is_none_or(|plan| *plan == early.plan);
        let mut norms =
            self.early.as_ref().filter(|early| is_begun(early)).map_or(Vec::new(), |early| early.norms.clone());
        let trainable = self.stepper.optimizer().rules().trainable();
        let corrected: Vec<Vec<f32>> = match sum.lambda {
            None => Vec::new(),
            Some(lambda) => sum.updates.iter().map(|update| self.corrected(update.task, lambda, trainable)).collect(),
        };
        let values = |piece: usize, index: usize| -> &[f32] {
            let corrected = corrected.get(index).map(|values| &values[self.pieces[piece].clone()]);
            corrected.unwrap_or_else(|| self.pushed[&sum.updates[index].task].pieces[piece].values())
        };
        let step_piece = |piece: usize| StepPiece {
            range: self.pieces[piece].clone(),
            begun: None,
            updates: sum.updates.iter().enumerate().map(|(index, one)| (values(piece, index), one.weight)).collect(),
        };
        let pieces = (norms.len()..self.pieces.len()).map(step_piece).collect();
        // The worker beside it may compute.
        self.stepper.spare_processors(sum.updates.len(), || 1);
        norms.extend(match plan {
            Some(plan) => self.stepper.attempt_pieces(plan, self.current.values(), self.next.values_mut(), pieces),
            None => self.stepper.measure_pieces(pieces),
        });
        if plan.is_some() {
            self.early = None;
            // Steps of corrected updates are never begun early.
            let members = sum.updates.iter().filter(|_| sum.lambda.is_none());
            self.summed.attempt(members.map(|update| (update.session, update.weight)).collect());
        }
        ShardNorms::concat(&norms)
    }

    fn corrected(&self, task: TaskId, lambda: f32, trainable: usize) -> Vec<f32> {
        let PushedPart { pieces, model, .. } = &self.pushed[&task];
        let mut values: Vec<f32> = pieces.iter().flat_map(|piece| piece.values()).copied().collect();
        if let Some(model) = model {
            compensate(&mut values[..trainable], lambda, self.current.values(), model.values());
        }
        values
    }

    /// How the next step will be made if it sums updates of the same workers as the last.
    pub(super) fn forecast(&mut self, plan: StepPlan) {
        self.early = self.summed.expected().map(|members| EarlyStep::new(plan, members, self.pieces.len()));
    }

    /// Steps the pieces in which all updates of the next step have arrived.
    fn step_early(&mut self) {
        let Some(early) = &mut self.early else { return };
        let updates = |piece: usize| -> Vec<WeightedValues<'_>> {
            early.updates().map(|(task, weight)| (self.pushed[&task].pieces[piece].values(), weight)).collect()
        };
        let step_piece =
            |piece: usize| StepPiece { range: self.pieces[piece].clone(), begun: None, updates: updates(piece) };
        let pieces: Vec<StepPiece<'_>> = early.ready().map(step_piece).collect();
        if let Some(first) = pieces.first() {
            self.stepper.spare_processors(first.updates.len(), || 1);
            let (old, new) = (self.current.values(), self.next.values_mut());
            let norms = self.stepper.attempt_pieces(&early.plan, old, new, pieces);
            early.norms.extend(norms);
        }
    }

    /// What the last attempt has written is the next version.
    pub(super) fn accept(&mut self, plan: &StepPlan, tasks: &[TaskId]) -> io::Result<()> {
        self.stepper.accept(plan);
        self.summed.accept();
        self.discard(tasks);
        self.advance()
    }

    /// The next version has the same values.
    pub(super) fn keep(&mut self, tasks: &[TaskId]) -> io::Result<()> {
        self.early = None;
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

#[cfg(test)]
mod tests {
    use paceline_core::WorkerId;
    use paceline_runtime::StepThreads;
    use paceline_store::{Norms, Optimizer};

    use super::*;

    const LENGTH: usize = 2 * PIECE + 100;

    fn task(worker: usize, number: u64) -> TaskId {
        TaskId { worker: WorkerId(worker as u32), number }
    }

    fn pushed(worker: usize, number: u64, version: Version) -> PushedUpdate {
        PushedUpdate { task: task(worker, number), version, is_draft: false }
    }

    fn stepper() -> PartStepper {
        PartStepper::new(Optimizer::plain("momentum".parse().unwrap(), LENGTH), StepThreads::new(1))
    }

    fn values(worker: usize, number: u64) -> Vec<f32> {
        (0..LENGTH).map(|index| (index as f32 + worker as f32 + 7.0 * number as f32).sin()).collect()
    }

    /// Two workers send updates, piece by piece. Returns how many pieces were stepped when half of them had arrived.
    fn push(held: &mut HeldPart, number: u64) -> usize {
        let mut left: Vec<_> = (0..2)
            .map(|worker| held.expect(worker as u64, pushed(worker, number, held.version)).unwrap().into_iter())
            .collect();
        let mut early = 0;
        for range in held.pieces.clone() {
            for (worker, left) in left.iter_mut().enumerate() {
                let mut piece = left.next().unwrap();
                piece.values_mut().copy_from_slice(&values(worker, number)[range.clone()]);
                assert_eq!(held.arrive(task(worker, number), piece), range.end == LENGTH);
            }
            if range.start == 0 {
                early = held.early.as_ref().map_or(0, |early| early.norms.len());
            }
        }
        early
    }

    #[test]
    fn steps_begin_before_all_has_arrived_and_give_the_same_bits() {
        let start = Region::private(LENGTH).unwrap();
        let mut held = HeldPart::new(1, stepper(), Version(0), start, false, PayloadRule::default()).unwrap();
        let (mut expected, mut whole) = (vec![0.0; LENGTH], stepper());
        for number in 0..6 {
            let plan = StepPlan {
                uses_optimizer: true,
                rate: 0.1 / (number + 1) as f64,
                group_rates: None,
                scale: 1.0,
                statistics: 1.0,
            };
            let early = push(&mut held, number);
            assert_eq!(early, usize::from((2..5).contains(&number)), "step {number}");
            // The fifth step is another one than was forecast.
            let weights = if number == 4 { [0.25, 0.75] } else { [0.5, 0.5] };
            let update = |worker: usize| ShardUpdate {
                task: task(worker, number),
                session: worker as u64,
                weight: weights[worker],
            };
            let sum = ShardSum { updates: vec![update(0), update(1)], lambda: None };
            let values: Vec<Vec<f32>> = (0..2).map(|worker| values(worker, number)).collect();
            let weighted: Vec<WeightedValues<'_>> = values.iter().map(Vec::as_slice).zip(weights).collect();
            let mut next = vec![0.0; LENGTH];
            let norms = whole.attempt(&plan, &expected, &mut next, &weighted);
            assert_eq!(held.add_up(None, &sum), norms);
            assert_eq!(held.add_up(Some(&plan), &sum), norms);
            assert!(Norms::join(&[norms]).broken.is_empty());
            whole.accept(&plan);
            held.accept(&plan, &[task(0, number), task(1, number)]).unwrap();
            held.forecast(StepPlan { rate: 0.1 / (number + 2) as f64, ..plan });
            expected = next;
            assert_eq!(held.current.values(), expected);
        }
    }

    #[test]
    fn a_step_is_not_begun_with_an_update_that_was_cut_off() {
        let start = Region::private(LENGTH).unwrap();
        let mut held = HeldPart::new(1, stepper(), Version(0), start, false, PayloadRule::default()).unwrap();
        let plan = StepPlan { uses_optimizer: true, rate: 0.1, group_rates: None, scale: 1.0, statistics: 1.0 };
        let update = |worker, number| ShardUpdate { task: task(worker, number), session: worker as u64, weight: 0.5 };
        for number in 0..2 {
            push(&mut held, number);
            held.add_up(Some(&plan), &ShardSum { updates: vec![update(0, number), update(1, number)], lambda: None });
            held.accept(&plan, &[task(0, number), task(1, number)]).unwrap();
        }
        held.forecast(plan);
        for worker in 0..2 {
            let mut pieces = held.expect(worker as u64, pushed(worker, 2, held.version)).unwrap().into_iter();
            assert!(!held.arrive(task(worker, 2), pieces.next().unwrap()));
            if worker == 0 {
                assert!(held.early.is_some());
                held.disconnect(0);
            }
        }
        assert!(held.early.is_none());
        assert_eq!(held.pushed.len(), 1);
    }

    #[test]
    fn an_update_that_ends_half_way_leaves_nothing() {
        let start = Region::private(LENGTH).unwrap();
        let mut held = HeldPart::new(1, stepper(), Version(0), start, false, PayloadRule::default()).unwrap();
        let mut pieces = held.expect(0, pushed(0, 0, Version(0))).unwrap().into_iter();
        assert!(!held.arrive(task(0, 0), pieces.next().unwrap()));
        held.abandon(task(0, 0), pieces.collect());
        assert_eq!((held.pushed.len(), held.free.len()), (0, 1));
        let mut pieces = held.expect(0, pushed(0, 1, Version(0))).unwrap().into_iter();
        assert!(!held.arrive(task(0, 1), pieces.next().unwrap()));
        held.discard(&[task(0, 1)]);
        assert!(!held.arrive(task(0, 1), pieces.next().unwrap()));
        assert!(held.arrive(task(0, 1), pieces.next().unwrap()), "its other pieces still arrive");
        assert_eq!((held.pushed.len(), held.free.len()), (0, 1));
        held.expect(0, pushed(0, 2, Version(0))).unwrap();
        held.disconnect(0);
        assert!(held.pushed.is_empty());
    }

    #[test]
    fn a_draft_counts_when_it_is_confirmed_or_replaced() {
        let start = Region::private(LENGTH).unwrap();
        let mut held = HeldPart::new(1, stepper(), Version(0), start, false, PayloadRule::default()).unwrap();
        let arrive = |held: &mut HeldPart, number, is_draft| {
            let update = PushedUpdate { is_draft, ..pushed(0, number, Version(0)) };
            for piece in held.expect(0, update).unwrap() {
                held.arrive(task(0, number), piece);
            }
        };
        for is_confirmed in [true, false] {
            arrive(&mut held, 0, true);
            assert!(!held.is_complete(task(0, 0)));
            if is_confirmed {
                held.confirm(task(0, 0));
            } else {
                arrive(&mut held, 0, false);
            }
            assert!(held.is_complete(task(0, 0)));
            assert_eq!(held.pushed.len() + held.free.len(), 1);
            held.discard(&[task(0, 0)]);
            assert_eq!((held.pushed.len(), held.free.len()), (0, 1));
        }
        // One that is not needed by then stays away.
        arrive(&mut held, 1, true);
        held.discard(&[task(0, 1)]);
        held.confirm(task(0, 1));
        arrive(&mut held, 1, false);
        assert_eq!((held.pushed.len(), held.free.len()), (0, 1));
        arrive(&mut held, 2, true);
        held.disconnect(0);
        assert!(held.pushed.is_empty());
    }
}
