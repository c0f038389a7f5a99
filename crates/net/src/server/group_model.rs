//! A model that every worker has. They sum their updates among themselves, in a group, and step alike; the coordinator
//! decides the steps, and who sums with whom.
//!
//! A worker sums its update as soon as it has it, and reports it. When the scheme commits, the coordinator waits for the word
//! of every member that it has the sum; then all step. Nobody steps before, so a sum that a member's end has broken can
//! be made again by the others, who still have their updates.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use paceline_core::{Commit, CommitOutcome, TaskId, Version, WorkerId};
use paceline_protocol::{FromMember, Group, MemberStep, SessionId, ToMember, ToServer, ToWorker};
use paceline_runtime::{StepControl, StepPlan, StepValues, Summands, UpdateInfo};
use paceline_store::{Norms, Optimizer};

use super::ServerError;
use super::error::no_memory;
use super::event_source::ServerInput;
use super::inputs::Inputs;
use super::link::Link;
use super::model::UncommittedUpdate;
use super::parameter_ring::{ParameterBuffer, ParameterRing};
use crate::shared_memory::Region;

/// A member that sends nothing for this long is gone. Its process would send heartbeats, whatever it computes.
const SILENCE: Duration = Duration::from_secs(4);

/// How long the end of a member may take to be noticed here after others have failed to get its part of a sum.
const NOTICE_TIME: Duration = Duration::from_secs(1);

/// How often the same members try to make a sum.
const MAX_ATTEMPTS: usize = 3;

/// How often it is looked whether members are silent.
const TICK: Duration = Duration::from_millis(250);

/// How the coordinator reaches workers in the middle of a step.
pub(super) struct Correspondence<'a> {
    pub(super) links: &'a HashMap<SessionId, Link>,
    pub(super) inputs: &'a mut Inputs,
}

impl Correspondence<'_> {
    fn send(&self, session: SessionId, message: ToMember) {
        if let Some(link) = self.links.get(&session) {
            link.send(&ToWorker::Member(message));
        }
    }
}

/// What a member has said of the sum of the present version.
#[derive(Debug, Clone, Copy)]
struct MemberSum {
    /// The squares of its own update.
    own: f64,
    /// The squares of the mean.
    mean: f64,
}

/// The group that sums.
#[derive(Debug)]
struct FormedGroup {
    number: u64,
    /// In the order of their ranks.
    members: Vec<(WorkerId, SessionId)>,
    /// Those that add nothing to the first sum.
    silent: Vec<SessionId>,
    sums: HashMap<SessionId, MemberSum>,
    /// Why a member could not get the sum, and when it said so.
    failure: Option<(String, Instant)>,
}

/// How the sum of a group has ended.
enum SumEnd {
    Complete,
    /// A member is gone.
    Gone,
    /// Nobody is gone, but the sum could not be made.
    Failed(String),
}

/// The workers that have the model, and their group.
#[derive(Debug)]
struct GroupMembers {
    /// The newest version.
    version: Version,
    /// Where the processes reach each other, by rank.
    places: BTreeMap<WorkerId, (SessionId, SocketAddr)>,
    /// Those that have the newest version, or were sent it. They are the group, except for those that are gone.
    with_model: HashSet<SessionId>,
    /// Those that have stepped with others: their optimizers have the state of the run.
    stepped: HashSet<SessionId>,
    /// Those whose end was noticed while a sum or the model was awaited.
    gone: HashSet<SessionId>,
    /// Those of them that were silent: they are to be dismissed.
    lost: Vec<WorkerId>,
    group: Option<FormedGroup>,
    /// How many groups there were.
    groups: u64,
    /// The newest version, from a member that was asked for it.
    arrived: Option<Region>,
    failure: Option<ServerError>,
}

/// A model that every worker has.
pub(super) struct GroupModel {
    control: StepControl,
    members: GroupMembers,
    /// What was fetched last, and its version. At first the model that the run starts with.
    ring: ParameterRing,
    optimizer: Optimizer,
    fetched: Version,
    /// Whether the run is over: who leaves now is not missed.
    is_over: bool,
}

