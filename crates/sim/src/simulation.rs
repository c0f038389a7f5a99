//! The simulation itself: a virtual clock that drives a scheme.

use std::collections::VecDeque;
use std::sync::Arc;

use paceline_core::{
    Action, Decision, Event, Ledger, LedgerError, Scheme, SchemeError, SchemeSpec, Setup, Time, WorkerId,
};
use paceline_runtime::{Goal, Goals, Monitor, Observer, RunInfo, Summary};
use paceline_store::{OptimizerSpec, Schedule};
use paceline_workload::Workload;
use thiserror::Error;

use crate::foresight::UnderWay;
use crate::network::NetworkSpec;
use crate::ranks::Slowness;
use crate::script::{Change, Script};
use crate::times::{Times, TimesSpec};
use crate::world::{Happening, World};

/// A model to train.
#[derive(Clone)]
pub struct Training {
    /// The model with its data.
    pub workload: Arc<dyn Workload>,
    /// How gradients change the parameters: the model's, or under schemes with local iterations the replicas'.
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
    Scheme(#[from] SchemeError),
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
            setup: Setup { workers: 8, batch: 64, dispatch: None },
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
        let world = World::new(self);
        let ledger = Ledger::new(build(&self.scheme, &self.setup, world.under_way.clone())?);
        Engine { ledger, monitor: Monitor::default(), world, simulation: self, observer }.run()
    }

    /// Whether a scheme can be simulated with a setup.
    ///
    /// # Errors
    /// If it does not suit the setup.
    pub fn check(scheme: &SchemeSpec, setup: &Setup) -> Result<(), SchemeError> {
        build(scheme, setup, Arc::default()).map(drop)
    }
}

/// Makes a scheme that may know as much of the future as the world does.
fn build(scheme: &SchemeSpec, setup: &Setup, under_way: Arc<UnderWay>) -> Result<Box<dyn Scheme>, SchemeError> {
    let mut scheme = scheme.clone();
    scheme.context.foresight = Some(under_way);
    scheme.build(setup)
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
    Mail,
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
                Next::Mail => match self.world.deliver(now) {
                    Some(happening) => self.hear(now, happening)?,
                    None => None,
                },
                Next::Worker(worker) => self.act(now, worker)?,
                Next::Timer => self.feed(now, Event::Timer)?,
            };
        }
        Ok(self.outcome(now, stop))
    }

    /// The earliest of everything that is to come. At the same moment the script comes first, then short messages, then
    /// workers by rank, then timers.
    fn next(&self, script: usize) -> Option<(Time, Next)> {
        let step = self.simulation.script.steps().get(script).map(|&(at, _)| (at, Next::Script(script)));
        let mail = self.world.next_mail().map(|at| (at, Next::Mail));
        let worker = self.world.next_worker().map(|(at, worker)| (at, Next::Worker(worker)));
        let timer = self.ledger.next_timer().map(|at| (at, Next::Timer));
        [step, mail, worker, timer].into_iter().flatten().min_by_key(|&(at, _)| at)
    }

    fn change(&mut self, now: Time, change: &Change) -> Result<Option<Stop>, SimulationError> {
        let mut stop = None;
        match change {
            Change::Slow(ranks, factor) => {
                ranks.workers().for_each(|worker| self.world.slow_down(worker, *factor));
            }
            Change::Link(ranks, factor) => {
                ranks.workers().for_each(|worker| self.world.slow_link(worker, *factor));
            }
            Change::Join(ranks) => {
                for worker in ranks.workers() {
                    self.world.join(worker);
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
                ranks.workers().for_each(|worker| self.world.crash(worker, now + *noticed));
            }
        }
        Ok(stop)
    }

    /// A worker's time has come.
    fn act(&mut self, now: Time, worker: WorkerId) -> Result<Option<Stop>, SimulationError> {
        let acted = self.world.act(now, worker);
        if let Some((task, compute)) = acted.task {
            self.observer.on_task(task, compute);
        }
        match acted.happening {
            Some(happening) => self.hear(now, happening),
            None => Ok(None),
        }
    }

    fn hear(&mut self, now: Time, happening: Happening) -> Result<Option<Stop>, SimulationError> {
        let event = match happening {
            Happening::Asked(task, iterations, report) => Event::Asked { task, iterations, report },
            Happening::Reported(task, report) => Event::Reported { task, report },
            Happening::Gone(worker) => Event::Left { worker },
        };
        self.feed(now, event)
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
                if let Action::Commit { version, updates, step } = action {
                    let aggregate = self.world.commit(updates, *step, live);
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
        if let Some(evaluation) = self.world.evaluate() {
            self.monitor.evaluated(evaluation);
        }
        let (met, otherwise) = match stop {
            Some(Stop::Goal(goal)) => (Some(goal), ""),
            Some(Stop::Diverged) => (None, "the loss is no longer finite"),
            None => (None, "no worker left"),
        };
        let scheme = self.simulation.scheme.to_string();
        let run = RunInfo {
            scheme: &scheme,
            seed: self.simulation.seed,
            workers: self.simulation.setup.workers,
            goals: &self.simulation.goals,
            otherwise,
        };
        let summary = self.monitor.summary(&run, now, met, &self.ledger.samples(), self.world.bytes);
        let parameters = self.world.parameters().map(<[f32]>::to_vec);
        Outcome { summary, parameters }
    }
}
