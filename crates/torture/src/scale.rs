//! A run of many workers without faults: what it costs the coordinator, and what travels over which link.
//!
//! The coordinator and the workers run the code of a real run. Their parameters are in shards, one on every host, which
//! answer at once: what is counted are messages and bytes, and the processor time of protocol and scheme.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::convert::Infallible;

use paceline_core::{
    Aggregate, Commit, CommitOutcome, Decision, DriveError, Event, Ledger, Scheme, Share, Span, TaskId, Time,
    UpdateNorm, Version, WorkerId,
};
use paceline_protocol::{
    CHUNK_LIMIT, Evaluation, FromShard, HEARTBEAT_INTERVAL, Notice, PayloadFormat, PeerTrust, PushedUpdate,
    ReportedUpdate, RunPosition, ServerHost, ServerProtocol, SessionId, ShardPlace, ShardSum, ShardUpdate, ToServer,
    ToShard, ToWorker, WorkerToShard,
};
use paceline_runtime::StepPlan;
use paceline_store::{BLOCK, Norms, ShardNorms, Shards};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

use crate::random::{mixed, unit};
use crate::server::config;
use crate::worker::{Effect, WorkerProcess};

/// How long a message travels.
const LATENCY: Span = Span(1_000_000);

/// The rounds before anything is counted.
const WARM_UP: u64 = 2;

/// How many bytes the frame of a message has.
pub trait FrameSize {
    /// The bytes of a message with its header.
    fn bytes<M: Serialize>(&self, message: &M) -> u64;

    /// The bytes of the header of every chunk of values.
    fn header(&self) -> u64;
}

/// A cluster of equal hosts.
#[derive(Debug, Clone, Copy)]
pub struct ScaleSetup {
    /// Number of workers.
    pub workers: usize,
    /// Number of hosts, each with a shard and its share of the workers.
    pub hosts: usize,
    /// Values of the model.
    pub parameters: usize,
    /// How many updates are counted, as a multiple of the number of workers.
    pub rounds: u64,
}

/// Messages and their bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct LinkTraffic {
    /// Number of messages.
    pub messages: u64,
    /// Bytes of all frames.
    pub bytes: u64,
}

impl LinkTraffic {
    fn add(&mut self, bytes: u64) {
        self.add_all(1, bytes);
    }

    fn join(&mut self, other: LinkTraffic) {
        self.messages += other.messages;
        self.bytes += other.bytes;
    }

    fn add_all(&mut self, messages: u64, bytes: u64) {
        self.messages += messages;
        self.bytes += messages * bytes;
    }
}

/// What a run has cost.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct ScaleReport {
    /// Commits that were counted.
    pub commits: u64,
    /// Updates in them.
    pub updates: u64,
    /// Virtual seconds.
    pub seconds: f64,
    /// Processor seconds of protocol and scheme.
    pub processor_seconds: f64,
    /// Processor seconds for one commit's sums of squares.
    pub joining_seconds: f64,
    /// From workers to the coordinator.
    pub from_workers: LinkTraffic,
    /// From the coordinator to workers.
    pub to_workers: LinkTraffic,
    /// From the coordinator to all shards.
    pub to_shards: LinkTraffic,
    /// From all shards to the coordinator, sums of squares included.
    pub from_shards: LinkTraffic,
    /// The longest message to a shard, in bytes.
    pub longest_message: u64,
    /// The values between workers and shards on other hosts, in all.
    pub values: LinkTraffic,
}

#[derive(Debug)]
enum ScaleEvent {
    ToServer(SessionId, ToServer),
    ToWorker(SessionId, ToWorker),
    Computed(WorkerId, u64),
    Heartbeat(WorkerId),
}

/// What the coordinator has to send.
#[derive(Debug)]
enum Sent {
    Worker(SessionId, ToWorker),
    /// To every shard.
    Shards(ToShard<StepPlan>),
    /// The answer of every shard, with sums of this many updates.
    Norms(usize),
}

#[derive(Default)]
struct ScaleHost {
    sent: Vec<Sent>,
    undelivered: Vec<u64>,
    introduced: HashSet<SessionId>,
    places: Vec<ShardPlace>,
    sessions: BTreeMap<WorkerId, SessionId>,
    arrived: BTreeSet<TaskId>,
    version: u64,
    updates: u64,
}