impl GroupModel {
    /// A model that starts with these parameters. `optimizer` is what checkpoints get: its state is with the workers.
    pub(super) fn new(
        control: StepControl,
        version: Version,
        parameters: &[f32],
        optimizer: Optimizer,
        shared: bool,
    ) -> Result<Self, ServerError> {
        let members = GroupMembers {
            version,
            places: BTreeMap::new(),
            with_model: HashSet::new(),
            stepped: HashSet::new(),
            gone: HashSet::new(),
            lost: Vec::new(),
            group: None,
            groups: 0,
            arrived: None,
            failure: None,
        };
        let ring = ParameterRing::new(parameters, shared).map_err(no_memory(parameters.len()))?;
        Ok(GroupModel { control, members, ring, optimizer, fetched: version, is_over: false })
    }

    pub(super) fn control(&self) -> &StepControl {
        &self.control
    }

    /// Why the run can't continue, if it can't.
    pub(super) fn check(&mut self) -> Result<(), ServerError> {
        self.members.failure.take().map_or(Ok(()), Err)
    }

    /// A worker that was silent and is to be dismissed.
    pub(super) fn next_lost(&mut self) -> Option<WorkerId> {
        self.members.lost.pop()
    }

    /// A worker has joined. Others reach its process at this port of its host; `peer` is its address, if it came over a
    /// network.
    pub(super) fn offer(&mut self, worker: WorkerId, session: SessionId, peer: Option<SocketAddr>, port: u16) {
        let host = peer.map_or(Ipv4Addr::LOCALHOST.into(), |peer| peer.ip());
        self.members.places.insert(worker, (session, SocketAddr::new(host, port)));
    }

    /// Whether this worker has the newest version, or was sent it.
    pub(super) fn has_newest(&self, session: SessionId) -> bool {
        self.members.with_model.contains(&session)
    }

    /// A worker is gone. The others sum without it.
    pub(super) fn forget(&mut self, session: SessionId, mut lines: Correspondence<'_>) {
        let members = &mut self.members;
        members.places.retain(|_, (of, _)| *of != session);
        members.with_model.remove(&session);
        members.stepped.remove(&session);
        members.gone.remove(&session);
        if self.is_over || !members.group.as_ref().is_some_and(|group| group.has(session)) {
            return;
        }
        if members.with_model.is_empty() && self.fetched != members.version {
            members.failure.get_or_insert(ServerError::ModelLost);
        }
        members.form(&[], &mut lines);
    }

    /// A task of this worker is made: the model that it needs, unless it has it. It is a member from now on.
    pub(super) fn prepare(
        &mut self,
        session: SessionId,
        mut lines: Correspondence<'_>,
    ) -> Option<Arc<ParameterBuffer>> {
        if !self.members.with_model.insert(session) {
            return None;
        }
        if let Err(error) = self.fetch_for(Some(session), &mut lines) {
            self.members.failure.get_or_insert(error);
        }
        self.members.form(&[], &mut lines);
        Some(self.ring.newest().clone())
    }

    /// A member has said this.
    pub(super) fn hear(&mut self, session: SessionId, message: FromMember) {
        self.members.hear(session, message);
    }

    /// The newest version, which a member sends if it is not here, and the optimizer as the run began with it.
    pub(super) fn newest(
        &mut self,
        mut lines: Correspondence<'_>,
    ) -> Result<(&Arc<ParameterBuffer>, &Optimizer), ServerError> {
        self.check()?;
        self.fetch_for(None, &mut lines)?;
        Ok((self.ring.newest(), &self.optimizer))
    }

    /// The run is over: the newest version is here, and who leaves now is not missed.
    pub(super) fn end(&mut self, lines: Correspondence<'_>) -> Result<(), ServerError> {
        self.newest(lines)?;
        self.is_over = true;
        Ok(())
    }

    /// Gets the newest version from a member, if it is not here. `newcomer` does not have it yet.
    fn fetch_for(&mut self, newcomer: Option<SessionId>, lines: &mut Correspondence<'_>) -> Result<(), ServerError> {
        if self.fetched == self.members.version {
            return Ok(());
        }
        let values = self.members.fetch(newcomer, lines)?;
        let copied = self.ring.advance(|_, new| match values.values().len() == new.len() {
            true => {
                new.copy_from_slice(values.values());
                Ok(())
            }
            false => Err(ServerError::ModelLost),
        });
        copied.map_err(no_memory(values.values().len()))??;
        self.fetched = self.members.version;
        Ok(())
    }

