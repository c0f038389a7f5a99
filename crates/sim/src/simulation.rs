//! The simulation: a virtual clock that drives a scheme.

use std::convert::Infallible;
use std::sync::Arc;

use paceline_core::{
    Action, Commit, CommitOutcome, Decision, DriveError, Event, Executor, Ledger, LedgerError, Scheme, SchemeError,
    SchemeSpec, Setup, TaskId, Time, WorkerId,
};
use paceline_runtime::{
    Goal, Goals, Monitor, Notice, Observer, RateSpec, RunInfo, RunTracker, Stepper, StopReason, Summary, Trainer,
    is_interrupted, server_optimizer,
};
use paceline_store::{OptimizerKind, OptimizerSpec, Schedule};
use paceline_workload::Workload;
use thiserror::Error;

use crate::cluster::SimulatedCluster;
use crate::foresight::TasksUnderWay;
use crate::late_checks::LateChecks;
use crate::network::NetworkSpec;
use crate::planner::plan;
use crate::ranks::Slowness;
use crate::script::{Change, Script};
use crate::times::{Times, TimesSpec};

/// A model to train.
#[derive(Clone)]
pub struct Training {
    /// The model with its data.
    pub workload: Arc<dyn Workload>,
    /// The parameters to start from; `None` for the workload's own.
    pub initial: Option<Arc<[f32]>>,
    /// Applies gradients to the parameters of the model, or of the replicas under schemes with local iterations.
    pub optimizer: OptimizerSpec,
    /// How the learning rate changes during the run.
    pub schedule: Schedule,
    /// The learning rate.
    pub rate: f32,
    /// The largest norm of a sum of gradients; longer ones are scaled down.
    pub clip_sum: Option<f32>,
    /// Samples between evaluations on the held-out set; 0 for one evaluation at the end only.
    pub evaluate_every: u64,
    /// Number of threads that compute gradients. Does not change the outcome.
    pub threads: usize,
}

impl Training {
    /// Plain SGD at a constant `rate` on one thread, evaluated every 5000 samples.
    pub fn new(workload: Arc<dyn Workload>, rate: f32) -> Self {
        let optimizer = OptimizerKind::Sgd { decay: 0.0 }.into();
        Training {
            workload,
            initial: None,
            optimizer,
            schedule: Schedule::default(),
            rate,
            clip_sum: None,
            evaluate_every: 5000,
            threads: 1,
        }
    }

    /// The model at the start of a simulation.
    pub(crate) fn trainer(&self, simulation: &Simulation) -> Trainer {
        let rate = RateSpec { base: self.rate, schedule: self.schedule, rule: simulation.setup.rate_rule };
        let optimizer = server_optimizer(&simulation.scheme, simulation.setup.workers, &self.optimizer);
        let stepper = Stepper::new(self.workload.layout(), optimizer, rate).clipping(self.clip_sum);
        let own = || self.workload.initial(simulation.seed);
        Trainer::new(self.initial.as_ref().map_or_else(own, |initial| initial.to_vec()), stepper)
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
            setup: Setup::new(8, 64),
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
        let scheme = build(&self.scheme, &self.setup, cluster.under_way.clone())?;
        self.run_scheme(scheme, cluster, observer)
    }

    fn run_scheme(
        &self,
        scheme: Box<dyn Scheme>,
        cluster: SimulatedCluster<'_>,
        observer: &mut dyn Observer,
    ) -> Result<SimulationOutcome, SimulationError> {
        let ledger = Ledger::new(scheme);
        let late_checks = ledger.watches_lateness().then(LateChecks::default);
        let evaluate_every = self.training.as_ref().map_or(0, |training| training.evaluate_every);
        let tracker = RunTracker::new(Monitor::new(&self.setup), self.goals.clone(), evaluate_every);
        let run = SimulatedRun { tracker, cluster, simulation: self, observer, late_checks };
        Engine { ledger, run, stop: None }.run()
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
    run: SimulatedRun<'a>,
    /// What ends the run.
    stop: Option<StopReason>,
}

/// Everything that the scheme's decisions act on.
struct SimulatedRun<'a> {
    tracker: RunTracker,
    cluster: SimulatedCluster<'a>,
    simulation: &'a Simulation,
    observer: &'a mut dyn Observer,
    /// Kept for schemes that watch for late tasks.
    late_checks: Option<LateChecks>,
}

/// The next event of the simulation.
enum NextEvent {
    Script(usize),
    Message,
    Worker(WorkerId),
    LateCheck(TaskId),
    Timer,
}

