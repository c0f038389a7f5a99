//! The simulated cluster: workers, links and the model.

use std::collections::BTreeMap;
use std::sync::Arc;

use paceline_core::{
    Action, Assignment, Commit, CommitOutcome, Event, LocalLength, LocalWork, ReplicaStart, Report, Span, TaskId, Time,
    Work, WorkerId,
};
use paceline_runtime::{Observer, Trainer, pulled_replica, replica_at};
use paceline_store::Optimizer;
use paceline_workload::{Draw, Evaluation};

use crate::event_queue::EventQueue;
use crate::foresight::TasksUnderWay;
use crate::gradients::{Gradients, PendingUpdate};
use crate::network::ServerLink;
use crate::simulation::Simulation;
use crate::times::TaskTimes;

/// What a worker is doing.
#[derive(Debug, Clone, Copy)]
enum Phase {
    /// The worker has no task.
    Idle,
    /// Computing; the report follows when the computation ends.
    Computing(Assignment, Report),
    /// Waiting for the answer after a local iteration: continue or send.
    Waiting(Assignment),
    /// Sending its update.
    Sending { task: TaskId, is_gradient: bool, report: Report },
    /// Crashed; the server has not noticed yet.
    Crashed,
}

impl Phase {
    fn task(&self) -> Option<TaskId> {
        match *self {
            Phase::Computing(Assignment { task, .. }, _)
            | Phase::Waiting(Assignment { task, .. })
            | Phase::Sending { task, .. } => Some(task),
            Phase::Idle | Phase::Crashed => None,
        }
    }
}

struct SimulatedWorker {
    times: TaskTimes,
    /// Slowdown of its tasks.
    compute_factor: f64,
    /// Slowdown of its own link.
    link_factor: f64,
    phase: Phase,
    /// When the current computation or wait started.
    since: Time,
    /// Local iterations done in the current task.
    iterations: u32,
    /// Time spent waiting for answers since its last message.
    querying: Span,
    /// The next task, and when its parameters arrive.
    queued: Option<(Assignment, Time)>,
    /// The updates of its tasks that are neither committed nor discarded.
    pending: Vec<PendingUpdate>,
    /// Its replica at the last committed update, for schemes that keep replicas.
    replica: Option<Vec<f32>>,
    /// The optimizer of its local iterations, at the last committed update.
    optimizer: Option<Optimizer>,
}

struct SimulatedModel {
    trainer: Trainer,
    gradients: Gradients,
    /// A copy of the newest parameters, shared by the updates that start from them.
    shared: Option<Arc<[f32]>>,
}

/// A message without a payload, in transit.
#[derive(Debug, Clone, Copy)]
enum ShortMessage {
    /// A worker asks how to continue; with its number of local iterations.
    Ask(TaskId, u32, Report),
    /// The worker continues.
    Continue(TaskId),
    /// The worker sends its update.
    Collect(TaskId),
}

/// Everything in a simulation except the ledger.
pub(crate) struct SimulatedCluster<'a> {
    simulation: &'a Simulation,
    workers: Vec<SimulatedWorker>,
    queue: EventQueue,
    /// Messages in transit, by arrival time and then by the order of sending.
    messages: BTreeMap<(Time, u64), ShortMessage>,
    messages_sent: u64,
    to_workers: ServerLink,
    to_server: ServerLink,
    /// Bytes of the parameters or of an update.
    payload: u64,
    pub(crate) bytes: u64,
    model: Option<SimulatedModel>,
    /// The run times that the oracle predictor may read.
    pub(crate) under_way: Arc<TasksUnderWay>,
}

impl<'a> SimulatedCluster<'a> {
    pub(crate) fn new(simulation: &'a Simulation) -> Self {
        let model = simulation.training.as_ref().map(|training| SimulatedModel {
            trainer: training.trainer(simulation),
            gradients: Gradients::new(training.workload.clone(), training.optimizer.clone(), training.threads),
            shared: None,
        });
        let parameters = model.as_ref().map_or(0, |model| size_of_val(model.trainer.parameters()) as u64);
        SimulatedCluster {
            simulation,
            workers: Vec::new(),
            queue: EventQueue::default(),
            messages: BTreeMap::new(),
            messages_sent: 0,
            to_workers: ServerLink::default(),
            to_server: ServerLink::default(),
            payload: simulation.network.and_then(|network| network.bytes).unwrap_or(parameters),
            bytes: 0,
            model,
            under_way: Arc::default(),
        }
    }

