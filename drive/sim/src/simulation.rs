//! The simulation itself: a virtual clock that drives a scheme.

use std::collections::VecDeque;
use std::sync::Arc;

use paceline_core::{
    Action, Aggregate, Assignment, Decision, Event, Ledger, LedgerError, Report, SchemeSpec, Setup, Share, Span,
    SpecError, TaskId, Time, WorkerId,
};
use paceline_run::{Goal, Goals, Monitor, Observer, Run, Summary, Trainer};
use paceline_store::{OptimizerSpec, Schedule};
use paceline_workload::{Draw, Evaluation, Workload};
use thiserror::Error;

use crate::agenda::Agenda;
use crate::gradients::{Gradients, Recipe};
use crate::network::{Link, NetworkSpec};
use crate::ranks::Slowness;
use crate::script::{Change, Script};
use crate::times::{Stream, Times, TimesSpec};

/// A model to train.
#[derive(Clone)]
pub struct Training {
    /// The model with its data.
    pub workload: Arc<dyn Workload>,
    /// How gradients change the parameters.
    pub optimizer: OptimizerSpec,
    /// How the learning rate changes.
    pub schedule: Schedule,
    /// The learning rate.
    pub rate: f32,
    /// Measure on the held-out set every so many iterations, and at the end; 0 for at the end only.
    pub evaluate_every: u64,
    /// Threads that compute gradients.
    pub threads: usize,
}

impl Training {
    /// Plain gradient descent at a constant `rate` on one thread, measured every ten iterations.
    pub fn new(workload: Arc<dyn Workload>, rate: f32) -> Self {
        let optimizer = OptimizerSpec::Sgd { decay: 0.0 };
        Training { workload, optimizer, schedule: Schedule::default(), rate, evaluate_every: 10, threads: 1 }
    }
}

/// Everything that decides how a simulation goes.
#[derive(Clone)]
pub struct Simulation {
    /// The scheme.
    pub scheme: SchemeSpec,
    /// What it is built for.
    pub setup: Setup,
    /// How long tasks take.
    pub times: Times,
    /// How much slower some workers are.
    pub slowness: Slowness,
    /// What happens to workers on the way.
    pub script: Script,
    /// How long messages take; none at all if not given.
    pub network: Option<NetworkSpec>,
    /// The model; without one, only time passes.
    pub training: Option<Training>,
    /// When it is over.
    pub goals: Goals,
    /// The seed of everything random.
    pub seed: u64,
}

/// What a simulation leaves.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The run in numbers.
    pub summary: Summary,
    /// The model.
    pub parameters: Option<Vec<f32>>,
}

/// Why a simulation did not end well.
#[derive(Debug, Error)]
pub enum SimulationError {
    /// The scheme can't be built.
    #[error(transparent)]
    Scheme(#[from] SpecError),
    /// The scheme broke a law.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

impl Simulation {
    /// Eight equal workers with batches of 64, whose tasks take a second, under `bsp` for 1000 iterations.
    pub fn of(training: Training) -> Self {
        let known = "the defaults are well written";
        Simulation {
            scheme: "bsp".parse().expect(known),
            setup: Setup { workers: 8, batch: 64, handout: None },
            times: Times::load(&TimesSpec::Deterministic { seconds: 1.0 }).expect("there is no file to read"),
            slowness: Slowness::default(),
            script: Script::default(),
            network: None,
            training: Some(training),
            goals: "iterations=1000".parse().expect(known),
            seed: 1,
        }
    }

    /// Runs to the end.
    ///
    /// # Errors
    /// If the scheme does not suit the setup, or breaks a law.
    pub fn run(&self, observer: &mut dyn Observer) -> Result<Outcome, SimulationError> {
        let ledger = Ledger::new(self.scheme.build(&self.setup)?);
        Engine { ledger, monitor: Monitor::default(), world: World::new(self), simulation: self, observer }.run()
    }
}

/// What a worker is at.
#[derive(Debug, Clone, Copy)]
enum Phase {
    /// Nothing.
    Idle,
    /// Computing a task, to report this of it.
    Computing(Assignment, Report),
    /// Sending what it computed.
    Sending(Assignment, Report),
    /// Dead, and nobody knows yet.
    Crashed,
}

struct Worker {
    stream: Stream,
    factor: f64,
    /// How much slower than usual its own link is.
    link: f64,
    phase: Phase,
    /// The next task, and when its parameters are there.
    queued: Option<(Assignment, Time)>,
    /// What its tasks and uncommitted updates would be computed from.
    recipes: Vec<Recipe>,
}

struct Model<'a> {
    trainer: Trainer,
    gradients: Gradients,
    training: &'a Training,
    /// The newest parameters, once someone needs them.
    snapshot: Option<Arc<[f32]>>,
}

/// Everything beside the ledger: workers, links, the model.
struct World<'a> {
    simulation: &'a Simulation,
    workers: Vec<Option<Worker>>,
    agenda: Agenda,
    to_workers: Link,
    to_server: Link,
    /// Bytes of the parameters or of a gradient.
    payload: u64,
    bytes: u64,
    model: Option<Model<'a>>,
}

