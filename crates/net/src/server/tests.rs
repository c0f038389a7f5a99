//! A failing or misbehaving peer is refused or dismissed, and the run continues.

use std::io::Write as _;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver as Notices};
use std::thread;
use std::time::Duration;

use paceline_core::{Setup, Version};
use paceline_protocol::{
    Fingerprint, GradientLocation, HeldParameters, PayloadFormat, Role, ToServer, ToWorker, WireReport,
};
use paceline_runtime::{Iteration, Monitor, Notice, Observer};
use paceline_workload::{Evaluation, Order, Partition, Sampler, SoftmaxRegression, Workload, synthetic_digits};

use super::*;
use crate::frame::{self, FrameHeader, PROTOCOL_VERSION};
use crate::frame_reader::Received;
use crate::scripted_peer::ScriptedPeer;
use crate::worker::{Worker, WorkerError, WorkerNotice, WorkerOutcome};

fn workload(seed: u64) -> Arc<dyn Workload> {
    let splits = synthetic_digits(seed, 400, 50).unwrap();
    let labels = splits.train().labels();
    let sampler = Sampler::new(labels, Partition::Iid, Order::Epochs, 2, seed).unwrap();
    Arc::new(SoftmaxRegression::new(splits, sampler, 0.0))
}

fn job(scheme: &str, workers: usize, iterations: u64) -> Job {
    Job {
        scheme: scheme.parse().unwrap(),
        workload_spec: "digits".into(),
        rate: 0.01,
        goals: format!("iterations={iterations}").parse().unwrap(),
        ..Job::new(workload(1), Setup::new(workers, 4))
    }
}

/// Sends notices to the test.
struct NoticeSender(mpsc::Sender<String>);

impl Observer for NoticeSender {
    fn on_notice(&mut self, notice: &Notice) {
        self.0.send(notice.to_string()).unwrap();
    }
}

impl ServerObserver for NoticeSender {}

/// Stops the run if the test thread panics.
struct StopOnPanic(Stopper);

impl Drop for StopOnPanic {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.stop("the test failed");
        }
    }
}

/// Runs `job` while `play` acts as its peers. Returns the outcome and the notices that `play` did not take.
fn serve(job: &Job, play: impl FnOnce(&Address, &Notices<String>, &Stopper) + Send) -> (RunOutcome, Vec<String>) {
    let server = Server::bind(&["127.0.0.1:0".parse().unwrap()], TransportOptions::default()).unwrap();
    let address = server.addresses()[0].clone();
    let (sender, notices) = mpsc::channel();
    thread::scope(|scope| {
        let guard = StopOnPanic(server.stopper());
        let peers = scope.spawn(move || {
            play(&address, &notices, &guard.0);
            notices
        });
        let outcome = server.run(job, &mut NoticeSender(sender)).unwrap();
        let notices = peers.join().unwrap();
        (outcome, notices.iter().collect())
    })
}

fn work(address: &Address, rank: u32, workload: Arc<dyn Workload>) -> Result<WorkerOutcome, WorkerError> {
    let worker =
        Worker { role: Role::Worker(Some(rank)), join_timeout: Duration::ZERO, ..Worker::new(address.clone()) };
    worker.run(|_| Ok(workload.clone()), &mut |_| {})
}

fn connect(address: &Address) -> TcpStream {
    let Address::Tcp { host, port } = address else { unreachable!("tests use TCP") };
    TcpStream::connect((host.as_str(), *port)).unwrap()
}

/// A worker whose messages are scripted by the test.
struct ScriptedWorker {
    peer: ScriptedPeer<TcpStream>,
    length: usize,
}

impl ScriptedWorker {
    /// Joins as a worker that has the right workload.
    fn join(address: &Address, job: &Job, rank: u32) -> Self {
        let mut worker = ScriptedWorker::connected(connect(address), job);
        worker.send(&ToServer::Hello { role: Role::Worker(Some(rank)), emulated: None, token: None });
        assert!(matches!(worker.peer.message(), ToWorker::Welcome { .. }));
        worker.send(&ToServer::Ready { fingerprint: job.model.fingerprint(job.seed), ports: Vec::new() });
        worker
    }

