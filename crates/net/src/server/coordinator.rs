//! The coordinator: the thread that drives the protocol. It takes what the connections receive, and the time.

use std::collections::BTreeSet;
use std::thread::Scope;
use std::time::{Duration, Instant};

use paceline_core::{DriveError, Ledger, Time, WorkerId};
use paceline_protocol::{MAX_PARTS, Notice, ParameterHolders, ServerConfig, ServerProtocol, ToServer};
use paceline_runtime::{Goal, Job, Monitor, RateState, ResumePoint, ServerObserver, StepControl, Stepper, StopReason};
use paceline_store::{Checkpoint, Optimizer};

use super::event_source::{CoordinatorHandle, ServerInput};
use super::group_model::GroupModel;
use super::host::NetHost;
use super::inputs::Inputs;
use super::model::{LocalModel, ServerModel};
use super::planning::PlanThread;
use super::session::SessionContext;
use super::sharded_model::{ShardOptions, ShardedModel};
use super::{DataPlane, RunOutcome, ServerError, TransportOptions};
use crate::keys::Keys;

/// How long workers may take to disconnect after the end of the run.
const DISCONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// The coordinator of one run.
pub(super) struct Coordinator<'a> {
    protocol: ServerProtocol,
    host: NetHost<'a>,
    clock: Instant,
    /// Makes plans for the scheme, once it runs.
    planner: Option<PlanThread>,
    /// Where the run resumes: its time, and the workers that have to rejoin.
    resumed: Option<(Time, BTreeSet<WorkerId>)>,
    /// Whether the run ends when the last worker has done all that it was started for.
    pub(super) ends_with_workers: bool,
    /// Whether the workers wait for the run to be resumed when the user interrupts it.
    pub(super) keeps_workers: bool,
}

impl<'a> Coordinator<'a> {
    pub(super) fn new(
        job: &'a Job,
        context: &'a SessionContext,
        transport: &TransportOptions,
        epoch: u64,
        inputs: Inputs,
        observer: &'a mut dyn ServerObserver,
        from: Option<ResumePoint>,
    ) -> Result<Self, ServerError> {
        let layout = job.model.layout();
        let rate = job.rate_spec();
        let (ledger, monitor, optimizer, rate_state, parameters, resumed) = match from {
            None => {
                let optimizer = Optimizer::new(job.server_optimizer(), layout);
                let ledger = Ledger::new(job.scheme.build(&job.setup)?);
                (ledger, Monitor::new(&job.setup), optimizer, RateState::default(), job.initial(), None)
            }
            Some(ResumePoint { ledger, monitor, saved, checkpoint, rate: rate_state, .. }) => {
                let Checkpoint { version, parameters, optimizer, .. } = checkpoint;
                // A run without a commit starts again once all workers have joined.
                let resumed = (version > 0).then(|| (saved.latest(), saved.workers()));
                (ledger, monitor, optimizer, rate_state, parameters, resumed)
            }
        };
        // A script sends an update while it computes the rest: every shard is to have values that are there early.
        let parts = if job.model.workload().is_none() { MAX_PARTS } else { 1 };
        let config = ServerConfig {
            workers: job.setup.workers,
            workload_spec: job.workload_spec.clone(),
            fingerprint: job.model.fingerprint(job.seed),
            seed: job.seed,
            payload: context.payload,
            optimizer: job.optimizer.clone(),
            token: transport.keys.as_ref().map(Keys::token),
            timeout: job.timeout,
            epoch,
            takes_evaluator: job.model.workload().is_none(),
            holders: match transport.data_plane {
                DataPlane::Server => transport.shards.holders(parts),
                DataPlane::Collective => ParameterHolders::Members,
            },
        };
        let shared = context.shares_memory;
        let (keeps_models, used) = (ledger.compensates(), ledger.samples().used);
        let control = || StepControl::new(optimizer.spec().groups.len(), rate, rate_state).clipping(job.clip_sum);
        let model = if config.holders == ParameterHolders::Members {
            transport.check(&job.scheme, &job.setup, job.model.workload().is_none())?;
            let model =
                GroupModel::new(control().of_any_optimizer(), ledger.version(), &parameters, optimizer, shared)?;
            ServerModel::Group(Box::new(model))
        } else if config.holders != ParameterHolders::Server {
            let options = ShardOptions {
                count: transport.shards,
                keys: transport.keys.clone(),
                congestion: transport.congestion.clone(),
                payload: context.payload,
                traffic: context.traffic.clone(),
                keeps_models,
                waits_for_all: ledger.waits_for_all(),
                parts,
                shared,
            };
            let model = ShardedModel::new(control(), options, ledger.version(), &parameters, optimizer)?;
            ServerModel::Sharded(Box::new(model))
        } else {
            ServerModel::Here(Box::new(LocalModel::new(
                job,
                Stepper::resumed(optimizer, rate, rate_state),
                &parameters,
                shared,
            )?))
        };
        let mut host = NetHost::new(job, context, observer, monitor, model, inputs, keeps_models);
        host.used = used;
        Ok(Coordinator {
            protocol: ServerProtocol::new(config, ledger),
            host,
            clock: Instant::now(),
            planner: None,
            resumed,
            ends_with_workers: false,
            keeps_workers: false,
        })
    }