struct Engine<'a> {
    ledger: Ledger,
    monitor: Monitor,
    world: World<'a>,
    simulation: &'a Simulation,
    observer: &'a mut dyn Observer,
}

/// What happens next.
enum Next {
    Script(usize),
    Worker(WorkerId),
    Timer,
}

/// Why the run is over.
enum Stop {
    Goal(Goal),
    Diverged,
}

impl Engine<'_> {
    fn run(mut self) -> Result<Outcome, SimulationError> {
        let mut now = Time::START;
        let mut stop = None;
        for worker in 0..self.simulation.setup.workers as u32 {
            self.feed(now, Event::Joined { worker: WorkerId(worker) })?;
        }
        let mut script = 0;
        while stop.is_none() {
            let Some((at, next)) = self.next(script) else { break };
            if let Some(limit) = self.simulation.goals.time_limit().filter(|&limit| at > limit) {
                now = limit;
                stop = Some(Stop::Goal(Goal::Time(limit.since(Time::START))));
                break;
            }
            now = at;
            stop = match next {
                Next::Script(step) => {
                    script = step + 1;
                    self.change(now, &self.simulation.script.steps()[step].1)?
                }
                Next::Worker(worker) => self.act(now, worker)?,
                Next::Timer => self.feed(now, Event::Timer)?,
            };
        }
        Ok(self.outcome(now, stop))
    }

    /// The earliest of everything that is to come. At the same moment the script comes first, then workers by rank,
    /// then timers.
    fn next(&self, script: usize) -> Option<(Time, Next)> {
        let step = self.simulation.script.steps().get(script).map(|&(at, _)| (at, Next::Script(script)));
        let worker = self.world.agenda.first().map(|(at, worker)| (at, Next::Worker(worker)));
        let timer = self.ledger.next_timer().map(|at| (at, Next::Timer));
        [step, worker, timer].into_iter().flatten().min_by_key(|&(at, _)| at)
    }

    fn change(&mut self, now: Time, change: &Change) -> Result<Option<Stop>, SimulationError> {
        let mut stop = None;
        match change {
            Change::Slow(ranks, factor) => {
                ranks.workers().for_each(|worker| self.world.worker(worker).factor = *factor);
            }
            Change::Link(ranks, factor) => {
                ranks.workers().for_each(|worker| self.world.worker(worker).link = *factor);
            }
            Change::Join(ranks) => {
                for worker in ranks.workers() {
                    self.world.worker(worker).phase = Phase::Idle;
                    stop = stop.or(self.feed(now, Event::Joined { worker })?);
                }
            }
            Change::Leave(ranks) => {
                for worker in ranks.workers() {
                    self.world.leave(worker);
                    stop = stop.or(self.feed(now, Event::Left { worker })?);
                }
            }
            Change::Crash(ranks, noticed) => {
                for worker in ranks.workers() {
                    self.world.leave(worker);
                    self.world.worker(worker).phase = Phase::Crashed;
                    self.world.agenda.set(worker, now + *noticed);
                }
            }
        }
        Ok(stop)
    }

    /// A worker's time has come.
    fn act(&mut self, now: Time, worker: WorkerId) -> Result<Option<Stop>, SimulationError> {
        self.world.agenda.remove(worker);
        match self.world.worker(worker).phase {
            Phase::Idle => Ok(None),
            Phase::Computing(assignment, report) => {
                self.world.send(now, assignment, report);
                Ok(None)
            }
            Phase::Sending(assignment, report) => {
                if self.simulation.network.is_none() {
                    self.world.upload(worker);
                }
                self.world.begin_queued(now, worker);
                self.observer.on_task(assignment.task, report.compute);
                self.feed(now, Event::Reported { task: assignment.task, report })
            }
            Phase::Crashed => {
                self.world.worker(worker).phase = Phase::Idle;
                self.feed(now, Event::Left { worker })
            }
        }
    }

    /// Tells the scheme, does what it decides, and confirms its commits until there are none left.
    fn feed(&mut self, now: Time, event: Event) -> Result<Option<Stop>, SimulationError> {
        let mut stop = None;
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let live = self.ledger.live();
            let decisions = self.ledger.handle(now, event)?;
            self.observer.on_turn(now, &event, decisions);
            let iteration = self.monitor.observe(now, &event, decisions);
            for Decision { action, .. } in decisions {
                if let Action::Commit { version, updates } = action {
                    let aggregate = self.world.commit(updates, live);
                    events.push_back(Event::Committed { version: *version, aggregate });
                } else {
                    self.world.carry_out(now, action);
                }
            }
            if let Some(iteration) = iteration {
                if let Some(evaluation) = self.world.evaluate_if_due(self.monitor.iterations()) {
                    self.monitor.evaluated(evaluation);
                }
                self.observer.on_iteration(&iteration, &self.monitor);
                let met = self.monitor.met(&self.simulation.goals, now, &self.ledger.samples());
                stop = stop.or(met.map(Stop::Goal));
                if iteration.loss.is_some_and(|loss| !loss.is_finite()) {
                    stop = stop.or(Some(Stop::Diverged));
                }
            }
        }
        Ok(stop)
    }

    fn outcome(mut self, now: Time, stop: Option<Stop>) -> Outcome {
        if let Some(evaluation) = self.world.model.as_mut().map(Model::evaluate) {
            self.monitor.evaluated(evaluation);
        }
        let (met, otherwise) = match stop {
            Some(Stop::Goal(goal)) => (Some(goal), ""),
            Some(Stop::Diverged) => (None, "the loss is no longer finite"),
            None => (None, "no worker left"),
        };
        let scheme = self.simulation.scheme.to_string();
        let run = Run {
            scheme: &scheme,
            seed: self.simulation.seed,
            workers: self.simulation.setup.workers,
            goals: &self.simulation.goals,
            otherwise,
        };
        let summary = self.monitor.summary(&run, now, met, &self.ledger.samples(), self.world.bytes);
        Outcome { summary, parameters: self.world.model.map(|model| model.trainer.parameters().to_vec()) }
    }
}

