//! The server's side: who may join, who is gone, who is late, who is stuck.

use std::convert::Infallible;

use paceline_core::{
    Aggregate, Commit, CommitOutcome, Decision, Event, Ledger, Scheme, SchemeSpec, Setup, Span, TaskId, Time, Turn,
    Update, WorkerId,
};
use paceline_protocol::{
    Evaluation, Fingerprint, GradientLocation, Notice, ParameterHolders, PayloadRule, PeerTrust, ReportedUpdate, Role,
    RunPosition, ServerConfig, ServerHost, ServerProtocol, SessionId, ToServer, ToWorker, WireReport,
};
use paceline_store::OptimizerKind;

/// Records what the protocol does.
#[derive(Default)]
struct RecordingHost {
    sent: Vec<(SessionId, ToWorker)>,
    notices: Vec<String>,
    reported: Vec<Span>,
    late: Vec<TaskId>,
    evaluator: Option<SessionId>,
    /// The number of the model that is being evaluated.
    evaluating: Option<u64>,
    evaluations: Vec<Evaluation>,
}

impl ServerHost for RecordingHost {
    type Error = Infallible;

    fn send(&mut self, session: SessionId, message: &ToWorker) {
        self.sent.push((session, message.clone()));
    }

    fn close(&mut self, session: SessionId, last: &ToWorker) {
        self.sent.push((session, last.clone()));
    }

    fn prepare(&mut self, _: SessionId, _: TaskId) -> RunPosition {
        RunPosition::default()
    }

    fn assign(&mut self, session: SessionId, _: TaskId, message: ToWorker) -> Result<(), Infallible> {
        self.sent.push((session, message));
        Ok(())
    }

    fn cancel(&mut self, _: SessionId, _: TaskId) {}

    fn release(&mut self, _: SessionId, _: TaskId) {}

    fn keep(&mut self, _: SessionId, _: TaskId, _: ReportedUpdate) -> bool {
        true
    }

    fn discard_all(&mut self, _: WorkerId) {}

    fn discard(&mut self, _: TaskId) {}

    fn commit(&mut self, _: &Commit, _: usize) -> Result<CommitOutcome, Infallible> {
        Ok(CommitOutcome::default())
    }

    fn begin_turn(&mut self, _: Time, event: &Event, _: &[Decision]) -> Result<(), Infallible> {
        match event {
            Event::Reported { report, .. } => self.reported.push(report.compute),
            Event::Late { task } => self.late.push(*task),
            _ => {}
        }
        Ok(())
    }

    fn end_turn(&mut self, _: Time, _: &Event, _: &Ledger) -> Result<(), Infallible> {
        Ok(())
    }

    fn evaluator_joined(&mut self, session: SessionId) {
        self.evaluator = Some(session);
    }

    fn evaluator_left(&mut self) {
        self.evaluator = None;
    }

    fn evaluated(&mut self, _: Time, number: u64, evaluation: Evaluation, _: &Ledger) -> bool {
        self.evaluations.push(evaluation);
        self.evaluating.take() == Some(number)
    }

    fn computed(&mut self, _: TaskId, _: u32, _: Span) {}

    fn notice(&mut self, notice: Notice) {
        self.notices.push(notice.to_string());
    }
}

fn bsp(workers: usize) -> Box<dyn Scheme> {
    let setup = Setup::new(workers, 4);
    "bsp".parse::<SchemeSpec>().unwrap().build(&setup).unwrap()
}

/// `bsp` that is told of late tasks.
struct Watching(Box<dyn Scheme>);

impl Scheme for Watching {
    fn on_joined(&mut self, turn: &mut Turn<'_>, worker: WorkerId) {
        self.0.on_joined(turn, worker);
    }

    fn on_left(&mut self, turn: &mut Turn<'_>, worker: WorkerId) {
        self.0.on_left(turn, worker);
    }

    fn on_reported(&mut self, turn: &mut Turn<'_>, update: &Update) {
        self.0.on_reported(turn, update);
    }

    fn on_committed(&mut self, turn: &mut Turn<'_>, aggregate: Option<&Aggregate>) {
        self.0.on_committed(turn, aggregate);
    }

    fn watches_lateness(&self) -> bool {
        true
    }
}

/// A server and its clock.
struct TestServer {
    protocol: ServerProtocol,
    host: RecordingHost,
    now: Time,
    tasks: u64,
}