impl ScaleHost {
    /// Has the newest version sent to the workers that need it.
    fn send_models(&mut self) {
        let sessions = std::mem::take(&mut self.undelivered);
        if !sessions.is_empty() {
            self.sent.push(Sent::Shards(ToShard::Deliver { sessions }));
        }
    }
}

impl ServerHost for ScaleHost {
    type Error = Infallible;

    fn send(&mut self, session: SessionId, message: &ToWorker) {
        self.sent.push(Sent::Worker(session, message.clone()));
    }

    fn close(&mut self, session: SessionId, last: &ToWorker) {
        self.send(session, last);
    }

    fn prepare(&mut self, session: SessionId, _: TaskId) -> RunPosition {
        self.undelivered.push(session.0);
        RunPosition::default()
    }

    fn assign(&mut self, session: SessionId, _: TaskId, message: ToWorker) -> Result<(), Infallible> {
        if self.introduced.insert(session) {
            let shards = ToWorker::Shards { places: self.places.clone(), run: u64::MAX, session: session.0 };
            self.sent.push(Sent::Worker(session, shards));
        }
        self.sent.push(Sent::Worker(session, message));
        Ok(())
    }

    fn cancel(&mut self, _: SessionId, _: TaskId) {}

    fn release(&mut self, _: SessionId, task: TaskId) {
        self.sent.push(Sent::Shards(ToShard::Discard(vec![task])));
    }

    fn keep(&mut self, _: SessionId, task: TaskId, _: ReportedUpdate) -> bool {
        self.arrived.insert(task)
    }

    fn discard(&mut self, task: TaskId) {
        if self.arrived.remove(&task) {
            self.sent.push(Sent::Shards(ToShard::Discard(vec![task])));
        }
    }

    fn discard_all(&mut self, _: WorkerId) {}

    fn commit(&mut self, commit: &Commit, _: usize) -> Result<CommitOutcome, Infallible> {
        self.send_models();
        let update = |share: &Share| ShardUpdate {
            task: share.task,
            session: self.sessions[&share.task.worker].0,
            weight: share.weight,
        };
        let sum = ShardSum { updates: commit.updates.iter().map(update).collect(), lambda: None };
        let tasks: Vec<TaskId> = commit.updates.iter().map(|share| share.task).collect();
        tasks.iter().for_each(|task| _ = self.arrived.remove(task));
        let plan = StepPlan { uses_optimizer: true, rate: 0.1, group_rates: None, scale: 1.0, statistics: 1.0 };
        self.version += 1;
        self.updates += tasks.len() as u64;
        let wave = (self.version as f64 * 1.7).sin();
        let aggregate = Aggregate {
            loss: 1.0 + 0.5 * wave,
            rate: 0.1,
            mean_square: 2.0 + 1.5 * wave,
            square_of_mean: 1.0,
            norms: tasks.iter().map(|&task| UpdateNorm { task, square: 1.0 }).collect(),
            ..Aggregate::default()
        };
        self.sent.push(Sent::Shards(ToShard::Attempt { plan: plan.clone(), sum }));
        self.sent.push(Sent::Norms(tasks.len()));
        self.sent.push(Sent::Shards(ToShard::Accept { plan: plan.clone(), tasks }));
        self.sent.push(Sent::Shards(ToShard::Forecast(plan)));
        Ok(CommitOutcome { aggregate: Some(aggregate), broken: Vec::new() })
    }

    fn begin_turn(&mut self, _: Time, _: &Event, _: &[Decision]) -> Result<(), Infallible> {
        Ok(())
    }

    fn end_turn(&mut self, _: Time, _: &Event, _: &Ledger) -> Result<(), Infallible> {
        self.send_models();
        Ok(())
    }

    fn evaluator_joined(&mut self, _: SessionId) {}

    fn evaluator_left(&mut self) {}

    fn evaluated(&mut self, _: Time, _: u64, _: Evaluation, _: &Ledger) -> bool {
        false
    }

    fn computed(&mut self, _: TaskId, _: u32, _: Span) {}

    fn notice(&mut self, _: Notice) {}
}

struct ScaleSimulation<'a, F> {
    setup: ScaleSetup,
    frames: &'a F,
    now: Time,
    queue: BTreeMap<(Time, u64), ScaleEvent>,
    queued: u64,
    protocol: ServerProtocol,
    host: ScaleHost,
    processes: Vec<WorkerProcess>,
    /// The bytes of all values that a worker sends to shards on other hosts, or gets from them.
    vector: LinkTraffic,
    report: ScaleReport,
}

