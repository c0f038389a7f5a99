//! Everything beside the ledger: workers, links, the model.

use std::collections::BTreeMap;
use std::sync::Arc;

use paceline_core::{
    Action, Aggregate, Assignment, CommitStep, LocalLength, LocalWork, ReplicaStart, Report, Share, Span, TaskId, Time,
    Work, WorkerId,
};
use paceline_runtime::{Trainer, pulled_replica, replica_at};
use paceline_workload::{Draw, Evaluation};

use crate::agenda::Agenda;
use crate::foresight::UnderWay;
use crate::gradients::{Gradients, Recipe};
use crate::network::Link;
use crate::simulation::{Simulation, Training};
use crate::times::Stream;

/// What a worker is at.
#[derive(Debug, Clone, Copy)]
enum Phase {
    /// Nothing.
    Idle,
    /// Computing, to report this of it.
    Computing(Assignment, Report),
    /// Has done a local iteration, asked whether to go on, and waits.
    Waiting(Assignment),
    /// Sending what it computed.
    Sending(Assignment, Report),
    /// Dead, and nobody knows yet.
    Crashed,
}

impl Phase {
    fn assignment(&self) -> Option<&Assignment> {
        match self {
            Phase::Computing(assignment, _) | Phase::Waiting(assignment) | Phase::Sending(assignment, _) => {
                Some(assignment)
            }
            Phase::Idle | Phase::Crashed => None,
        }
    }
}

struct Worker {
    stream: Stream,
    factor: f64,
    /// How much slower than usual its own link is.
    link: f64,
    phase: Phase,
    /// When the present computation or wait began.
    since: Time,
    /// LocalWork iterations done in the present task.
    iterations: u32,
    /// How long it has waited for answers since it last said something.
    querying: Span,
    /// The next task, and when its parameters are there.
    queued: Option<(Assignment, Time)>,
    /// What its tasks and uncommitted updates would be computed from.
    recipes: Vec<Recipe>,
    /// Where its replica stood when its last update was committed, where that matters.
    replica: Option<Vec<f32>>,
}

struct Model<'a> {
    trainer: Trainer,
    gradients: Gradients,
    training: &'a Training,
    /// The newest parameters, once someone needs them.
    checkpoint: Option<Arc<[f32]>>,
}

/// A short message on its way.
#[derive(Debug, Clone, Copy)]
enum Mail {
    /// A worker asks after so many local iterations.
    Question(TaskId, u32, Report),
    /// A worker may go on.
    Continue(TaskId),
    /// A worker is to send what it has.
    Collect(TaskId),
}

/// What becomes of a message or of a worker's time coming, where the scheme has to hear of it.
pub(crate) enum Happening {
    /// A worker asks after so many local iterations.
    Asked(TaskId, u32, Report),
    /// A task is done.
    Reported(TaskId, Report),
    /// A crash is noticed.
    Gone(WorkerId),
}

/// Everything beside the ledger.
pub(crate) struct World<'a> {
    simulation: &'a Simulation,
    workers: Vec<Option<Worker>>,
    agenda: Agenda,
    /// Short messages by arrival, then in the order they were sent.
    mail: BTreeMap<(Time, u64), Mail>,
    mails: u64,
    to_workers: Link,
    to_server: Link,
    /// Bytes of the parameters or of an update.
    payload: u64,
    pub(crate) bytes: u64,
    model: Option<Model<'a>>,
    /// What those may know who know the future.
    pub(crate) under_way: Arc<UnderWay>,
}

impl<'a> World<'a> {
    pub(crate) fn new(simulation: &'a Simulation) -> Self {
        let model = simulation.training.as_ref().map(|training| Model {
            trainer: Trainer::new(
                training.workload.as_ref(),
                simulation.seed,
                training.optimizer,
                training.schedule,
                training.rate,
            ),
            gradients: Gradients::new(training.workload.clone(), training.optimizer, training.threads),
            training,
            checkpoint: None,
        });
        let parameters = model.as_ref().map_or(0, |model| size_of_val(model.trainer.parameters()) as u64);
        World {
            simulation,
            workers: Vec::new(),
            agenda: Agenda::default(),
            mail: BTreeMap::new(),
            mails: 0,
            to_workers: Link::default(),
            to_server: Link::default(),
            payload: simulation.network.and_then(|network| network.bytes).unwrap_or(parameters),
            bytes: 0,
            model,
            under_way: Arc::default(),
        }
    }

