//! Strangers, liars and the dying: each costs only itself.

use std::io::Write as _;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver as Notices};
use std::thread;
use std::time::Duration;

use paceline_core::{Setup, Span, Version};
use paceline_runtime::{Iteration, Monitor, Notice, Observer};
use paceline_workload::{Evaluation, Order, Partition, Sampler, SoftmaxRegression, Workload, synthetic_digits};

use super::*;
use crate::fingerprint::Fingerprint;
use crate::frame::{self, FrameHeader};
use crate::link::{Incoming, Receiver as From, Sender as To, Socket};
use crate::message::{Gradient, ToServer, ToWorker, Words};
use crate::worker::{WorkError, Worker, WorkerNotice, WorkerOutcome};

fn workload(seed: u64) -> Arc<dyn Workload> {
    let splits = synthetic_digits(seed, 400, 50).unwrap();
    let labels = splits.train().labels();
    let sampler = Sampler::new(labels, Partition::Iid, Order::Epochs, 2, seed).unwrap();
    Arc::new(SoftmaxRegression::new(splits, sampler, 0.0))
}

fn job(scheme: &str, workers: usize, iterations: u64) -> Job {
    Job {
        scheme: scheme.parse().unwrap(),
        setup: Setup { workers, batch: 4, dispatch: None },
        workload: workload(1),
        workload_spec: "digits".into(),
        optimizer: "sgd".parse().unwrap(),
        schedule: "constant".parse().unwrap(),
        rate: 0.01,
        shards: 1,
        evaluate_every: 0,
        goals: format!("iterations={iterations}").parse().unwrap(),
        timeout: Span::from_seconds(60.0),
        seed: 1,
    }
}

/// Passes notices on to the test.
struct Teller(mpsc::Sender<String>);

impl Observer for Teller {}

impl ServerObserver for Teller {
    fn on_notice(&mut self, notice: &Notice) {
        self.0.send(notice.to_string()).unwrap();
    }
}

/// Ends the run when a test fails beside it.
struct EndOnPanic(Stopper);

impl Drop for EndOnPanic {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.stop("the test failed");
        }
    }
}

/// Runs `job` while `play` does what it likes; gives the outcome and the notices that `play` left.
fn serve(job: &Job, play: impl FnOnce(&Address, &Notices<String>, &Stopper) + Send) -> (RunOutcome, Vec<String>) {
    let server = Server::bind(&["127.0.0.1:0".parse().unwrap()], TransportOptions::default()).unwrap();
    let address = server.addresses()[0].clone();
    let (sender, notices) = mpsc::channel();
    thread::scope(|scope| {
        let guard = EndOnPanic(server.stopper());
        let player = scope.spawn(move || {
            play(&address, &notices, &guard.0);
            notices
        });
        let outcome = server.run(job, &mut Teller(sender)).unwrap();
        let notices = player.join().unwrap();
        (outcome, notices.iter().collect())
    })
}

fn work(address: &Address, rank: u32, workload: Arc<dyn Workload>) -> Result<WorkerOutcome, WorkError> {
    let address = address.clone();
    let worker = Worker {
        address,
        rank: Some(rank),
        join_timeout: Duration::ZERO,
        emulation: None,
        congestion: None,
        keys: None,
    };
    worker.run(|_| Ok(workload.clone()), &mut |_| {})
}

fn connect(address: &Address) -> TcpStream {
    let Address::Tcp { host, port } = address else { unreachable!("tests use TCP") };
    TcpStream::connect((host.as_str(), *port)).unwrap()
}

/// A worker that speaks the protocol by hand.
struct Puppet {
    to: To,
    from: From,
    length: usize,
}

impl Puppet {
    /// Joins as a worker that has made the right workload.
    fn join(address: &Address, job: &Job, rank: u32) -> Self {
        let mut puppet = Puppet::stranger(connect(address), job);
        puppet.say(&ToServer::Hello { rank: Some(rank), emulated: None, token: None });
        assert!(matches!(puppet.from.message(), Ok(ToWorker::Welcome { .. })));
        puppet.say(&ToServer::Ready { fingerprint: Fingerprint::of(job.workload.as_ref(), job.seed) });
        puppet
    }