/// Runs a scheme with many workers until every one has reported a number of updates on average. `on_round` is called with
/// the number of rounds done; if it returns `false`, the run ends.
///
/// # Errors
/// If the scheme breaks a law.
pub fn run_at_scale<F: FrameSize>(
    setup: ScaleSetup,
    scheme: Box<dyn Scheme>,
    frames: &F,
    on_round: &mut dyn FnMut(u64) -> bool,
) -> Result<ScaleReport, DriveError<Infallible>> {
    let ranges: Vec<_> =
        Shards::new(setup.parameters, setup.hosts).ranges().filter(|range| !range.is_empty()).collect();
    let place = |(index, range): (usize, &std::ops::Range<usize>)| ShardPlace {
        address: format!("10.{}.{}.{}:40000", index >> 16, index >> 8 & 255, index & 255),
        start: range.start as u64,
        length: range.len() as u64,
    };
    let task = TaskId { worker: WorkerId(999), number: 99 };
    let push = WorkerToShard::Push { update: PushedUpdate { task, version: Version(99), is_draft: false } };
    let mut vector = LinkTraffic::default();
    // The shard on a worker's own host is not behind a link.
    for range in ranges.iter().skip(1) {
        let bytes = PayloadFormat::F32.bytes(range.len()) as u64;
        let chunks = bytes.div_ceil(CHUNK_LIMIT as u64);
        vector.add(frames.bytes(&push) + bytes + chunks * frames.header());
    }
    let mut simulation = ScaleSimulation {
        setup,
        frames,
        now: Time::START,
        queue: BTreeMap::new(),
        queued: 0,
        protocol: ServerProtocol::new(config(setup.workers, 0, true), Ledger::new(scheme)),
        host: ScaleHost { places: ranges.iter().enumerate().map(place).collect(), ..ScaleHost::default() },
        processes: (0..setup.workers).map(|worker| WorkerProcess::new(WorkerId(worker as u32), 0, 1, true)).collect(),
        vector,
        report: ScaleReport::default(),
    };
    simulation.start();
    simulation.run(on_round)
}

