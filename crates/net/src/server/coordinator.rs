//! The coordinator: the thread that owns the ledger, takes the workers' messages and carries out the scheme's
//! decisions.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::Scope;
use std::time::{Duration, Instant};

use paceline_core::{
    Action, CommitStep, Deadlines, Event, Ledger, LedgerError, LocalLength, Report, Share, Span, TaskId, Time, WorkerId,
};
use paceline_runtime::{
    BrokenUpdates, CommitResult, Contribution, Goal, Job, ModelState, Monitor, Notice, Remedy, ResumePoint, RunInfo,
    ServerObserver, Stepper, compensate,
};
use paceline_store::Checkpoint;
use paceline_workload::Evaluation;

use super::event_source::{EventSource, ReceivedGradient, ServerInput};
use super::parameter_ring::{ParameterBuffer, ParameterRing};
use super::remote_worker::{ArrivedReport, RemoteWorker, ReportOutcome};
use super::session::SessionContext;
use super::{RunOutcome, ServerError};
use crate::fingerprint::Fingerprint;
use crate::message::ToWorker;
use crate::shared_memory::Region;

/// Ranks that a worker may ask for are below this. The ledger keeps an entry for every rank up to the highest.
const MAX_RANKS: u32 = 65_536;

/// How long workers may take to disconnect after the end of the run.
const DISCONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// A gradient or model difference.
enum StoredGradient {
    Shared(Arc<Region>),
    Received(Region),
    /// The worker did not send it.
    Withheld,
}

/// A reported update that is not committed yet.
struct UncommittedUpdate {
    gradient: StoredGradient,
    loss: f64,
    /// The model that the update was computed from, if it was kept.
    parameters: Option<Arc<ParameterBuffer>>,
}

impl StoredGradient {
    fn values(&self) -> Option<&[f32]> {
        match self {
            StoredGradient::Shared(region) => Some(region.values()),
            StoredGradient::Received(region) => Some(region.values()),
            StoredGradient::Withheld => None,
        }
    }
}

/// Why the run ended.
enum StopReason {
    Goal(Goal),
    Other(String),
}

/// The coordinator of one run.
pub(super) struct Coordinator<'a> {
    job: &'a Job,
    context: &'a SessionContext,
    observer: &'a mut dyn ServerObserver,
    fingerprint: Fingerprint,
    ledger: Ledger,
    deadlines: Deadlines,
    monitor: Monitor,
    stepper: Stepper,
    parameter_ring: ParameterRing,
    /// The connected workers, by rank.
    remotes: BTreeMap<WorkerId, RemoteWorker>,
    /// The rank of every session.
    ranks: HashMap<u64, WorkerId>,
    /// Updates that are not committed yet.
    arrived: HashMap<TaskId, UncommittedUpdate>,
    broken_updates: BrokenUpdates,
    /// The last tasks of workers that are to be dismissed for broken updates.
    to_dismiss: Vec<TaskId>,
    /// The workers with emulated delays, and their descriptions.
    emulated: BTreeMap<WorkerId, String>,
    /// When this process started or resumed the run; `None` until enough workers have joined.
    started: Option<Instant>,
    /// The run's time at that moment.
    start_time: Time,
    /// Workers that took part before the run was resumed and have to rejoin.
    departed: BTreeSet<WorkerId>,
    /// Sends models to the evaluator.
    evaluation_sender: Option<SyncSender<Arc<ParameterBuffer>>>,
    /// The latest evaluation, until an iteration has reported it.
    new_evaluation: Option<Evaluation>,
}

