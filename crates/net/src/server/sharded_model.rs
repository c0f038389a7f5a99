//! A model whose parameters are in shards, in other processes. The coordinator decides its steps and moves no values,
//! except for checkpoints and evaluations.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZero;
use std::ops::Range;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use paceline_core::{Commit, CommitOutcome, CommitStep, TaskId, Version, WorkerId};
use paceline_protocol::{
    FromShard, Notice, ParameterHolders, PayloadRule, SessionId, ShardGreeting, ShardPlace, ShardSum, ShardUpdate,
    ToShard, ToWorker, Token,
};
use paceline_runtime::{PartWriters, StepControl, StepPlan, StepValues, Summands, UpdateInfo};
use paceline_store::{BLOCK, Norms, Optimizer, ShardNorms, Shards};

use super::ServerError;
use super::error::no_memory;
use super::model::{StoredGradient, UncommittedUpdate};
use super::parameter_ring::{ParameterBuffer, ParameterRing};
use super::shard_sizes::{ShardHost, shares_by_speed, shares_by_workers};
use super::shard_writers::ShardWriters;
use crate::blocking_link::BlockingLink;
use crate::frame;
use crate::frame_reader::{Received, invalid};
use crate::keys::Keys;
use crate::outbox::Values;
use crate::shard::{PART_TIMEOUT, receive_vector, send_vector};
use crate::socket::Traffic;

/// How long a shard may take for a step, updates that are still arriving included.
const STEP_TIMEOUT: Duration = Duration::from_secs(60);

/// The values of a vector that measures a link, and how many are sent: a first one, in which the connection gets up to
/// speed, and some of which the fastest counts.
const MEASURED: u32 = 1 << 18;
const MEASUREMENTS: u8 = 4;

/// Workers named in one message.
const MAX_SESSIONS: usize = 4_096;

/// The least values in a part, and the most parts of the model, where a process holds several parts.
const MIN_PART: usize = 1 << 16;
const MAX_LINKS: usize = 64;

/// The shards that hold the parameters of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ShardCount {
    /// None: the server holds them.
    #[default]
    None,
    /// One on every host that has a worker, as large as suits the scheme and the links.
    Hosts,
    /// This many of the same size, beside as many workers.
    Count(NonZero<usize>),
    /// This many processes without a worker, with parts that suit the links.
    Apart(NonZero<usize>),
}

impl ShardCount {
    /// Who holds the parameters, if a process of a worker may have to hold this many parts.
    pub(super) fn holders(self, parts: u8) -> ParameterHolders {
        match self {
            ShardCount::None => ParameterHolders::Server,
            ShardCount::Hosts | ShardCount::Count(_) => ParameterHolders::Workers { parts },
            ShardCount::Apart(count) => ParameterHolders::Apart(count.get()),
        }
    }
}

impl FromStr for ShardCount {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "none" => Ok(ShardCount::None),
            "hosts" => Ok(ShardCount::Hosts),
            _ => {
                let count = match text.strip_prefix("apart:") {
                    Some(count) => count.parse().map(ShardCount::Apart),
                    None => text.parse().map(ShardCount::Count),
                };
                count
                    .map_err(|_| format!("'{text}': expected none, hosts, N or apart:N, with a number N of at least 1"))
            }
        }
    }
}

impl fmt::Display for ShardCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ShardCount::None => f.write_str("none"),
            ShardCount::Hosts => f.write_str("hosts"),
            ShardCount::Count(count) => write!(f, "{count}"),
            ShardCount::Apart(count) => write!(f, "apart:{count}"),
        }
    }
}

/// How shards are reached, and what they are told.
#[derive(Debug)]
pub(super) struct ShardOptions {
    pub(super) count: ShardCount,
    pub(super) keys: Option<Keys>,
    pub(super) congestion: Option<String>,
    pub(super) payload: PayloadRule,
    pub(super) traffic: Traffic,
    /// Whether an update is kept with the model that it was computed from.
    pub(super) keeps_models: bool,
    /// Whether every commit waits for all workers, which do nothing in the meantime.
    pub(super) waits_for_all: bool,
    /// How many parts one process may hold. With several, every process has values from all over the model.
    pub(super) parts: u8,
    /// Whether models that the coordinator fetches are read by processes that share memory.
    pub(super) shared: bool,
}

