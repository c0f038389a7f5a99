//! Parameters in shards beside workers: what a commit makes of the parts of the updates, and how long it takes.
//!
//! The steps are decided and made by the code of a real run, `StepControl` and `PartStepper`. What moves the parts is
//! simulated: an update may arrive late, or not at all if a connection breaks; a shard may stand still, or be lost. A model in
//! one piece makes the same steps, and must have the same bits.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::ops::Range;

use paceline_core::{Commit, CommitOutcome, Share, Span, TaskId, Time, Version, WorkerId};
use paceline_protocol::SessionId;
use paceline_runtime::{
    PartStepper, RateSpec, RateState, StepControl, StepPlan, StepThreads, StepValues, Summands, UpdateInfo,
    WeightedValues,
};
use paceline_store::{Norms, Optimizer, OptimizerKind, ShardNorms};

use crate::fault_schedule::FaultSchedule;
use crate::outages::Outages;
use crate::random::{mixed, unit};

/// The values of the model, and those of a block: norms are summed block by block, and a part has whole blocks.
const VALUES: usize = 12;
const BLOCK_VALUES: usize = 2;

/// The largest norm of a sum of gradients, with every other seed.
const CLIP: f32 = 0.5;

/// How long a shard may take for a step, as in a real run.
const STEP_TIMEOUT: Span = Span(60_000_000_000);

/// A shard is lost, which the coordinator notices at this time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ShardLost {
    pub(crate) at: Time,
}

/// A block of the parameters, and how it is stepped.
#[derive(Debug)]
struct SteppedBlock {
    range: Range<usize>,
    stepper: PartStepper,
    current: Vec<f32>,
    next: Vec<f32>,
}

impl SteppedBlock {
    /// The blocks of a range of the model.
    fn cut(range: Range<usize>, model: &SavedModel) -> Vec<Self> {
        let block = |start: usize| {
            let range = start..start + BLOCK_VALUES;
            let rules = model.optimizer.rules().part(range.clone());
            let state = model.optimizer.state().map(|(_, vector)| vector[range.clone()].to_vec()).collect();
            let optimizer = Optimizer::restored(rules, model.optimizer.steps(), state);
            let current = model.values[range.clone()].to_vec();
            let stepper = PartStepper::new(optimizer, StepThreads::new(1));
            SteppedBlock { next: current.clone(), range, stepper, current }
        };
        range.step_by(BLOCK_VALUES).map(block).collect()
    }
}

/// Some blocks of the parameters.
#[derive(Debug)]
struct SteppedPart {
    /// The worker beside it.
    worker: WorkerId,
    blocks: Vec<SteppedBlock>,
    version: u64,
}

impl SteppedPart {
    fn new(worker: WorkerId, range: Range<usize>, model: &SavedModel) -> Self {
        SteppedPart { worker, blocks: SteppedBlock::cut(range, model), version: model.version }
    }

    /// Sums updates and, with a plan, writes the next version.
    fn add_up(&mut self, plan: Option<&StepPlan>, updates: &CommittedUpdates<'_>) -> ShardNorms {
        let norms = self.blocks.iter_mut().map(|SteppedBlock { range, stepper, current, next }| {
            let values = updates.values(range);
            let values: Vec<WeightedValues<'_>> =
                values.iter().map(|(values, weight)| (&values[..], *weight)).collect();
            match plan {
                Some(plan) => stepper.attempt(plan, current, next, &values),
                None => stepper.measure(current.len(), &values),
            }
        });
        ShardNorms::concat(&norms.collect::<Vec<_>>())
    }

    fn accept(&mut self, plan: &StepPlan) {
        for block in &mut self.blocks {
            block.stepper.accept(plan);
            block.current.copy_from_slice(&block.next);
        }
        self.version += 1;
    }

    fn keep(&mut self) {
        self.version += 1;
    }

    /// The values as bits, block by block.
    fn bits(&self) -> Vec<Vec<u32>> {
        self.blocks.iter().map(|block| block.current.iter().map(|value| value.to_bits()).collect()).collect()
    }
}

/// Updates that are summed.
struct CommittedUpdates<'a> {
    tasks: &'a [TaskId],
    summands: &'a Summands,
    /// Those that did not arrive everywhere.
    missing: &'a BTreeSet<TaskId>,
}