const FIRST: SessionId = SessionId(0);
const SECOND: SessionId = SessionId(1);

impl TestServer {
    /// A server of `bsp` for `workers` workers.
    fn new(workers: usize, token: Option<[u8; 32]>) -> Self {
        TestServer::of(bsp(workers), workers, token)
    }

    fn of(scheme: Box<dyn Scheme>, workers: usize, token: Option<[u8; 32]>) -> Self {
        TestServer::with_holders(scheme, workers, token, ParameterHolders::Server)
    }

    fn with_holders(
        scheme: Box<dyn Scheme>,
        workers: usize,
        token: Option<[u8; 32]>,
        holders: ParameterHolders,
    ) -> Self {
        let config = ServerConfig {
            workers,
            workload_spec: "digits".into(),
            fingerprint: Fingerprint::default(),
            seed: 1,
            payload: PayloadRule::default(),
            optimizer: OptimizerKind::Sgd { decay: 0.0 }.into(),
            token,
            timeout: Span::from_seconds(3600.0),
            epoch: 0,
            takes_evaluator: true,
            holders,
        };
        let protocol = ServerProtocol::new(config, Ledger::new(scheme));
        TestServer { protocol, host: RecordingHost::default(), now: Time::START, tasks: 0 }
    }

    /// A server with workers 0 and 1 at work.
    fn with_two_workers() -> Self {
        TestServer::new(2, None).join_two()
    }

    fn join_two(self) -> Self {
        let mut server = self;
        for session in [FIRST, SECOND] {
            server.connect(session, PeerTrust::SameUser);
            server.hello(session, None, None);
            server.message(session, ToServer::Ready { fingerprint: Fingerprint::default(), ports: Vec::new() });
        }
        server.host.notices.clear();
        server
    }

    fn connect(&mut self, session: SessionId, trust: PeerTrust) {
        self.protocol.on_connected(self.now, session, format!("peer {}", session.0), trust, &mut self.host);
    }

    fn message(&mut self, session: SessionId, message: ToServer) {
        self.protocol.on_message(self.now, session, message, &mut self.host).unwrap();
    }

    fn hello(&mut self, session: SessionId, rank: Option<u32>, token: Option<[u8; 32]>) {
        self.join(session, Role::Worker(rank), token);
    }

    fn join(&mut self, session: SessionId, role: Role, token: Option<[u8; 32]>) {
        self.message(session, ToServer::Hello { role, emulated: None, token });
    }

    /// Lets time pass; `talk` sends what the workers send every second. Timers are on time.
    fn pass(&mut self, seconds: f64, mut talk: impl FnMut(&mut Self)) {
        let end = self.now + Span::from_seconds(seconds);
        let mut talked = self.now;
        while self.now < end {
            let next_talk = talked + Span::from_seconds(1.0);
            let due = self.protocol.next_timer().unwrap_or(end);
            self.now = due.min(next_talk).min(end).max(self.now + Span(1));
            if self.now >= next_talk {
                talked = self.now;
                talk(self);
            }
            if self.protocol.next_timer().is_some_and(|due| due <= self.now) {
                self.protocol.on_timer(self.now, &mut self.host).unwrap();
            }
        }
    }

    fn heartbeat(&mut self, session: SessionId, progress: u64) {
        self.message(session, ToServer::Heartbeat { progress });
    }

    /// Both workers report their task, which took `seconds`, with heartbeats meanwhile.
    fn round(&mut self, seconds: f64) {
        self.pass(seconds, |server| [FIRST, SECOND].into_iter().for_each(|session| server.heartbeat(session, 0)));
        self.report(FIRST, seconds);
        self.report(SECOND, seconds);
        self.tasks += 1;
    }

    fn report(&mut self, session: SessionId, seconds: f64) {
        let report = WireReport { compute: Span::from_seconds(seconds), ..WireReport::default() };
        let (number, gradient) = (self.tasks, GradientLocation::InPlace);
        self.message(session, ToServer::Report { number, report, loss: 1.0, gradient, rates: vec![] });
    }

    /// The last refusal that was sent, and whether the worker may rejoin.
    fn refusal(&self) -> (&str, bool) {
        let mut refusals = self.host.sent.iter().rev().filter_map(|(_, message)| match message {
            ToWorker::Refuse { reason, may_rejoin } => Some((reason.as_str(), *may_rejoin)),
            _ => None,
        });
        refusals.next().unwrap_or_default()
    }
}