    fn stranger(stream: TcpStream, job: &Job) -> Self {
        let socket = Socket::tcp(stream, None).unwrap();
        let from = From::new(socket.clone(), Traffic::default());
        Puppet { to: To::new(socket, Traffic::default()), from, length: job.workload.layout().len() }
    }

    fn say(&mut self, message: &ToServer) {
        self.to.message(message).unwrap();
    }

    /// The number of the next task it is given, with its model.
    fn task(&mut self) -> u64 {
        let ToWorker::Assign { assignment, .. } = self.from.message().unwrap() else { panic!("expected work") };
        assert!(matches!(self.from.message(), Ok(ToWorker::Model { .. })));
        let (mut values, mut filled) = (vec![0.0; self.length], 0);
        while filled < self.length {
            // Messages may come in between.
            if let Incoming::Chunk(bytes) = self.from.next::<ToWorker>().unwrap() {
                filled += self.from.chunk(bytes, &mut values[filled..], PayloadFormat::F32).unwrap();
            }
        }
        assignment.task.number
    }

    fn report(&mut self, number: u64, loss: f64, gradient: Gradient) {
        self.say(&ToServer::Report { number, words: Words::default(), loss, gradient });
    }

    fn ask(&mut self, number: u64, iterations: u32) {
        self.say(&ToServer::Asked { number, iterations, words: Words::default() });
    }

    fn values(&mut self, count: usize) {
        self.to.chunk(&vec![1.0; count], PayloadFormat::F32).unwrap();
    }

    /// Why the server refuses it.
    fn refusal(mut self) -> String {
        loop {
            match self.from.next().unwrap() {
                Incoming::Message(ToWorker::Refuse { reason, .. }) => return reason,
                Incoming::Message(_) => {}
                Incoming::Chunk(bytes) => self.from.skip(bytes).unwrap(),
                Incoming::End => panic!("closed without a word"),
            }
        }
    }
}

/// Waits until the server has said, in any order, that somebody was refused for each of these reasons.
fn await_refusals(notices: &Notices<String>, reasons: &[&str]) {
    let refused: Vec<String> = notices.iter().take(reasons.len()).collect();
    for reason in reasons {
        let told = |notice: &String| notice.contains(" was refused: ") && notice.contains(reason);
        assert!(refused.iter().any(told), "{refused:?}");
    }
}