impl<F: FrameSize> ScaleSimulation<'_, F> {
    fn start(&mut self) {
        for index in 0..self.setup.workers {
            let (worker, session) = (WorkerId(index as u32), SessionId(index as u64));
            self.host.sessions.insert(worker, session);
            self.protocol.on_connected(Time::START, session, "a worker".into(), PeerTrust::Network, &mut self.host);
            let effects = self.processes[index].connect(session);
            self.carry_out(worker, effects);
            // Heartbeats are spread over the interval.
            let first = Span(HEARTBEAT_INTERVAL.0 * index as u64 / self.setup.workers as u64);
            self.enqueue(first, ScaleEvent::Heartbeat(worker));
        }
    }

    fn run(mut self, on_round: &mut dyn FnMut(u64) -> bool) -> Result<ScaleReport, DriveError<Infallible>> {
        let (mut round, mut began) = (0, None);
        let (mut commits, mut updates) = (0, 0);
        loop {
            let done = self.host.updates / self.setup.workers as u64;
            if done > round {
                round = done;
                let goes_on = on_round(round.saturating_sub(WARM_UP));
                if began.is_none() && round >= WARM_UP {
                    (began, self.report) = (Some(self.now), ScaleReport::default());
                    (commits, updates) = (self.host.version, self.host.updates);
                } else if round >= WARM_UP + self.setup.rounds || !goes_on {
                    break;
                }
            }
            let timer = self.protocol.next_timer();
            let first = self.queue.first_key_value().map(|(&(at, _), _)| at);
            match (timer, first) {
                (Some(at), first) if first.is_none_or(|first| at < first) => {
                    self.now = at.max(self.now);
                    self.call(|protocol, now, host| protocol.on_timer(now, host))?;
                }
                _ => {
                    let Some(((at, _), event)) = self.queue.pop_first() else { break };
                    self.now = at;
                    self.handle(event)?;
                }
            }
        }
        self.report.commits = self.host.version - commits;
        self.report.updates = self.host.updates - updates;
        self.report.seconds = self.now.since(began.unwrap_or_default()).seconds();
        self.report.joining_seconds = self.joining();
        Ok(self.report)
    }

    fn enqueue(&mut self, after: Span, event: ScaleEvent) {
        self.queue.insert((self.now + after, self.queued), event);
        self.queued += 1;
    }

    /// Calls the protocol, and counts its time and what it sends.
    fn call(
        &mut self,
        call: impl FnOnce(&mut ServerProtocol, Time, &mut ScaleHost) -> Result<(), DriveError<Infallible>>,
    ) -> Result<(), DriveError<Infallible>> {
        let began = processor_seconds();
        let called = call(&mut self.protocol, self.now, &mut self.host);
        self.report.processor_seconds += processor_seconds() - began;
        for sent in std::mem::take(&mut self.host.sent) {
            self.count(sent);
        }
        called
    }

    fn count(&mut self, sent: Sent) {
        let shards = self.host.places.len() as u64;
        match sent {
            Sent::Worker(session, message) => {
                self.report.to_workers.add(self.frames.bytes(&message));
                self.enqueue(LATENCY, ScaleEvent::ToWorker(session, message));
            }
            Sent::Shards(message) => {
                let bytes = self.frames.bytes(&message);
                self.report.to_shards.add_all(shards, bytes);
                self.report.longest_message = self.report.longest_message.max(bytes);
                if let ToShard::Deliver { sessions } = message {
                    let version = Version(self.host.version);
                    for session in sessions {
                        self.report.values.join(self.vector);
                        let model = ScaleEvent::ToWorker(SessionId(session), ToWorker::Model { version });
                        self.enqueue(LATENCY + LATENCY, model);
                    }
                }
            }
            Sent::Norms(updates) => {
                for place in &self.host.places {
                    let sums = place.length.div_ceil(BLOCK as u64) * (updates as u64 + 1);
                    let chunks = (8 * sums).div_ceil(CHUNK_LIMIT as u64);
                    let message = self.frames.bytes(&FromShard::Norms { sums, broken: Vec::new() });
                    self.report.from_shards.add(message + 8 * sums + chunks * self.frames.header());
                }
            }
        }
    }

    fn handle(&mut self, event: ScaleEvent) -> Result<(), DriveError<Infallible>> {
        match event {
            ScaleEvent::ToServer(session, message) => {
                self.report.from_workers.add(self.frames.bytes(&message));
                return self.call(|protocol, now, host| protocol.on_message(now, session, message, host));
            }
            ScaleEvent::ToWorker(session, message) => {
                let process = &mut self.processes[session.0 as usize];
                let (worker, effects) = (process.worker, process.on_message(self.now, message));
                self.carry_out(worker, effects);
            }
            ScaleEvent::Computed(worker, computation) => {
                let effects = self.processes[worker.index()].on_computed(self.now, computation);
                self.carry_out(worker, effects);
            }
            ScaleEvent::Heartbeat(worker) => {
                let effect = self.processes[worker.index()].heartbeat();
                self.carry_out(worker, vec![effect]);
                self.enqueue(HEARTBEAT_INTERVAL, event);
            }
        }
        Ok(())
    }

    fn carry_out(&mut self, worker: WorkerId, effects: Vec<Effect>) {
        let session = SessionId(u64::from(worker.0));
        for effect in effects {
            match effect {
                Effect::Send(message) => {
                    if matches!(message, ToServer::Report { .. }) {
                        self.report.values.join(self.vector);
                    }
                    self.enqueue(LATENCY, ScaleEvent::ToServer(session, message));
                }
                Effect::Compute { computation, .. } => {
                    // Workers differ by up to a factor of 2, and the tasks of one worker by up to a tenth.
                    let speed = 1.0 + unit(mixed(0, [2, u64::from(worker.0), 0]));
                    let of_task = 1.0 + 0.1 * unit(mixed(0, [1, u64::from(worker.0), computation]));
                    self.enqueue(Span::from_seconds(speed * of_task), ScaleEvent::Computed(worker, computation));
                }
                Effect::Close(_) | Effect::Reconnect | Effect::Exit => unreachable!("there are no faults"),
            }
        }
    }

    /// How long the coordinator takes to add up the sums of squares of a commit of all workers.
    fn joining(&self) -> f64 {
        let columns = self.setup.workers + 1;
        let norms = self.host.places.iter().map(|place| {
            let rows = place.length.div_ceil(BLOCK as u64) as usize;
            ShardNorms::received(vec![1.0; rows * columns], columns - 1, Vec::new()).expect("they fit")
        });
        let norms: Vec<ShardNorms> = norms.collect();
        let began = processor_seconds();
        std::hint::black_box(Norms::join(&norms));
        processor_seconds() - began
    }
}

/// The processor time of this thread.
fn processor_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
