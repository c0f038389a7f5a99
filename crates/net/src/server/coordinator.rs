//! The coordinator: one thread that owns the ledger, hears the workers and carries out what the scheme decides.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::Scope;
use std::time::{Duration, Instant};

use paceline_core::{
    Action, Aggregate, CommitStep, Deadlines, Event, Ledger, LedgerError, LocalLength, Report, Share, Span, TaskId,
    Time, WorkerId,
};
use paceline_runtime::{
    Contribution, Goal, Job, ModelState, Monitor, Notice, ResumePoint, RunInfo, ServerObserver, Stepper, compensate,
};
use paceline_store::Checkpoint;
use paceline_workload::Evaluation;

use super::inputs::{Input, Inputs, Landed};
use super::member::{Answer, Member, Wanted};
use super::ring::{Parameters, Ring};
use super::session::Context;
use super::{RunOutcome, ServeError};
use crate::fingerprint::Fingerprint;
use crate::message::ToWorker;
use crate::region::Region;

/// Ranks that a worker may ask for. The books keep a page for every rank up to the highest.
const RANKS: u32 = 65_536;

/// How long workers may take to leave when the run is over.
const FAREWELL: Duration = Duration::from_secs(2);

/// A gradient or model difference.
enum Gradient {
    Shared(Arc<Region>),
    Received(Region),
    /// The worker kept it.
    Withheld,
}

/// An update that waits to be committed.
struct Arrived {
    gradient: Gradient,
    loss: f64,
    /// The model it was computed from, if that was kept.
    parameters: Option<Arc<Parameters>>,
}

impl Gradient {
    fn values(&self) -> Option<&[f32]> {
        match self {
            Gradient::Shared(region) => Some(region.values()),
            Gradient::Received(region) => Some(region.values()),
            Gradient::Withheld => None,
        }
    }
}

/// Why the run is over.
enum Stop {
    Goal(Goal),
    Because(String),
}

pub(super) struct Coordinator<'a> {
    job: &'a Job,
    context: &'a Context,
    observer: &'a mut dyn ServerObserver,
    fingerprint: Fingerprint,
    ledger: Ledger,
    deadlines: Deadlines,
    monitor: Monitor,
    stepper: Stepper,
    ring: Ring,
    members: BTreeMap<WorkerId, Member>,
    /// The rank of every session.
    ranks: HashMap<u64, WorkerId>,
    arrived: HashMap<TaskId, Arrived>,
    /// Updates that were left out of a commit, since they were not finite.
    unusable: Vec<TaskId>,
    emulated: BTreeMap<WorkerId, String>,
    /// When the run began, or went on; `None` while workers are awaited.
    began: Option<Instant>,
    /// The run's time then.
    at_begin: Time,
    /// Whether the model is still made of numbers.
    finite: bool,
    /// Who took part before the run went on, and has to come again.
    gone: BTreeSet<WorkerId>,
    to_evaluate: Option<SyncSender<Arc<Parameters>>>,
    /// What was measured last, until the next iteration shows it.
    measured: Option<Evaluation>,
}