    #[inline]
    fn worker(&mut self, worker: WorkerId) -> &mut SimulatedWorker {
        if worker.index() >= self.workers.len() {
            self.add_workers(worker);
        }
        &mut self.workers[worker.index()]
    }

    /// Adds the workers up to this one.
    #[cold]
    fn add_workers(&mut self, last: WorkerId) {
        let Simulation { times, slowness, seed, .. } = self.simulation;
        let added = (self.workers.len() as u32..=last.0).map(WorkerId).map(|worker| SimulatedWorker {
            times: times.task_times(*seed, worker),
            compute_factor: slowness.factor(worker),
            link_factor: 1.0,
            phase: Phase::Idle,
            since: Time::START,
            iterations: 0,
            querying: Span::ZERO,
            queued: None,
            pending: Vec::new(),
            replica: None,
            optimizer: None,
        });
        self.workers.extend(added);
    }

    // --- changes to workers ---

    pub(crate) fn slow_down(&mut self, worker: WorkerId, factor: f64) {
        self.worker(worker).compute_factor = factor;
    }

    pub(crate) fn slow_link(&mut self, worker: WorkerId, factor: f64) {
        self.worker(worker).link_factor = factor;
    }

    pub(crate) fn join(&mut self, worker: WorkerId) {
        self.worker(worker).phase = Phase::Idle;
    }

    pub(crate) fn leave(&mut self, worker: WorkerId) {
        self.queue.remove(worker);
        let state = self.worker(worker);
        state.phase = Phase::Idle;
        state.queued = None;
        state.pending.clear();
        state.replica = None;
    }

    pub(crate) fn crash(&mut self, worker: WorkerId, noticed: Time) {
        self.leave(worker);
        self.worker(worker).phase = Phase::Crashed;
        self.queue.set(worker, noticed);
    }

    /// The arrival time of the next message.
    pub(crate) fn next_message(&self) -> Option<Time> {
        self.messages.first_key_value().map(|(&(at, _), _)| at)
    }

    /// The next worker to act, and when.
    pub(crate) fn next_worker(&mut self) -> Option<(Time, WorkerId)> {
        self.queue.first()
    }

    /// Delivers the next message.
    pub(crate) fn deliver(&mut self, now: Time) -> Option<Event> {
        let (_, message) = self.messages.pop_first()?;
        let (ShortMessage::Ask(task, ..) | ShortMessage::Continue(task) | ShortMessage::Collect(task)) = message;
        let phase = self.worker(task.worker).phase;
        // Messages to and from a worker that has left or rejoined since are lost.
        phase.task().filter(|present| *present == task)?;
        match (message, phase) {
            (ShortMessage::Ask(_, iterations, report), _) => return Some(Event::Asked { task, iterations, report }),
            (ShortMessage::Continue(_), Phase::Waiting(assignment)) => {
                let worker = self.worker(task.worker);
                worker.querying += now.since(worker.since);
                self.compute(now, &assignment);
            }
            // A worker that did not wait drops its current iteration.
            (ShortMessage::Collect(_), Phase::Waiting(assignment) | Phase::Computing(assignment, _)) => {
                let worker = self.worker(task.worker);
                worker.querying += now.since(worker.since);
                self.send(now, assignment, Report::default());
            }
            _ => {}
        }
        None
    }

    /// Carries out the worker's due event. Returns the event that the scheme has to handle.
    pub(crate) fn act(&mut self, now: Time, worker: WorkerId, observer: &mut dyn Observer) -> Option<Event> {
        self.queue.remove(worker);
        match &self.worker(worker).phase {
            Phase::Idle | Phase::Waiting(_) => None,
            &Phase::Computing(assignment, report) => {
                if let Some(elapsed) = self.computed(now, assignment, report) {
                    observer.on_task(assignment.task, elapsed);
                }
                None
            }
            &Phase::Sending { task, is_gradient, report } => {
                if self.simulation.network.is_none() {
                    self.upload(worker);
                }
                self.start_queued(now, worker);
                if is_gradient {
                    observer.on_task(task, report.compute);
                }
                Some(Event::Reported { task, report })
            }
            Phase::Crashed => {
                self.worker(worker).phase = Phase::Idle;
                // The server notices the crash.
                Some(Event::Left { worker })
            }
        }
    }

    // --- the scheme's decisions ---