impl CommittedUpdates<'_> {
    /// A block of the updates, with their weights. The values of a few updates are not finite somewhere.
    fn values(&self, range: &Range<usize>) -> Vec<(Vec<f32>, f32)> {
        let value = |task: TaskId, position: usize| {
            let worker = u64::from(task.worker.0);
            let broken = mixed(worker, [7, task.number, 0]) % (16 * VALUES as u64) == position as u64;
            let random = mixed(worker, [6, task.number, position as u64]);
            if broken || self.missing.contains(&task) { f32::NAN } else { unit(random) as f32 - 0.5 }
        };
        let block = |&(index, weight): &(usize, f32)| {
            (range.clone().map(|position| value(self.tasks[index], position)).collect(), weight)
        };
        self.summands.iter().map(block).collect()
    }
}

/// The model in a checkpoint.
#[derive(Debug, Clone)]
pub(crate) struct SavedModel {
    version: u64,
    values: Vec<f32>,
    optimizer: Optimizer,
    rate: RateState,
}

impl Default for SavedModel {
    fn default() -> Self {
        let kind = OptimizerKind::Momentum { momentum: 0.9, dampening: 0.0, decay: 0.0 };
        let (values, optimizer) = (vec![1.0; VALUES], Optimizer::plain(kind, VALUES));
        SavedModel { version: 0, values, optimizer, rate: RateState::default() }
    }
}

/// What the coordinator of a run in shards knows, and what its shards hold.
#[derive(Debug)]
pub(crate) struct TortureShards {
    outages: Outages,
    count: usize,
    /// The workers whose processes would hold a part.
    offers: BTreeSet<WorkerId>,
    /// The parts in order; none before the first task.
    parts: Vec<SteppedPart>,
    /// The shards whose process has ended.
    lost: BTreeSet<WorkerId>,
    /// When the parts of an update were sent.
    pushed: BTreeMap<TaskId, Time>,
    /// The version that a worker was sent last.
    delivered: BTreeMap<SessionId, u64>,
    control: StepControl,
    /// The same model in one piece.
    whole: SteppedPart,
    whole_control: StepControl,
}

impl TortureShards {
    /// A model in up to as many shards as the schedule has. `None` if it has none.
    pub(crate) fn new(schedule: &FaultSchedule, model: &SavedModel) -> Option<Self> {
        let clip = schedule.seed.is_multiple_of(2).then_some(CLIP);
        let control = || StepControl::new(0, RateSpec::constant(0.01), model.rate).clipping(clip);
        (schedule.shards > 0).then(|| TortureShards {
            outages: Outages::new(schedule),
            count: schedule.shards,
            offers: BTreeSet::new(),
            parts: Vec::new(),
            lost: BTreeSet::new(),
            pushed: BTreeMap::new(),
            delivered: BTreeMap::new(),
            control: control(),
            whole: SteppedPart::new(WorkerId::EVALUATOR, 0..VALUES, model),
            whole_control: control(),
        })
    }

    pub(crate) fn offer(&mut self, worker: WorkerId) {
        self.offers.insert(worker);
    }

    /// The worker's process has ended, or a new one has started without the part of the last one.
    pub(crate) fn lose(&mut self, worker: WorkerId) {
        self.offers.remove(&worker);
        self.lost.insert(worker);
    }

    /// Whether a shard is lost beside this worker.
    pub(crate) fn is_lost(&self, worker: WorkerId) -> bool {
        self.lost.contains(&worker) && self.parts.iter().any(|part| part.worker == worker)
    }

    /// Gives the workers that are there their parts.
    fn begin(&mut self) {
        let count = self.count.min(self.offers.len());
        let model = self.saved();
        let start = |index: usize| index * (VALUES / BLOCK_VALUES) / count * BLOCK_VALUES;
        let parts = self.offers.iter().take(count).enumerate();
        self.parts = parts.map(|(i, &worker)| SteppedPart::new(worker, start(i)..start(i + 1), &model)).collect();
        self.lost.clear();
    }