impl<'a> Coordinator<'a> {
    pub(super) fn new(
        job: &'a Job,
        context: &'a Context,
        shared: bool,
        observer: &'a mut dyn ServerObserver,
        from: Option<ResumePoint>,
    ) -> Result<Self, ServeError> {
        let layout = job.workload.layout();
        let Job { schedule, rate, shards, .. } = *job;
        // One that had come to nothing begins anew, when all are there.
        let began = from.as_ref().is_some_and(|from| from.checkpoint.version > 0).then(Instant::now);
        let (ledger, monitor, stepper, parameters, at_begin, gone) = match from {
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
            ring: Ring::new(&parameters, shared).map_err(no_memory(layout.len()))?,
            members: BTreeMap::new(),
            ranks: HashMap::new(),
            arrived: HashMap::new(),
            unusable: Vec::new(),
            emulated: BTreeMap::new(),
            began,
            at_begin,
            finite: true,
            gone,
            to_evaluate: None,
            measured: None,
        })
    }

    /// Runs to the end and says goodbye to everyone.
    pub(super) fn run<'scope>(
        mut self,
        scope: &'scope Scope<'scope, '_>,
        inputs: &mut Inputs,
    ) -> Result<RunOutcome, ServeError>
    where
        'a: 'scope,
    {
        self.start_evaluating(scope);
        for worker in std::mem::take(&mut self.gone) {
            self.feed(Event::Left { worker })?;
        }
        let stop = loop {
            let due = self.due().map(|due| Duration::from_nanos(due.since(self.at_begin).0));
            let deadline = due.zip(self.began).map(|(due, began)| began + due);
            let stop = match inputs.next(deadline).map_err(ServeError::System)? {
                Some(input) => self.hear(input)?,
                None => self.on_time()?,
            };
            if let Some(stop) = stop.map_or_else(|| self.dismiss_undefined(), |stop| Ok(Some(stop)))? {
                break stop;
            }
        };
        let now = self.now();
        let reason = match &stop {
            Stop::Goal(goal) => format!("{goal} is reached"),
            Stop::Because(reason) => reason.clone(),
        };
        self.settle()?;
        self.members.values().for_each(|member| member.say_goodbye(reason.clone()));
        self.show_moment();
        let outcome = self.outcome(now, stop);
        self.see_off(inputs)?;
        Ok(outcome)
    }

    /// Lets those go first whose updates wait to be committed, and will not be: the run can go on from there.
    fn settle(&mut self) -> Result<(), ServeError> {
        let waiting: BTreeSet<WorkerId> = self.arrived.keys().map(|task| task.worker).collect();
        for worker in waiting {
            self.forget_all_of(worker);
            self.feed(Event::Left { worker })?;
        }
        Ok(())
    }

    fn now(&self) -> Time {
        let passed = self.began.map_or(Span::ZERO, |began| Span(began.elapsed().as_nanos() as u64));
        self.at_begin + passed
    }

    /// When the run must go on even if nothing is heard: at a timer, when somebody has been silent for too long, or at the
    /// end of the time allowed.
    fn due(&self) -> Option<Time> {
        [self.ledger.next_timer(), self.deadlines.next(), self.job.goals.time_limit()].into_iter().flatten().min()
    }

    fn on_time(&mut self) -> Result<Option<Stop>, ServeError> {
        let now = self.now();
        if let Some(limit) = self.job.goals.time_limit().filter(|&limit| now >= limit) {
            return Ok(Some(Stop::Goal(Goal::Time(limit.since(Time::START)))));
        }
        if let Some((worker, silent)) = self.deadlines.take_expired(now) {
            let session = self.members.get(&worker).map(|member| member.session);
            let reason = format!("silent for {silent}, longer than ever; it may come back");
            return session.map_or(Ok(None), |session| self.dismiss(session, reason, true));
        }
        if self.ledger.next_timer().is_some_and(|at| at <= now) { self.feed(Event::Timer) } else { Ok(None) }
    }

    fn hear(&mut self, input: Input) -> Result<Option<Stop>, ServeError> {
        match input {
            Input::Arrived { session, peer, rank, emulated, outbox, desk } => {
                let member = Member::new(session, peer, emulated, outbox, desk);
                self.admit(rank, member.keeping_models(self.ledger.compensates()));
                Ok(None)
            }
            Input::Ready { session, fingerprint } => self.on_ready(session, fingerprint),
            Input::Asked { session, number, iterations, report } => self.on_asked(session, number, iterations, report),
            Input::Reported { session, number, report, loss, gradient } => {
                self.on_report(session, number, report, loss, gradient)
            }
            Input::Dropped { session, number } => self.on_dropped(session, number),
            Input::Lost { session, reason } => self.dismiss(session, reason, false),
            Input::TurnedAway { peer, reason } => {
                self.observer.on_notice(&Notice::Refused { peer, reason });
                Ok(None)
            }
            Input::Evaluated(evaluation) => {
                self.monitor.evaluated(evaluation);
                self.measured = Some(evaluation);
                let met = self.monitor.met(&self.job.goals, self.now(), &self.ledger.samples());
                Ok(met.map(Stop::Goal))
            }
            Input::Stop { reason } => Ok(Some(Stop::Because(reason))),
        }
    }

    // --- who takes part ---

    /// Gives a newcomer a rank and tells it what to train.
    fn admit(&mut self, rank: Option<u32>, member: Member) {
        let rank = match rank {
            Some(rank) if rank >= RANKS => {
                Err((format!("rank {rank} is too high; ranks go from 0 to {}", RANKS - 1), false))
            }
            // It may be the same worker, whose old connection is not known to be dead yet.
            Some(rank) if self.members.contains_key(&WorkerId(rank)) => Err((format!("rank {rank} is taken"), true)),
            Some(rank) => Ok(rank),
            None => {
                let free = (0..RANKS).find(|&rank| !self.members.contains_key(&WorkerId(rank)));
                free.ok_or_else(|| (format!("all {RANKS} ranks are taken"), true))
            }
        };
        match rank {
            Err((reason, again)) => {
                member.refuse(reason.clone(), again);
                self.observer.on_notice(&Notice::Refused { peer: member.peer, reason });
            }
            Ok(rank) => {
                member.send(&ToWorker::Welcome {
                    rank,
                    workload_spec: self.job.workload_spec.clone(),
                    seed: self.job.seed,
                    payload: self.context.payload,
                    optimizer: self.job.optimizer,
                });
                self.ranks.insert(member.session, WorkerId(rank));
                self.members.insert(WorkerId(rank), member);
            }
        }
    }

    fn on_ready(&mut self, session: u64, theirs: Fingerprint) -> Result<Option<Stop>, ServeError> {
        let Some((&worker, member)) = member(&mut self.members, &self.ranks, session) else { return Ok(None) };
        if !self.fingerprint.agrees_with(&theirs) {
            let ours = self.fingerprint;
            let reason = format!("another workload: the server has {ours}; the worker has {theirs}");
            return self.dismiss(session, reason, false);
        }
        if member.ready {
            return self.dismiss(session, "ready twice".into(), false);
        }
        member.ready = true;
        let (peer, emulated) = (member.peer.clone(), member.emulated.clone());
        self.emulated.extend(emulated.clone().map(|how| (worker, how)));
        self.observer.on_notice(&Notice::Joined { worker, peer, emulated });
        if self.began.is_some() {
            return self.feed(Event::Joined { worker });
        }
        let ready: Vec<WorkerId> = self.members.iter().filter(|(_, member)| member.ready).map(|(&id, _)| id).collect();
        if ready.len() >= self.job.setup.workers {
            self.began = Some(Instant::now());
            for worker in ready {
                self.feed(Event::Joined { worker })?;
            }
        }
        Ok(None)
    }

    /// A worker is gone, or has to go; it may come `again`.
    fn dismiss(&mut self, session: u64, reason: String, again: bool) -> Result<Option<Stop>, ServeError> {
        let Some(worker) = self.ranks.remove(&session) else { return Ok(None) };
        let Some(member) = self.members.remove(&worker) else { return Ok(None) };
        // If it is gone, this reaches nobody and does no harm.
        member.refuse(reason.clone(), again);
        self.forget_all_of(worker);
        if !member.ready {
            self.observer.on_notice(&Notice::Refused { peer: member.peer, reason });
            return Ok(None);
        }
        let before = self.ledger.samples().dropped;
        let stop = if self.began.is_some() { self.feed(Event::Left { worker })? } else { None };
        let lost = self.ledger.samples().dropped - before;
        let remaining = self.members.values().filter(|member| member.ready).count();
        self.observer.on_notice(&Notice::Left { worker, reason, lost, remaining });
        Ok(stop)
    }

    /// A worker's update is no number. Where it is the only worker, that is the model's fault.
    fn undefined(&mut self, session: u64, reason: String) -> Result<Option<Stop>, ServeError> {
        let alone = self.ledger.live() <= 1;
        self.finite &= !alone;
        let stop = self.dismiss(session, reason, false)?;
        Ok(stop.or_else(|| alone.then(|| Stop::Because("the gradient is no longer finite".into()))))
    }

    /// Dismisses those whose gradients turned out, as they were added up, to be no numbers.
    fn dismiss_undefined(&mut self) -> Result<Option<Stop>, ServeError> {
        while let Some(task) = self.unusable.pop() {
            let Some(session) = self.members.get(&task.worker).map(|member| member.session) else { continue };
            let stop = self.undefined(session, format!("the gradient of {task} is not finite"))?;
            if stop.is_some() {
                return Ok(stop);
            }
        }
        Ok(None)
    }

    // --- what workers do ---

    fn on_report(
        &mut self,
        session: u64,
        number: u64,
        report: Report,
        loss: f64,
        landed: Landed,
    ) -> Result<Option<Stop>, ServeError> {
        let Some((&worker, member)) = member(&mut self.members, &self.ranks, session) else { return Ok(None) };
        let task = TaskId { worker, number };
        let answer = match member.reported(number) {
            Ok(_) if !loss.is_finite() => return self.undefined(session, format!("the loss of {task} is {loss}")),
            Ok(answer) => answer,
            Err(nonsense) => return self.dismiss(session, nonsense.to_string(), false),
        };
        let late = member.is_at_work();
        member.go_on().map_err(no_memory(self.context.length))?;
        let Answer::Wanted(Wanted { assignment, parameters, gradient }) = answer else {
            if let Landed::Here(region) = landed {
                self.context.pool.give(region);
            }
            return Ok(None);
        };
        let gradient = match (gradient, landed) {
            (Some(region), Landed::InPlace) => Gradient::Shared(region),
            (None, Landed::Here(region)) => Gradient::Received(region),
            (_, Landed::Nowhere) if late => Gradient::Withheld,
            _ => return self.dismiss(session, format!("the gradient of {task} is not where it should be"), false),
        };
        self.arrived.insert(task, Arrived { gradient, loss, parameters });
        let stop = self.hear_of(session, Event::Reported { task, report })?;
        let times = match assignment.work.length() {
            _ if !self.ranks.contains_key(&session) => 0,
            // Known from its questions.
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
    ) -> Result<Option<Stop>, ServeError> {
        let Some((&worker, member)) = member(&mut self.members, &self.ranks, session) else { return Ok(None) };
        match member.asked(number) {
            Ok(true) => {}
            Ok(false) => return Ok(None),
            Err(nonsense) => return self.dismiss(session, nonsense.to_string(), false),
        }
        let task = TaskId { worker, number };
        let stop = self.hear_of(session, Event::Asked { task, iterations, report })?;
        if self.ranks.contains_key(&session) {
            self.observer.on_task(task, report.compute);
        }
        Ok(stop)
    }

    /// Tells the scheme what a worker says. One that says what can't be has to go.
    fn hear_of(&mut self, session: u64, event: Event) -> Result<Option<Stop>, ServeError> {
        if let Event::Reported { task, report } | Event::Asked { task, report, .. } = event
            && self.deadlines.is_implausible(task.worker, self.now(), &report)
        {
            let reason = format!("{task} can't have taken {}: it was not at it for so long", report.compute);
            return self.dismiss(session, reason, false);
        }
        match self.feed(event) {
            Err(ServeError::Ledger(LedgerError::Refused(refusal))) => self.dismiss(session, refusal.to_string(), false),
            told => told,
        }
    }

    fn on_dropped(&mut self, session: u64, number: u64) -> Result<Option<Stop>, ServeError> {
        let Some((_, member)) = member(&mut self.members, &self.ranks, session) else { return Ok(None) };
        match member.dropped(number) {
            Ok(()) => member.go_on().map_err(no_memory(self.context.length)).map(|()| None),
            Err(nonsense) => self.dismiss(session, nonsense.to_string(), false),
        }
    }

    // --- what the scheme decides ---

    /// Tells the scheme, does what it decides, and confirms its commits until there are none left.
    fn feed(&mut self, event: Event) -> Result<Option<Stop>, ServeError> {
        let mut stop = None;
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
                    let aggregate = Some(self.commit(updates, *step, live)?);
                    events.push_back(Event::Committed { version: *version, aggregate });
                } else {
                    self.carry_out(&decision.action)?;
                }
            }
            if let Some(iteration) = iteration {
                self.evaluate_if_due();
                self.measured.take().into_iter().for_each(|evaluation| self.monitor.evaluated(evaluation));
                self.observer.on_iteration(&iteration, &self.monitor);
                let met = self.monitor.met(&self.job.goals, now, &self.ledger.samples());
                stop = stop.or(met.map(Stop::Goal));
            }
        }
        if self.observer.wants_checkpoint() {
            self.show_moment();
        }
        Ok(stop)
    }

    /// Shows the observer what the run can go on from, if this is such a moment.
    fn show_moment(&mut self) {
        if self.finite && self.ledger.is_settled() {
            let (version, optimizer) = (self.ledger.version().0, self.stepper.optimizer());
            self.observer.on_checkpoint(&ModelState {
                version,
                parameters: self.ring.newest().region.values(),
                optimizer,
            });
        }
    }

    fn carry_out(&mut self, action: &Action) -> Result<(), ServeError> {
        match action {
            Action::Assign(assignment) => {
                if let Some(member) = self.members.get_mut(&assignment.task.worker) {
                    let rate = self.stepper.local_rate();
                    member.assign(*assignment, self.ring.newest(), rate).map_err(no_memory(self.context.length))?;
                }
            }
            Action::Interrupt { task } => {
                if let Some(member) = self.members.get_mut(&task.worker) {
                    member.interrupt(task.number);
                }
            }
            Action::Discard { task } => self.forget(*task),
            Action::Continue { task } => self.tell(task.worker, &ToWorker::Continue { number: task.number }),
            Action::Collect { task } => self.tell(task.worker, &ToWorker::Collect { number: task.number }),
            // Idle workers need no reminding, and the ledger keeps the timers. Commits are carried out by `feed`.
            Action::Hold { .. } | Action::Wake { .. } | Action::Commit { .. } => {}
        }
        Ok(())
    }

    fn tell(&self, worker: WorkerId, message: &ToWorker) {
        if let Some(member) = self.members.get(&worker) {
            member.send(message);
        }
    }

    /// Steps the model; `live` workers take part.
    fn commit(&mut self, updates: &[Share], step: CommitStep, live: usize) -> Result<Aggregate, ServeError> {
        let mut gradients = Vec::with_capacity(updates.len());
        let mut corrected = Vec::new();
        for Share { task, .. } in updates {
            // The model it was computed from is free with this, so that the next may be made in its place.
            let Arrived { gradient, loss, parameters } =
                self.arrived.remove(task).ok_or(ServeError::Withheld(*task))?;
            if let CommitStep::Compensated { lambda } = step {
                let mut values = gradient.values().ok_or(ServeError::Withheld(*task))?.to_vec();
                let then = parameters.ok_or(ServeError::Forgotten(*task))?;
                let (now, then) = (self.ring.newest().region.values(), then.region.values());
                compensate(&mut values[..self.job.workload.layout().trainable()], lambda, now, then);
                corrected.push(values);
            }
            if let Some(member) = self.members.get_mut(&task.worker) {
                member.committed(task.number);
            }
            gradients.push((gradient, loss));
        }
        let contributions = (0..).zip(updates).zip(&gradients).map(|((index, share), (gradient, loss))| {
            let corrected = corrected.get(index).map(Vec::as_slice);
            let gradient = corrected.or(gradient.values()).ok_or(ServeError::Withheld(share.task))?;
            Ok(Contribution { gradient, weight: share.weight, loss: *loss })
        });
        let contributions = contributions.collect::<Result<Vec<_>, ServeError>>()?;
        let commit = |parameters: &mut [f32]| self.stepper.commit(step, parameters, &contributions, live);
        let aggregate = self.ring.advance(commit).map_err(no_memory(self.context.length))?;
        drop(contributions);
        self.unusable.extend(self.stepper.unusable().iter().map(|&place| updates[place].task));
        gradients.into_iter().for_each(|(gradient, _)| self.recycle(gradient));
        Ok(aggregate)
    }

    /// The task's gradient will never be needed.
    fn forget(&mut self, task: TaskId) {
        if let Some(update) = self.arrived.remove(&task) {
            self.recycle(update.gradient);
        }
    }

    fn forget_all_of(&mut self, worker: WorkerId) {
        let lost: Vec<TaskId> = self.arrived.keys().copied().filter(|task| task.worker == worker).collect();
        lost.into_iter().for_each(|task| self.forget(task));
    }

    fn recycle(&self, gradient: Gradient) {
        if let Gradient::Received(region) = gradient {
            self.context.pool.give(region);
        }
    }

    // --- measuring ---

    /// Measures on the held-out set beside the training, so that nobody waits for it.
    fn start_evaluating<'scope>(&mut self, scope: &'scope Scope<'scope, '_>)
    where
        'a: 'scope,
    {
        if self.job.evaluate_every == 0 {
            return;
        }
        // One is measured, one waits; if that one still waits when the next is due, the next is left out.
        let (sender, receiver) = sync_channel::<Arc<Parameters>>(1);
        self.to_evaluate = Some(sender);
        let (workload, door) = (&self.job.workload, self.context.door.clone());
        scope.spawn(move || {
            let mut replica = workload.replica();
            for parameters in receiver {
                let evaluation = replica.evaluate(parameters.region.values());
                if door.send(Input::Evaluated(evaluation)).is_err() {
                    break;
                }
            }
        });
    }

    fn evaluate_if_due(&self) {
        let due = self.job.evaluate_every > 0 && self.monitor.iterations().is_multiple_of(self.job.evaluate_every);
        if let Some(sender) = self.to_evaluate.as_ref().filter(|_| due) {
            // Full: the last measurement is still being made.
            let _ = sender.try_send(self.ring.newest().clone());
        }
    }

    fn outcome(&mut self, now: Time, stop: Stop) -> RunOutcome {
        self.to_evaluate = None;
        let parameters = self.ring.newest().region.values();
        self.monitor.evaluated(self.job.workload.replica().evaluate(parameters));
        let (met, otherwise) = match &stop {
            Stop::Goal(goal) => (Some(*goal), ""),
            Stop::Because(reason) => (None, reason.as_str()),
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

    /// Waits, not for long, until everyone has hung up.
    fn see_off(&mut self, inputs: &mut Inputs) -> Result<(), ServeError> {
        let join_timeout = Instant::now() + FAREWELL;
        while !self.ranks.is_empty()
            && let Some(input) = inputs.next(Some(join_timeout)).map_err(ServeError::System)?
        {
            if let Input::Lost { session, .. } = input {
                self.ranks.remove(&session);
            }
        }
        Ok(())
    }
}

fn member<'m>(
    members: &'m mut BTreeMap<WorkerId, Member>,
    ranks: &'m HashMap<u64, WorkerId>,
    session: u64,
) -> Option<(&'m WorkerId, &'m mut Member)> {
    let worker = ranks.get(&session)?;
    members.get_mut(worker).map(|member| (worker, member))
}

fn no_memory(values: usize) -> impl FnOnce(io::Error) -> ServeError {
    move |error| ServeError::Memory { values, error }
}
