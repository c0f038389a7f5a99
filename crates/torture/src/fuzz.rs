//! Arbitrary message sequences for both sides of the protocol.

use std::collections::{BTreeMap, VecDeque};

use paceline_core::{
    Assignment, LocalLength, LocalWork, ReplicaStart, Setup, Span, TaskId, Time, Version, Work, WorkerId,
};
use paceline_protocol::{
    Fingerprint, GradientLocation, PeerTrust, Role, RunPosition, SessionId, SharedBuffers, TaskSettings, ToServer,
    ToWorker, WireReport, WorkerProtocol,
};

use crate::fault_schedule::FaultSchedule;
use crate::fault_simulation::TortureFailure;
use crate::schemes::schemes;
use crate::server::{Outgoing, TortureServer};
use crate::storage::SharedStorage;

/// The number of sessions that a sequence can refer to.
const SESSIONS: u64 = 6;

/// Reads the choices of a sequence from bytes; after their end every choice is 0.
struct Choices<'a>(std::slice::Iter<'a, u8>);

impl Choices<'_> {
    fn byte(&mut self) -> u8 {
        self.0.next().copied().unwrap_or(0)
    }

    fn below(&mut self, limit: u64) -> u64 {
        u64::from(self.byte()) % limit
    }

    fn flag(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    /// Small numbers, and sometimes the largest.
    fn number(&mut self) -> u64 {
        match self.byte() {
            255 => u64::MAX,
            small => u64::from(small) % 8,
        }
    }

    fn float(&mut self) -> f64 {
        [0.0, 1.0, -1.0, f64::NAN, f64::INFINITY, 1e300][self.below(6) as usize]
    }

    fn report(&mut self) -> WireReport {
        let span = |choices: &mut Self| Span([0, 1, 1_000_000_000, u64::MAX][choices.below(4) as usize]);
        let load = |choices: &mut Self| choices.flag().then_some(choices.float() as f32);
        WireReport {
            compute: span(self),
            querying: span(self),
            cpu: load(self),
            memory: load(self),
            loading: span(self),
            samples: Some(self.number() as u32),
        }
    }

    fn message_to_server(&mut self) -> ToServer {
        match self.below(8) {
            0 => {
                let role = match self.below(4) {
                    0 => Role::Evaluator,
                    1 => Role::Shard { ports: vec![self.number() as u16] },
                    _ => Role::Worker(self.flag().then_some(self.number() as u32)),
                };
                let token = self.flag().then_some([self.byte(); 32]);
                ToServer::Hello { role, emulated: self.flag().then(|| "slow\u{7}".into()), token }
            }
            1 => ToServer::Ready { fingerprint: Fingerprint::default(), ports: Vec::new() },
            2 => ToServer::Leave { reason: "leaves\n".into(), is_done: self.flag() },
            3 => ToServer::Heartbeat { progress: self.number() },
            4 => ToServer::Asked { number: self.number(), iterations: self.number() as u32, report: self.report() },
            5 | 6 => {
                let gradient = match self.below(4) {
                    0 => GradientLocation::InPlace,
                    1 => GradientLocation::Follows,
                    2 => GradientLocation::Withheld,
                    _ => GradientLocation::InMembers,
                };
                let rates = (0..self.number() % 4).map(|_| self.float()).collect();
                ToServer::Report { number: self.number(), report: self.report(), loss: self.float(), gradient, rates }
            }
            _ => ToServer::Dropped { number: self.number() },
        }
    }

    fn message_to_worker(&mut self) -> ToWorker {
        let number = self.number();
        match self.below(7) {
            0 => {
                let length = [LocalLength::Iterations(2), LocalLength::AskAndWait, LocalLength::AskAndContinue]
                    [self.below(3) as usize];
                let local = Work::Local(LocalWork { start: ReplicaStart::Model, length });
                let work = if self.flag() { Work::Gradient } else { local };
                let task = TaskId { worker: WorkerId(0), number };
                let version = Version(self.number());
                let assignment = Assignment { task, version, work, samples: 1, offset: 0, queued: self.flag() };
                let after = self.flag().then_some(self.number());
                let buffers = self.flag().then_some(SharedBuffers { parameters: 0, gradient: 0 });
                let settings = TaskSettings {
                    run: RunPosition { rate: self.float() as f32, ..RunPosition::default() },
                    committed: None,
                };
                ToWorker::Assign { assignment, after, buffers, settings }
            }
            1 => ToWorker::Continue { number },
            2 => ToWorker::Collect { number },
            3 => ToWorker::Interrupt { number },
            4 => ToWorker::Model { version: Version(number) },
            5 => ToWorker::Refuse { reason: "refused".into(), may_rejoin: self.flag() },
            _ => ToWorker::Finished { reason: "finished".into(), version: Version(number), buffer: None },
        }
    }
}