/// The connection to a shard, and its part.
struct ShardLink {
    place: SocketAddr,
    /// The first place of its process.
    process: SocketAddr,
    range: Range<usize>,
    link: BlockingLink,
}

impl ShardLink {
    /// Connects to a process that holds nothing yet.
    fn connect(place: SocketAddr, process: SocketAddr, options: &ShardOptions) -> Result<Self, ServerError> {
        let lost = |error| ServerError::Shard { address: place.to_string(), error };
        let ShardOptions { congestion, keys, traffic, .. } = options;
        let link = BlockingLink::to_shard(place, congestion.as_deref(), keys.as_ref(), traffic).map_err(lost)?;
        Ok(ShardLink { place, process, range: 0..0, link })
    }

    /// The bytes per second that the link carries. `None` if it does not leave this machine.
    fn speed(&mut self, token: Option<Token>) -> io::Result<Option<f64>> {
        if self.link.connection.socket().is_within_host()? {
            return Ok(None);
        }
        self.link.send(&ShardGreeting::Measure { token, vectors: MEASUREMENTS, length: MEASURED })?;
        let values: Values = Arc::new(vec![0.0; MEASURED as usize]);
        let mut fastest = f64::INFINITY;
        for number in 0..MEASUREMENTS {
            let start = Instant::now();
            send_vector(&self.link, Vec::new(), values.clone());
            let Received::Message(FromShard::Measured) = self.link.receive(Some(start + PART_TIMEOUT))? else {
                return Err(invalid("no answer to a measurement"));
            };
            if number > 0 {
                fastest = fastest.min(start.elapsed().as_secs_f64());
            }
        }
        Ok(Some(f64::from(MEASURED) * size_of::<f32>() as f64 / fastest))
    }

    fn send(&mut self, message: &ToShard<StepPlan>) -> Result<(), ServerError> {
        let sent = self.link.send(message);
        sent.map_err(|error| self.lost(error))
    }

    fn lost(&self, error: io::Error) -> ServerError {
        ServerError::Shard { address: self.place.to_string(), error }
    }

    /// The answer to a step of this many updates.
    fn norms(&mut self, updates: usize) -> io::Result<ShardNorms> {
        let Received::Message(FromShard::Norms { sums, broken }) =
            self.link.receive(Some(Instant::now() + STEP_TIMEOUT))?
        else {
            return Err(invalid("no answer to a step"));
        };
        let limit = (self.range.len() / BLOCK + 2) * (updates + 1);
        let sums = usize::try_from(sums).ok().filter(|&sums| sums <= limit).ok_or_else(|| invalid("too many sums"))?;
        let values = receive_vector(&mut self.link, 2 * sums)?;
        let sums = bytemuck::cast_slice(values.values()).to_vec();
        let broken = broken.into_iter().map(|index| index as usize).collect();
        ShardNorms::received(sums, updates, broken).ok_or_else(|| invalid("sums that do not fit the step"))
    }

    /// The answer to a fetch: its parameters, its state behind that of the shards before, and the optimizer's steps.
    fn part(&mut self, parameters: &mut [f32], state: &mut [Vec<f32>], trainable: usize) -> io::Result<u64> {
        let Received::Message(FromShard::Held { steps, .. }) =
            self.link.receive(Some(Instant::now() + PART_TIMEOUT))?
        else {
            return Err(invalid("no answer to a fetch"));
        };
        parameters.copy_from_slice(receive_vector(&mut self.link, parameters.len())?.values());
        for vector in state {
            vector.extend_from_slice(receive_vector(&mut self.link, trainable)?.values());
        }
        Ok(steps)
    }
}

/// A model in shards.
pub(super) struct ShardedModel {
    control: StepControl,
    options: ShardOptions,
    /// Where shards of a process could be, by the rank of its worker, if it has one, and the session.
    offers: BTreeMap<(Option<WorkerId>, SessionId), Vec<SocketAddr>>,
    links: Vec<ShardLink>,
    /// Identifies the run to shards and workers.
    run: u64,
    version: Version,
    /// The sessions of workers that need the newest version.
    undelivered: Vec<u64>,
    /// The workers that know the shards.
    introduced: HashSet<SessionId>,
    /// Whether the user knows the shards.
    is_announced: bool,
    /// What was fetched last, and its version. At first the model that the run starts with.
    ring: ParameterRing,
    optimizer: Optimizer,
    fetched: Version,
    /// Why the run can't continue.
    failure: Option<ServerError>,
}