    /// The newest version, and when it has arrived at a worker that needs it. `None` if it was sent before.
    pub(crate) fn deliver(&mut self, worker: WorkerId, session: SessionId, now: Time) -> Option<(Version, Time)> {
        if self.parts.is_empty() {
            self.begin();
        }
        let version = self.whole.version;
        if self.delivered.insert(session, version) == Some(version) {
            return None;
        }
        let arrival = |part: &SteppedPart| self.outages.arrival(worker, self.outages.arrival(part.worker, now));
        Some((Version(version), self.parts.iter().map(arrival).max()?))
    }

    /// A worker sends the parts of an update.
    pub(crate) fn push(&mut self, task: TaskId, now: Time) {
        self.pushed.insert(task, now);
    }

    pub(crate) fn discard(&mut self, task: TaskId) {
        self.pushed.remove(&task);
    }

    /// Has the shards step the model. Returns the outcome, and when the coordinator knows it.
    pub(crate) fn commit(
        &mut self,
        commit: &Commit,
        live: usize,
        now: Time,
    ) -> Result<(Result<CommitOutcome, String>, Time), ShardLost> {
        let info = |share: &Share| UpdateInfo { task: share.task, weight: share.weight, loss: 1.0, rates: &[] };
        let updates: Vec<UpdateInfo<'_>> = commit.updates.iter().map(info).collect();
        let tasks: Vec<TaskId> = updates.iter().map(|update| update.task).collect();
        let TortureShards { outages, parts, lost, pushed, control, whole, whole_control, .. } = self;
        let mut step = StepOfShards { outages, parts, lost, pushed, tasks: &tasks, missing: BTreeSet::new(), now };
        let outcome = control.commit(commit, &updates, live, &mut step)?;
        let (missing, now) = (step.missing, step.now);
        let mut step = StepOfWhole { whole, tasks: &tasks, missing };
        let Ok(expected) = whole_control.commit(commit, &updates, live, &mut step);
        tasks.iter().for_each(|&task| self.discard(task));
        let compared = if outcome == expected { self.compare() } else { Err("the outcome of a commit".into()) };
        let outcome = compared.map(|()| outcome);
        Ok((outcome.map_err(|what| format!("{what} differs between shards and one server")), now))
    }

    /// All parts have the version and the bits of the model in one piece.
    fn compare(&self) -> Result<(), String> {
        let mut whole = self.whole.bits().into_iter();
        for part in &self.parts {
            if part.version != self.whole.version {
                return Err(format!("the version of the shard beside {}", part.worker));
            }
            if !part.bits().into_iter().eq(whole.by_ref().take(part.blocks.len())) {
                return Err(format!("a value in the shard beside {}", part.worker));
            }
        }
        Ok(())
    }

    fn saved(&self) -> SavedModel {
        let blocks = &self.whole.blocks;
        let optimizer = |block: &SteppedBlock| block.stepper.optimizer().clone();
        let state = blocks.iter().flat_map(|block| optimizer(block).state().next().map(|(_, vector)| vector.to_vec()));
        let (rules, steps) = (SavedModel::default().optimizer.rules().clone(), optimizer(&blocks[0]).steps());
        SavedModel {
            version: self.whole.version,
            values: blocks.iter().flat_map(|block| block.current.clone()).collect(),
            optimizer: Optimizer::restored(rules, steps, vec![state.flatten().collect()]),
            rate: self.control.rate_state(),
        }
    }

    /// The model for a checkpoint, and when all parts have arrived.
    pub(crate) fn fetch(&self, now: Time) -> Result<(SavedModel, Time), ShardLost> {
        let mut done = now;
        for part in &self.parts {
            let arrived = self.outages.arrival(part.worker, self.outages.arrival(part.worker, now));
            done = done.max(self.outages.answered(&self.lost, part.worker, now, arrived)?);
        }
        Ok((self.saved(), done))
    }
}

impl Outages {
    /// When the answer of a shard arrives, unless the shard is lost or takes too long.
    fn answered(
        &self,
        lost: &BTreeSet<WorkerId>,
        worker: WorkerId,
        asked: Time,
        answered: Time,
    ) -> Result<Time, ShardLost> {
        let latest = asked + STEP_TIMEOUT;
        if lost.contains(&worker) {
            return Err(ShardLost { at: asked });
        }
        match self.ended(worker, asked, answered) {
            Some(noticed) => Err(ShardLost { at: noticed.min(latest) }),
            None if answered > latest => Err(ShardLost { at: latest }),
            None => Ok(answered),
        }
    }
}

