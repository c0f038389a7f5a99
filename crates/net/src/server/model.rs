//! The model of a run: in the server's memory, in shards, or with the workers.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use paceline_core::{Commit, CommitOutcome, CommitStep, Share, TaskId};
use paceline_protocol::SessionId;
use paceline_runtime::{Contribution, Job, RateState, Stepper, compensate};
use paceline_store::Optimizer;

use super::ServerError;
use super::error::no_memory;
use super::group_model::{Correspondence, GroupModel};
use super::parameter_ring::{ParameterBuffer, ParameterRing};
use super::sharded_model::ShardedModel;
use crate::shared_memory::Region;

/// The least values of a model whose updates are added up while others are awaited: less is done in no time.
const MIN_EARLY_SUM: usize = 1 << 18;

/// A gradient or model difference.
pub(super) enum StoredGradient {
    Shared(Arc<Region>),
    Received(Region),
    /// The shards have it.
    InShards(SessionId),
    /// The workers sum it among themselves.
    InMembers,
    /// The worker did not send it.
    Withheld,
}

impl StoredGradient {
    fn values(&self) -> Option<&[f32]> {
        match self {
            StoredGradient::Shared(region) => Some(region.values()),
            StoredGradient::Received(region) => Some(region.values()),
            StoredGradient::InShards(_) | StoredGradient::InMembers | StoredGradient::Withheld => None,
        }
    }
}

/// A reported update that is not committed yet.
pub(super) struct UncommittedUpdate {
    pub(super) gradient: StoredGradient,
    pub(super) loss: f64,
    /// The learning rates that the worker asks for.
    pub(super) rates: Vec<f64>,
    pub(super) samples: u64,
    /// The model that the update was computed from, if it is kept.
    pub(super) parameters: Option<Arc<ParameterBuffer>>,
}

/// The model of a run.
pub(super) enum ServerModel {
    Here(Box<LocalModel>),
    Sharded(Box<ShardedModel>),
    Group(Box<GroupModel>),
}

impl ServerModel {
    /// The learning rate of local iterations on the newest version.
    pub(super) fn local_rate(&self) -> f32 {
        match self {
            ServerModel::Here(model) => model.stepper.local_rate(),
            ServerModel::Sharded(model) => model.control().local_rate(),
            ServerModel::Group(model) => model.control().local_rate(),
        }
    }

    /// What the learning rate depends on.
    pub(super) fn rate_state(&self) -> RateState {
        match self {
            ServerModel::Here(model) => model.stepper.rate_state(),
            ServerModel::Sharded(model) => model.control().rate_state(),
            ServerModel::Group(model) => model.control().rate_state(),
        }
    }

    /// The newest version, and its optimizer.
    pub(super) fn newest(
        &mut self,
        lines: Correspondence<'_>,
    ) -> Result<(&Arc<ParameterBuffer>, &Optimizer), ServerError> {
        match self {
            ServerModel::Here(model) => Ok((model.ring.newest(), model.stepper.optimizer())),
            ServerModel::Sharded(model) => model.newest(),
            ServerModel::Group(model) => model.newest(lines),
        }
    }

    /// The newest version, for a task. `None` if shards send it, or the worker has it.
    pub(super) fn prepare(&mut self, session: SessionId, lines: Correspondence<'_>) -> Option<Arc<ParameterBuffer>> {
        match self {
            ServerModel::Here(model) => Some(model.ring.newest().clone()),
            ServerModel::Sharded(model) => {
                model.deliver(session);
                None
            }
            ServerModel::Group(model) => model.prepare(session, lines),
        }
    }

    /// The shards, if there are any.
    pub(super) fn sharded(&mut self) -> Option<&mut ShardedModel> {
        match self {
            ServerModel::Sharded(model) => Some(model),
            ServerModel::Here(_) | ServerModel::Group(_) => None,
        }
    }