impl ShardedModel {
    /// A model that starts with these parameters and this optimizer. The shards get them when the first task is made.
    pub(super) fn new(
        control: StepControl,
        options: ShardOptions,
        version: Version,
        parameters: &[f32],
        optimizer: Optimizer,
    ) -> Result<Self, ServerError> {
        Ok(ShardedModel {
            control,
            ring: ParameterRing::new(parameters, options.shared).map_err(no_memory(parameters.len()))?,
            options,
            offers: BTreeMap::new(),
            links: Vec::new(),
            run: RandomState::new().build_hasher().finish(),
            version,
            undelivered: Vec::new(),
            introduced: HashSet::new(),
            is_announced: false,
            optimizer,
            fetched: version,
            failure: None,
        })
    }

    pub(super) fn control(&self) -> &StepControl {
        &self.control
    }

    /// Why the run can't continue, if it can't.
    fn check(&mut self) -> Result<(), ServerError> {
        self.failure.take().map_or(Ok(()), Err)
    }

    fn note<T>(&mut self, result: Result<T, ServerError>) {
        if let Err(error) = result {
            self.failure.get_or_insert(error);
        }
    }

    fn send_all(&mut self, message: &ToShard<StepPlan>) -> Result<(), ServerError> {
        self.links.iter_mut().try_for_each(|shard| shard.send(message))
    }

    // --- the shards ---

    /// A process would hold shards at these places, of which there is one at least: that of a worker, or one without.
    pub(super) fn offer(&mut self, worker: Option<WorkerId>, session: SessionId, places: Vec<SocketAddr>) {
        self.offers.insert((worker, session), places);
    }

    /// Gives the shards their parts, before the first task.
    fn begin(&mut self) -> Result<(), ServerError> {
        let count = match self.options.count {
            // A run goes on without the hosts that it has lost.
            ShardCount::Count(count) if self.version > Version(0) => {
                NonZero::new(self.offers.len()).map_or(ShardCount::Hosts, |offers| ShardCount::Count(count.min(offers)))
            }
            count => count,
        };
        let (values, optimizer) = (self.ring.newest().region.values(), &self.optimizer);
        let offers: Vec<&Vec<SocketAddr>> = self.offers.values().collect();
        let first_places: Vec<SocketAddr> = offers.iter().map(|places| places[0]).collect();
        let chosen: Vec<&[SocketAddr]> =
            choose(&first_places, count)?.into_iter().map(|index| offers[index].as_slice()).collect();
        let parts = self.parts(&chosen, values.len());
        // Every process has one part, then every process another.
        let places = (0..parts).flat_map(|part| chosen.iter().map(move |places| (places[part], places[0])));
        let links = places.map(|(place, process)| ShardLink::connect(place, process, &self.options));
        let mut links = links.collect::<Result<Vec<_>, _>>()?;
        let token = self.options.keys.as_ref().map(Keys::token);
        let shares = match count {
            ShardCount::Hosts | ShardCount::Apart(_) => {
                self.shares(&mut links[..chosen.len()], &first_places, token)?
            }
            ShardCount::None | ShardCount::Count(_) => vec![1.0 / chosen.len() as f64; chosen.len()],
        };
        let shares: Vec<f64> = shares.iter().map(|share| share / parts as f64).collect();
        let ranges = Shards::by_share(values.len(), &shares.repeat(parts));
        let rules = optimizer.rules();
        let ShardOptions { payload, keeps_models, .. } = self.options;
        for (mut shard, range) in links.into_iter().zip(ranges).filter(|(_, range)| !range.is_empty()) {
            let rules = rules.part(range.clone());
            let first = range.start.min(self.optimizer.rules().trainable());
            let trainable = first..first + rules.trainable();
            let greeting = ShardGreeting::Coordinate {
                token,
                run: self.run,
                length: range.len() as u64,
                rules,
                steps: optimizer.steps(),
                version: self.version,
                keeps_models,
                payload,
            };
            let greeting = frame::encode(&greeting).map_err(|error| shard.lost(error.into()))?;
            send_vector(&shard.link, greeting, Arc::new(values[range.clone()].to_vec()));
            for (_, vector) in optimizer.state() {
                send_vector(&shard.link, Vec::new(), Arc::new(vector[trainable.clone()].to_vec()));
            }
            let sent = shard.link.flush(Instant::now() + PART_TIMEOUT);
            sent.map_err(|error| shard.lost(error))?;
            self.links.push(ShardLink { range, ..shard });
        }
        Ok(())
    }