    fn connected(stream: TcpStream, job: &Job) -> Self {
        ScriptedWorker { peer: ScriptedPeer::new(stream), length: job.model.layout().len() }
    }

    fn send(&mut self, message: &ToServer) {
        self.peer.send(message);
    }

    /// Receives the next assignment and its model, and returns the number of the task.
    fn task(&mut self) -> u64 {
        let ToWorker::Assign { assignment, .. } = self.peer.message() else { panic!("expected an assignment") };
        assert!(matches!(self.peer.message(), ToWorker::Model { .. }));
        self.peer.vector::<ToWorker>(self.length);
        assignment.task.number
    }

    fn report(&mut self, number: u64, loss: f64, gradient: GradientLocation) {
        self.send(&ToServer::Report { number, report: WireReport::default(), loss, gradient, rates: vec![] });
    }

    fn ask(&mut self, number: u64, iterations: u32) {
        self.send(&ToServer::Asked { number, iterations, report: WireReport::default() });
    }

    fn values(&mut self, count: usize) {
        self.peer.send_chunk(&vec![1.0; count]);
    }

    /// The reason for which the server refuses or dismisses it.
    fn refusal(mut self) -> String {
        loop {
            match self.peer.next().unwrap() {
                Received::Message(ToWorker::Refuse { reason, .. }) => return reason,
                Received::Message(ToWorker::Model { .. }) => self.peer.expect(self.length),
                Received::Message(_) | Received::Values(_) => {}
                Received::End => panic!("closed without a reason"),
            }
        }
    }
}

/// Waits for one refusal with each of these reasons, in any order.
fn await_refusals(notices: &Notices<String>, reasons: &[&str]) {
    let refused: Vec<String> = notices.iter().take(reasons.len()).collect();
    for reason in reasons {
        let is_refusal = |notice: &String| notice.contains(" refused: ") && notice.contains(reason);
        assert!(refused.iter().any(is_refusal), "{refused:?}");
    }
}