#[test]
fn a_handshake_has_ten_seconds_in_all() {
    let mut server = TestServer::new(1, None);
    server.connect(FIRST, PeerTrust::Network);
    server.pass(9.9, |_| {});
    assert!(server.host.sent.is_empty());
    server.pass(0.2, |_| {});
    assert_eq!(server.refusal(), ("no handshake within 10 s", false));
    assert_eq!(server.host.notices, ["peer 0 refused: no handshake within 10 s"]);
}

#[test]
fn the_token_is_asked_of_peers_on_a_network() {
    let mut server = TestServer::new(3, Some([7; 32]));
    for (session, token, expected) in [
        (0, None, "no token: start the worker with --keys DIR"),
        (1, Some([8; 32]), "wrong token: start the worker with the --keys DIR of the server"),
    ] {
        server.connect(SessionId(session), PeerTrust::Network);
        server.hello(SessionId(session), None, token);
        assert_eq!(server.refusal(), (expected, false));
    }
    for (session, trust, token) in [(2, PeerTrust::Network, Some([7; 32])), (3, PeerTrust::SameUser, None)] {
        server.connect(SessionId(session), trust);
        server.hello(SessionId(session), None, token);
        assert!(matches!(server.host.sent.last(), Some((_, ToWorker::Welcome { .. }))));
    }
}

#[test]
fn a_silent_worker_is_known_within_three_seconds_however_long_its_task_takes() {
    for task in [0.1, 60.0] {
        let mut server = TestServer::with_two_workers();
        (0..3).for_each(|_| server.round(task));
        let before = server.now;
        server.pass(3.0, |server| server.heartbeat(FIRST, 0));
        assert_eq!(server.refusal(), ("no sign of life for 2.5 s; it may rejoin", true));
        let left = |notice: &String| notice.starts_with("worker 1 left: no sign of life");
        assert!(server.host.notices.iter().any(left), "{:?}", server.host.notices);
        assert!(server.now.since(before) <= Span::from_seconds(3.1));
        // It comes back under its rank, and the server has more patience with it.
        server.connect(SessionId(2), PeerTrust::SameUser);
        server.hello(SessionId(2), Some(1), None);
        server.message(SessionId(2), ToServer::Ready { fingerprint: Fingerprint::default(), ports: Vec::new() });
        server.pass(4.0, |server| server.heartbeat(FIRST, 0));
        assert_eq!(server.protocol.joined(), 2);
        server.pass(2.0, |server| server.heartbeat(FIRST, 0));
        assert_eq!(server.protocol.joined(), 1);
    }
}

#[test]
fn a_server_that_stood_still_dismisses_no_worker() {
    let mut server = TestServer::with_two_workers();
    (0..10).for_each(|_| server.round(0.1));
    for (seconds, on_wake) in [(4.0, true), (20.0, true), (3600.0, false)] {
        server.now = server.now + Span::from_seconds(seconds);
        if on_wake {
            // The reports lie in the sockets: a task and the time that the workers measured for it.
            server.report(FIRST, 0.1);
            server.report(SECOND, 0.1);
            server.tasks += 1;
        }
        server.protocol.on_timer(server.now, &mut server.host).unwrap();
        server.round(0.1);
    }
    assert_eq!(server.protocol.joined(), 2);
    let stalls = ["4.0", "20.0", "3600.0"]
        .map(|seconds| format!("the server stood still for {seconds} s; this counts for no worker"));
    assert_eq!(server.host.notices, stalls);
    assert!(
        server.host.reported.iter().all(|&compute| compute == Span::from_seconds(0.1)),
        "true times are not changed"
    );
}

#[test]
fn a_late_worker_is_named_once_and_stays() {
    let mut server = TestServer::with_two_workers();
    (0..32).for_each(|_| server.round(1.0));
    assert_eq!(server.host.notices, [""; 0]);
    server.pass(50.0, |server| [FIRST, SECOND].into_iter().for_each(|session| server.heartbeat(session, 0)));
    assert_eq!(server.protocol.joined(), 2);
    assert_eq!(server.host.notices.len(), 2, "{:?}", server.host.notices);
    assert_eq!(server.host.notices[0], "worker 0 is late: 4.0 s on a task that usually takes 1.0 s");
    server.report(FIRST, 50.0);
    server.report(SECOND, 50.0);
    server.tasks += 1;
    (0..5).for_each(|_| server.round(50.0));
    assert_eq!(server.host.notices.len(), 2, "slow tasks are expected now");
}