impl Engine<'_> {
    fn run(mut self) -> Result<SimulationOutcome, SimulationError> {
        let mut now = Time::START;
        for worker in 0..self.run.simulation.setup.workers as u32 {
            self.feed(now, Event::Joined { worker: WorkerId(worker) })?;
        }
        let mut script = 0;
        let time_limit = self.run.simulation.goals.time_limit();
        while self.stop.is_none() {
            if is_interrupted() {
                self.stop = Some(StopReason::Interrupted);
                break;
            }
            let Some((at, next)) = self.next(script) else { break };
            if let Some(limit) = time_limit.filter(|&limit| at > limit) {
                now = limit;
                self.stop = Some(StopReason::Goal(Goal::Time(limit.since(Time::START))));
                break;
            }
            now = at;
            match next {
                NextEvent::Script(step) => {
                    script = step + 1;
                    self.change(now, &self.run.simulation.script.steps()[step].1)?;
                }
                NextEvent::Message => {
                    if let Some(event) = self.run.cluster.deliver(now) {
                        self.feed(now, event)?;
                    }
                }
                NextEvent::Worker(worker) => self.act(now, worker)?,
                NextEvent::LateCheck(task) => {
                    if self.run.late_checks.as_mut().is_some_and(|checks| checks.check(now)) {
                        self.feed(now, Event::Late { task })?;
                    }
                }
                NextEvent::Timer => self.feed(now, Event::Timer)?,
            }
        }
        Ok(self.outcome(now))
    }

    /// The earliest event. At equal times the script comes first, then short messages, then workers by rank, then late
    /// tasks, then timers.
    fn next(&mut self, script: usize) -> Option<(Time, NextEvent)> {
        let mut next: Option<(Time, NextEvent)> = None;
        let mut offer = |at: Time, event: NextEvent| {
            if next.as_ref().is_none_or(|(earliest, _)| at < *earliest) {
                next = Some((at, event));
            }
        };
        if let Some(&(at, _)) = self.run.simulation.script.steps().get(script) {
            offer(at, NextEvent::Script(script));
        }
        if let Some(at) = self.run.cluster.next_message() {
            offer(at, NextEvent::Message);
        }
        if let Some((at, worker)) = self.run.cluster.next_worker() {
            offer(at, NextEvent::Worker(worker));
        }
        if let Some((at, task)) = self.run.late_checks.as_ref().and_then(LateChecks::next) {
            offer(at, NextEvent::LateCheck(task));
        }
        if let Some(at) = self.ledger.next_timer() {
            offer(at, NextEvent::Timer);
        }
        next
    }

    fn change(&mut self, now: Time, change: &Change) -> Result<(), SimulationError> {
        match change {
            Change::Slow(ranks, factor) => {
                ranks.workers().for_each(|worker| self.run.cluster.slow_down(worker, *factor));
            }
            Change::Link(ranks, factor) => {
                ranks.workers().for_each(|worker| self.run.cluster.slow_link(worker, *factor));
            }
            Change::Join(ranks) => {
                for worker in ranks.workers() {
                    self.run.cluster.join(worker);
                    self.feed(now, Event::Joined { worker })?;
                }
            }
            Change::Leave(ranks) => {
                for worker in ranks.workers() {
                    self.run.cluster.leave(worker);
                    self.feed(now, Event::Left { worker })?;
                }
            }
            Change::Crash(ranks, noticed) => {
                ranks.workers().for_each(|worker| self.run.cluster.crash(worker, now + *noticed));
            }
        }
        Ok(())
    }

    /// Carries out the worker's due event.
    fn act(&mut self, now: Time, worker: WorkerId) -> Result<(), SimulationError> {
        match self.run.cluster.act(now, worker, self.run.observer) {
            Some(event) => self.feed(now, event),
            None => Ok(()),
        }
    }

    /// Passes an event to the scheme and carries out what follows.
    fn feed(&mut self, now: Time, event: Event) -> Result<(), SimulationError> {
        match self.ledger.drive(now, event, &mut self.run) {
            Ok(()) => {}
            Err(DriveError::Ledger(error)) => return Err(error.into()),
            Err(DriveError::Executor(never)) => match never {},
        }
        // The first reason counts.
        if let Some(stop) = self.run.tracker.take_stop() {
            self.stop.get_or_insert(stop);
        }
        while let Some((worker, reason)) = self.run.tracker.next_to_dismiss() {
            self.dismiss(now, worker, reason)?;
        }
        if let Some(request) = self.ledger.plan_request() {
            // Planning takes no time here.
            self.feed(now, Event::Planned { paces: plan(&request) })?;
        }
        Ok(())
    }

    /// Removes a worker.
    fn dismiss(&mut self, now: Time, worker: WorkerId, reason: String) -> Result<(), SimulationError> {
        let lost = self.ledger.outstanding(worker);
        self.run.cluster.leave(worker);
        self.feed(now, Event::Left { worker })?;
        let remaining = self.ledger.live();
        self.run.observer.on_notice(&Notice::Left { worker, reason, lost, remaining });
        Ok(())
    }

    fn outcome(mut self, now: Time) -> SimulationOutcome {
        let last = self.run.cluster.evaluate();
        let stop = self.stop.unwrap_or(StopReason::NoWorkers(String::new()));
        let scheme = self.run.simulation.scheme.to_string();
        let run = RunInfo {
            scheme: &scheme,
            seed: self.run.simulation.seed,
            workers: self.run.simulation.setup.workers,
            goals: &self.run.simulation.goals,
        };
        let (samples, bytes) = (self.ledger.samples(), self.run.cluster.bytes);
        let summary = self.run.tracker.monitor().summary(&run, now, &stop, &samples, bytes, last);
        let parameters = self.run.cluster.parameters().map(<[f32]>::to_vec);
        SimulationOutcome { summary, parameters }
    }
}

