//! Workers that bring the model: the server takes it from the first, and they train it with loops of their own.

use std::thread;

use paceline_core::{LocalWork, Setup, Work};
use paceline_net::{
    Address, AfterIteration, Server, ServerError, SessionEnd, TaskReport, TransportOptions, Worker, WorkerError,
    after_iteration,
};
use paceline_protocol::{OfferedTraining, Role};
use paceline_runtime::{Job, OfferedModel, StopReason};
use paceline_store::{Layout, OptimizerKind};

/// The trainable values: more than the kernel takes at once.
const TRAINED: usize = 1_000_000;

/// Trainable values and a statistic. The gradient is the distance from 3.
fn model() -> OfferedModel {
    let optimizer = OptimizerKind::Sgd { decay: 0.0 }.into();
    OfferedModel {
        layout: Layout::new([("w", vec![TRAINED])], [("mean", vec![1])]),
        initial: (0..TRAINED).map(|index| (index % 7) as f32).chain([0.5]).collect(),
        training: OfferedTraining { optimizer, rate: 0.5, batch: 4, epoch: Some(80), frozen: 7 },
    }
}

fn addresses() -> Vec<Address> {
    static COUNT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    let number = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let name = format!("paceline-offered-{}-{number}", std::process::id());
    vec![Address::Local { name }, Address::Tcp { host: "127.0.0.1".into(), port: 0 }]
}

fn job(scheme: &str, model: OfferedModel, workers: usize) -> Job {
    let (scheme, goals) = (scheme.parse().unwrap(), "iterations=20".parse().unwrap());
    let batch = model.training.batch;
    Job { scheme, goals, ..Job::offered(model, Setup::new(workers, batch)) }
}

/// A worker with a loop of its own. Returns the last model and the used samples that it was told of.
fn work(address: &Address) -> Result<(Vec<f32>, Vec<u64>), WorkerError> {
    let mut worker = Worker::new(address.clone());
    let mut used = Vec::new();
    'session: loop {
        let (mut session, _) = worker.join(&model(), &mut |_| {})?;
        loop {
            let mut task = match session.next_task(None) {
                Ok(task) => task.unwrap(),
                Err(SessionEnd::Finished(_)) => {
                    let (_, memory) = session.last_model().unwrap();
                    // SAFETY: the run is over, so nobody writes it.
                    let values = unsafe { std::slice::from_raw_parts(memory.address(), memory.len()) };
                    return Ok((values.to_vec(), used));
                }
                Err(_) => continue 'session,
            };
            used.push(task.settings().run.used);
            let mut iterations = 0;
            if let Work::Local(LocalWork { length, .. }) = task.assignment().work {
                loop {
                    iterations += 1;
                    let wait = match after_iteration(length, iterations) {
                        AfterIteration::Continue => continue,
                        AfterIteration::Finish => break,
                        AfterIteration::Ask { wait } => wait,
                    };
                    if session.ask(&task, iterations, Default::default()).is_err() {
                        break;
                    }
                    let goes_on = if wait { session.wait_for_answer(None).unwrap() } else { !session.is_collected() };
                    if !goes_on {
                        break;
                    }
                }
            }
            let share = 0.5_f32.powi(iterations as i32);
            task.with_values(|model, result| {
                let step = if iterations == 0 { 1.0 } else { 1.0 - share };
                result.iter_mut().zip(model).for_each(|(result, model)| *result = (model - 3.0) * step);
                result[TRAINED] = model[TRAINED] - 1.0;
            });
            let rates = if iterations == 0 { vec![0.25] } else { vec![] };
            // If the session has ended, the next task is its end.
            let _ = session.report(task, TaskReport { samples: Some(3), rates, loss: 1.0, ..TaskReport::default() });
        }
    }
}

#[test]
fn workers_bring_the_model_and_get_it_back_trained() {
    let schemes = ["bsp", "backup:k=1", "asp", "local-sgd:tau=3", "esync"];
    for (scheme, shards) in schemes.into_iter().flat_map(|scheme| [(scheme, "none"), (scheme, "1")]) {
        let options = TransportOptions { shards: shards.parse().unwrap(), ..TransportOptions::default() };
        let mut server = Server::bind(&addresses(), options).unwrap();
        let addresses = server.addresses().to_vec();
        thread::scope(|scope| {
            let workers: Vec<_> = addresses.iter().map(|address| scope.spawn(|| work(address))).collect();
            let offered = server.receive_model().unwrap();
            assert_eq!(offered, model());
            let outcome = server.run(&job(scheme, offered, 2), &mut ()).unwrap();
            assert_eq!(outcome.summary.iterations, 20, "{scheme}");
            for worker in workers {
                let (last, used) = worker.join().unwrap().unwrap();
                assert!(last == outcome.parameters, "{scheme}");
                assert!(used.is_sorted() && used.iter().all(|used| used.is_multiple_of(3)), "{scheme}: {used:?}");
            }
            if scheme == "bsp" {
                // The rate is the workers', not the job's: each step leaves three quarters of the distance.
                let expected = 3.0 - 2.0 * 0.75_f32.powi(20);
                assert!((outcome.parameters[1] - expected).abs() < 1e-5, "{}", outcome.parameters[1]);
                assert_eq!(outcome.parameters[TRAINED], 1.0, "statistics are averaged");
                assert_eq!(outcome.summary.samples_used, 20 * 2 * 3, "the samples are those that were used");
            }
        });
    }
}