impl<'a> World<'a> {
    fn new(simulation: &'a Simulation) -> Self {
        let model = simulation.training.as_ref().map(|training| Model {
            trainer: Trainer::new(
                training.workload.as_ref(),
                simulation.seed,
                training.optimizer,
                training.schedule,
                training.rate,
            ),
            gradients: Gradients::new(training.workload.as_ref(), training.threads),
            training,
            snapshot: None,
        });
        let parameters = model.as_ref().map_or(0, |model| size_of_val(model.trainer.parameters()) as u64);
        World {
            simulation,
            workers: Vec::new(),
            agenda: Agenda::default(),
            to_workers: Link::default(),
            to_server: Link::default(),
            payload: simulation.network.and_then(|network| network.bytes).unwrap_or(parameters),
            bytes: 0,
            model,
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
            queued: None,
            recipes: Vec::new(),
        })
    }

    fn leave(&mut self, worker: WorkerId) {
        self.agenda.remove(worker);
        let seat = self.worker(worker);
        seat.phase = Phase::Idle;
        seat.queued = None;
        seat.recipes.clear();
    }

    fn carry_out(&mut self, now: Time, action: &Action) {
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
        let recipe = self.model.as_mut().map(|model| Recipe {
            task: assignment.task,
            parameters: model.snapshot(),
            draw: Draw { worker: assignment.task.worker.0, offset: assignment.offset, samples: assignment.samples },
        });
        let worker = self.worker(assignment.task.worker);
        if matches!(worker.phase, Phase::Crashed) {
            return;
        }
        worker.recipes.extend(recipe);
        if assignment.queued {
            if let Some((replaced, _)) = worker.queued.replace((assignment, arrival)) {
                self.forget(replaced.task);
            }
        } else {
            self.begin(arrival, assignment);
        }
    }

    fn begin(&mut self, at: Time, assignment: Assignment) {
        let simulation = self.simulation;
        let id = assignment.task.worker;
        let worker = self.worker(id);
        // Times are those of the setup's batch, on which a task of that size takes exactly them.
        let size = f64::from(assignment.samples) / f64::from(simulation.setup.batch);
        let (drawn, resources) = worker.stream.next(&simulation.times, id, at, size);
        let compute = if worker.factor == 1.0 { drawn } else { Span::from_seconds(drawn.seconds() * worker.factor) };
        let cpu = resources.map(|resources| resources.cpu as f32);
        let report = Report { compute, cpu, memory: resources.map(|resources| resources.memory as f32) };
        // Without a network, what is computed has arrived.
        worker.phase = match simulation.network {
            Some(_) => Phase::Computing(assignment, report),
            None => Phase::Sending(assignment, report),
        };
        self.agenda.set(id, at + compute);
    }

    fn begin_queued(&mut self, now: Time, worker: WorkerId) {
        let seat = self.worker(worker);
        seat.phase = Phase::Idle;
        if let Some((assignment, arrival)) = seat.queued.take() {
            self.begin(now.max(arrival), assignment);
        }
    }

    /// The worker is done computing and sends what it has.
    fn send(&mut self, now: Time, assignment: Assignment, report: Report) {
        let id = assignment.task.worker;
        let bytes = self.upload(id);
        let arrival = match &self.simulation.network {
            Some(network) => {
                let slower = self.worker(id).link;
                self.to_server.send(now, bytes, network, slower)
            }
            None => now,
        };
        self.worker(id).phase = Phase::Sending(assignment, report);
        self.agenda.set(id, arrival);
    }

    /// How much a worker sends when it is done: with a newer model queued it knows that its gradient is stale, and
    /// sends only a notice.
    fn upload(&mut self, worker: WorkerId) -> u64 {
        let bytes = if self.worker(worker).queued.is_some() { 0 } else { self.payload };
        self.bytes += bytes;
        bytes
    }

    /// Steps the model; `live` workers take part.
    fn commit(&mut self, updates: &[Share], live: usize) -> Option<Aggregate> {
        self.model.as_ref()?;
        let mut recipes = Vec::with_capacity(updates.len());
        for share in updates {
            recipes.extend(self.take_recipe(share.task).map(|recipe| (recipe, share.weight)));
        }
        let model = self.model.as_mut()?;
        let contributions = model.gradients.compute(&recipes);
        model.snapshot = None;
        Some(model.trainer.commit(&contributions, live))
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

    fn evaluate_if_due(&mut self, iterations: u64) -> Option<Evaluation> {
        let model = self.model.as_mut()?;
        let every = model.training.evaluate_every;
        (every > 0 && iterations.is_multiple_of(every)).then(|| model.evaluate())
    }
}

impl Model<'_> {
    fn snapshot(&mut self) -> Arc<[f32]> {
        self.snapshot.get_or_insert_with(|| self.trainer.parameters().into()).clone()
    }

    fn evaluate(&mut self) -> Evaluation {
        self.gradients.evaluate(self.trainer.parameters())
    }
}
