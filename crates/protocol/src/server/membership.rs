//! Who may join, and who has to leave.

use paceline_core::{Event, Time, WorkerId};
use subtle::ConstantTimeEq;

use super::liveness::PATIENCE;
use super::{Handled, ParameterHolders, PeerTrust, ServerConfig, ServerHost, ServerProtocol, SessionId, Stage};
use crate::Fingerprint;
use crate::message::{HeldParameters, Role, ToWorker, Token};
use crate::notice::Notice;

/// How many ranks a run for `workers` workers has. More workers than planned may join, but not without limit: reports
/// and tables have a row for every rank.
pub fn max_ranks(workers: usize) -> u32 {
    u32::try_from((2 * workers).max(workers + 8)).unwrap_or(u32::MAX)
}

impl ServerProtocol {
    /// Gives a new worker a rank and sends it the workload. Welcomes an evaluator, or a shard.
    pub(super) fn on_hello<H: ServerHost>(
        &mut self,
        id: SessionId,
        role: Role,
        emulated: Option<String>,
        token: Option<&Token>,
        host: &mut H,
    ) -> Handled<H> {
        let Some(session) = self.sessions.get_mut(&id) else { return Ok(()) };
        if let Some(reason) = denial(session.trust, self.config.token.as_ref(), token) {
            return self.violation(id, reason, host);
        }
        if self.is_over {
            self.close(&self.farewell("the run is over"), |stage| matches!(stage, Stage::Handshake(_)), host);
            return Ok(());
        }
        let limit = max_ranks(self.config.workers);
        let taken = |rank: u32| self.members.contains_key(&WorkerId(rank));
        let worker = match role {
            Role::Shard { ports } => return self.on_shard(id, ports, host),
            Role::Evaluator if !self.config.takes_evaluator => {
                return self.dismiss(id, "the server evaluates the model itself".into(), false, host);
            }
            // It may be the same process, whose old connection is not closed yet.
            Role::Evaluator if self.members.contains_key(&WorkerId::EVALUATOR) => {
                return self.dismiss(id, "there is an evaluator".into(), true, host);
            }
            Role::Evaluator => WorkerId::EVALUATOR,
            Role::Worker(Some(rank)) if rank >= limit => {
                let workers = self.config.workers;
                let reason = format!("rank {rank}: expected 0 to {} in a run for {workers} workers", limit - 1);
                return self.dismiss(id, reason, false, host);
            }
            Role::Worker(Some(rank)) if taken(rank) => {
                return self.dismiss(id, format!("rank {rank} is taken"), true, host);
            }
            Role::Worker(Some(rank)) => WorkerId(rank),
            Role::Worker(None) => match (0..limit).find(|&rank| !taken(rank)) {
                Some(rank) => WorkerId(rank),
                None => return self.dismiss(id, format!("all {limit} ranks are taken"), true, host),
            },
        };
        session.stage = Stage::Building(worker);
        session.emulated = emulated.as_deref().map(printable);
        session.patience = self.patience.get(&worker).copied().unwrap_or(PATIENCE);
        self.members.insert(worker, id);
        let holds = match self.config.holders {
            _ if worker == WorkerId::EVALUATOR => HeldParameters::Nothing,
            ParameterHolders::Workers { parts } => HeldParameters::Parts(parts),
            ParameterHolders::Members => HeldParameters::All,
            ParameterHolders::Server | ParameterHolders::Apart(_) => HeldParameters::Nothing,
        };
        self.welcome(id, worker.0, holds, host);
        Ok(())
    }

    fn welcome<H: ServerHost>(&mut self, id: SessionId, rank: u32, holds: HeldParameters, host: &mut H) {
        let ServerConfig { workload_spec, seed, payload, optimizer, epoch, .. } = self.config.clone();
        host.send(id, &ToWorker::Welcome { rank, workload_spec, seed, payload, optimizer, epoch, holds });
        let next = self.now + PATIENCE;
        self.schedule(id, next);
    }

    /// A process without a worker would hold parts of the parameters.
    fn on_shard<H: ServerHost>(&mut self, id: SessionId, ports: Vec<u16>, host: &mut H) -> Handled<H> {
        let ParameterHolders::Apart(count) = self.config.holders else {
            let reason = "the server takes no shards without workers: start it with --shards apart:N";
            return self.dismiss(id, reason.into(), false, host);
        };
        // If one of those that are there is lost, the run may resume with this one.
        if self.has_started() || self.holding() >= count {
            return self.dismiss(id, format!("the server has the {count} shards that it needs"), true, host);
        }
        let Some(session) = self.sessions.get_mut(&id) else { return Ok(()) };
        session.stage = Stage::Holding;
        host.notice(Notice::ShardJoined { peer: session.peer.clone() });
        host.reachable_at(None, id, ports);
        self.welcome(id, 0, HeldParameters::Nothing, host);
        self.begin_if_complete(host)
    }