    /// The workers that hold the model together, if they do.
    pub(super) fn group(&mut self) -> Option<&mut GroupModel> {
        match self {
            ServerModel::Group(model) => Some(model),
            ServerModel::Here(_) | ServerModel::Sharded(_) => None,
        }
    }
}

/// A model in this process.
pub(super) struct LocalModel {
    stepper: Stepper,
    ring: ParameterRing,
    values: usize,
    trainable: usize,
    /// How long the last step took.
    step_time: Duration,
}

impl LocalModel {
    pub(super) fn new(job: &Job, stepper: Stepper, parameters: &[f32], shared: bool) -> Result<Self, ServerError> {
        let (layout, values) = (job.model.layout(), parameters.len());
        let stepper = stepper.clipping(job.clip_sum).threads(job.step_threads());
        let ring = ParameterRing::new(parameters, shared).map_err(no_memory(values))?;
        Ok(LocalModel { stepper, ring, values, trainable: layout.trainable(), step_time: Duration::ZERO })
    }

    /// How long to wait for more updates before those that are there are added up: as long as a step takes, so that nothing
    /// is lost where updates come close together. `None` if it is not worth while.
    pub(super) fn early_sum_delay(&self) -> Option<Duration> {
        (self.values >= MIN_EARLY_SUM).then_some(self.step_time)
    }

    /// Adds up the first updates of the next step, while more are awaited.
    pub(super) fn add_up_early(&mut self, arrived: &HashMap<TaskId, UncommittedUpdate>, busy: usize) {
        if available_parallelism().is_ok_and(|processors| processors.get() <= busy) {
            return;
        }
        let mut first = BTreeMap::new();
        for (task, update) in arrived {
            let number = first.entry(task.worker).or_insert((task.number, update));
            if task.number < number.0 {
                *number = (task.number, update);
            }
        }
        self.stepper.spare_processors(arrived.len(), || busy);
        self.stepper.add_up_early(|worker| {
            let (number, update) = first.get(&worker)?;
            Some((TaskId { worker, number: *number }, update.gradient.values()?))
        });
    }

    /// Steps the model. `busy` says how many processors have other work.
    pub(super) fn commit(
        &mut self,
        commit: &Commit,
        updates: &mut [UncommittedUpdate],
        live: usize,
        busy: impl FnOnce() -> usize,
    ) -> Result<CommitOutcome, ServerError> {
        let mut corrected = Vec::new();
        if let CommitStep::Compensated { lambda } = commit.step {
            for (Share { task, .. }, update) in commit.updates.iter().zip(&mut *updates) {
                let mut values = update.gradient.values().ok_or(ServerError::GradientNotSent(*task))?.to_vec();
                // This releases the model that the update was computed from, so that its buffer can be reused.
                let then = update.parameters.take().ok_or(ServerError::ModelNotKept(*task))?;
                let (now, then) = (self.ring.newest().region.values(), then.region.values());
                compensate(&mut values[..self.trainable], lambda, now, then);
                corrected.push(values);
            }
        }
        let contributions = (0..).zip(&commit.updates[..]).zip(&*updates).map(|((index, share), update)| {
            let corrected = corrected.get(index).map(Vec::as_slice);
            let gradient = corrected.or(update.gradient.values()).ok_or(ServerError::GradientNotSent(share.task))?;
            let (loss, rates) = (update.loss, &update.rates[..]);
            Ok(Contribution { task: share.task, gradient, weight: share.weight, loss, rates })
        });
        let contributions = contributions.collect::<Result<Vec<_>, ServerError>>()?;
        self.stepper.spare_processors(contributions.len(), busy);
        let start = Instant::now();
        let step = |old: &[f32], new: &mut [f32]| self.stepper.commit(commit, old, new, &contributions, live);
        let outcome = self.ring.advance(step).map_err(no_memory(self.values));
        self.step_time = start.elapsed();
        outcome
    }
}