#[test]
fn a_scheme_that_watches_is_told_of_late_tasks() {
    for (scheme, events) in [(bsp(2), 0), (Box::new(Watching(bsp(2))) as Box<dyn Scheme>, 2)] {
        let mut server = TestServer::of(scheme, 2, None).join_two();
        (0..32).for_each(|_| server.round(1.0));
        server.pass(50.0, |server| [FIRST, SECOND].into_iter().for_each(|session| server.heartbeat(session, 0)));
        assert_eq!(server.host.notices.len(), 2, "the user knows in any case");
        assert_eq!(server.host.late.len(), events);
        assert!(server.host.late.iter().all(|task| task.number == 32));
    }
}

#[test]
fn a_clock_that_jumps_back_cuts_no_time_short() {
    let mut server = TestServer::with_two_workers();
    (0..10).for_each(|_| server.round(1.0));
    server.now = Time(server.now.0 - 5_000_000_000);
    (0..10).for_each(|_| server.round(1.0));
    assert_eq!(server.host.notices, [""; 0]);
    // How long the jump took is not known: nobody called in between. That is the last second before the next call.
    assert_eq!(server.protocol.run_time(server.now), Time::START + Span::from_seconds(19.0));
    assert!(server.protocol.next_timer().is_some_and(|due| due >= server.now), "timers are in the driver's time");
    let is_whole = |compute: &&Span| **compute == Span::from_seconds(1.0);
    assert_eq!(server.host.reported.iter().filter(is_whole).count(), 2 * 19, "{:?}", server.host.reported);
}

#[test]
fn a_stuck_worker_is_dismissed_but_not_one_that_makes_progress() {
    let mut server = TestServer::with_two_workers();
    (0..5).for_each(|_| server.round(1.0));
    let mut steps = 0;
    server.pass(3600.0, |server| {
        steps += 1;
        server.heartbeat(FIRST, steps / 50);
        server.heartbeat(SECOND, 0);
    });
    assert_eq!(server.refusal(), ("stuck: alive, but without progress for 100.0 s; it may rejoin", true));
    assert!(server.host.notices.iter().any(|notice| notice.starts_with("worker 1 left: stuck")));
    assert_eq!(server.protocol.joined(), 1);
}

#[test]
fn times_beyond_the_task_are_shortened_not_punished() {
    let mut server = TestServer::with_two_workers();
    server.pass(2.0, |server| [FIRST, SECOND].into_iter().for_each(|session| server.heartbeat(session, 0)));
    server.report(FIRST, 1e6);
    assert_eq!(server.host.reported, [Span::from_seconds(2.0)]);
    assert_eq!(server.protocol.joined(), 2);
}

#[test]
fn ranks_are_bounded_by_the_size_of_the_run() {
    let mut server = TestServer::new(2, None);
    server.connect(FIRST, PeerTrust::SameUser);
    server.hello(FIRST, Some(60_000), None);
    assert_eq!(server.refusal(), ("rank 60000: expected 0 to 9 in a run for 2 workers", false));
}

const THIRD: SessionId = SessionId(2);