/// Drives both sides of the protocol with the sequence of connections, messages, closed connections and times that
/// `bytes` choose. Returns the number of events that the scheme handled.
///
/// # Errors
/// If a scheme breaks a law, or the ledger contradicts the checker. No sequence may lead to that.
pub fn fuzz_protocol(bytes: &[u8]) -> Result<u64, TortureFailure> {
    let mut choices = Choices(bytes.iter());
    let workers = 1 + choices.below(3) as usize;
    let all = schemes(workers);
    let scheme = all[choices.below(all.len() as u64) as usize].clone();
    let build = |setup: &Setup| scheme.build(setup).expect("the schemes fit the number of workers");
    let schedule = FaultSchedule {
        seed: 0,
        workers,
        batch: 4,
        task: Span::from_seconds(1.0),
        checkpoint_every: 1,
        shards: 0,
        servers: 1,
        lease: Span::ZERO,
        faults: Vec::new(),
    };
    let (mut server, mut storage) = (TortureServer::new(0, &schedule, &build, None), SharedStorage::default());
    server.resume(Time::START, &storage, Default::default())?;
    let mut peers: BTreeMap<SessionId, (WorkerProtocol<()>, VecDeque<ToWorker>)> = BTreeMap::new();
    let (mut now, mut connected) = (Time::START, 0);
    while choices.0.len() > 0 {
        let session =
            SessionId((connected / SESSIONS * SESSIONS).saturating_sub(SESSIONS) + choices.below(2 * SESSIONS));
        match choices.below(8) {
            0 => {
                let trust = if choices.flag() { PeerTrust::SameUser } else { PeerTrust::Network };
                let session = SessionId(connected);
                connected += 1;
                peers.insert(session, Default::default());
                server.on_connected(now, &mut storage, session, (WorkerId(0), trust))?;
                // Most peers say hello and are ready, so that sequences get further.
                if !choices.flag() {
                    let hello = ToServer::Hello { role: Role::Worker(None), emulated: None, token: None };
                    server.on_message(now, &mut storage, session, hello)?;
                    let ready = ToServer::Ready { fingerprint: Fingerprint::default(), ports: Vec::new() };
                    server.on_message(now, &mut storage, session, ready)?;
                }
            }
            1..=3 => server.on_message(now, &mut storage, session, choices.message_to_server())?,
            4 => server.on_closed(now, &mut storage, session)?,
            5 => {
                let steps = [1_000_000, 900_000_000, 3_000_000_000, 7_200_000_000_000];
                now = now + Span(steps[choices.below(4) as usize]);
                server.on_timer(now, &mut storage)?;
            }
            6 => {
                if let Some((worker, inbox)) = peers.get_mut(&session) {
                    let message = inbox.pop_front().filter(|_| !choices.flag());
                    let message = message.unwrap_or_else(|| choices.message_to_worker());
                    if let ToWorker::Model { version } = message {
                        worker.on_model(version, ());
                    } else {
                        worker.on_message(message, choices.flag().then_some(()));
                    }
                }
            }
            _ => {
                if let Some((worker, _)) = peers.get_mut(&session) {
                    match choices.below(4) {
                        0 => drop(worker.start_next()),
                        1 => drop(worker.take_answer()),
                        2 => drop(worker.result_status()),
                        _ => worker.finish_task(),
                    }
                }
            }
        }
        for outgoing in std::mem::take(&mut server.host.outgoing) {
            let (Outgoing::Send(session, message) | Outgoing::Close(session, message)) = outgoing else { continue };
            if let Some((_, inbox)) = peers.get_mut(&session) {
                inbox.push_back(message);
            }
        }
        server.host.notices.clear();
    }
    Ok(server.host.events)
}