    /// How many parts of a model of this length each of these processes holds.
    fn parts(&self, processes: &[&[SocketAddr]], length: usize) -> usize {
        let offered = processes.iter().map(|places| places.len()).min().unwrap_or(1);
        let (useful, bearable) = (length / (processes.len() * MIN_PART), MAX_LINKS / processes.len());
        offered.min(self.options.parts.into()).min(useful).min(bearable).max(1)
    }

    /// How much of the model each of these shards gets. `offers` are the places of all workers, unless shards are apart from
    /// them.
    fn shares(
        &self,
        links: &mut [ShardLink],
        offers: &[SocketAddr],
        token: Option<Token>,
    ) -> Result<Vec<f64>, ServerError> {
        let is_apart = matches!(self.options.count, ShardCount::Apart(_));
        let is_all = self.options.waits_for_all && !is_apart;
        let host = |shard: &mut ShardLink| {
            let workers = offers.iter().filter(|offer| !is_apart && offer.ip() == shard.place.ip()).count();
            let speed = if is_all { Ok(None) } else { shard.speed(token) };
            Ok(ShardHost { workers, speed: speed.map_err(|error| shard.lost(error))? })
        };
        let hosts = links.iter_mut().map(host).collect::<Result<Vec<_>, ServerError>>()?;
        Ok(if is_all { shares_by_workers(&hosts) } else { shares_by_speed(&hosts) })
    }

    /// The shards, once they are there.
    pub(super) fn notice(&mut self) -> Option<Notice> {
        let is_new = !self.links.is_empty() && !std::mem::replace(&mut self.is_announced, true);
        is_new.then(|| {
            let mut shards: Vec<(String, usize)> = Vec::new();
            for ShardLink { process, range, .. } in &self.links {
                let process = process.to_string();
                match shards.iter_mut().find(|(known, _)| *known == process) {
                    Some((_, length)) => *length += range.len(),
                    None => shards.push((process, range.len())),
                }
            }
            Notice::Sharded { shards }
        })
    }

    /// The shards, for a worker that does not know them yet.
    pub(super) fn introduction(&mut self, session: SessionId) -> Option<ToWorker> {
        let place = |shard: &ShardLink| ShardPlace {
            address: shard.place.to_string(),
            start: shard.range.start as u64,
            length: shard.range.len() as u64,
        };
        self.introduced.insert(session).then(|| ToWorker::Shards {
            places: self.links.iter().map(place).collect(),
            run: self.run,
            session: session.0,
        })
    }

    /// A worker needs the newest version.
    pub(super) fn deliver(&mut self, session: SessionId) {
        if self.links.is_empty() && self.failure.is_none() {
            let begun = self.begin();
            self.note(begun);
        }
        self.undelivered.push(session.0);
    }

    /// Has the newest version sent to the workers that need it. To be called before it is stepped, and when nobody else
    /// needs it now: one message is for many workers.
    pub(super) fn send_models(&mut self) -> Result<(), ServerError> {
        let sessions = std::mem::take(&mut self.undelivered);
        for (index, shard) in self.links.iter_mut().enumerate().filter(|_| !sessions.is_empty()) {
            // Every shard begins with another worker.
            let first = index % sessions.len();
            let rotated = [&sessions[first..], &sessions[..first]].concat();
            for sessions in rotated.chunks(MAX_SESSIONS) {
                shard.send(&ToShard::Deliver { sessions: sessions.to_vec() })?;
            }
        }
        self.check()
    }

    /// A worker has left.
    pub(super) fn forget(&mut self, session: SessionId) {
        self.offers.retain(|(_, other), _| *other != session);
        self.undelivered.retain(|&other| other != session.0);
        if self.introduced.remove(&session) {
            let sent = self.send_all(&ToShard::Forget { session: session.0 });
            self.note(sent);
        }
    }