    /// Has a commit carried out by all members.
    pub(super) fn commit(
        &mut self,
        commit: &Commit,
        updates: &[UncommittedUpdate],
        live: usize,
        lines: Correspondence<'_>,
    ) -> Result<CommitOutcome, ServerError> {
        self.check()?;
        let infos = commit.updates.iter().zip(updates).map(|(share, update)| UpdateInfo {
            task: share.task,
            weight: share.weight,
            loss: update.loss,
            rates: &update.rates,
        });
        let infos: Vec<UpdateInfo<'_>> = infos.collect();
        let session = |task: &TaskId| self.members.places.get(&task.worker).map(|&(session, _)| session);
        let sessions = infos.iter().map(|info| session(&info.task).ok_or(ServerError::GradientNotSent(info.task)));
        let sessions = sessions.collect::<Result<Vec<_>, _>>()?;
        let mut values = GroupValues { members: &mut self.members, sessions, lines };
        self.control.commit(commit, &infos, live, &mut values)
    }
}

impl FormedGroup {
    fn has(&self, session: SessionId) -> bool {
        self.members.iter().any(|&(_, member)| member == session)
    }

    fn is_complete(&self) -> bool {
        self.sums.len() == self.members.len()
    }

    /// Whether the sum is that of the updates of these members.
    fn sums_those(&self, wanted: &[SessionId]) -> bool {
        let adds = |session: &SessionId| self.has(*session) && !self.silent.contains(session);
        self.members.len() == wanted.len() + self.silent.len() && wanted.iter().all(adds)
    }
}

impl GroupMembers {
    /// All that have the model form a group. Those in `silent` add nothing to its first sum.
    fn form(&mut self, silent: &[SessionId], lines: &mut Correspondence<'_>) {
        self.group = None;
        let there = self.places.iter().filter(|(_, (session, _))| self.is_there(*session));
        let there: Vec<(WorkerId, SessionId, SocketAddr)> =
            there.map(|(&worker, &(session, place))| (worker, session, place)).collect();
        let Some(&(_, _, meeting)) = there.first() else { return };
        self.check_places(&there);
        let position = |found: &dyn Fn(SessionId) -> bool| {
            there.iter().position(|&(_, session, _)| found(session)).map(|position| position as u32)
        };
        let has_state = |session| self.stepped.contains(&session);
        // In a run that goes on from a checkpoint, every member may have read a state of its own.
        let first = (self.version > Version(0)).then_some(0);
        let source = position(&has_state).or(first).filter(|_| position(&|session| !has_state(session)).is_some());
        self.groups += 1;
        let group = Group {
            number: self.groups,
            members: there.iter().map(|(worker, _, _)| worker.0).collect(),
            meeting,
            source,
            silent: silent.iter().filter_map(|&one| position(&|session| session == one)).collect(),
        };
        for &(_, session, _) in &there {
            lines.send(session, ToMember::Form(group.clone()));
        }
        self.group = Some(FormedGroup {
            number: self.groups,
            members: there.into_iter().map(|(worker, session, _)| (worker, session)).collect(),
            silent: silent.to_vec(),
            sums: HashMap::new(),
            failure: None,
        });
    }

    fn is_there(&self, session: SessionId) -> bool {
        self.with_model.contains(&session) && !self.gone.contains(&session)
    }

    /// Whether a member of the group is gone.
    fn misses_one(&self) -> bool {
        self.group.iter().flat_map(|group| &group.members).any(|(_, session)| self.gone.contains(session))
    }

    /// Members on other hosts can't reach one at a loopback address.
    fn check_places(&mut self, there: &[(WorkerId, SessionId, SocketAddr)]) {
        let hosts: Vec<IpAddr> = there.iter().map(|(_, _, place)| place.ip()).collect();
        let local = hosts.iter().find(|host| host.is_loopback());
        if let Some(&address) = local.filter(|_| hosts.iter().any(|host| !host.is_loopback())) {
            self.failure.get_or_insert(ServerError::MemberAddress { address });
        }
    }