    fn worker(&mut self, worker: WorkerId) -> &mut Worker {
        if worker.index() >= self.workers.len() {
            self.workers.resize_with(worker.index() + 1, || None);
        }
        self.workers[worker.index()].get_or_insert_with(|| Worker {
            stream: self.simulation.times.stream(self.simulation.seed, worker),
            factor: self.simulation.slowness.factor(worker),
            link: 1.0,
            phase: Phase::Idle,
            since: Time::START,
            iterations: 0,
            querying: Span::ZERO,
            queued: None,
            recipes: Vec::new(),
            replica: None,
        })
    }

    // --- what happens to workers ---

    pub(crate) fn slow_down(&mut self, worker: WorkerId, factor: f64) {
        self.worker(worker).factor = factor;
    }

    pub(crate) fn slow_link(&mut self, worker: WorkerId, factor: f64) {
        self.worker(worker).link = factor;
    }

    pub(crate) fn join(&mut self, worker: WorkerId) {
        self.worker(worker).phase = Phase::Idle;
    }

    pub(crate) fn leave(&mut self, worker: WorkerId) {
        self.agenda.remove(worker);
        let seat = self.worker(worker);
        seat.phase = Phase::Idle;
        seat.queued = None;
        seat.recipes.clear();
        seat.replica = None;
    }

    pub(crate) fn crash(&mut self, worker: WorkerId, noticed: Time) {
        self.leave(worker);
        self.worker(worker).phase = Phase::Crashed;
        self.agenda.set(worker, noticed);
    }

    /// When the next message arrives.
    pub(crate) fn next_mail(&self) -> Option<Time> {
        self.mail.first_key_value().map(|(&(at, _), _)| at)
    }

    /// Whose time comes next, and when.
    pub(crate) fn next_worker(&self) -> Option<(Time, WorkerId)> {
        self.agenda.first()
    }

    /// The next message arrives.
    pub(crate) fn deliver(&mut self, now: Time) -> Option<Happening> {
        let (_, mail) = self.mail.pop_first()?;
        let (Mail::Question(task, ..) | Mail::Continue(task) | Mail::Collect(task)) = mail;
        let phase = self.worker(task.worker).phase;
        // Whoever has left or come anew since hears nothing, and is not heard.
        let assignment = *phase.assignment().filter(|assignment| assignment.task == task)?;
        match (mail, phase) {
            (Mail::Question(_, iterations, report), _) => return Some(Happening::Asked(task, iterations, report)),
            (Mail::Continue(_), Phase::Waiting(_)) => {
                let worker = self.worker(task.worker);
                worker.querying += now.since(worker.since);
                self.compute(now, assignment);
            }
            // A worker that did not wait drops the iteration it is at.
            (Mail::Collect(_), Phase::Waiting(_) | Phase::Computing(..)) => {
                let worker = self.worker(task.worker);
                worker.querying += now.since(worker.since);
                self.send(now, assignment, Report::default());
            }
            _ => {}
        }
        None
    }

    /// A worker's time has come.
    pub(crate) fn act(&mut self, now: Time, worker: WorkerId) -> Acted {
        self.agenda.remove(worker);
        match self.worker(worker).phase {
            Phase::Idle | Phase::Waiting(_) => Acted::default(),
            Phase::Computing(assignment, report) => self.computed(now, assignment, report),
            Phase::Sending(assignment, report) => {
                if self.simulation.network.is_none() {
                    self.upload(worker);
                }
                self.begin_queued(now, worker);
                let gradient = assignment.work == Work::Gradient;
                let task = gradient.then_some((assignment.task, report.compute));
                Acted { task, happening: Some(Happening::Reported(assignment.task, report)) }
            }
            Phase::Crashed => {
                self.worker(worker).phase = Phase::Idle;
                Acted { task: None, happening: Some(Happening::Gone(worker)) }
            }
        }
    }

    // --- what the scheme decides ---

    pub(crate) fn carry_out(&mut self, now: Time, action: &Action) {
        match action {
            Action::Assign(assignment) => self.assign(now, *assignment),
            Action::Discard { task } => self.forget(*task),
            Action::Interrupt { task } => {
                self.forget(*task);
                if !matches!(self.worker(task.worker).phase, Phase::Crashed) {
                    self.agenda.remove(task.worker);
                    self.begin_queued(now, task.worker);
                }
            }
            Action::Continue { task } => self.post(now, Mail::Continue(*task)),
            Action::Collect { task } => self.post(now, Mail::Collect(*task)),
            // Idle workers need no reminding, and the ledger keeps the timers. Commits are carried out by the engine.
            Action::Hold { .. } | Action::Wake { .. } | Action::Commit { .. } => {}
        }
    }