    /// An update is not needed.
    pub(super) fn discard(&mut self, task: TaskId) {
        let sent = self.send_all(&ToShard::Discard(vec![task]));
        self.note(sent);
    }

    // --- the model ---

    /// The newest version and its optimizer, here.
    pub(super) fn newest(&mut self) -> Result<(&Arc<ParameterBuffer>, &Optimizer), ServerError> {
        if self.fetched != self.version {
            self.fetch()?;
        }
        Ok((self.ring.newest(), &self.optimizer))
    }

    /// Has the shards keep the newest version, to write it themselves; `None` if it is here.
    pub(super) fn retain(&mut self) -> Result<Option<Arc<dyn PartWriters>>, ServerError> {
        if self.fetched == self.version {
            return Ok(None);
        }
        self.send_all(&ToShard::Retain)?;
        let ShardOptions { keys, congestion, traffic, .. } = &self.options;
        Ok(Some(Arc::new(ShardWriters {
            shards: self.links.iter().map(|shard| (shard.place, shard.range.start)).collect(),
            keys: keys.clone(),
            congestion: congestion.clone(),
            traffic: traffic.clone(),
            run: self.run,
            version: self.version,
        })))
    }

    fn fetch(&mut self) -> Result<(), ServerError> {
        self.send_all(&ToShard::Fetch)?;
        let rules = self.optimizer.rules().clone();
        let mut state = vec![Vec::with_capacity(rules.trainable()); rules.state_vectors()];
        let (links, length) = (&mut self.links, self.ring.newest().region.values().len());
        let received = self.ring.advance(|_, parameters| {
            let mut steps = 0;
            for shard in links {
                let trainable = rules.part(shard.range.clone()).trainable();
                let received = shard.part(&mut parameters[shard.range.clone()], &mut state, trainable);
                steps = received.map_err(|error| shard.lost(error))?;
            }
            Ok::<u64, ServerError>(steps)
        });
        let steps = received.map_err(no_memory(length))??;
        self.optimizer = Optimizer::restored(rules, steps, state);
        self.fetched = self.version;
        Ok(())
    }

    /// Has the shards step the model.
    pub(super) fn commit(
        &mut self,
        commit: &Commit,
        updates: &[UncommittedUpdate],
        live: usize,
    ) -> Result<CommitOutcome, ServerError> {
        self.send_models()?;
        let infos: Vec<UpdateInfo<'_>> = commit
            .updates
            .iter()
            .zip(updates)
            .map(|(share, update)| UpdateInfo {
                task: share.task,
                weight: share.weight,
                loss: update.loss,
                rates: &update.rates,
            })
            .collect();
        let places = commit.updates.iter().zip(updates).map(|(share, update)| match update.gradient {
            StoredGradient::InShards(session) => Ok((share.task, session)),
            _ => Err(ServerError::GradientNotSent(share.task)),
        });
        let places = places.collect::<Result<Vec<_>, _>>()?;
        let lambda = match commit.step {
            CommitStep::Compensated { lambda } => Some(lambda),
            _ => None,
        };
        let mut values = ShardedValues { links: &mut self.links, updates: places, lambda };
        let outcome = self.control.commit(commit, &infos, live, &mut values)?;
        self.version = Version(self.version.0 + 1);
        Ok(outcome)
    }
}

/// The values of a commit, in shards.
struct ShardedValues<'a> {
    links: &'a mut Vec<ShardLink>,
    updates: Vec<(TaskId, SessionId)>,
    lambda: Option<f32>,
}

impl ShardedValues<'_> {
    fn sum(&self, updates: &Summands) -> ShardSum {
        let update = |&(position, weight): &(usize, f32)| {
            let (task, session) = self.updates[position];
            ShardUpdate { task, session: session.0, weight }
        };
        ShardSum { updates: updates.iter().map(update).collect(), lambda: self.lambda }
    }

    /// Asks all shards, then takes all answers: they work at the same time.
    fn ask(&mut self, message: &ToShard<StepPlan>, updates: usize) -> Result<Norms, ServerError> {
        self.send(message)?;
        let norms = self.links.iter_mut().map(|shard| {
            let norms = shard.norms(updates);
            norms.map_err(|error| shard.lost(error))
        });
        Ok(Norms::join(&norms.collect::<Result<Vec<_>, _>>()?))
    }

    fn send(&mut self, message: &ToShard<StepPlan>) -> Result<(), ServerError> {
        self.links.iter_mut().try_for_each(|shard| shard.send(message))
    }

    fn tasks(&self) -> Vec<TaskId> {
        self.updates.iter().map(|&(task, _)| task).collect()
    }
}