    fn hear(&mut self, session: SessionId, message: FromMember) {
        let Some(formed) = &mut self.group else { return };
        match message {
            FromMember::Summed { group, version, own, mean } => {
                if group == formed.number && version == self.version && formed.has(session) {
                    formed.sums.insert(session, MemberSum { own, mean });
                }
            }
            FromMember::Failed { group, reason } => {
                if group == formed.number {
                    formed.failure.get_or_insert((reason, Instant::now()));
                }
            }
            // One that nobody waits for any more.
            FromMember::Model(_) => {}
        }
    }

    /// Takes in what arrives until `is_done`, and notices who is gone. What is not from members to members stays for later.
    fn listen(
        &mut self,
        lines: &mut Correspondence<'_>,
        is_done: impl Fn(&GroupMembers) -> bool,
    ) -> Result<(), ServerError> {
        let begun = Instant::now();
        let mut heard: HashMap<SessionId, Instant> = HashMap::new();
        let mut deadline = begun;
        loop {
            lines.inputs.gather(Some(deadline)).map_err(ServerError::System)?;
            let now = Instant::now();
            lines.inputs.sift(|input| self.sift(input, |session| _ = heard.insert(session, now)));
            let members = self.group.iter().flat_map(|group| &group.members);
            let silent = members.filter(|(_, session)| {
                let last = heard.get(session).copied().unwrap_or(begun);
                now.saturating_duration_since(last) > SILENCE && !self.gone.contains(session)
            });
            for (worker, session) in silent.copied().collect::<Vec<_>>() {
                self.gone.insert(session);
                self.lost.push(worker);
            }
            if is_done(self) {
                return Ok(());
            }
            deadline = now + TICK;
        }
    }

    /// Takes an input that tells of a sum, or brings the model. `hears` learns whose processes are alive.
    fn sift(&mut self, input: ServerInput, mut hears: impl FnMut(SessionId)) -> Option<ServerInput> {
        match input {
            ServerInput::Message { session, message: ToServer::Member(message), gradient } => {
                hears(session);
                match (message, gradient) {
                    (FromMember::Model(version), Some(values)) if version == self.version => {
                        self.arrived = Some(values);
                    }
                    (message, _) => self.hear(session, message),
                }
                return None;
            }
            ServerInput::Closed { session, .. }
            | ServerInput::Message { session, message: ToServer::Leave { .. }, .. } => {
                self.gone.insert(session);
            }
            ServerInput::Message { session, .. } | ServerInput::Transfer { session } => hears(session),
            _ => {}
        }
        Some(input)
    }

    /// Waits for the sum of the group.
    fn await_sum(&mut self, lines: &mut Correspondence<'_>) -> Result<SumEnd, ServerError> {
        let has_failed = |group: &FormedGroup| {
            group.failure.as_ref().filter(|(_, at)| at.elapsed() > NOTICE_TIME).map(|(reason, _)| reason.clone())
        };
        self.listen(lines, |members| {
            let is_over = |group: &FormedGroup| group.is_complete() || has_failed(group).is_some();
            members.misses_one() || members.group.as_ref().is_none_or(is_over)
        })?;
        Ok(match &self.group {
            None => return Err(ServerError::ModelLost),
            Some(group) if group.is_complete() => SumEnd::Complete,
            Some(_) if self.misses_one() => SumEnd::Gone,
            Some(group) => SumEnd::Failed(has_failed(group).unwrap_or_default()),
        })
    }

    /// Asks one member after another for the newest version.
    fn fetch(&mut self, newcomer: Option<SessionId>, lines: &mut Correspondence<'_>) -> Result<Region, ServerError> {
        let mut asked: HashSet<SessionId> = newcomer.into_iter().collect();
        self.arrived = None;
        loop {
            let sessions = self.places.values().map(|&(session, _)| session);
            let source = sessions.filter(|&session| self.is_there(session)).find(|&session| asked.insert(session));
            let source = source.ok_or(ServerError::ModelLost)?;
            if let Some(link) = lines.links.get(&source) {
                link.expect_model();
            }
            lines.send(source, ToMember::Send(self.version));
            self.listen(lines, |members| members.arrived.is_some() || !members.is_there(source))?;
            if let Some(values) = self.arrived.take() {
                return Ok(values);
            }
        }
    }
}