    /// Runs the scheme to the end of the run, then sends the end to every worker.
    pub(super) fn run<'scope>(
        mut self,
        scope: &'scope Scope<'scope, '_>,
        handle: CoordinatorHandle,
    ) -> Result<RunOutcome, ServerError>
    where
        'a: 'scope,
    {
        self.host.start_evaluator(scope, handle.clone());
        self.planner = Some(PlanThread::start(scope, handle));
        if let Some((at, departed)) = self.resumed.take() {
            let now = self.now();
            if self.protocol.gathers_all() {
                // All hosts that are there hold a part, or all of the model.
                self.protocol.resume_with_all(now, at, departed);
            } else {
                self.protocol.resume(now, at, departed, &mut self.host).map_err(failure)?;
            }
        }
        let stop = loop {
            if let Some(stop) = self.turn()? {
                break stop;
            }
        };
        self.host.observer.on_end();
        let now = match stop {
            // Its processes have ended too, which takes a while and is no part of the run.
            StopReason::ScriptEnded => self.protocol.ledger().latest(),
            _ => self.protocol.run_time(self.now()),
        };
        let farewell = match &stop {
            StopReason::Goal(goal) => format!("{goal} is reached"),
            other => other.to_string(),
        };
        self.host.end_group()?;
        let ended = match stop {
            StopReason::Interrupted if self.keeps_workers => self.protocol.suspend(self.now(), &mut self.host),
            _ => self.protocol.finish(self.now(), &farewell, &mut self.host),
        };
        ended.map_err(failure)?;
        self.host.offer_checkpoint(self.protocol.ledger())?;
        if stop != StopReason::Interrupted {
            self.await_last_evaluation(now)?;
        }
        self.protocol.finish_evaluation(&farewell, &mut self.host);
        let outcome = self.host.outcome(now, &stop, self.protocol.ledger())?;
        self.await_disconnects()?;
        Ok(outcome)
    }

    fn now(&self) -> Time {
        Time(self.clock.elapsed().as_nanos() as u64)
    }

    fn instant(&self, at: Time) -> Instant {
        self.clock + Duration::from_nanos(at.0)
    }

    /// Waits for inputs, handles everything that has arrived, then looks at the time.
    fn turn(&mut self) -> Result<Option<StopReason>, ServerError> {
        let limit = self.host.job.goals.time_limit();
        let end = limit.and_then(|limit| self.protocol.clock_time(limit));
        let due = [self.protocol.next_timer(), end].into_iter().flatten().min();
        let due = due.map(|due| self.instant(due)).into_iter().chain(self.host.early_sum_at()).min();
        // What a step in the middle of the last turn has left waits no longer.
        let due = if self.host.inputs.is_empty() { due } else { Some(Instant::now()) };
        self.host.inputs.gather(due).map_err(ServerError::System)?;
        self.host.observer.await_lease()?;
        if self.host.inputs.is_empty() {
            self.host.add_up_early();
        }
        while let Some(input) = self.host.inputs.next() {
            self.handle(input).map_err(failure)?;
            self.host.observer.await_lease()?;
            while let Some((session, task)) = self.host.withdrawn.pop() {
                let dropped = ToServer::Dropped { number: task.number };
                self.protocol.on_message(self.now(), session, dropped, &mut self.host).map_err(failure)?;
            }
            while let Some((worker, reason, may_rejoin)) = self.host.next_to_dismiss() {
                let now = self.now();
                self.protocol.dismiss_worker(now, worker, reason, may_rejoin, &mut self.host).map_err(failure)?;
            }
            if let Some(planner) = &mut self.planner {
                planner.request(self.protocol.ledger());
            }
            if self.host.observer.wants_checkpoint() {
                self.host.offer_checkpoint(self.protocol.ledger())?;
            }
            if let Some(stop) = self.host.tracker.take_stop() {
                return Ok(Some(stop));
            }
            if self.ends_with_workers && self.protocol.is_done() {
                return Ok(Some(StopReason::ScriptEnded));
            }
        }
        let now = self.now();
        if let Some(limit) = limit.filter(|_| end.is_some_and(|end| end <= now)) {
            return Ok(Some(StopReason::Goal(Goal::Time(limit.since(Time::START)))));
        }
        if self.protocol.next_timer().is_some_and(|at| at <= now) {
            self.protocol.on_timer(now, &mut self.host).map_err(failure)?;
        }
        Ok(self.host.tracker.take_stop())
    }

    fn handle(&mut self, input: ServerInput) -> Result<(), DriveError<ServerError>> {
        let now = self.now();
        match input {
            ServerInput::Connected { session, peer, trust, link } => {
                self.host.connect(session, peer.clone(), link);
                self.protocol.on_connected(now, session, peer, trust, &mut self.host);
                Ok(())
            }
            ServerInput::Message { session, message, gradient } => {
                self.host.received = gradient;
                let handled = self.protocol.on_message(now, session, message, &mut self.host);
                self.host.recycle_received();
                handled
            }
            ServerInput::Transfer { session } => {
                self.protocol.on_transfer(now, session, &mut self.host);
                Ok(())
            }
            ServerInput::Closed { session, reason } => {
                let handled = self.protocol.on_closed(now, session, reason, &mut self.host);
                self.host.forget(session);
                handled
            }
            ServerInput::Refused { peer, reason } => {
                self.host.observer.on_notice(&Notice::Refused { peer, reason });
                Ok(())
            }
            ServerInput::Evaluated { evaluation, at } => {
                let (now, samples) = (self.protocol.run_time(now), self.protocol.ledger().samples());
                self.host.tracker.evaluated(evaluation, at, now, &samples);
                Ok(())
            }
            ServerInput::Planned { paces } => {
                if let Some(planner) = &mut self.planner {
                    planner.answered();
                }
                self.protocol.on_planned(now, paces, &mut self.host)
            }
            ServerInput::Stop { reason } => {
                self.host.tracker.stop(reason);
                Ok(())
            }
            ServerInput::Failed(error) => Err(DriveError::Executor(ServerError::System(error))),
        }
    }

    /// Waits until a process has evaluated the last model, if there is one for that. The user may stop that.
    fn await_last_evaluation(&mut self, end: Time) -> Result<(), ServerError> {
        let mut is_noticed = false;
        while self.host.evaluate_last(self.protocol.ledger().version(), end)? {
            if !std::mem::replace(&mut is_noticed, true) {
                self.host.observer.on_notice(&Notice::EvaluatingLast);
            }
            let due = self.protocol.next_timer().map(|due| self.instant(due));
            self.host.inputs.gather(due).map_err(ServerError::System)?;
            while let Some(input) = self.host.inputs.next() {
                if let ServerInput::Stop { reason: StopReason::Interrupted } = input {
                    return Ok(());
                }
                self.handle(input).map_err(failure)?;
            }
            let now = self.now();
            if self.protocol.next_timer().is_some_and(|at| at <= now) {
                self.protocol.on_timer(now, &mut self.host).map_err(failure)?;
            }
        }
        Ok(())
    }

    /// Waits up to [`DISCONNECT_TIMEOUT`] for the workers to disconnect.
    fn await_disconnects(&mut self) -> Result<(), ServerError> {
        let deadline = Instant::now() + DISCONNECT_TIMEOUT;
        loop {
            while let Some(input) = self.host.inputs.next() {
                if let ServerInput::Closed { .. } = input {
                    self.handle(input).map_err(failure)?;
                }
            }
            if self.protocol.is_empty() || Instant::now() >= deadline {
                return Ok(());
            }
            self.host.inputs.gather(Some(deadline)).map_err(ServerError::System)?;
        }
    }
}

fn failure(error: DriveError<ServerError>) -> ServerError {
    match error {
        DriveError::Ledger(error) => error.into(),
        DriveError::Executor(error) => error,
    }
}
