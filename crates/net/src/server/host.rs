//! What the protocol does to the world: messages to the workers, steps of the model, observers.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread::Scope;
use std::time::Instant;

use paceline_core::{
    Assignment, Commit, CommitOutcome, Decision, Event, Ledger, Share, Span, TaskId, Time, Version, Work, WorkerId,
};
use paceline_protocol::{
    Evaluation, FromMember, GradientLocation, MAX_PARTS, Notice, ReportedUpdate, RunPosition, ServerHost, SessionId,
    TaskSettings, ToWorker,
};
use paceline_runtime::{Job, ModelValues, Monitor, RunInfo, RunState, RunTracker, ServerObserver, StopReason};
use paceline_store::Optimizer;

use super::error::no_memory;
use super::evaluation::{Evaluator, EvaluatorProcess};
use super::event_source::{CoordinatorHandle, ServerInput};
use super::group_model::{Correspondence, GroupModel};
use super::inputs::Inputs;
use super::link::{Link, TaskBuffers};
use super::model::{ServerModel, StoredGradient, UncommittedUpdate};
use super::parameter_ring::ParameterBuffer;
use super::session::SessionContext;
use super::sharded_model::ShardedModel;
use super::{RunOutcome, ServerError};
use crate::shared_memory::Region;

/// The connections, the model and the observers of one run.
pub(super) struct NetHost<'a> {
    pub(super) job: &'a Job,
    context: &'a SessionContext,
    pub(super) observer: &'a mut dyn ServerObserver,
    pub(super) tracker: RunTracker,
    pub(super) model: ServerModel,
    /// Whether the models that updates are computed from must be kept until they are committed.
    keeps_models: bool,
    /// The samples in committed updates.
    pub(super) used: u64,
    links: HashMap<SessionId, Link>,
    /// Where they come from.
    peers: HashMap<SessionId, String>,
    /// Links of dismissed workers, which may still use their buffers.
    closing: HashMap<SessionId, Link>,
    /// Updates that are not committed yet.
    arrived: HashMap<TaskId, UncommittedUpdate>,
    /// When they may be added up in advance, if nothing else comes before.
    early_sum_at: Option<Instant>,
    /// The gradient that came with the message at hand.
    pub(super) received: Option<Region>,
    /// Tasks that were withdrawn before they were sent.
    pub(super) withdrawn: Vec<(SessionId, TaskId)>,
    /// The workers with emulated delays, and their descriptions.
    emulated: BTreeMap<WorkerId, String>,
    evaluator: Evaluator,
    /// What has arrived and is not handled yet.
    pub(super) inputs: Inputs,
}

impl<'a> NetHost<'a> {
    pub(super) fn new(
        job: &'a Job,
        context: &'a SessionContext,
        observer: &'a mut dyn ServerObserver,
        monitor: Monitor,
        model: ServerModel,
        inputs: Inputs,
        keeps_models: bool,
    ) -> Self {
        NetHost {
            job,
            context,
            observer,
            tracker: RunTracker::new(monitor, job.goals.clone(), job.evaluate_every),
            model,
            keeps_models,
            used: 0,
            links: HashMap::new(),
            peers: HashMap::new(),
            closing: HashMap::new(),
            arrived: HashMap::new(),
            early_sum_at: None,
            received: None,
            withdrawn: Vec::new(),
            emulated: BTreeMap::new(),
            evaluator: Evaluator::Nobody,
            inputs,
        }
    }

    // --- connections ---

    pub(super) fn connect(&mut self, session: SessionId, peer: String, link: Link) {
        self.links.insert(session, link);
        self.peers.insert(session, peer);
    }

    /// A connection is closed: nobody uses its buffers any more.
    pub(super) fn forget(&mut self, session: SessionId) {
        self.links.remove(&session);
        self.closing.remove(&session);
        self.peers.remove(&session);
        self.model.sharded().into_iter().for_each(|model| model.forget(session));
        self.leave_group(session);
    }

    /// A worker that holds the model together with others is gone.
    fn leave_group(&mut self, session: SessionId) {
        if let Some(group) = self.model.group() {
            group.forget(session, Correspondence { links: &self.links, inputs: &mut self.inputs });
        }
    }

    /// The run is over. If the workers hold the model together, its last version is fetched.
    pub(super) fn end_group(&mut self) -> Result<(), ServerError> {
        match self.model.group() {
            Some(group) => group.end(Correspondence { links: &self.links, inputs: &mut self.inputs }),
            None => Ok(()),
        }
    }

    /// A worker to be dismissed, why, and whether it may rejoin.
    pub(super) fn next_to_dismiss(&mut self) -> Option<(WorkerId, String, bool)> {
        match self.model.group().and_then(GroupModel::next_lost) {
            Some(worker) => Some((worker, "no heartbeat while the others waited for its update".into(), true)),
            None => self.tracker.next_to_dismiss().map(|(worker, reason)| (worker, reason, false)),
        }
    }