/// The values of a commit, in shards.
struct StepOfShards<'a> {
    outages: &'a Outages,
    parts: &'a mut [SteppedPart],
    lost: &'a BTreeSet<WorkerId>,
    pushed: &'a BTreeMap<TaskId, Time>,
    tasks: &'a [TaskId],
    /// The updates that did not arrive at every shard.
    missing: BTreeSet<TaskId>,
    now: Time,
}

impl StepOfShards<'_> {
    /// Asks all shards, which wait for the updates that are still on their way.
    fn ask(&mut self, plan: Option<&StepPlan>, updates: &Summands) -> Result<Norms, ShardLost> {
        let (asked, mut norms) = (self.now, Vec::new());
        for part in self.parts.iter_mut() {
            let mut at = self.outages.arrival(part.worker, asked);
            let mut missing = Vec::new();
            for (index, &(position, _)) in updates.iter().enumerate() {
                let task = self.tasks[position];
                let sent = self.pushed.get(&task).copied();
                let arrives = sent.map(|sent| {
                    let arrives = self.outages.arrival(part.worker, self.outages.arrival(task.worker, sent));
                    (arrives, self.outages.broken(task.worker, sent, arrives))
                });
                match arrives {
                    Some((arrives, None)) => at = at.max(arrives),
                    Some((_, Some(noticed))) => {
                        at = at.max(noticed);
                        missing.push(index);
                    }
                    None => missing.push(index),
                }
            }
            let answered = self.outages.arrival(part.worker, at);
            self.now = self.now.max(self.outages.answered(self.lost, part.worker, asked, answered)?);
            norms.push(if missing.is_empty() {
                let missing = &BTreeSet::new();
                part.add_up(plan, &CommittedUpdates { tasks: self.tasks, summands: updates, missing })
            } else {
                self.missing.extend(missing.iter().map(|&index| self.tasks[updates[index].0]));
                ShardNorms::received(Vec::new(), updates.len(), missing).expect("their indices are valid")
            });
        }
        Ok(Norms::join(&norms))
    }
}

impl StepValues for StepOfShards<'_> {
    type Error = ShardLost;

    fn measure(&mut self, updates: &Summands) -> Result<Norms, ShardLost> {
        self.ask(None, updates)
    }

    fn attempt(&mut self, plan: &StepPlan, updates: &Summands) -> Result<Norms, ShardLost> {
        self.ask(Some(plan), updates)
    }

    fn accept(&mut self, plan: &StepPlan) -> Result<(), ShardLost> {
        self.parts.iter_mut().for_each(|part| part.accept(plan));
        Ok(())
    }

    fn keep(&mut self) -> Result<(), ShardLost> {
        self.parts.iter_mut().for_each(SteppedPart::keep);
        Ok(())
    }
}

/// The values of a commit, in one piece. Updates that did not arrive are broken.
struct StepOfWhole<'a> {
    whole: &'a mut SteppedPart,
    tasks: &'a [TaskId],
    missing: BTreeSet<TaskId>,
}

impl StepOfWhole<'_> {
    fn add_up(&mut self, plan: Option<&StepPlan>, summands: &Summands) -> Norms {
        let updates = CommittedUpdates { tasks: self.tasks, summands, missing: &self.missing };
        Norms::join(&[self.whole.add_up(plan, &updates)])
    }
}

impl StepValues for StepOfWhole<'_> {
    type Error = Infallible;

    fn measure(&mut self, updates: &Summands) -> Result<Norms, Infallible> {
        Ok(self.add_up(None, updates))
    }

    fn attempt(&mut self, plan: &StepPlan, updates: &Summands) -> Result<Norms, Infallible> {
        Ok(self.add_up(Some(plan), updates))
    }

    fn accept(&mut self, plan: &StepPlan) -> Result<(), Infallible> {
        self.whole.accept(plan);
        Ok(())
    }

    fn keep(&mut self) -> Result<(), Infallible> {
        self.whole.keep();
        Ok(())
    }
}