#[test]
fn an_evaluator_is_no_worker_and_stays_for_the_last_model() {
    let mut server = TestServer::with_two_workers();
    for session in [THIRD, SessionId(3)] {
        server.connect(session, PeerTrust::SameUser);
        server.join(session, Role::Evaluator, None);
    }
    assert_eq!(server.refusal(), ("there is an evaluator", true));
    server.message(THIRD, ToServer::Ready { fingerprint: Fingerprint::default(), ports: Vec::new() });
    assert_eq!(server.host.evaluator, Some(THIRD));
    assert_eq!((server.protocol.joined(), server.protocol.ledger().live()), (2, 2));

    let evaluated = |number| ToServer::Evaluated { number, loss: None, accuracy: Some(0.5) };
    server.host.evaluating = Some(0);
    server.message(THIRD, evaluated(0));
    assert_eq!(server.host.evaluations[0].accuracy, Some(0.5));

    // The workers are told of the end; the evaluator is not, and it is still watched.
    server.protocol.finish(server.now, "enough", &mut server.host).unwrap();
    let is_told = |server: &TestServer, id| {
        server.host.sent.iter().any(|(to, message)| *to == id && matches!(message, ToWorker::Finished { .. }))
    };
    assert_eq!([FIRST, SECOND, THIRD].map(|id| is_told(&server, id)), [true, true, false]);
    server.host.evaluating = Some(1);
    server.message(THIRD, evaluated(1));
    assert_eq!(server.host.evaluations.len(), 2);
    // Who comes now comes too late.
    server.connect(SessionId(4), PeerTrust::SameUser);
    server.hello(SessionId(4), None, None);
    assert!(is_told(&server, SessionId(4)));
    server.protocol.finish_evaluation("enough", &mut server.host);
    assert!(is_told(&server, THIRD));
    assert_eq!(server.protocol.next_timer(), None);
}

#[test]
fn an_evaluator_that_is_gone_or_breaks_the_protocol_costs_no_worker() {
    let join = |server: &mut TestServer| {
        server.connect(THIRD, PeerTrust::SameUser);
        server.join(THIRD, Role::Evaluator, None);
        server.message(THIRD, ToServer::Ready { fingerprint: Fingerprint::default(), ports: Vec::new() });
    };
    let mut server = TestServer::with_two_workers();
    join(&mut server);
    server.message(THIRD, ToServer::Evaluated { number: 0, loss: None, accuracy: None });
    assert_eq!(server.refusal(), ("an evaluation that was not asked for", false));
    assert_eq!((server.host.evaluator, server.protocol.joined()), (None, 2));

    let mut server = TestServer::with_two_workers();
    join(&mut server);
    server.protocol.finish(server.now, "enough", &mut server.host).unwrap();
    server.pass(3.0, |_| {});
    assert_eq!(server.refusal(), ("no sign of life for 2.5 s; it may rejoin", true));
    assert_eq!(server.host.evaluator, None);
    let last = server.host.notices.last().unwrap();
    assert_eq!(last, "the evaluator left: no sign of life for 2.5 s; it may rejoin");
}

#[test]
fn a_run_whose_shards_are_apart_waits_for_them_and_not_for_more() {
    let mut server = TestServer::with_holders(bsp(2), 2, None, ParameterHolders::Apart(2)).join_two();
    let join = |server: &mut TestServer, id: u64| {
        server.connect(SessionId(id), PeerTrust::Network);
        server.join(SessionId(id), Role::Shard { ports: vec![1] }, None);
    };
    join(&mut server, 2);
    assert!(!server.protocol.has_started());
    // One that is gone does not count.
    server.protocol.on_closed(server.now, SessionId(2), "gone".into(), &mut server.host).unwrap();
    join(&mut server, 3);
    assert!(!server.protocol.has_started());
    join(&mut server, 4);
    assert!(server.protocol.has_started());
    assert_eq!((server.protocol.joined(), server.protocol.ledger().live()), (2, 2));
    join(&mut server, 5);
    assert_eq!(server.refusal(), ("the server has the 2 shards that it needs", true));
    server.message(SessionId(4), ToServer::Ready { fingerprint: Fingerprint::default(), ports: Vec::new() });
    assert_eq!(server.refusal(), ("a message of a worker from a shard", false));
    assert_eq!(server.host.notices.last().unwrap(), "the shard from peer 4 left: a message of a worker from a shard");
    assert_eq!(server.protocol.ledger().live(), 2);

    let mut server = TestServer::with_two_workers();
    join(&mut server, 2);
    let reason = "the server takes no shards without workers: start it with --shards apart:N";
    assert_eq!(server.refusal(), (reason, false));
}

#[test]
fn a_run_is_done_when_the_last_worker_is() {
    let leave = |is_done| ToServer::Leave { reason: "it leaves".into(), is_done };
    for (first, second, is_done) in [(true, true, true), (false, true, true), (true, false, false)] {
        let mut server = TestServer::with_two_workers();
        server.message(FIRST, leave(first));
        assert!(!server.protocol.is_done());
        server.message(SECOND, leave(second));
        assert_eq!(server.protocol.is_done(), is_done);
    }
}