    fn newest(&mut self) -> Result<(&Arc<ParameterBuffer>, &Optimizer), ServerError> {
        self.model.newest(Correspondence { links: &self.links, inputs: &mut self.inputs })
    }

    /// Returns the gradient of a message that was not used to the pool.
    pub(super) fn recycle_received(&mut self) {
        if let Some(region) = self.received.take() {
            self.context.pool.give(region);
        }
    }

    fn recycle(&self, gradient: StoredGradient) {
        if let StoredGradient::Received(region) = gradient {
            self.context.pool.give(region);
        }
    }

    // --- evaluation ---

    /// Starts a thread that evaluates the model on the held-out set, so that training does not wait for it.
    pub(super) fn start_evaluator<'scope>(&mut self, scope: &'scope Scope<'scope, '_>, coordinator: CoordinatorHandle)
    where
        'a: 'scope,
    {
        let Some(workload) = self.job.model.workload().filter(|_| self.job.evaluate_every > 0) else { return };
        let (sender, receiver) = sync_channel::<(Time, Arc<ParameterBuffer>)>(1);
        self.evaluator = Evaluator::Thread(sender);
        scope.spawn(move || {
            let mut replica = workload.replica();
            for (at, parameters) in receiver {
                let evaluation = replica.evaluate(parameters.region.values());
                if coordinator.send(ServerInput::Evaluated { evaluation, at }).is_err() {
                    break;
                }
            }
        });
    }

    /// Has the newest model evaluated. If others are still waiting for that, this one is left out.
    fn evaluate(&mut self, version: Version, now: Time) -> Result<(), ServerError> {
        if let Evaluator::Nobody = self.evaluator {
            return Ok(());
        }
        if matches!(&self.evaluator, Evaluator::Process(process) if !process.is_idle()) {
            return Ok(());
        }
        let newest = self.newest()?.0.clone();
        let process = match &mut self.evaluator {
            Evaluator::Nobody => return Ok(()),
            Evaluator::Thread(sender) => {
                // It fails if the queue is full.
                let _ = sender.try_send((now, newest));
                return Ok(());
            }
            Evaluator::Process(process) => process,
        };
        let Some(link) = self.links.get_mut(&process.session) else { return Ok(()) };
        let task = TaskId { worker: WorkerId::EVALUATOR, number: process.begin(version, now) };
        let assignment = Assignment { task, version, work: Work::Gradient, samples: 0, offset: 0, queued: false };
        let settings = TaskSettings { run: RunPosition::default(), committed: None };
        link.prepare(task.number, Some(newest));
        let message = ToWorker::Assign { assignment, after: None, buffers: None, settings };
        link.assign(task.number, version, message).map_err(no_memory(self.job.model.layout().len()))
    }

    /// After the run: has the last model evaluated, if a process does that. Returns whether that takes time.
    pub(super) fn evaluate_last(&mut self, version: Version, now: Time) -> Result<bool, ServerError> {
        if self.last_evaluation(version).is_none() {
            self.evaluate(version, now)?;
        }
        Ok(matches!(&self.evaluator, Evaluator::Process(process) if !process.is_idle()))
    }

    /// What a process has found for the last model.
    fn last_evaluation(&self, version: Version) -> Option<Evaluation> {
        match &self.evaluator {
            Evaluator::Process(process) => process.found(version),
            Evaluator::Nobody | Evaluator::Thread(_) => None,
        }
    }

    // --- the sum of the next step ---

    /// When the updates that are there are to be added up, if no other comes before.
    pub(super) fn early_sum_at(&self) -> Option<Instant> {
        self.early_sum_at
    }

    /// Adds up the updates that are there, if it is time.
    pub(super) fn add_up_early(&mut self) {
        if let ServerModel::Here(model) = &mut self.model
            && self.early_sum_at.take_if(|at| *at <= Instant::now()).is_some()
        {
            model.add_up_early(&self.arrived, busy(&self.links));
        }
    }

    // --- the state of the run ---

    /// Passes the state to the observer if the run could resume from this state.
    pub(super) fn offer_checkpoint(&mut self, ledger: &Ledger) -> Result<(), ServerError> {
        if !self.tracker.suspect_model(ledger.live()) && ledger.is_settled() {
            let rate = self.model.rate_state();
            let shards = self.model.sharded().filter(|_| self.observer.takes_parts());
            let shards = shards.map(ShardedModel::retain).transpose()?.flatten();
            let values = match &shards {
                Some(shards) => ModelValues::InShards(shards),
                None => {
                    let lines = Correspondence { links: &self.links, inputs: &mut self.inputs };
                    let (parameters, optimizer) = self.model.newest(lines)?;
                    ModelValues::Here { parameters: parameters.region.values(), optimizer }
                }
            };
            self.observer.on_checkpoint(&RunState {
                version: ledger.version().0,
                values,
                rate,
                ledger,
                monitor: self.tracker.monitor(),
            });
        }
        Ok(())
    }

    pub(super) fn outcome(&mut self, now: Time, stop: &StopReason, ledger: &Ledger) -> Result<RunOutcome, ServerError> {
        let found = self.last_evaluation(ledger.version());
        self.evaluator = Evaluator::Nobody;
        let parameters = self.newest()?.0.clone();
        let parameters = parameters.region.values();
        let last = self.job.model.workload().map(|workload| workload.replica().evaluate(parameters)).or(found);
        let Job { scheme, seed, setup, goals, .. } = self.job;
        let scheme = scheme.to_string();
        let run = RunInfo { scheme: &scheme, seed: *seed, workers: setup.workers, goals };
        let bytes = self.context.traffic.bytes();
        Ok(RunOutcome {
            summary: self.tracker.monitor().summary(&run, now, stop, &ledger.samples(), bytes, last),
            parameters: parameters.to_vec(),
            emulated: std::mem::take(&mut self.emulated).into_iter().collect(),
        })
    }
}