impl StepValues for ShardedValues<'_> {
    type Error = ServerError;

    fn measure(&mut self, updates: &Summands) -> Result<Norms, ServerError> {
        self.ask(&ToShard::Measure(self.sum(updates)), updates.len())
    }

    fn attempt(&mut self, plan: &StepPlan, updates: &Summands) -> Result<Norms, ServerError> {
        self.ask(&ToShard::Attempt { plan: plan.clone(), sum: self.sum(updates) }, updates.len())
    }

    fn accept(&mut self, plan: &StepPlan) -> Result<(), ServerError> {
        self.send(&ToShard::Accept { plan: plan.clone(), tasks: self.tasks() })
    }

    fn keep(&mut self) -> Result<(), ServerError> {
        self.send(&ToShard::Keep(self.tasks()))
    }

    fn forecast(&mut self, plan: &StepPlan) -> Result<(), ServerError> {
        self.send(&ToShard::Forecast(plan.clone()))
    }
}

/// Which of these processes hold the parameters: on every host one, then on every host another, in the order given.
fn choose(offers: &[SocketAddr], count: ShardCount) -> Result<Vec<usize>, ServerError> {
    let mut hosts: Vec<(IpAddr, VecDeque<usize>)> = Vec::new();
    for (index, place) in offers.iter().enumerate() {
        match hosts.iter_mut().find(|(host, _)| *host == place.ip()) {
            Some((_, indices)) => indices.push_back(index),
            None => hosts.push((place.ip(), [index].into())),
        }
    }
    let wanted = match count {
        ShardCount::None => 0,
        ShardCount::Hosts => hosts.len().max(1),
        ShardCount::Count(count) => count.get(),
        // If the run resumes, some may be missing.
        ShardCount::Apart(count) => count.get().min(offers.len()),
    };
    if let Some((local, _)) = hosts.iter().find(|(host, _)| host.is_loopback()).filter(|_| hosts.len() > 1) {
        return Err(ServerError::ShardAddress { address: *local });
    }
    let mut chosen = Vec::new();
    while chosen.len() < wanted {
        let before = chosen.len();
        chosen.extend(hosts.iter_mut().filter_map(|(_, left)| left.pop_front()));
        if chosen.len() == before {
            return Err(ServerError::TooFewShards { wanted, found: offers.len() });
        }
    }
    chosen.truncate(wanted);
    Ok(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_are_spread_over_hosts() {
        let offers: Vec<SocketAddr> = ["10.0.0.1:1", "10.0.0.1:2", "10.0.0.2:3", "10.0.0.3:4", "10.0.0.1:5"]
            .map(|text| text.parse().unwrap())
            .into();
        let ports = |count: &str| -> Vec<u16> {
            choose(&offers, count.parse().unwrap()).unwrap().into_iter().map(|index| offers[index].port()).collect()
        };
        assert_eq!(ports("hosts"), [1, 3, 4]);
        assert_eq!(ports("1"), [1]);
        assert_eq!(ports("5"), [1, 3, 4, 2, 5]);
        let refused = |offers: &[SocketAddr], count: ShardCount| choose(offers, count).unwrap_err().to_string();
        assert_eq!(ports("apart:7"), [1, 3, 4, 2, 5]);
        assert!(refused(&offers, "6".parse().unwrap()).contains("--shards 6: 5 workers can hold a shard"));
        assert!(refused(&[], ShardCount::Hosts).contains("0 workers"));
        let mixed = ["127.0.0.1:1", "10.0.0.2:3"].map(|text| text.parse().unwrap());
        assert!(refused(&mixed, ShardCount::Hosts).contains("joined at 127.0.0.1, where other hosts can't reach"));
    }
}