/// The values of a commit, in the processes of the workers.
struct GroupValues<'a> {
    members: &'a mut GroupMembers,
    /// The sessions of the updates.
    sessions: Vec<SessionId>,
    lines: Correspondence<'a>,
}

impl GroupValues<'_> {
    /// Waits until every member has the sum of these updates, and has it made again if it is another one. Updates of members
    /// that are gone are broken.
    fn sum(&mut self, updates: &Summands) -> Result<Norms, ServerError> {
        let wanted: Vec<SessionId> = updates.iter().map(|&(position, _)| self.sessions[position]).collect();
        let mut attempts = 0;
        loop {
            let members = &mut *self.members;
            let fits = |group: &FormedGroup| group.failure.is_none() && group.sums_those(&wanted);
            if members.misses_one() || !members.group.as_ref().is_some_and(fits) {
                let others = members.with_model.iter().copied().filter(|session| !wanted.contains(session));
                let silent: Vec<SessionId> = others.filter(|&session| members.is_there(session)).collect();
                members.form(&silent, &mut self.lines);
            }
            match members.await_sum(&mut self.lines)? {
                SumEnd::Complete => return Ok(self.norms(&wanted)),
                SumEnd::Gone => {
                    let broken = (0..wanted.len()).filter(|&index| members.gone.contains(&wanted[index]));
                    let broken: Vec<usize> = broken.collect();
                    if !broken.is_empty() {
                        return Ok(Norms { sources: Vec::new(), mean: 0.0, broken });
                    }
                }
                SumEnd::Failed(reason) if attempts + 1 == MAX_ATTEMPTS => return Err(ServerError::NoSum { reason }),
                SumEnd::Failed(_) => attempts += 1,
            }
        }
    }

    fn norms(&self, wanted: &[SessionId]) -> Norms {
        let sum = |session: &SessionId| self.members.group.as_ref().and_then(|group| group.sums.get(session).copied());
        let sources: Vec<f64> = wanted.iter().map(|one| sum(one).map_or(f64::NAN, |sum| sum.own)).collect();
        let broken = (0..sources.len()).filter(|&index| !sources[index].is_finite()).collect();
        let mean = wanted.first().and_then(sum).map_or(f64::NAN, |sum| sum.mean);
        Norms { sources, mean, broken }
    }

    /// Tells all members what becomes of the model.
    fn advance(&mut self, step: MemberStep) {
        let members = &mut *self.members;
        members.version = Version(members.version.0 + 1);
        members.with_model.retain(|session| !members.gone.contains(session));
        for &session in &members.with_model {
            self.lines.send(session, ToMember::Step { version: members.version, step: step.clone() });
        }
        if let Some(group) = &mut members.group {
            group.sums.clear();
            group.silent.clear();
        }
    }
}

impl StepValues for GroupValues<'_> {
    type Error = ServerError;

    fn measure(&mut self, updates: &Summands) -> Result<Norms, ServerError> {
        self.sum(updates)
    }

    fn attempt(&mut self, _: &StepPlan, updates: &Summands) -> Result<Norms, ServerError> {
        self.sum(updates)
    }

    fn accept(&mut self, plan: &StepPlan) -> Result<(), ServerError> {
        let StepPlan { uses_optimizer, rate, ref group_rates, scale, statistics } = *plan;
        self.advance(match uses_optimizer {
            true => MemberStep::Optimizer { rates: group_rates.clone().unwrap_or_else(|| vec![rate]), scale },
            false => MemberStep::Average { rate: rate * f64::from(scale), statistics },
        });
        self.members.stepped.clone_from(&self.members.with_model);
        Ok(())
    }

    fn keep(&mut self) -> Result<(), ServerError> {
        self.advance(MemberStep::Keep);
        Ok(())
    }
}