impl<'a> Coordinator<'a> {
    pub(super) fn new(
        job: &'a Job,
        context: &'a SessionContext,
        shared: bool,
        observer: &'a mut dyn ServerObserver,
        from: Option<ResumePoint>,
    ) -> Result<Self, ServerError> {
        let layout = job.workload.layout();
        let Job { schedule, rate, shards, .. } = *job;
        // A run without a commit starts again once all workers have joined.
        let started = from.as_ref().is_some_and(|from| from.checkpoint.version > 0).then(Instant::now);
        let (ledger, monitor, stepper, parameters, start_time, departed) = match from {
            None => {
                let stepper = Stepper::new(layout, job.optimizer, schedule, rate, shards);
                let ledger = Ledger::new(job.scheme.build(&job.setup)?);
                let initial = job.workload.initial(job.seed);
                (ledger, Monitor::default(), stepper, initial, Time::START, BTreeSet::new())
            }
            Some(ResumePoint { replayed, checkpoint: Checkpoint { version, parameters, optimizer, .. }, .. }) => {
                let stepper = Stepper::resumed(optimizer, schedule, rate, shards, version, layout);
                (replayed.ledger, replayed.monitor, stepper, parameters, replayed.now, replayed.workers)
            }
        };
        Ok(Coordinator {
            job,
            context,
            observer,
            fingerprint: Fingerprint::of(job.workload.as_ref(), job.seed),
            ledger,
            deadlines: Deadlines::new(job.timeout),
            monitor,
            stepper,
            parameter_ring: ParameterRing::new(&parameters, shared).map_err(no_memory(layout.len()))?,
            remotes: BTreeMap::new(),
            ranks: HashMap::new(),
            arrived: HashMap::new(),
            broken_updates: BrokenUpdates::default(),
            to_dismiss: Vec::new(),
            emulated: BTreeMap::new(),
            started,
            start_time,
            departed,
            evaluation_sender: None,
            new_evaluation: None,
        })
    }