#[test]
fn a_worker_with_another_model_is_refused_and_the_others_train() {
    let mut server = Server::bind(&addresses(), TransportOptions::default()).unwrap();
    let address = server.addresses()[0].clone();
    let good = thread::spawn({
        let address = address.clone();
        move || work(&address)
    });
    let job = job("bsp", server.receive_model().unwrap(), 2);
    let run = thread::spawn(move || server.run(&job, &mut ()).unwrap());
    let other = OfferedModel { layout: Layout::new([("v", vec![TRAINED + 1])], []), ..model() };
    let (mut session, _) = Worker::new(address.clone()).join(&other, &mut |_| {}).unwrap();
    let SessionEnd::Refused(reason) = session.next_task(None).map(|_| ()).unwrap_err() else { panic!() };
    assert!(reason.contains("different workload: the server has 1000001 parameters (layout"), "{reason}");
    work(&address).unwrap();
    assert_eq!(run.join().unwrap().summary.iterations, 20);
    good.join().unwrap().unwrap();
}

#[test]
fn a_server_that_is_stopped_before_it_has_a_model_says_why() {
    let mut server = Server::bind(&addresses(), TransportOptions::default()).unwrap();
    server.stopper().stop(StopReason::Interrupted);
    assert!(matches!(server.receive_model(), Err(ServerError::NoModel(StopReason::Interrupted))));
}

/// Evaluates models: the accuracy is how close the first value is to 3. Returns the accuracies and the last model.
fn evaluate(address: &Address) -> (Vec<f64>, Vec<f32>) {
    let mut evaluator = Worker { role: Role::Evaluator, ..Worker::new(address.clone()) };
    let (mut session, _) = evaluator.join(&model(), &mut |_| {}).unwrap();
    let mut found = Vec::new();
    while let Ok(task) = session.next_task(None) {
        let mut task = task.unwrap();
        let accuracy = task.with_values(|model, _| f64::from(model[0]) / 3.0);
        found.push(accuracy);
        session.report_evaluation(task, None, Some(accuracy)).unwrap();
    }
    let (_, memory) = session.last_model().unwrap();
    // SAFETY: the run is over, so nobody writes it.
    let values = unsafe { std::slice::from_raw_parts(memory.address(), memory.len()) };
    (found, values.to_vec())
}

#[test]
fn a_process_of_its_own_evaluates_the_model_and_its_accuracy_ends_the_run() {
    for transport in 0..2 {
        let mut server = Server::bind(&addresses(), TransportOptions::default()).unwrap();
        let addresses = server.addresses().to_vec();
        thread::scope(|scope| {
            let evaluator = scope.spawn(|| evaluate(&addresses[transport]));
            let worker = scope.spawn(|| work(&addresses[1 - transport]));
            let offered = server.receive_model().unwrap();
            let goals = "accuracy>0.99".parse().unwrap();
            let job = Job { goals, evaluate_every: 3, ..job("bsp", offered, 1) };
            let outcome = server.run(&job, &mut ()).unwrap();
            assert!(outcome.summary.reached && outcome.summary.counted > Some(0.99), "{:?}", outcome.summary);
            let (found, last) = evaluator.join().unwrap();
            assert_eq!(last, outcome.parameters);
            assert!(found.is_sorted() && found.len() > 2, "{found:?}");
            assert_eq!(found.last().copied(), outcome.summary.accuracy, "the last model is evaluated too");
            assert_eq!(outcome.summary.accuracy, Some(f64::from(outcome.parameters[0]) / 3.0));
            worker.join().unwrap().unwrap();
        });
    }
}

#[test]
fn a_run_ends_although_its_evaluator_is_gone() {
    let mut server = Server::bind(&addresses(), TransportOptions::default()).unwrap();
    let address = server.addresses()[0].clone();
    thread::scope(|scope| {
        let worker = scope.spawn(|| work(&address));
        let evaluator = scope.spawn(|| {
            let mut evaluator = Worker { role: Role::Evaluator, ..Worker::new(address.clone()) };
            let (mut session, _) = evaluator.join(&model(), &mut |_| {}).unwrap();
            session.next_task(None).map(drop)
        });
        let offered = server.receive_model().unwrap();
        let outcome = server.run(&Job { evaluate_every: 3, ..job("bsp", offered, 1) }, &mut ()).unwrap();
        assert_eq!((outcome.summary.iterations, outcome.summary.accuracy), (20, None));
        // It has left with a model, or came when the run was over.
        let _ = evaluator.join().unwrap();
        worker.join().unwrap().unwrap();
    });
}