#[test]
fn peers_with_an_invalid_handshake_are_refused_with_the_reason() {
    let job = job("bsp", 1, 3);
    let (outcome, notices) = serve(&job, |address, notices, _| {
        let foreign = connect(address);
        (&foreign).write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        assert!(ScriptedWorker::connected(foreign, &job).refusal().contains("does not speak the Paceline protocol"));

        let mut other =
            frame::encode(&ToServer::Hello { role: Role::Worker(None), emulated: None, token: None }).unwrap();
        other[4..6].copy_from_slice(&999_u16.to_le_bytes());
        let stream = connect(address);
        (&stream).write_all(&other).unwrap();
        assert!(
            ScriptedWorker::connected(stream, &job)
                .refusal()
                .contains(&format!("the peer has version 999, this side has version {PROTOCOL_VERSION}"))
        );

        let mut without_hello = ScriptedWorker::connected(connect(address), &job);
        without_hello.send(&ToServer::Dropped { number: 0 });
        assert_eq!(without_hello.refusal(), "expected a hello as the first message");

        let huge = connect(address);
        let mut header = FrameHeader::of_chunk(PayloadFormat::F32, 0);
        header[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
        (&huge).write_all(&header).unwrap();
        assert!(ScriptedWorker::connected(huge, &job).refusal().contains("frame of 4294967295 bytes"));

        await_refusals(notices, &["does not speak", "version 999", "expected a hello", "4294967295"]);
        work(address, 0, job.model.workload().unwrap().clone()).unwrap();
    });
    assert_eq!(outcome.summary.iterations, 3);
    assert_eq!(notices.len(), 1, "the worker joined: {notices:?}");
}

#[test]
fn a_worker_that_breaks_the_protocol_is_dismissed_and_the_others_continue() {
    type Violation = fn(&mut ScriptedWorker);
    let violations: [(Violation, &str); 10] = [
        (|worker| worker.report(99, 1.0, GradientLocation::Withheld), "task 99, which was never assigned"),
        (|worker| worker.send(&ToServer::Dropped { number: 0 }), "it was not cancelled"),
        (|worker| worker.report(0, 1.0, GradientLocation::InPlace), "was not sent as assigned"),
        (|worker| worker.report(0, 1.0, GradientLocation::Withheld), "was not sent as assigned"),
        (|worker| worker.ask(0, 1), "task 0 of worker 1 asked after 1 iterations: expected no question"),
        (
            |worker| worker.send(&ToServer::Hello { role: Role::Worker(None), emulated: None, token: None }),
            "second hello",
        ),
        (|worker| worker.values(3), "chunk of values outside a gradient"),
        (
            |worker| {
                worker.report(0, 1.0, GradientLocation::Follows);
                worker.values(worker.length);
                worker.values(1);
            },
            "chunk of values outside a gradient",
        ),
        (
            |worker| {
                worker.report(0, 1.0, GradientLocation::Follows);
                worker.values(worker.length - 1);
                worker.values(2);
            },
            "frame of 8 bytes: expected at most 4",
        ),
        (
            |worker| {
                let fingerprint = Fingerprint::of(workload(1).as_ref(), 1);
                worker.send(&ToServer::Ready { fingerprint, ports: Vec::new() });
            },
            "second ready message",
        ),
    ];
    let violations = violations.map(|(violation, expected)| ("bsp", violation, expected));
    let local_violations: [(Violation, &str); 4] = [
        (|worker| worker.ask(7, 1), "task 7, which was never assigned"),
        (|worker| worker.ask(0, 2), "asked after 2 iterations: expected a question after each"),
        (|worker| worker.ask(0, 0), "asked after 0 iterations: expected at least 1"),
        (
            |worker| {
                worker.report(0, 1.0, GradientLocation::Follows);
                worker.values(worker.length);
            },
            "task 0 of worker 1 reported before its update was collected",
        ),
    ];
    let local_violations = local_violations.map(|(violation, expected)| ("esync", violation, expected));
    for (scheme, violation, expected) in violations.into_iter().chain(local_violations) {
        let job = job(scheme, 2, 20);
        let (outcome, notices) = serve(&job, |address, _, _| {
            thread::scope(|scope| {
                let healthy = scope.spawn(|| work(address, 0, job.model.workload().unwrap().clone()));
                let mut worker = ScriptedWorker::join(address, &job, 1);
                assert_eq!(worker.task(), 0);
                violation(&mut worker);
                let reason = worker.refusal();
                assert!(reason.contains(expected), "{reason}");
                healthy.join().unwrap().unwrap();
            });
        });
        assert_eq!(outcome.summary.iterations, 20, "{expected}");
        assert!(notices.iter().any(|notice| notice.starts_with("worker 1 left: ") && notice.contains(expected)));
    }
}

#[test]
fn stale_gradients_are_compensated_for_later_steps() {
    let job = job("dc-asgd:lambda=2", 2, 2);
    let (outcome, _) = serve(&job, |address, _, _| {
        let mut workers = [0, 1].map(|rank| ScriptedWorker::join(address, &job, rank));
        workers.iter_mut().for_each(|worker| assert_eq!(worker.task(), 0));
        for mut worker in workers {
            worker.report(0, 1.0, GradientLocation::Follows);
            worker.values(worker.length);
            // The new model arrives when the gradient is applied; after the second one the run ends.
            worker.peer.message::<ToWorker>();
        }
    });
    // All gradients are 1: the first step is −0.01, the second's gradient 1 + 2·1·1·(−0.01).
    for (initial, trained) in job.initial().iter().zip(outcome.parameters) {
        assert!((initial - 0.01 - 0.0098 - trained).abs() < 1e-6, "{initial} became {trained}");
    }
}

#[test]
fn a_worker_with_another_workload_is_refused_and_both_are_named() {
    let job = job("bsp", 1, 2);
    serve(&job, |address, notices, _| {
        let error = work(address, 0, workload(2)).unwrap_err().to_string();
        assert!(error.contains("the server has 7850 parameters") && error.contains("the worker has 7850"), "{error}");
        let failed = Worker { join_timeout: Duration::ZERO, ..Worker::new(address.clone()) };
        let error = failed.run(|_| Err("no such data".into()), &mut |_| {}).unwrap_err();
        assert_eq!(error.to_string(), "can't build the workload of the server: no such data");
        await_refusals(notices, &["different workload", "no such data"]);
        work(address, 0, job.model.workload().unwrap().clone()).unwrap();
    });
}

#[test]
fn every_rank_is_assigned_once() {
    let job = job("bsp", 2, 2);
    let (outcome, _) = serve(&job, |address, notices, _| {
        thread::scope(|scope| {
            let first = scope.spawn(|| work(address, 1, job.model.workload().unwrap().clone()));
            assert!(notices.recv().unwrap().starts_with("worker 1 joined"));
            let taken = work(address, 1, job.model.workload().unwrap().clone()).unwrap_err().to_string();
            assert!(taken.ends_with("rank 1 is taken"), "{taken}");
            let high = work(address, 10, job.model.workload().unwrap().clone()).unwrap_err().to_string();
            assert!(high.ends_with("rank 10: expected 0 to 9 in a run for 2 workers"), "{high}");
            assert_eq!(work(address, 0, job.model.workload().unwrap().clone()).unwrap().worker, WorkerId(0));
            first.join().unwrap().unwrap();
        });
    });
    assert_eq!(outcome.summary.updates_committed, 4);
}

/// Waits for a notice that starts with `beginning`.
fn await_notice(notices: &Notices<String>, beginning: &str) {
    while !notices.recv().unwrap().starts_with(beginning) {}
}

#[test]
fn a_worker_that_dies_while_sending_is_replaced() {
    for scheme in ["bsp", "backup:k=1,dispatch=push-interrupt", "asp", "ssp:staleness=1", "local-sgd:tau=2"] {
        let job = job(scheme, 2, u64::MAX);
        let (outcome, _) = serve(&job, |address, notices, stopper| {
            thread::scope(|scope| {
                let healthy = scope.spawn(|| work(address, 0, job.model.workload().unwrap().clone()));
                let mut dying = ScriptedWorker::join(address, &job, 1);
                let number = dying.task();
                dying.report(number, 1.0, GradientLocation::Follows);
                dying.values(dying.length / 2);
                dying.peer.stream.shutdown(Shutdown::Both).unwrap();
                await_notice(notices, "worker 1 left: ");
                let successor = scope.spawn(|| work(address, 1, job.model.workload().unwrap().clone()));
                await_notice(notices, "worker 1 joined");
                stopper.stop("the test is done");
                for worker in [healthy, successor] {
                    assert_eq!(worker.join().unwrap().unwrap().reason, "the test is done");
                }
            });
        });
        assert_eq!(outcome.summary.stopped_by, "the test is done", "{scheme}");
        assert!(!outcome.summary.reached);
    }
}

/// Stops the run at the first iteration that reports an evaluation.
struct StopOnEvaluation(Stopper, Option<Evaluation>);

impl Observer for StopOnEvaluation {
    fn on_iteration(&mut self, _iteration: &Iteration, monitor: &Monitor) {
        if let Some(evaluation) = monitor.fresh_evaluation() {
            self.1 = Some(evaluation);
            self.0.stop("the model was evaluated");
        }
    }
}

impl ServerObserver for StopOnEvaluation {}

#[test]
fn an_evaluation_is_reported_with_the_next_iteration() {
    let job = Job { evaluate_every: 1, ..job("bsp", 1, u64::MAX) };
    let server = Server::bind(&["127.0.0.1:0".parse().unwrap()], TransportOptions::default()).unwrap();
    let address = server.addresses()[0].clone();
    let mut observer = StopOnEvaluation(server.stopper(), None);
    thread::scope(|scope| {
        scope.spawn(|| work(&address, 0, job.model.workload().unwrap().clone()));
        server.run(&job, &mut observer).unwrap();
    });
    assert!(observer.1.is_some());
}

#[test]
fn a_worker_refused_in_the_middle_of_a_model_does_not_rejoin() {
    let job = job("bsp", 1, 1);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string().parse().unwrap();
    let refused = thread::scope(|scope| {
        let worker = scope.spawn(|| work(&address, 0, job.model.workload().unwrap().clone()));
        let mut server = ScriptedPeer::new(listener.accept().unwrap().0);
        server.message::<ToServer>();
        let Job { workload_spec, seed, optimizer, .. } = job.clone();
        let payload = PayloadRule::default();
        server.send(&ToWorker::Welcome {
            rank: 0,
            workload_spec,
            seed,
            payload,
            optimizer,
            epoch: 0,
            holds: HeldParameters::Nothing,
        });
        server.message::<ToServer>();
        server.send(&ToWorker::Model { version: Version(0) });
        server.send_chunk(&[0.0; 10]);
        server.send(&ToWorker::Refuse { reason: "enough".into(), may_rejoin: false });
        worker.join().unwrap()
    });
    assert!(matches!(&refused, Err(WorkerError::Refused { reason, .. }) if reason == "enough"), "{refused:?}");
}

fn rejoining_worker(address: &Address, rank: u32) -> Worker {
    let join_timeout = Duration::from_secs(60);
    Worker { role: Role::Worker(Some(rank)), join_timeout, ..Worker::new(address.clone()) }
}

#[test]
fn a_silent_worker_is_dismissed_and_may_rejoin() {
    for scheme in ["bsp", "esync", "elastic-bsp"] {
        let job = job(scheme, 2, u64::MAX);
        serve(&job, |address, notices, stopper| {
            thread::scope(|scope| {
                let workers = [0, 1].map(|rank| rejoining_worker(address, rank));
                let run = |worker: Worker| worker.run(|_| Ok(job.model.workload().unwrap().clone()), &mut |_| {});
                let [healthy, successor] = workers;
                let healthy = scope.spawn(move || run(healthy));
                let mut frozen = ScriptedWorker::join(address, &job, 1);
                frozen.task();
                // It sends no heartbeats. Its rank is taken until it is dismissed; the successor tries again until then.
                let successor = scope.spawn(move || run(successor));
                await_notice(notices, "worker 1 left: no sign of life for ");
                await_notice(notices, "worker 1 joined");
                assert!(frozen.refusal().ends_with(" s; it may rejoin"));
                stopper.stop("the test is done");
                for worker in [healthy, successor] {
                    assert_eq!(worker.join().unwrap().unwrap().reason, "the test is done");
                }
            });
        });
    }
}

#[test]
fn a_worker_rejoins_a_restarted_server() {
    let job = job("bsp", 1, 5);
    let server = Server::bind(&["127.0.0.1:0".parse().unwrap()], TransportOptions::default()).unwrap();
    let address = server.addresses()[0].clone();
    thread::scope(|scope| {
        let mut lost = Vec::new();
        let worker = rejoining_worker(&address, 0);
        let worker = scope.spawn(|| {
            let mut on_notice = |notice: WorkerNotice<'_>| {
                if let WorkerNotice::Disconnected { reason } = notice {
                    lost.push(reason.to_string());
                }
            };
            (worker.run(|_| Ok(job.model.workload().unwrap().clone()), &mut on_notice), lost)
        });
        // The first server disappears during the handshake.
        let Listener::Tcp(listener) = &server.listeners[0] else { unreachable!("the server listens on TCP") };
        let (stream, _) = listener.accept().unwrap();
        let mut first = ScriptedWorker::connected(stream, &job);
        assert!(matches!(first.peer.message(), ToServer::Hello { .. }));
        drop((first, server));
        let second = Server::bind(std::slice::from_ref(&address), TransportOptions::default()).unwrap();
        assert_eq!(second.run(&job, &mut ()).unwrap().summary.iterations, 5);
        let (done, lost) = worker.join().unwrap();
        assert!(done.unwrap().tasks >= 5);
        assert_eq!(lost.len(), 1, "{lost:?}");
    });
}

#[test]
fn an_address_in_use_is_reported() {
    let first = Server::bind(&["127.0.0.1:0".parse().unwrap()], TransportOptions::default()).unwrap();
    let taken = first.addresses()[0].clone();
    let error = Server::bind(std::slice::from_ref(&taken), TransportOptions::default()).unwrap_err().to_string();
    assert_eq!(error, format!("can't listen on {taken}: the address is in use; is another server running?"));
}