    fn assign(&mut self, now: Time, assignment: Assignment) {
        self.bytes += self.payload;
        let arrival = match &self.simulation.network {
            Some(network) => {
                let slower = self.worker(assignment.task.worker).link;
                self.to_workers.send(now, self.payload, network, slower)
            }
            None => now,
        };
        if matches!(self.worker(assignment.task.worker).phase, Phase::Crashed) {
            return;
        }
        let recipe = self.recipe(&assignment);
        let worker = self.worker(assignment.task.worker);
        worker.recipes.extend(recipe);
        if assignment.queued {
            if let Some((replaced, _)) = worker.queued.replace((assignment, arrival)) {
                self.forget(replaced.task);
            }
        } else {
            self.begin(arrival, assignment);
        }
    }

    fn recipe(&mut self, assignment: &Assignment) -> Option<Recipe> {
        let Assignment { task, work, offset, samples, .. } = *assignment;
        let replica = match work {
            Work::Local(LocalWork { start: ReplicaStart::Replica { pull }, .. }) => {
                self.worker(task.worker).replica.take().map(|own| (own, pull))
            }
            _ => None,
        };
        let model = self.model.as_mut()?;
        let parameters = model.checkpoint();
        let start = replica.map(|(own, pull)| pulled_replica(&parameters, &own, pull));
        let draw = Draw { worker: task.worker.0, offset, samples };
        Some(Recipe { task, work, parameters, start, draw, iterations: 0, rate: model.trainer.local_rate() })
    }

    /// Steps the model; `live` workers take part.
    pub(crate) fn commit(&mut self, updates: &[Share], step: CommitStep, live: usize) -> Option<Aggregate> {
        self.model.as_ref()?;
        let mut recipes = Vec::with_capacity(updates.len());
        for share in updates {
            recipes.extend(self.take_recipe(share.task).map(|recipe| (recipe, share.weight)));
        }
        let model = self.model.as_mut()?;
        model.checkpoint = None;
        let Model { trainer, gradients, .. } = model;
        let contributions = gradients.compute(&recipes, step, trainer.parameters());
        for ((recipe, _), contribution) in recipes.iter().zip(&contributions) {
            if let Work::Local(LocalWork { start: ReplicaStart::Replica { .. }, .. }) = recipe.work {
                let replica = replica_at(&recipe.parameters, contribution.gradient);
                let worker = self.workers[recipe.task.worker.index()].as_mut();
                worker.expect("updates are of workers that are there").replica = Some(replica);
            }
        }
        Some(trainer.commit(step, &contributions, live))
    }

    // --- what workers do ---

    fn begin(&mut self, at: Time, assignment: Assignment) {
        let worker = self.worker(assignment.task.worker);
        worker.iterations = 0;
        self.compute(at, assignment);
    }

    /// The worker computes a gradient or the next local iteration.
    fn compute(&mut self, at: Time, assignment: Assignment) {
        let simulation = self.simulation;
        let id = assignment.task.worker;
        let worker = self.worker(id);
        // Times are those of the setup's batch, on which a task of that size takes exactly them.
        let size = f64::from(assignment.samples) / f64::from(simulation.setup.batch);
        let (drawn, resources) = worker.stream.next(&simulation.times, id, at, size);
        let compute = if worker.factor == 1.0 { drawn } else { Span::from_seconds(drawn.seconds() * worker.factor) };
        let cpu = resources.map(|resources| resources.cpu as f32);
        let memory = resources.map(|resources| resources.memory as f32);
        let report = Report { compute, cpu, memory, ..Report::default() };
        worker.since = at;
        // Without a network, a gradient that is computed has arrived.
        worker.phase = if simulation.network.is_none() && assignment.work == Work::Gradient {
            Phase::Sending(assignment, report)
        } else {
            Phase::Computing(assignment, report)
        };
        self.agenda.set(id, at + compute);
        self.under_way.begun(id, compute);
    }

