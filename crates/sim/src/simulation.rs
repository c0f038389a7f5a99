//! The simulation: a virtual clock that drives a scheme.

use std::collections::VecDeque;
use std::sync::Arc;

use paceline_core::{
    Action, Decision, Event, Ledger, LedgerError, Scheme, SchemeError, SchemeSpec, Setup, Time, WorkerId,
};
use paceline_runtime::{Goal, Goals, INTERRUPTED, Monitor, NO_WORKERS, Observer, RunInfo, Summary, is_interrupted};
use paceline_store::{OptimizerSpec, Schedule};
use paceline_workload::Workload;
use thiserror::Error;

use crate::cluster::{SimulatedCluster, WorkerEvent};
use crate::foresight::TasksUnderWay;
use crate::network::NetworkSpec;
use crate::ranks::Slowness;
use crate::script::{Change, Script};
use crate::times::{Times, TimesSpec};

/// A model to train.
#[derive(Clone)]
pub struct Training {
    /// The model with its data.
    pub workload: Arc<dyn Workload>,
    /// Applies gradients to the parameters of the model, or of the replicas under schemes with local iterations.
    pub optimizer: OptimizerSpec,
    /// How the learning rate changes during the run.
    pub schedule: Schedule,
    /// The learning rate.
    pub rate: f32,
    /// Iterations between evaluations on the held-out set; 0 for one evaluation at the end only.
    pub evaluate_every: u64,
    /// Number of threads that compute gradients. Does not change the outcome.
    pub threads: usize,
}

impl Training {
    /// Plain SGD at a constant `rate` on one thread, evaluated every ten iterations.
    pub fn new(workload: Arc<dyn Workload>, rate: f32) -> Self {
        let optimizer = OptimizerSpec::Sgd { decay: 0.0 };
        Training { workload, optimizer, schedule: Schedule::default(), rate, evaluate_every: 10, threads: 1 }
    }
}

/// A complete description of a simulated run.
#[derive(Clone)]
pub struct Simulation {
    /// The scheme.
    pub scheme: SchemeSpec,
    /// The setup that the scheme is built for.
    pub setup: Setup,
    /// How long tasks take.
    pub times: Times,
    /// Slowdown factors of some workers.
    pub slowness: Slowness,
    /// Changes to the workers at given times.
    pub script: Script,
    /// How long messages take; without one, messages arrive at once.
    pub network: Option<NetworkSpec>,
    /// The model; without one, only times are simulated.
    pub training: Option<Training>,
    /// When the run stops.
    pub goals: Goals,
    /// The seed of all random numbers.
    pub seed: u64,
}

/// The result of a simulation.
#[derive(Debug, Clone)]
pub struct SimulationOutcome {
    /// Metrics of the run.
    pub summary: Summary,
    /// The final parameters; `None` without a model.
    pub parameters: Option<Vec<f32>>,
}

/// Why a simulation failed.
#[derive(Debug, Error)]
pub enum SimulationError {
    /// The scheme can't be built.
    #[error(transparent)]
    Scheme(#[from] SchemeError),
    /// The scheme broke a law.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

impl Simulation {
    /// A simulation of `bsp` for 1000 iterations with eight equal workers, batches of 64 and tasks of one second.
    pub fn of(training: Training) -> Self {
        let valid = "the defaults parse";
        Simulation {
            scheme: "bsp".parse().expect(valid),
            setup: Setup { workers: 8, batch: 64, dispatch: None },
            times: Times::load(&TimesSpec::Deterministic { seconds: 1.0 }).expect("no file is read"),
            slowness: Slowness::default(),
            script: Script::default(),
            network: None,
            training: Some(training),
            goals: "iterations=1000".parse().expect(valid),
            seed: 1,
        }
    }

    /// Runs until a goal is reached, or until the user interrupts it.
    ///
    /// # Errors
    /// If the scheme does not support the setup, or breaks a law.
    pub fn run(&self, observer: &mut dyn Observer) -> Result<SimulationOutcome, SimulationError> {
        let cluster = SimulatedCluster::new(self);
        let ledger = Ledger::new(build(&self.scheme, &self.setup, cluster.under_way.clone())?);
        Engine { ledger, monitor: Monitor::default(), cluster, simulation: self, observer }.run()
    }

    /// Checks whether a scheme can be simulated with a setup.
    ///
    /// # Errors
    /// If the scheme does not support the setup.
    pub fn check(scheme: &SchemeSpec, setup: &Setup) -> Result<(), SchemeError> {
        build(scheme, setup, Arc::default()).map(drop)
    }
}

/// Builds a scheme whose oracle, if it has one, knows the run times of tasks under way.
fn build(scheme: &SchemeSpec, setup: &Setup, under_way: Arc<TasksUnderWay>) -> Result<Box<dyn Scheme>, SchemeError> {
    let mut scheme = scheme.clone();
    scheme.context.foresight = Some(under_way);
    scheme.build(setup)
}

struct Engine<'a> {
    ledger: Ledger,
    monitor: Monitor,
    cluster: SimulatedCluster<'a>,
    simulation: &'a Simulation,
    observer: &'a mut dyn Observer,
}

/// The next event of the simulation.
enum NextEvent {
    Script(usize),
    Message,
    Worker(WorkerId),
    Timer,
}

/// Why the run stops.
enum StopCondition {
    Goal(Goal),
    Diverged,
    Interrupted,
}

impl Engine<'_> {
    fn run(mut self) -> Result<SimulationOutcome, SimulationError> {
        let mut now = Time::START;
        let mut stop = None;
        for worker in 0..self.simulation.setup.workers as u32 {
            self.feed(now, Event::Joined { worker: WorkerId(worker) })?;
        }
        let mut script = 0;
        while stop.is_none() {
            if is_interrupted() {
                stop = Some(StopCondition::Interrupted);
                break;
            }
            let Some((at, next)) = self.next(script) else { break };
            if let Some(limit) = self.simulation.goals.time_limit().filter(|&limit| at > limit) {
                now = limit;
                stop = Some(StopCondition::Goal(Goal::Time(limit.since(Time::START))));
                break;
            }
            now = at;
            stop = match next {
                NextEvent::Script(step) => {
                    script = step + 1;
                    self.change(now, &self.simulation.script.steps()[step].1)?
                }
                NextEvent::Message => match self.cluster.deliver(now) {
                    Some(event) => self.on_worker_event(now, event)?,
                    None => None,
                },
                NextEvent::Worker(worker) => self.act(now, worker)?,
                NextEvent::Timer => self.feed(now, Event::Timer)?,
            };
        }
        Ok(self.outcome(now, stop))
    }