    pub(super) fn on_ready<H: ServerHost>(
        &mut self,
        id: SessionId,
        worker: WorkerId,
        theirs: &Fingerprint,
        ports: Vec<u16>,
        host: &mut H,
    ) -> Handled<H> {
        if let Some(difference) = self.config.fingerprint.difference(theirs) {
            return self.dismiss(id, format!("different workload: {difference}"), false, host);
        }
        let Some(session) = self.sessions.get_mut(&id) else { return Ok(()) };
        if worker == WorkerId::EVALUATOR {
            session.stage = Stage::Evaluating;
            host.notice(Notice::EvaluatorJoined { peer: session.peer.clone() });
            host.evaluator_joined(id);
            return Ok(());
        }
        session.stage = Stage::Joined(worker);
        if matches!(self.config.holders, ParameterHolders::Workers { .. } | ParameterHolders::Members)
            && !ports.is_empty()
        {
            host.reachable_at(Some(worker), id, ports);
        }
        host.notice(Notice::Joined { worker, peer: session.peer.clone(), emulated: session.emulated.clone() });
        if self.started.is_some() {
            return self.feed(Event::Joined { worker }, host);
        }
        self.begin_if_complete(host)
    }

    /// Starts the run if all that it waits for are there.
    fn begin_if_complete<H: ServerHost>(&mut self, host: &mut H) -> Handled<H> {
        let shards = if let ParameterHolders::Apart(count) = self.config.holders { count } else { 0 };
        let ready = self.ready();
        if ready.len() >= self.config.workers && self.holding() >= shards { self.begin(ready, host) } else { Ok(()) }
    }

    /// The workers that have joined.
    pub(super) fn ready(&self) -> Vec<WorkerId> {
        let is_ready = |id: &SessionId| self.sessions.get(id).is_some_and(|one| matches!(one.stage, Stage::Joined(_)));
        self.members.iter().filter(|(_, id)| is_ready(id)).map(|(&worker, _)| worker).collect()
    }

    /// Starts the run with these workers.
    pub(super) fn begin<H: ServerHost>(&mut self, ready: Vec<WorkerId>, host: &mut H) -> Handled<H> {
        (self.started, self.gathering) = (Some(self.now), None);
        let departed = std::mem::take(&mut self.departed);
        departed.into_iter().try_for_each(|worker| self.feed(Event::Left { worker }, host))?;
        ready.into_iter().try_for_each(|worker| self.feed(Event::Joined { worker }, host))
    }

    /// Dismisses a peer that broke the protocol. It may not rejoin.
    pub(super) fn violation<H: ServerHost>(&mut self, id: SessionId, reason: &str, host: &mut H) -> Handled<H> {
        self.dismiss(id, reason.into(), false, host)
    }

    /// Removes a peer that has left or must leave; `may_rejoin` is sent to it.
    pub(super) fn dismiss<H: ServerHost>(
        &mut self,
        id: SessionId,
        reason: String,
        may_rejoin: bool,
        host: &mut H,
    ) -> Handled<H> {
        let Some(session) = self.sessions.remove(&id) else { return Ok(()) };
        self.checks.remove(&(session.check_at, id));
        // If the peer has left, the message is lost, which does no harm.
        host.close(id, &ToWorker::Refuse { reason: reason.clone(), may_rejoin });
        if let Some(worker) = session.stage.worker() {
            self.members.remove(&worker);
        }
        match session.stage {
            Stage::Finished => Ok(()),
            Stage::Handshake(_) | Stage::Building(_) => {
                host.notice(Notice::Refused { peer: session.peer, reason });
                Ok(())
            }
            Stage::Holding => {
                host.notice(Notice::ShardLeft { peer: session.peer, reason });
                Ok(())
            }
            Stage::Evaluating => {
                host.evaluator_left();
                host.notice(Notice::EvaluatorLeft { reason });
                Ok(())
            }
            Stage::Joined(worker) => {
                host.discard_all(worker);
                let mut lost = 0;
                // Before the start, a run that is resumed still has the tasks of the worker's last process.
                if self.started.is_some() {
                    lost = self.ledger.outstanding(worker);
                    self.feed(Event::Left { worker }, host)?;
                }
                let remaining = self.joined();
                host.notice(Notice::Left { worker, reason, lost, remaining });
                Ok(())
            }
        }
    }

    /// Dismisses a worker for a reason that its messages do not show, such as broken updates.
    ///
    /// # Errors
    /// If the run can't continue.
    pub fn dismiss_worker<H: ServerHost>(
        &mut self,
        now: Time,
        worker: WorkerId,
        reason: String,
        may_rejoin: bool,
        host: &mut H,
    ) -> Handled<H> {
        self.advance(now, host);
        let id = self.members.get(&worker).copied();
        id.map_or(Ok(()), |id| self.dismiss(id, reason, may_rejoin, host))
    }
}

/// Why a peer may not join, if it has not the server's token where it needs one.
pub(crate) fn denial(trust: PeerTrust, ours: Option<&Token>, theirs: Option<&Token>) -> Option<&'static str> {
    let ours = ours.filter(|_| trust == PeerTrust::Network)?;
    match theirs {
        None => Some("no token: start the worker with --keys DIR"),
        Some(_) if !token_matches(Some(ours), theirs) => {
            Some("wrong token: start the worker with the --keys DIR of the server")
        }
        Some(_) => None,
    }
}

/// Whether a peer has the token that it needs. How long this takes does not tell how much of it is right.
pub fn token_matches(ours: Option<&Token>, theirs: Option<&Token>) -> bool {
    ours.is_none_or(|ours| theirs.is_some_and(|theirs| ours.ct_eq(theirs).into()))
}

/// Text from a peer without control characters, which a terminal would interpret.
pub(super) fn printable(text: &str) -> String {
    text.replace(char::is_control, " ")
}