/// How many processors of this host its workers use.
fn busy(links: &HashMap<SessionId, Link>) -> usize {
    links.values().filter(|link| link.uses_processor()).count()
}

impl ServerHost for NetHost<'_> {
    type Error = ServerError;

    fn send(&mut self, session: SessionId, message: &ToWorker) {
        if let Some(link) = self.links.get(&session) {
            link.send(message);
        }
    }

    fn close(&mut self, session: SessionId, last: &ToWorker) {
        let has_model = self.model.group().is_some_and(|group| group.has_newest(session));
        self.leave_group(session);
        if let Some(mut link) = self.links.remove(&session) {
            // The last version is fetched before the first worker learns of the end: its shards may end with their workers.
            let newest =
                matches!(last, ToWorker::Finished { .. }).then(|| self.newest().map(|newest| newest.0.clone()));
            match newest {
                // Whoever brought the model gets it back.
                Some(Ok(model)) if self.job.model.workload().is_none() && !has_model => {
                    link.close_with_model(last.clone(), &model);
                }
                _ => link.close(last),
            }
            self.closing.insert(session, link);
        }
    }

    fn prepare(&mut self, session: SessionId, task: TaskId) -> RunPosition {
        let lines = Correspondence { links: &self.links, inputs: &mut self.inputs };
        let parameters = self.model.prepare(session, lines);
        if let Some(link) = self.links.get_mut(&session) {
            link.prepare(task.number, parameters);
        }
        let progress = self.model.rate_state().progress();
        RunPosition {
            rate: self.model.local_rate(),
            progress,
            used: self.used,
            checkpoint: self.observer.wants_checkpoint(),
        }
    }

    fn assign(&mut self, session: SessionId, task: TaskId, message: ToWorker) -> Result<(), ServerError> {
        let (Some(link), ToWorker::Assign { assignment, .. }) = (self.links.get_mut(&session), &message) else {
            return Ok(());
        };
        if let Some(model) = self.model.sharded() {
            model.introduction(session).into_iter().for_each(|shards| link.send(&shards));
            model.notice().into_iter().for_each(|notice| self.observer.on_notice(&notice));
        }
        link.assign(task.number, assignment.version, message).map_err(no_memory(self.job.model.layout().len()))
    }

    fn cancel(&mut self, session: SessionId, task: TaskId) {
        if self.links.get_mut(&session).is_some_and(|link| link.cancel(task.number)) {
            self.withdrawn.push((session, task));
        }
    }

    fn release(&mut self, session: SessionId, task: TaskId) {
        if let Some(link) = self.links.get_mut(&session) {
            link.release(task.number);
        }
        self.model.sharded().into_iter().for_each(|model| model.discard(task));
    }

    fn keep(&mut self, session: SessionId, task: TaskId, update: ReportedUpdate) -> bool {
        let buffers = self.links.get_mut(&session).and_then(|link| link.release(task.number));
        let Some(TaskBuffers { parameters, gradient }) = buffers else { return false };
        let ReportedUpdate { loss, rates, samples, gradient: location } = update;
        let gradient = match location {
            GradientLocation::InPlace => gradient.map(StoredGradient::Shared),
            GradientLocation::Follows => self.received.take().map(StoredGradient::Received),
            GradientLocation::InShards => Some(StoredGradient::InShards(session)),
            GradientLocation::InMembers => Some(StoredGradient::InMembers),
            GradientLocation::Withheld => Some(StoredGradient::Withheld),
        };
        let Some(gradient) = gradient else { return false };
        let parameters = parameters.filter(|_| self.keeps_models);
        self.arrived.insert(task, UncommittedUpdate { gradient, loss, rates, samples, parameters });
        if let ServerModel::Here(model) = &self.model {
            self.early_sum_at = model.early_sum_delay().map(|delay| Instant::now() + delay);
        }
        true
    }

    fn discard(&mut self, task: TaskId) {
        if let Some(update) = self.arrived.remove(&task) {
            if let (StoredGradient::InShards(_), Some(model)) = (&update.gradient, self.model.sharded()) {
                model.discard(task);
            }
            self.recycle(update.gradient);
        }
    }

    fn discard_all(&mut self, worker: WorkerId) {
        let lost: Vec<TaskId> = self.arrived.keys().copied().filter(|task| task.worker == worker).collect();
        lost.into_iter().for_each(|task| self.discard(task));
    }

    fn commit(&mut self, commit: &Commit, live: usize) -> Result<CommitOutcome, ServerError> {
        self.early_sum_at = None;
        let take = |share: &Share| self.arrived.remove(&share.task).ok_or(ServerError::GradientNotSent(share.task));
        let mut updates = commit.updates.iter().map(take).collect::<Result<Vec<_>, _>>()?;
        let outcome = match &mut self.model {
            ServerModel::Here(model) => model.commit(commit, &mut updates, live, || busy(&self.links))?,
            ServerModel::Sharded(model) => model.commit(commit, &updates, live)?,
            ServerModel::Group(model) => {
                let lines = Correspondence { links: &self.links, inputs: &mut self.inputs };
                model.commit(commit, &updates, live, lines)?
            }
        };
        let is_good = |share: &Share| !outcome.broken.contains(&share.task);
        self.used += commit
            .updates
            .iter()
            .zip(&updates)
            .filter(|(share, _)| is_good(share))
            .map(|(_, update)| update.samples)
            .sum::<u64>();
        updates.into_iter().for_each(|update| self.recycle(update.gradient));
        self.tracker.committed(commit, &outcome, live);
        Ok(outcome)
    }

    fn begin_turn(&mut self, now: Time, event: &Event, decisions: &[Decision]) -> Result<(), ServerError> {
        self.tracker.begin_turn(now, event, decisions, self.observer);
        Ok(())
    }

    fn end_turn(&mut self, now: Time, _: &Event, ledger: &Ledger) -> Result<(), ServerError> {
        self.model.sharded().map_or(Ok(()), ShardedModel::send_models)?;
        self.used = ledger.samples().used;
        let mut is_due = false;
        let evaluate = || {
            is_due = true;
            None
        };
        self.tracker.end_turn(now, &ledger.samples(), evaluate, self.observer);
        if is_due { self.evaluate(ledger.version(), now) } else { Ok(()) }
    }

    fn reachable_at(&mut self, worker: Option<WorkerId>, session: SessionId, ports: Vec<u16>) {
        let peer = self.peers.get(&session).and_then(|peer| peer.parse::<SocketAddr>().ok());
        if let (Some(model), Some(worker), Some(&port)) = (self.model.group(), worker, ports.first()) {
            model.offer(worker, session, peer, port);
        }
        if let (Some(model), Some(peer)) = (self.model.sharded(), peer) {
            let places = ports.into_iter().take(MAX_PARTS.into()).map(|port| SocketAddr::new(peer.ip(), port));
            model.offer(worker, session, places.collect());
        }
    }

    fn member_says(&mut self, session: SessionId, message: FromMember) {
        self.model.group().into_iter().for_each(|group| group.hear(session, message.clone()));
    }

    fn last_worker_leaves(&mut self) -> Result<(), ServerError> {
        self.end_group()
    }

    fn evaluator_joined(&mut self, session: SessionId) {
        self.evaluator = Evaluator::Process(EvaluatorProcess::new(session));
    }

    fn evaluator_left(&mut self) {
        self.evaluator = Evaluator::Nobody;
    }

    fn evaluated(&mut self, now: Time, number: u64, evaluation: Evaluation, ledger: &Ledger) -> bool {
        let Evaluator::Process(process) = &mut self.evaluator else { return false };
        let Some(at) = process.complete(number, evaluation) else { return false };
        if let Some(link) = self.links.get_mut(&process.session) {
            link.release(number);
        }
        self.tracker.evaluated(evaluation, at, now, &ledger.samples());
        true
    }

    fn computed(&mut self, task: TaskId, iterations: u32, compute: Span) {
        (0..iterations).for_each(|_| self.observer.on_task(task, Span(compute.0 / u64::from(iterations))));
    }

    fn notice(&mut self, notice: Notice) {
        if let Notice::Joined { worker, emulated: Some(how), .. } = &notice {
            self.emulated.insert(*worker, how.clone());
        }
        self.observer.on_notice(&notice);
    }
}