    #[inline]
    pub(crate) fn carry_out(&mut self, now: Time, action: &Action) {
        match action {
            Action::Assign(assignment) => self.assign(now, assignment),
            Action::Discard { task } => self.drop_pending(*task),
            Action::Interrupt { task } => self.interrupt(now, *task),
            Action::Continue { task } => self.send_message(now, ShortMessage::Continue(*task)),
            Action::Collect { task } => self.send_message(now, ShortMessage::Collect(*task)),
            // Held workers are idle already, the ledger keeps the timers, and the engine carries out commits.
            Action::Hold { .. } | Action::Wake { .. } | Action::Commit { .. } => {}
        }
    }

    fn interrupt(&mut self, now: Time, task: TaskId) {
        self.drop_pending(task);
        if !matches!(self.worker(task.worker).phase, Phase::Crashed) {
            self.queue.remove(task.worker);
            self.start_queued(now, task.worker);
        }
    }

    #[inline]
    fn assign(&mut self, now: Time, assignment: &Assignment) {
        self.bytes += self.payload;
        let arrival = match &self.simulation.network {
            Some(network) => {
                let slowdown = self.worker(assignment.task.worker).link_factor;
                self.to_workers.send(now, self.payload, network, slowdown)
            }
            None => now,
        };
        if matches!(self.worker(assignment.task.worker).phase, Phase::Crashed) {
            return;
        }
        if self.model.is_some() {
            self.add_pending(assignment);
        }
        let worker = self.worker(assignment.task.worker);
        if assignment.queued {
            if let Some((replaced, _)) = worker.queued.replace((*assignment, arrival)) {
                self.drop_pending(replaced.task);
            }
        } else {
            self.start(arrival, assignment);
        }
    }

    /// Remembers what the update of an assignment is computed from.
    fn add_pending(&mut self, assignment: &Assignment) {
        let Assignment { task, work, offset, samples, .. } = *assignment;
        let Some(model) = &mut self.model else { return };
        let worker = &mut self.workers[task.worker.index()];
        let (replica, optimizer) = match work {
            Work::Local(LocalWork { start: ReplicaStart::Replica { pull }, .. }) => {
                (worker.replica.take().map(|own| (own, pull)), worker.optimizer.clone())
            }
            Work::Local(_) => (None, worker.optimizer.clone()),
            Work::Gradient => (None, None),
        };
        let parameters = model.shared_parameters();
        let start = replica.map(|(own, pull)| pulled_replica(&parameters, &own, pull));
        let draw = Draw { worker: task.worker.0, offset, samples };
        let rate = model.trainer.local_rate();
        worker.pending.push(PendingUpdate { task, work, parameters, start, optimizer, draw, iterations: 0, rate });
    }

    /// Steps the model; `live` is the number of workers in the run.
    pub(crate) fn commit(&mut self, commit: &Commit, live: usize) -> Option<CommitOutcome> {
        self.model.as_ref()?;
        let mut pending = Vec::with_capacity(commit.updates.len());
        for share in commit.updates.iter() {
            pending.extend(self.take_pending(share.task).map(|update| (update, share.weight)));
        }
        let model = self.model.as_mut()?;
        model.shared = None;
        let SimulatedModel { trainer, gradients, .. } = model;
        let contributions = gradients.compute(&mut pending, commit.step, trainer.parameters());
        for ((update, _), contribution) in pending.iter_mut().zip(&contributions) {
            let worker = &mut self.workers[update.task.worker.index()];
            worker.optimizer = update.optimizer.take();
            if let Work::Local(LocalWork { start: ReplicaStart::Replica { .. }, .. }) = update.work {
                worker.replica = Some(replica_at(&update.parameters, contribution.gradient));
            }
        }
        Some(trainer.commit(commit, &contributions, live))
    }

    // --- work of the workers ---

    fn start(&mut self, at: Time, assignment: &Assignment) {
        self.worker(assignment.task.worker).iterations = 0;
        self.compute(at, assignment);
    }

    /// Starts computing a gradient or the next local iteration.
    fn compute(&mut self, at: Time, assignment: &Assignment) {
        let simulation = self.simulation;
        let id = assignment.task.worker;
        let worker = self.worker(id);
        // Times are given for the setup's batch size; a task of that size takes exactly the drawn time.
        let size = f64::from(assignment.samples) / f64::from(simulation.setup.batch);
        let (drawn, resources) = worker.times.next(&simulation.times, id, at, size);
        let factor = worker.compute_factor;
        let compute = if factor == 1.0 { drawn } else { Span::from_seconds(drawn.seconds() * factor) };
        let cpu = resources.map(|resources| resources.cpu as f32);
        let memory = resources.map(|resources| resources.memory as f32);
        let report = Report { compute, cpu, memory, ..Report::default() };
        worker.since = at;
        // Without a network, a gradient arrives as soon as it is computed.
        worker.phase = if simulation.network.is_none() && matches!(assignment.work, Work::Gradient) {
            Phase::Sending { task: assignment.task, is_gradient: true, report }
        } else {
            Phase::Computing(*assignment, report)
        };
        self.queue.set(id, at + compute);
        // Only the oracle predictor looks at it.
        if Arc::strong_count(&self.under_way) > 1 {
            self.under_way.start(id, compute);
        }
    }