    /// The worker has computed a gradient or a local iteration.
    fn computed(&mut self, now: Time, assignment: Assignment, report: Report) -> Acted {
        let Some(course) = assignment.work.length() else {
            self.send(now, assignment, report);
            return Acted::default();
        };
        let task = assignment.task;
        let worker = self.worker(task.worker);
        let took = now.since(worker.since);
        worker.iterations += 1;
        let iterations = worker.iterations;
        if let Some(recipe) = worker.recipes.iter_mut().find(|recipe| recipe.task == task) {
            recipe.iterations = iterations;
        }
        match course {
            LocalLength::Iterations(count) if iterations < count => {
                self.compute(now, assignment);
                if let Phase::Computing(_, next) = &mut self.worker(task.worker).phase {
                    next.compute += report.compute;
                }
            }
            LocalLength::Iterations(_) => self.send(now, assignment, report),
            LocalLength::AskAndWait | LocalLength::AskAndContinue => {
                let querying = std::mem::take(&mut worker.querying);
                worker.since = now;
                worker.phase = Phase::Waiting(assignment);
                self.post(now, Mail::Question(task, iterations, Report { querying, ..report }));
                if course == LocalLength::AskAndContinue {
                    self.compute(now, assignment);
                }
            }
        }
        Acted { task: Some((task, took)), happening: None }
    }

    fn begin_queued(&mut self, now: Time, worker: WorkerId) {
        let seat = self.worker(worker);
        seat.phase = Phase::Idle;
        if let Some((assignment, arrival)) = seat.queued.take() {
            self.begin(now.max(arrival), assignment);
        }
    }

    /// The worker sends what it has.
    fn send(&mut self, now: Time, assignment: Assignment, report: Report) {
        let id = assignment.task.worker;
        let arrival = match &self.simulation.network {
            Some(network) => {
                let bytes = self.upload(id);
                let slower = self.worker(id).link;
                self.to_server.send(now, bytes, network, slower)
            }
            None => now,
        };
        let worker = self.worker(id);
        let querying = std::mem::take(&mut worker.querying);
        worker.phase = Phase::Sending(assignment, Report { querying, ..report });
        self.agenda.set(id, arrival);
    }

    /// How much a worker sends when it is done: with a newer model queued it knows that its gradient is stale, and
    /// sends only a notice.
    fn upload(&mut self, worker: WorkerId) -> u64 {
        let bytes = if self.worker(worker).queued.is_some() { 0 } else { self.payload };
        self.bytes += bytes;
        bytes
    }

    /// Sends a short message, which only the latency delays.
    fn post(&mut self, now: Time, mail: Mail) {
        let latency = self.simulation.network.map_or(Span::ZERO, |network| Span::from_seconds(network.latency));
        self.mail.insert((now + latency, self.mails), mail);
        self.mails += 1;
    }

    fn take_recipe(&mut self, task: TaskId) -> Option<Recipe> {
        let recipes = &mut self.worker(task.worker).recipes;
        let position = recipes.iter().position(|recipe| recipe.task == task)?;
        Some(recipes.swap_remove(position))
    }

    /// The task's gradient will never be needed.
    fn forget(&mut self, task: TaskId) {
        drop(self.take_recipe(task));
    }

    // --- measuring ---

    pub(crate) fn evaluate(&mut self) -> Option<Evaluation> {
        self.model.as_mut().map(Model::evaluate)
    }

    pub(crate) fn evaluate_if_due(&mut self, iterations: u64) -> Option<Evaluation> {
        let model = self.model.as_mut()?;
        let every = model.training.evaluate_every;
        (every > 0 && iterations.is_multiple_of(every)).then(|| model.evaluate())
    }

    pub(crate) fn parameters(&self) -> Option<&[f32]> {
        self.model.as_ref().map(|model| model.trainer.parameters())
    }
}

/// What came of a worker's time coming.
#[derive(Default)]
pub(crate) struct Acted {
    /// A gradient or local iteration is computed, after so long.
    pub(crate) task: Option<(TaskId, Span)>,
    /// What the scheme has to hear of.
    pub(crate) happening: Option<Happening>,
}

impl Model<'_> {
    fn checkpoint(&mut self) -> Arc<[f32]> {
        self.checkpoint.get_or_insert_with(|| self.trainer.parameters().into()).clone()
    }

    fn evaluate(&mut self) -> Evaluation {
        self.gradients.evaluate(self.trainer.parameters())
    }
}