    /// Runs the scheme to the end of the run, then sends the end to every worker.
    pub(super) fn run<'scope>(
        mut self,
        scope: &'scope Scope<'scope, '_>,
        event_source: &mut EventSource,
    ) -> Result<RunOutcome, ServerError>
    where
        'a: 'scope,
    {
        self.start_evaluator(scope);
        for worker in std::mem::take(&mut self.departed) {
            self.feed(Event::Left { worker })?;
        }
        let stop = loop {
            let due = self.next_deadline().map(|due| Duration::from_nanos(due.since(self.start_time).0));
            let deadline = due.zip(self.started).map(|(due, started)| started + due);
            let stop = match event_source.next(deadline).map_err(ServerError::System)? {
                Some(input) => self.handle(input)?,
                None => self.on_deadline()?,
            };
            if let Some(stop) = stop.map_or_else(|| self.dismiss_broken(), |stop| Ok(Some(stop)))? {
                break stop;
            }
        };
        let now = self.now();
        let reason = match &stop {
            StopReason::Goal(goal) => format!("{goal} is reached"),
            StopReason::Other(reason) => reason.clone(),
        };
        self.settle()?;
        self.remotes.values().for_each(|remote| remote.finish(reason.clone()));
        self.offer_checkpoint();
        let outcome = self.outcome(now, stop);
        self.await_disconnects(event_source)?;
        Ok(outcome)
    }

    /// Removes the workers whose updates are not committed and will not be, so that the run can be resumed from here.
    fn settle(&mut self) -> Result<(), ServerError> {
        let workers: BTreeSet<WorkerId> = self.arrived.keys().map(|task| task.worker).collect();
        for worker in workers {
            self.discard_all_of(worker);
            self.feed(Event::Left { worker })?;
        }
        Ok(())
    }

    fn now(&self) -> Time {
        let passed = self.started.map_or(Span::ZERO, |started| Span(started.elapsed().as_nanos() as u64));
        self.start_time + passed
    }

    /// When the coordinator must act even without an input: at a timer of the scheme, at the deadline of a worker's
    /// report, or at the time limit of the run.
    fn next_deadline(&self) -> Option<Time> {
        [self.ledger.next_timer(), self.deadlines.next(), self.job.goals.time_limit()].into_iter().flatten().min()
    }

    /// Stops the run at its time limit, dismisses a worker that timed out, or wakes the scheme.
    fn on_deadline(&mut self) -> Result<Option<StopReason>, ServerError> {
        let now = self.now();
        if let Some(limit) = self.job.goals.time_limit().filter(|&limit| now >= limit) {
            return Ok(Some(StopReason::Goal(Goal::Time(limit.since(Time::START)))));
        }
        let deadline = self.deadlines.next();
        if let Some((worker, waited)) = self.deadlines.take_expired(now) {
            let session = self.remotes.get(&worker).map(|remote| remote.session);
            let waited = waited.seconds();
            let timeout = waited - deadline.map_or(0.0, |deadline| now.since(deadline).seconds());
            let reason =
                format!("timed out: no report for {waited:.1} s (expected within {timeout:.1} s); it may rejoin");
            return session.map_or(Ok(None), |session| self.dismiss(session, reason, true));
        }
        if self.ledger.next_timer().is_some_and(|at| at <= now) { self.feed(Event::Timer) } else { Ok(None) }
    }

    fn handle(&mut self, input: ServerInput) -> Result<Option<StopReason>, ServerError> {
        match input {
            ServerInput::JoinRequested { session, peer, rank, emulated, send_queue, permits } => {
                let remote = RemoteWorker::new(session, peer, emulated, send_queue, permits);
                self.admit(rank, remote.keeping_models(self.ledger.compensates()));
                Ok(None)
            }
            ServerInput::Ready { session, fingerprint } => self.on_ready(session, fingerprint),
            ServerInput::Asked { session, number, iterations, report } => {
                self.on_asked(session, number, iterations, report)
            }
            ServerInput::Reported { session, number, report, loss, gradient } => {
                self.on_report(session, number, report, loss, gradient)
            }
            ServerInput::Dropped { session, number } => self.on_dropped(session, number),
            ServerInput::Lost { session, reason } => self.dismiss(session, reason, false),
            ServerInput::Refused { peer, reason } => {
                self.observer.on_notice(&Notice::Refused { peer, reason });
                Ok(None)
            }
            ServerInput::Evaluated(evaluation) => {
                self.monitor.evaluated(evaluation);
                self.new_evaluation = Some(evaluation);
                let met = self.monitor.met(&self.job.goals, self.now(), &self.ledger.samples());
                Ok(met.map(StopReason::Goal))
            }
            ServerInput::Stop { reason } => Ok(Some(StopReason::Other(reason))),
        }
    }

    // --- membership ---

    /// Gives a new worker a rank and sends it the workload.
    fn admit(&mut self, rank: Option<u32>, remote: RemoteWorker) {
        let rank = match rank {
            Some(rank) if rank >= MAX_RANKS => {
                Err((format!("rank {rank} is too high: expected 0 to {}", MAX_RANKS - 1), false))
            }
            // It may be the same worker, whose old connection is not closed yet.
            Some(rank) if self.remotes.contains_key(&WorkerId(rank)) => Err((format!("rank {rank} is taken"), true)),
            Some(rank) => Ok(rank),
            None => {
                let free = (0..MAX_RANKS).find(|&rank| !self.remotes.contains_key(&WorkerId(rank)));
                free.ok_or_else(|| (format!("all {MAX_RANKS} ranks are taken"), true))
            }
        };
        match rank {
            Err((reason, may_rejoin)) => {
                remote.refuse(reason.clone(), may_rejoin);
                self.observer.on_notice(&Notice::Refused { peer: remote.peer, reason });
            }
            Ok(rank) => {
                remote.send(&ToWorker::Welcome {
                    rank,
                    workload_spec: self.job.workload_spec.clone(),
                    seed: self.job.seed,
                    payload: self.context.payload,
                    optimizer: self.job.optimizer,
                });
                self.ranks.insert(remote.session, WorkerId(rank));
                self.remotes.insert(WorkerId(rank), remote);
            }
        }
    }

    fn on_ready(&mut self, session: u64, theirs: Fingerprint) -> Result<Option<StopReason>, ServerError> {
        let Some((&worker, remote)) = find_remote(&mut self.remotes, &self.ranks, session) else { return Ok(None) };
        if !self.fingerprint.agrees_with(&theirs) {
            let ours = self.fingerprint;
            let reason = format!("different workload: the server has {ours}; the worker has {theirs}");
            return self.dismiss(session, reason, false);
        }
        if remote.ready {
            return self.dismiss(session, "second ready message".into(), false);
        }
        remote.ready = true;
        let (peer, emulated) = (remote.peer.clone(), remote.emulated.clone());
        self.emulated.extend(emulated.clone().map(|how| (worker, how)));
        self.observer.on_notice(&Notice::Joined { worker, peer, emulated });
        if self.started.is_some() {
            return self.feed(Event::Joined { worker });
        }
        let ready: Vec<WorkerId> = self.remotes.iter().filter(|(_, remote)| remote.ready).map(|(&id, _)| id).collect();
        if ready.len() >= self.job.setup.workers {
            self.started = Some(Instant::now());
            for worker in ready {
                self.feed(Event::Joined { worker })?;
            }
        }
        Ok(None)
    }

    /// Removes a worker that has left or must leave; `may_rejoin` is sent to it.
    fn dismiss(&mut self, session: u64, reason: String, may_rejoin: bool) -> Result<Option<StopReason>, ServerError> {
        let Some(worker) = self.ranks.remove(&session) else { return Ok(None) };
        let Some(remote) = self.remotes.remove(&worker) else { return Ok(None) };
        // If the worker has left, the message is lost, which does no harm.
        remote.refuse(reason.clone(), may_rejoin);
        self.discard_all_of(worker);
        if !remote.ready {
            self.observer.on_notice(&Notice::Refused { peer: remote.peer, reason });
            return Ok(None);
        }
        let before = self.ledger.samples().dropped;
        self.broken_updates.on_left(worker);
        let stop = if self.started.is_some() { self.feed(Event::Left { worker })? } else { None };
        let lost = self.ledger.samples().dropped - before;
        let remaining = self.remotes.values().filter(|remote| remote.ready).count();
        self.observer.on_notice(&Notice::Left { worker, reason, lost, remaining });
        Ok(stop)
    }

    /// Dismisses the workers whose updates were broken too often.
    fn dismiss_broken(&mut self) -> Result<Option<StopReason>, ServerError> {
        while let Some(task) = self.to_dismiss.pop() {
            let Some(session) = self.remotes.get(&task.worker).map(|remote| remote.session) else { continue };
            if let Some(stop) = self.dismiss(session, BrokenUpdates::reason(task), false)? {
                return Ok(Some(stop));
            }
        }
        Ok(None)
    }

    // --- messages from workers ---

    fn on_report(
        &mut self,
        session: u64,
        number: u64,
        report: Report,
        loss: f64,
        received: ReceivedGradient,
    ) -> Result<Option<StopReason>, ServerError> {
        let Some((&worker, remote)) = find_remote(&mut self.remotes, &self.ranks, session) else { return Ok(None) };
        let task = TaskId { worker, number };
        let outcome = match remote.reported(number) {
            Ok(outcome) => outcome,
            Err(violation) => return self.dismiss(session, violation.to_string(), false),
        };
        let late = remote.is_busy();
        remote.send_pending().map_err(no_memory(self.context.length))?;
        let ReportOutcome::Wanted(ArrivedReport { assignment, parameters, gradient }) = outcome else {
            if let ReceivedGradient::Received(region) = received {
                self.context.pool.give(region);
            }
            return Ok(None);
        };
        let gradient = match (gradient, received) {
            (Some(region), ReceivedGradient::InPlace) => StoredGradient::Shared(region),
            (None, ReceivedGradient::Received(region)) => StoredGradient::Received(region),
            (_, ReceivedGradient::NotSent) if late => StoredGradient::Withheld,
            _ => return self.dismiss(session, format!("the gradient of {task} was not sent as assigned"), false),
        };
        self.arrived.insert(task, UncommittedUpdate { gradient, loss, parameters });
        let stop = self.feed_report(session, Event::Reported { task, report })?;
        let times = match assignment.work.length() {
            _ if !self.ranks.contains_key(&session) => 0,
            // Observed when the worker asked.
            Some(LocalLength::AskAndWait | LocalLength::AskAndContinue) => 0,
            Some(LocalLength::Iterations(count)) => count,
            None => 1,
        };
        (0..times).for_each(|_| self.observer.on_task(task, Span(report.compute.0 / u64::from(times))));
        Ok(stop)
    }

    fn on_asked(
        &mut self,
        session: u64,
        number: u64,
        iterations: u32,
        report: Report,
    ) -> Result<Option<StopReason>, ServerError> {
        let Some((&worker, remote)) = find_remote(&mut self.remotes, &self.ranks, session) else { return Ok(None) };
        match remote.asked(number) {
            Ok(true) => {}
            Ok(false) => return Ok(None),
            Err(violation) => return self.dismiss(session, violation.to_string(), false),
        }
        let task = TaskId { worker, number };
        let stop = self.feed_report(session, Event::Asked { task, iterations, report })?;
        if self.ranks.contains_key(&session) {
            self.observer.on_task(task, report.compute);
        }
        Ok(stop)
    }

    /// Feeds a worker's report to the scheme. Dismisses the worker if the report is impossible.
    fn feed_report(&mut self, session: u64, event: Event) -> Result<Option<StopReason>, ServerError> {
        if let Event::Reported { task, report } | Event::Asked { task, report, .. } = event
            && self.deadlines.is_implausible(task.worker, self.now(), &report)
        {
            let reason = format!("{task} reports {} of computing, longer than it has been running", report.compute);
            return self.dismiss(session, reason, false);
        }
        match self.feed(event) {
            Err(ServerError::Ledger(LedgerError::Refused(refusal))) => {
                self.dismiss(session, refusal.to_string(), false)
            }
            result => result,
        }
    }

    fn on_dropped(&mut self, session: u64, number: u64) -> Result<Option<StopReason>, ServerError> {
        let Some((_, remote)) = find_remote(&mut self.remotes, &self.ranks, session) else { return Ok(None) };
        match remote.dropped(number) {
            Ok(()) => remote.send_pending().map_err(no_memory(self.context.length)).map(|()| None),
            Err(violation) => self.dismiss(session, violation.to_string(), false),
        }
    }

    // --- decisions of the scheme ---

    /// Feeds an event to the scheme, carries out its decisions, and confirms its commits until none is left.
    fn feed(&mut self, event: Event) -> Result<Option<StopReason>, ServerError> {
        let (mut stop, mut diverged) = (None, false);
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let now = self.now();
            let live = self.ledger.live();
            let decisions = self.ledger.handle(now, event)?.to_vec();
            self.deadlines.observe(now, &event, &decisions);
            self.observer.on_turn(now, &event, &decisions);
            let iteration = self.monitor.observe(now, &event, &decisions);
            for decision in &decisions {
                if let Action::Commit { version, updates, step } = &decision.action {
                    let CommitResult { aggregate, broken } = self.commit(updates, *step, live)?;
                    events.push_back(Event::Committed { version: *version, aggregate });
                    let broken: Vec<TaskId> = broken.into_iter().map(|index| updates[index].task).collect();
                    events.extend(broken.iter().map(|&task| Event::Broken { task }));
                    match self.broken_updates.on_commit(updates.iter().map(|share| share.task), &broken, live) {
                        Remedy::Continue => {}
                        Remedy::Dismiss(tasks) => self.to_dismiss.extend(tasks),
                        Remedy::Diverged => diverged = true,
                    }
                } else {
                    self.carry_out(&decision.action)?;
                }
            }
            if let Some(iteration) = iteration {
                self.evaluate_if_due();
                self.new_evaluation.take().into_iter().for_each(|evaluation| self.monitor.evaluated(evaluation));
                self.observer.on_iteration(&iteration, &self.monitor);
                let met = self.monitor.met(&self.job.goals, now, &self.ledger.samples());
                stop = stop.or(met.map(StopReason::Goal));
            }
        }
        if self.observer.wants_checkpoint() {
            self.offer_checkpoint();
        }
        Ok(stop.or(diverged.then(|| StopReason::Other(BrokenUpdates::DIVERGED.into()))))
    }

    /// Passes the model to the observer if the run could resume from this state.
    fn offer_checkpoint(&mut self) {
        if !self.broken_updates.suspect_model(self.ledger.live()) && self.ledger.is_settled() {
            let (version, optimizer) = (self.ledger.version().0, self.stepper.optimizer());
            self.observer.on_checkpoint(&ModelState {
                version,
                parameters: self.parameter_ring.newest().region.values(),
                optimizer,
            });
        }
    }

    fn carry_out(&mut self, action: &Action) -> Result<(), ServerError> {
        match action {
            Action::Assign(assignment) => {
                if let Some(remote) = self.remotes.get_mut(&assignment.task.worker) {
                    let rate = self.stepper.local_rate();
                    remote
                        .assign(*assignment, self.parameter_ring.newest(), rate)
                        .map_err(no_memory(self.context.length))?;
                }
            }
            Action::Interrupt { task } => {
                if let Some(remote) = self.remotes.get_mut(&task.worker) {
                    remote.interrupt(task.number);
                }
            }
            Action::Discard { task } => self.discard(*task),
            Action::Continue { task } => self.send(task.worker, &ToWorker::Continue { number: task.number }),
            Action::Collect { task } => self.send(task.worker, &ToWorker::Collect { number: task.number }),
            // Idle workers need no message, the ledger keeps the timers, and `feed` carries out commits.
            Action::Hold { .. } | Action::Wake { .. } | Action::Commit { .. } => {}
        }
        Ok(())
    }

    fn send(&self, worker: WorkerId, message: &ToWorker) {
        if let Some(remote) = self.remotes.get(&worker) {
            remote.send(message);
        }
    }

    /// Steps the model; `live` workers take part.
    fn commit(&mut self, updates: &[Share], step: CommitStep, live: usize) -> Result<CommitResult, ServerError> {
        let mut gradients = Vec::with_capacity(updates.len());
        let mut corrected = Vec::new();
        for Share { task, .. } in updates {
            // This releases the model that the update was computed from, so that its buffer can be reused.
            let UncommittedUpdate { gradient, loss, parameters } =
                self.arrived.remove(task).ok_or(ServerError::GradientNotSent(*task))?;
            if let CommitStep::Compensated { lambda } = step {
                let mut values = gradient.values().ok_or(ServerError::GradientNotSent(*task))?.to_vec();
                let then = parameters.ok_or(ServerError::ModelNotKept(*task))?;
                let (now, then) = (self.parameter_ring.newest().region.values(), then.region.values());
                compensate(&mut values[..self.job.workload.layout().trainable()], lambda, now, then);
                corrected.push(values);
            }
            if let Some(remote) = self.remotes.get_mut(&task.worker) {
                remote.committed(task.number);
            }
            gradients.push((gradient, loss));
        }
        let contributions = (0..).zip(updates).zip(&gradients).map(|((index, share), (gradient, loss))| {
            let corrected = corrected.get(index).map(Vec::as_slice);
            let gradient = corrected.or(gradient.values()).ok_or(ServerError::GradientNotSent(share.task))?;
            Ok(Contribution { gradient, weight: share.weight, loss: *loss })
        });
        let contributions = contributions.collect::<Result<Vec<_>, ServerError>>()?;
        let commit = |old: &[f32], new: &mut [f32]| self.stepper.commit(step, old, new, &contributions, live);
        let result = self.parameter_ring.advance(commit).map_err(no_memory(self.context.length))?;
        drop(contributions);
        gradients.into_iter().for_each(|(gradient, _)| self.recycle(gradient));
        Ok(result)
    }

    /// Discards the gradient of a task that will not be committed.
    fn discard(&mut self, task: TaskId) {
        if let Some(update) = self.arrived.remove(&task) {
            self.recycle(update.gradient);
        }
    }

    fn discard_all_of(&mut self, worker: WorkerId) {
        let lost: Vec<TaskId> = self.arrived.keys().copied().filter(|task| task.worker == worker).collect();
        lost.into_iter().for_each(|task| self.discard(task));
    }

    fn recycle(&self, gradient: StoredGradient) {
        if let StoredGradient::Received(region) = gradient {
            self.context.pool.give(region);
        }
    }

    // --- evaluation ---

    /// Starts a thread that evaluates the model on the held-out set, so that training does not wait for it.
    fn start_evaluator<'scope>(&mut self, scope: &'scope Scope<'scope, '_>)
    where
        'a: 'scope,
    {
        if self.job.evaluate_every == 0 {
            return;
        }
        // One model is being evaluated, one is queued. If the queue is full, the next evaluation is skipped.
        let (sender, receiver) = sync_channel::<Arc<ParameterBuffer>>(1);
        self.evaluation_sender = Some(sender);
        let (workload, coordinator) = (&self.job.workload, self.context.handle.clone());
        scope.spawn(move || {
            let mut replica = workload.replica();
            for parameters in receiver {
                let evaluation = replica.evaluate(parameters.region.values());
                if coordinator.send(ServerInput::Evaluated(evaluation)).is_err() {
                    break;
                }
            }
        });
    }

    fn evaluate_if_due(&self) {
        let due = self.job.evaluate_every > 0 && self.monitor.iterations().is_multiple_of(self.job.evaluate_every);
        if let Some(sender) = self.evaluation_sender.as_ref().filter(|_| due) {
            // If the queue is full, this evaluation is skipped.
            let _ = sender.try_send(self.parameter_ring.newest().clone());
        }
    }

    fn outcome(&mut self, now: Time, stop: StopReason) -> RunOutcome {
        self.evaluation_sender = None;
        let parameters = self.parameter_ring.newest().region.values();
        self.monitor.evaluated(self.job.workload.replica().evaluate(parameters));
        let (met, otherwise) = match &stop {
            StopReason::Goal(goal) => (Some(*goal), ""),
            StopReason::Other(reason) => (None, reason.as_str()),
        };
        let Job { scheme, seed, setup, goals, .. } = self.job;
        let scheme = scheme.to_string();
        let run = RunInfo { scheme: &scheme, seed: *seed, workers: setup.workers, goals, otherwise };
        let bytes = self.context.traffic.bytes();
        RunOutcome {
            summary: self.monitor.summary(&run, now, met, &self.ledger.samples(), bytes),
            parameters: parameters.to_vec(),
            emulated: std::mem::take(&mut self.emulated).into_iter().collect(),
        }
    }

    /// Waits up to [`DISCONNECT_TIMEOUT`] for the workers to disconnect.
    fn await_disconnects(&mut self, event_source: &mut EventSource) -> Result<(), ServerError> {
        let deadline = Instant::now() + DISCONNECT_TIMEOUT;
        while !self.ranks.is_empty()
            && let Some(input) = event_source.next(Some(deadline)).map_err(ServerError::System)?
        {
            if let ServerInput::Lost { session, .. } = input {
                self.ranks.remove(&session);
            }
        }
        Ok(())
    }
}

/// The worker of a session, unless it was dismissed.
fn find_remote<'m>(
    remotes: &'m mut BTreeMap<WorkerId, RemoteWorker>,
    ranks: &'m HashMap<u64, WorkerId>,
    session: u64,
) -> Option<(&'m WorkerId, &'m mut RemoteWorker)> {
    let worker = ranks.get(&session)?;
    remotes.get_mut(worker).map(|remote| (worker, remote))
}

fn no_memory(values: usize) -> impl FnOnce(io::Error) -> ServerError {
    move |error| ServerError::Memory { values, error }
}