#[test]
fn strangers_are_told_why_and_do_no_harm() {
    let job = job("bsp", 1, 3);
    let (outcome, notices) = serve(&job, |address, notices, _| {
        let foreign = connect(address);
        (&foreign).write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        assert!(Puppet::stranger(foreign, &job).refusal().contains("does not speak Paceline's protocol"));

        let mut other = frame::encode(&ToServer::Hello { rank: None, emulated: None, token: None }).unwrap();
        other[4..6].copy_from_slice(&7_u16.to_le_bytes());
        let stream = connect(address);
        (&stream).write_all(&other).unwrap();
        assert!(Puppet::stranger(stream, &job).refusal().contains("speaks protocol 7, this side speaks 1"));

        let mut rude = Puppet::stranger(connect(address), &job);
        rude.say(&ToServer::Dropped { number: 0 });
        assert_eq!(rude.refusal(), "expected a hello first");

        let huge = connect(address);
        let mut header = FrameHeader::of_chunk(0);
        header[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
        (&huge).write_all(&header).unwrap();
        assert!(Puppet::stranger(huge, &job).refusal().contains("a frame of 4294967295 bytes"));

        await_refusals(notices, &["does not speak", "speaks protocol 7", "hello first", "4294967295"]);
        work(address, 0, job.workload.clone()).unwrap();
    });
    assert_eq!(outcome.summary.iterations, 3);
    assert_eq!(notices.len(), 1, "the worker joined: {notices:?}");
}

#[test]
fn liars_are_dismissed_and_the_others_go_on() {
    type Lie = fn(&mut Puppet);
    let lies: [(Lie, &str); 13] = [
        (|puppet| puppet.report(99, 1.0, Gradient::Withheld), "task 99, which was never assigned"),
        (|puppet| puppet.say(&ToServer::Dropped { number: 0 }), "nobody had called it off"),
        (|puppet| puppet.report(0, f64::NAN, Gradient::Withheld), "the loss of task 0 of worker 1 is NaN"),
        (|puppet| puppet.report(0, 1.0, Gradient::InPlace), "not where it should be"),
        (|puppet| puppet.report(0, 1.0, Gradient::Withheld), "not where it should be"),
        (
            |puppet| {
                puppet.report(0, 1.0, Gradient::Follows);
                let mut values = vec![1.0; puppet.length];
                values[puppet.length / 2] = f32::NAN;
                puppet.to.chunk(&values, PayloadFormat::F32).unwrap();
            },
            "the gradient of task 0 of worker 1 is not finite",
        ),
        (
            |puppet| {
                let words = Words { compute: Span::from_seconds(1e6), ..Words::default() };
                puppet.say(&ToServer::Report { number: 0, words, loss: 1.0, gradient: Gradient::Follows });
                puppet.values(puppet.length);
            },
            "task 0 of worker 1 can't have taken 1000000.000 s",
        ),
        (|puppet| puppet.ask(0, 1), "task 0 of worker 1 asked after 1 iterations: expected no question"),
        (|puppet| puppet.say(&ToServer::Hello { rank: None, emulated: None, token: None }), "a second hello"),
        (|puppet| puppet.values(3), "belongs to nothing"),
        (
            |puppet| {
                puppet.report(0, 1.0, Gradient::Follows);
                puppet.values(puppet.length);
                puppet.values(1);
            },
            "belongs to nothing",
        ),
        (
            |puppet| {
                puppet.report(0, 1.0, Gradient::Follows);
                puppet.values(puppet.length - 1);
                puppet.values(2);
            },
            "a frame of 8 bytes, where 4 are allowed",
        ),
        (
            |puppet| {
                let fingerprint = Fingerprint::of(workload(1).as_ref(), 1);
                puppet.say(&ToServer::Ready { fingerprint });
            },
            "ready twice",
        ),
    ];
    let lies = lies.map(|(lie, expected)| ("bsp", lie, expected));
    let local_lies: [(Lie, &str); 4] = [
        (|puppet| puppet.ask(7, 1), "task 7, which was never assigned"),
        (|puppet| puppet.ask(0, 2), "asked after 2 iterations: expected a question after each"),
        (|puppet| puppet.ask(0, 0), "asked after 0 iterations: expected at least 1"),
        (
            |puppet| {
                puppet.report(0, 1.0, Gradient::Follows);
                puppet.values(puppet.length);
            },
            "task 0 of worker 1 reported before its update was collected",
        ),
    ];
    let local_lies = local_lies.map(|(lie, expected)| ("esync", lie, expected));
    for (scheme, lie, expected) in lies.into_iter().chain(local_lies) {
        let job = job(scheme, 2, 20);
        let (outcome, notices) = serve(&job, |address, _, _| {
            thread::scope(|scope| {
                let honest = scope.spawn(|| work(address, 0, job.workload.clone()));
                let mut puppet = Puppet::join(address, &job, 1);
                assert_eq!(puppet.task(), 0);
                lie(&mut puppet);
                let reason = puppet.refusal();
                assert!(reason.contains(expected), "{reason}");
                honest.join().unwrap().unwrap();
            });
        });
        assert_eq!(outcome.summary.iterations, 20, "{expected}");
        assert!(notices.iter().any(|notice| notice.starts_with("worker 1 left: ") && notice.contains(expected)));
    }
}

#[test]
fn stale_gradients_are_corrected_for_the_steps_since() {
    let job = job("dc-asgd:lambda=2", 2, 2);
    let (outcome, _) = serve(&job, |address, _, _| {
        let mut puppets = [0, 1].map(|rank| Puppet::join(address, &job, rank));
        puppets.iter_mut().for_each(|puppet| assert_eq!(puppet.task(), 0));
        for mut puppet in puppets {
            puppet.report(0, 1.0, Gradient::Follows);
            puppet.values(puppet.length);
            // The new model comes when the gradient is applied; or the end, with the second.
            assert!(puppet.from.message::<ToWorker>().is_ok());
        }
    });
    // All gradients are 1: the first step is −0.01, the second's gradient 1 + 2·1·1·(−0.01).
    for (initial, trained) in job.workload.initial(job.seed).iter().zip(outcome.parameters) {
        assert!((initial - 0.01 - 0.0098 - trained).abs() < 1e-6, "{initial} became {trained}");
    }
}

#[test]
fn another_workload_is_refused_and_both_are_named() {
    let job = job("bsp", 1, 2);
    serve(&job, |address, notices, _| {
        let error = work(address, 0, workload(2)).unwrap_err().to_string();
        assert!(error.contains("the server has 7850 parameters") && error.contains("the worker has 7850"), "{error}");
        let failed = Worker {
            address: address.clone(),
            rank: None,
            join_timeout: Duration::ZERO,
            emulation: None,
            congestion: None,
            keys: None,
        };
        let error = failed.run(|_| Err("no such data".into()), &mut |_| {}).unwrap_err();
        assert_eq!(error.to_string(), "can't make the server's workload: no such data");
        await_refusals(notices, &["another workload", "no such data"]);
        work(address, 0, job.workload.clone()).unwrap();
    });
}

#[test]
fn ranks_are_given_once() {
    let job = job("bsp", 2, 2);
    let (outcome, _) = serve(&job, |address, notices, _| {
        thread::scope(|scope| {
            let first = scope.spawn(|| work(address, 1, job.workload.clone()));
            assert!(notices.recv().unwrap().starts_with("worker 1 joined"));
            let taken = work(address, 1, job.workload.clone()).unwrap_err().to_string();
            assert!(taken.ends_with("rank 1 is taken"), "{taken}");
            let high = work(address, 70_000, job.workload.clone()).unwrap_err().to_string();
            assert!(high.ends_with("ranks go from 0 to 65535"), "{high}");
            assert_eq!(work(address, 0, job.workload.clone()).unwrap().worker, WorkerId(0));
            first.join().unwrap().unwrap();
        });
    });
    assert_eq!(outcome.summary.updates_committed, 4);
}

/// Waits for a notice that begins so.
fn await_notice(notices: &Notices<String>, beginning: &str) {
    while !notices.recv().unwrap().starts_with(beginning) {}
}

#[test]
fn who_dies_in_the_middle_of_anything_is_replaced() {
    for scheme in ["bsp", "backup:k=1,dispatch=push-interrupt", "asp", "ssp:staleness=1", "local-sgd:tau=2"] {
        let job = job(scheme, 2, u64::MAX);
        let (outcome, _) = serve(&job, |address, notices, stopper| {
            thread::scope(|scope| {
                let honest = scope.spawn(|| work(address, 0, job.workload.clone()));
                let mut dying = Puppet::join(address, &job, 1);
                let number = dying.task();
                dying.report(number, 1.0, Gradient::Follows);
                dying.values(dying.length / 2);
                dying.to.socket().shutdown(Shutdown::Both);
                await_notice(notices, "worker 1 left: ");
                let heir = scope.spawn(|| work(address, 1, job.workload.clone()));
                await_notice(notices, "worker 1 joined");
                stopper.stop("seen enough");
                for worker in [honest, heir] {
                    assert_eq!(worker.join().unwrap().unwrap().reason, "seen enough");
                }
            });
        });
        assert_eq!(outcome.summary.stopped_by, "seen enough", "{scheme}");
        assert!(!outcome.summary.reached);
    }
}

/// A worker that comes again and again for a while.
/// Ends the run when a measurement was shown.
struct Measured(Stopper, Option<Evaluation>);

impl Observer for Measured {
    fn on_iteration(&mut self, _iteration: &Iteration, monitor: &Monitor) {
        if let Some(evaluation) = monitor.fresh_evaluation() {
            self.1 = Some(evaluation);
            self.0.stop("it was measured");
        }
    }
}

impl ServerObserver for Measured {}

#[test]
fn what_is_measured_beside_the_training_is_shown_with_the_next_iteration() {
    let job = Job { evaluate_every: 1, ..job("bsp", 1, u64::MAX) };
    let server = Server::bind(&["127.0.0.1:0".parse().unwrap()], TransportOptions::default()).unwrap();
    let address = server.addresses()[0].clone();
    let mut measured = Measured(server.stopper(), None);
    thread::scope(|scope| {
        scope.spawn(|| work(&address, 0, job.workload.clone()));
        server.run(&job, &mut measured).unwrap();
    });
    assert!(measured.1.is_some());
}

#[test]
fn who_is_refused_in_the_middle_of_a_model_does_not_come_again() {
    let job = job("bsp", 1, 1);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string().parse().unwrap();
    let refused = thread::scope(|scope| {
        let worker = scope.spawn(|| work(&address, 0, job.workload.clone()));
        let socket = Socket::tcp(listener.accept().unwrap().0, None).unwrap();
        let (mut to, mut from) = (To::new(socket.clone(), Traffic::default()), From::new(socket, Traffic::default()));
        from.message::<ToServer>().unwrap();
        let Job { workload_spec, seed, optimizer, .. } = job.clone();
        to.message(&ToWorker::Welcome { rank: 0, workload_spec, seed, payload: PayloadFormat::F32, optimizer })
            .unwrap();
        from.message::<ToServer>().unwrap();
        to.message(&ToWorker::Model { version: Version(0) }).unwrap();
        to.chunk(&[0.0; 10], PayloadFormat::F32).unwrap();
        to.message(&ToWorker::Refuse { reason: "enough".into(), again: false }).unwrap();
        worker.join().unwrap()
    });
    assert!(matches!(&refused, Err(WorkError::Refused { reason, .. }) if reason == "enough"), "{refused:?}");
}

fn patient(address: &Address, rank: u32) -> Worker {
    let join_timeout = Duration::from_secs(60);
    Worker { address: address.clone(), rank: Some(rank), join_timeout, emulation: None, congestion: None, keys: None }
}

#[test]
fn who_is_silent_at_work_is_given_up_and_welcome_again() {
    for scheme in ["bsp", "esync", "elastic-bsp"] {
        let job = Job { timeout: Span::from_seconds(1.0), ..job(scheme, 2, u64::MAX) };
        serve(&job, |address, notices, stopper| {
            thread::scope(|scope| {
                let workers = [0, 1].map(|rank| patient(address, rank));
                let run = |worker: Worker| worker.run(|_| Ok(job.workload.clone()), &mut |_| {});
                let [honest, heir] = workers;
                let honest = scope.spawn(move || run(honest));
                let mut frozen = Puppet::join(address, &job, 1);
                frozen.task();
                // Meanwhile its place is taken; whoever wants it comes again until it is free.
                let heir = scope.spawn(move || run(heir));
                await_notice(notices, "worker 1 left: silent for 1.");
                await_notice(notices, "worker 1 joined");
                assert!(frozen.refusal().ends_with("it may come back"));
                stopper.stop("seen enough");
                for worker in [honest, heir] {
                    assert_eq!(worker.join().unwrap().unwrap().reason, "seen enough");
                }
            });
        });
    }
}

#[test]
fn a_server_that_comes_back_is_joined_again() {
    let job = job("bsp", 1, 5);
    let server = Server::bind(&["127.0.0.1:0".parse().unwrap()], TransportOptions::default()).unwrap();
    let address = server.addresses()[0].clone();
    thread::scope(|scope| {
        let mut lost = Vec::new();
        let worker = patient(&address, 0);
        let worker = scope.spawn(|| {
            let mut follow = |progress: WorkerNotice<'_>| {
                if let WorkerNotice::Out { reason } = progress {
                    lost.push(reason.to_string());
                }
            };
            (worker.run(|_| Ok(job.workload.clone()), &mut follow), lost)
        });
        // The first server takes the worker and is gone in the middle of everything.
        let Listener::Tcp(listener) = &server.listeners[0] else { unreachable!("it listens on TCP") };
        let (stream, _) = listener.accept().unwrap();
        let mut puppet = Puppet::stranger(stream, &job);
        assert!(matches!(puppet.from.message(), Ok(ToServer::Hello { .. })));
        drop((puppet, server));
        let second = Server::bind(std::slice::from_ref(&address), TransportOptions::default()).unwrap();
        assert_eq!(second.run(&job, &mut ()).unwrap().summary.iterations, 5);
        let (done, lost) = worker.join().unwrap();
        assert!(done.unwrap().tasks >= 5);
        assert_eq!(lost.len(), 1, "{lost:?}");
    });
}

#[test]
fn an_address_in_use_is_named() {
    let first = Server::bind(&["127.0.0.1:0".parse().unwrap()], TransportOptions::default()).unwrap();
    let taken = first.addresses()[0].clone();
    let error = Server::bind(std::slice::from_ref(&taken), TransportOptions::default()).unwrap_err().to_string();
    assert_eq!(error, format!("can't listen on {taken}: it is in use; is another server running there?"));
}