impl Executor for SimulatedRun<'_> {
    type Error = Infallible;

    #[inline]
    fn begin_turn(&mut self, now: Time, event: &Event, decisions: &[Decision]) -> Result<(), Infallible> {
        if let Some(checks) = &mut self.late_checks {
            checks.lateness.observe(now, event, decisions);
        }
        self.tracker.begin_turn(now, event, decisions, self.observer);
        Ok(())
    }

    fn commit(&mut self, commit: &Commit, live: usize) -> Result<CommitOutcome, Infallible> {
        let Some(outcome) = self.cluster.commit(commit, live) else { return Ok(CommitOutcome::default()) };
        self.tracker.committed(commit, &outcome, live);
        Ok(outcome)
    }

    #[inline]
    fn carry_out(&mut self, now: Time, action: &Action) -> Result<(), Infallible> {
        self.cluster.carry_out(now, action);
        Ok(())
    }

    #[inline]
    fn end_turn(&mut self, now: Time, _: &Event, ledger: &Ledger) -> Result<(), Infallible> {
        if let Some(checks) = &mut self.late_checks {
            checks.settle(now, ledger);
        }
        let cluster = &mut self.cluster;
        self.tracker.end_turn(now, &ledger.samples(), || cluster.evaluate(), self.observer);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_core::{CommitRequest, Reason, Span, Turn, Update};
    use std::sync::Mutex;

    /// Every worker computes without a pause. Writes down the late tasks and their times.
    struct LateRecorder(Arc<Mutex<Vec<(Time, TaskId)>>>);

    impl Scheme for LateRecorder {
        fn on_joined(&mut self, turn: &mut Turn<'_>, worker: WorkerId) {
            turn.assign(worker, 1, Reason::Joined);
        }

        fn on_left(&mut self, _turn: &mut Turn<'_>, _worker: WorkerId) {}

        fn on_reported(&mut self, turn: &mut Turn<'_>, update: &Update) {
            turn.commit(CommitRequest::of(&[update.task]), Reason::NewVersion);
            turn.assign(update.task.worker, 1, Reason::NewVersion);
        }

        fn on_late(&mut self, turn: &mut Turn<'_>, task: TaskId) {
            self.0.lock().unwrap().push((turn.now(), task));
        }

        fn watches_lateness(&self) -> bool {
            true
        }
    }

    #[test]
    fn a_scheme_that_watches_is_told_of_late_tasks_when_they_are_late() {
        let simulation = Simulation {
            scheme: "bsp".parse().unwrap(),
            setup: Setup::new(2, 1),
            times: Times::load(&TimesSpec::Deterministic { seconds: 1.0 }).unwrap(),
            slowness: Slowness::default(),
            // Its tenth task takes 30 s, and the next ones as long.
            script: Script::parse("9.5 slow 1 30", 2).unwrap(),
            network: None,
            training: None,
            goals: "time=200".parse().unwrap(),
            seed: 1,
        };
        let late = Arc::default();
        let scheme = Box::new(LateRecorder(Arc::clone(&late)));
        simulation.run_scheme(scheme, SimulatedCluster::new(&simulation), &mut ()).unwrap();
        let task = TaskId { worker: WorkerId(1), number: 10 };
        assert_eq!(
            *late.lock().unwrap(),
            [(Time::START + Span::from_seconds(14.0), task)],
            "four times the usual, once"
        );
    }
}