    /// The earliest event. At equal times the script comes first, then short messages, then workers by rank, then
    /// timers.
    fn next(&self, script: usize) -> Option<(Time, NextEvent)> {
        let step = self.simulation.script.steps().get(script).map(|&(at, _)| (at, NextEvent::Script(script)));
        let message = self.cluster.next_message().map(|at| (at, NextEvent::Message));
        let worker = self.cluster.next_worker().map(|(at, worker)| (at, NextEvent::Worker(worker)));
        let timer = self.ledger.next_timer().map(|at| (at, NextEvent::Timer));
        [step, message, worker, timer].into_iter().flatten().min_by_key(|&(at, _)| at)
    }

    fn change(&mut self, now: Time, change: &Change) -> Result<Option<StopCondition>, SimulationError> {
        let mut stop = None;
        match change {
            Change::Slow(ranks, factor) => {
                ranks.workers().for_each(|worker| self.cluster.slow_down(worker, *factor));
            }
            Change::Link(ranks, factor) => {
                ranks.workers().for_each(|worker| self.cluster.slow_link(worker, *factor));
            }
            Change::Join(ranks) => {
                for worker in ranks.workers() {
                    self.cluster.join(worker);
                    stop = stop.or(self.feed(now, Event::Joined { worker })?);
                }
            }
            Change::Leave(ranks) => {
                for worker in ranks.workers() {
                    self.cluster.leave(worker);
                    stop = stop.or(self.feed(now, Event::Left { worker })?);
                }
            }
            Change::Crash(ranks, noticed) => {
                ranks.workers().for_each(|worker| self.cluster.crash(worker, now + *noticed));
            }
        }
        Ok(stop)
    }

    /// Carries out the worker's due event.
    fn act(&mut self, now: Time, worker: WorkerId) -> Result<Option<StopCondition>, SimulationError> {
        let progress = self.cluster.act(now, worker);
        if let Some((task, compute)) = progress.computed {
            self.observer.on_task(task, compute);
        }
        match progress.event {
            Some(event) => self.on_worker_event(now, event),
            None => Ok(None),
        }
    }

    fn on_worker_event(&mut self, now: Time, event: WorkerEvent) -> Result<Option<StopCondition>, SimulationError> {
        let event = match event {
            WorkerEvent::Asked(task, iterations, report) => Event::Asked { task, iterations, report },
            WorkerEvent::Reported(task, report) => Event::Reported { task, report },
            WorkerEvent::Lost(worker) => Event::Left { worker },
        };
        self.feed(now, event)
    }

    /// Passes an event to the scheme, carries out the decisions, and confirms commits until none is left.
    fn feed(&mut self, now: Time, event: Event) -> Result<Option<StopCondition>, SimulationError> {
        let mut stop = None;
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let live = self.ledger.live();
            let decisions = self.ledger.handle(now, event)?;
            self.observer.on_turn(now, &event, decisions);
            let iteration = self.monitor.observe(now, &event, decisions);
            for Decision { action, .. } in decisions {
                if let Action::Commit { version, updates, step } = action {
                    let aggregate = self.cluster.commit(updates, *step, live);
                    events.push_back(Event::Committed { version: *version, aggregate });
                } else {
                    self.cluster.carry_out(now, action);
                }
            }
            if let Some(iteration) = iteration {
                if let Some(evaluation) = self.cluster.evaluate_if_due(self.monitor.iterations()) {
                    self.monitor.evaluated(evaluation);
                }
                self.observer.on_iteration(&iteration, &self.monitor);
                let met = self.monitor.met(&self.simulation.goals, now, &self.ledger.samples());
                stop = stop.or(met.map(StopCondition::Goal));
                if iteration.loss.is_some_and(|loss| !loss.is_finite()) {
                    stop = stop.or(Some(StopCondition::Diverged));
                }
            }
        }
        Ok(stop)
    }

    fn outcome(mut self, now: Time, stop: Option<StopCondition>) -> SimulationOutcome {
        if let Some(evaluation) = self.cluster.evaluate() {
            self.monitor.evaluated(evaluation);
        }
        let (met, otherwise) = match stop {
            Some(StopCondition::Goal(goal)) => (Some(goal), ""),
            Some(StopCondition::Diverged) => (None, "the loss is no longer finite"),
            Some(StopCondition::Interrupted) => (None, INTERRUPTED),
            None => (None, NO_WORKERS),
        };
        let scheme = self.simulation.scheme.to_string();
        let run = RunInfo {
            scheme: &scheme,
            seed: self.simulation.seed,
            workers: self.simulation.setup.workers,
            goals: &self.simulation.goals,
            otherwise,
        };
        let summary = self.monitor.summary(&run, now, met, &self.ledger.samples(), self.cluster.bytes);
        let parameters = self.cluster.parameters().map(<[f32]>::to_vec);
        SimulationOutcome { summary, parameters }
    }
}