    /// Handles the end of a gradient or local iteration. Returns the computing time of the latter.
    fn computed(&mut self, now: Time, assignment: Assignment, report: Report) -> Option<Span> {
        let Some(length) = assignment.work.length() else {
            self.send(now, assignment, report);
            return None;
        };
        let task = assignment.task;
        let worker = self.worker(task.worker);
        let elapsed = now.since(worker.since);
        worker.iterations += 1;
        let iterations = worker.iterations;
        if let Some(update) = worker.pending.iter_mut().find(|update| update.task == task) {
            update.iterations = iterations;
        }
        match length {
            LocalLength::Iterations(count) if iterations < count => {
                self.compute(now, &assignment);
                if let Phase::Computing(_, next) = &mut self.worker(task.worker).phase {
                    next.compute += report.compute;
                }
            }
            LocalLength::Iterations(_) => self.send(now, assignment, report),
            LocalLength::AskAndWait | LocalLength::AskAndContinue => {
                let querying = std::mem::take(&mut worker.querying);
                worker.since = now;
                worker.phase = Phase::Waiting(assignment);
                self.send_message(now, ShortMessage::Ask(task, iterations, Report { querying, ..report }));
                if length == LocalLength::AskAndContinue {
                    self.compute(now, &assignment);
                }
            }
        }
        Some(elapsed)
    }

    #[inline]
    fn start_queued(&mut self, now: Time, worker: WorkerId) {
        let state = self.worker(worker);
        state.phase = Phase::Idle;
        if state.queued.is_some()
            && let Some((assignment, arrival)) = state.queued.take()
        {
            self.start(now.max(arrival), &assignment);
        }
    }

    /// Starts sending the worker's update.
    fn send(&mut self, now: Time, assignment: Assignment, report: Report) {
        let id = assignment.task.worker;
        let arrival = match &self.simulation.network {
            Some(network) => {
                let bytes = self.upload(id);
                let slowdown = self.worker(id).link_factor;
                self.to_server.send(now, bytes, network, slowdown)
            }
            None => now,
        };
        let worker = self.worker(id);
        let querying = std::mem::take(&mut worker.querying);
        let is_gradient = matches!(assignment.work, Work::Gradient);
        worker.phase = Phase::Sending { task: assignment.task, is_gradient, report: Report { querying, ..report } };
        self.queue.set(id, arrival);
    }

    /// Counts the bytes that a worker sends at the end of a task. With a newer model queued, the worker knows that its
    /// gradient is stale and sends only a notice.
    fn upload(&mut self, worker: WorkerId) -> u64 {
        let bytes = if self.worker(worker).queued.is_some() { 0 } else { self.payload };
        self.bytes += bytes;
        bytes
    }

    /// Sends a short message. Only the latency delays it.
    fn send_message(&mut self, now: Time, message: ShortMessage) {
        let latency = self.simulation.network.map_or(Span::ZERO, |network| Span::from_seconds(network.latency));
        self.messages.insert((now + latency, self.messages_sent), message);
        self.messages_sent += 1;
    }

    fn take_pending(&mut self, task: TaskId) -> Option<PendingUpdate> {
        let pending = &mut self.worker(task.worker).pending;
        let position = pending.iter().position(|update| update.task == task)?;
        Some(pending.swap_remove(position))
    }

    /// Drops an update that will never be committed.
    fn drop_pending(&mut self, task: TaskId) {
        if self.model.is_some() {
            drop(self.take_pending(task));
        }
    }

    // --- evaluation ---

    pub(crate) fn evaluate(&mut self) -> Option<Evaluation> {
        self.model.as_mut().map(SimulatedModel::evaluate)
    }

    pub(crate) fn parameters(&self) -> Option<&[f32]> {
        self.model.as_ref().map(|model| model.trainer.parameters())
    }
}

impl SimulatedModel {
    fn shared_parameters(&mut self) -> Arc<[f32]> {
        self.shared.get_or_insert_with(|| self.trainer.parameters().into()).clone()
    }

    fn evaluate(&mut self) -> Evaluation {
        self.gradients.evaluate(self.trainer.parameters())
    }
}
