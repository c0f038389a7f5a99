//! Every transport and the simulator yield the same model, bit for bit.

mod common;

use common::{TransportKind, job, run};
use paceline_core::{Commit, CommitStep, TaskId, Version, WorkerId};
use paceline_net::{PayloadFormat, PayloadRule, TransportOptions};
use paceline_protocol::{Codec, EncodedChunk};
use paceline_runtime::{Contribution, Job, Stepper, Trainer};
use paceline_sim::{Script, Simulation, Slowness, Times, TimesSpec, Training};
use paceline_workload::Draw;

const ITERATIONS: u64 = 30;

fn simulated(job: &Job) -> Vec<f32> {
    let times: TimesSpec = "uniform:0.5,1.5".parse().unwrap();
    let simulation = Simulation {
        scheme: job.scheme.clone(),
        setup: job.setup,
        times: Times::load(&times).unwrap(),
        slowness: Slowness::default(),
        script: Script::default(),
        network: None,
        training: Some(Training {
            initial: job.initial.clone(),
            optimizer: job.optimizer.clone(),
            schedule: job.schedule,
            clip_sum: job.clip_sum,
            evaluate_every: 0,
            ..Training::new(job.model.workload().unwrap().clone(), job.rate)
        }),
        goals: job.goals.clone(),
        seed: job.seed,
    };
    simulation.run(&mut ()).unwrap().parameters.unwrap()
}

#[test]
fn bsp_matches_the_simulator_bit_for_bit_over_every_transport() {
    let mut job = job("bsp", 3, &format!("iterations={ITERATIONS}"));
    // Other weights to start from, and a limit that some sums exceed.
    job.initial = Some(job.model.initial(7).into());
    job.clip_sum = Some(0.5);
    let expected = simulated(&job);
    assert_ne!(expected, job.initial(), "the model was trained");
    for transports in [
        [TransportKind::Shared; 3],
        [TransportKind::Tcp; 3],
        [TransportKind::Tcp, TransportKind::Shared, TransportKind::Tcp],
    ] {
        let outcome = run(&job, &transports, 1.0, TransportOptions::default(), &mut ());
        assert_eq!(outcome.summary.iterations, ITERATIONS);
        assert!(outcome.parameters == expected, "{transports:?}");
    }
}

/// For schemes and settings whose decisions do not depend on times.
#[test]
fn local_iterations_match_the_simulator_bit_for_bit_over_every_transport() {
    // With this margin there is never time for a second iteration.
    for scheme in [
        "esync:margin=3600",
        "esync:margin=3600,outer=nesterov,rate=0.7",
        "local-sgd:tau=3,rate=0.8",
        "local-sgd:tau=3,outer=nesterov,momentum=0.8,rate=0.7",
        "adacomm:tau=2,interval=1e9",
        "easgd:tau=2",
    ] {
        let mut job = job(scheme, 3, &format!("iterations={ITERATIONS}"));
        job.schedule = "step:every=10,factor=0.5".parse().unwrap();
        job.optimizer = "momentum:0.9".parse().unwrap();
        let expected = simulated(&job);
        for transports in [[TransportKind::Shared; 3], [TransportKind::Tcp; 3]] {
            let outcome = run(&job, &transports, 1.0, TransportOptions::default(), &mut ());
            assert_eq!(outcome.summary.iterations, ITERATIONS);
            assert!(outcome.parameters == expected, "{scheme}, {transports:?}");
        }
    }
}

#[test]
fn other_formats_take_half_or_a_quarter_of_the_traffic_and_still_train() {
    let job = job("bsp", 2, "iterations=20");
    let bytes = |payload: PayloadRule| {
        let transport = TransportOptions { payload, ..TransportOptions::default() };
        let outcome = run(&job, &[TransportKind::Tcp; 2], 1.0, transport, &mut ());
        assert!(outcome.summary.loss.unwrap() < 2.2, "{:?}", outcome.summary);
        outcome.summary.bytes as f64
    };
    let full = bytes(PayloadFormat::F32.into());
    for (payload, expected) in [(PayloadFormat::F16, 0.5), (PayloadFormat::Bf16, 0.5), (PayloadFormat::Int8, 0.25)] {
        let share = bytes(payload.into()) / full;
        assert!((expected - 0.05..expected + 0.05).contains(&share), "{payload}: {share} of the traffic of f32");
    }
    // Whatever every worker chooses. At the end of a run a model may be on its way, or not.
    let share = bytes(PayloadRule::Auto) / full;
    assert!((0.2..1.05).contains(&share), "auto: {share} of the traffic of f32");
}

/// A run of `bsp` in which values are rounded as the payload says, with the codecs alone.
fn rounded(job: &Job, iterations: u64) -> Vec<f32> {
    let workload = job.model.workload().unwrap();
    let length = workload.layout().len();
    let workers = job.setup.workers;
    let codecs = |codec: fn() -> Codec| -> Vec<Codec> { (0..workers).map(|_| codec()).collect() };
    let (mut models, mut copies) = (codecs(Codec::of_models), codecs(Codec::of_models));
    let (mut updates, mut arrivals) = (codecs(Codec::of_updates), codecs(Codec::of_updates));
    let mut replicas: Vec<_> = (0..workers).map(|_| workload.replica()).collect();
    let mut parameters = job.initial();
    let mut chunk = EncodedChunk::default();
    let mut pass = |from: &mut Codec, to: &mut Codec, values: &[f32]| {
        let mut received = vec![0.0; length];
        from.encode(PayloadFormat::Int8, values, 0..length, &mut chunk);
        to.decode(PayloadFormat::Int8, &chunk, 0..length, length, Some(&mut received));
        received
    };
    let stepper = Stepper::new(workload.layout(), job.optimizer.clone(), job.rate_spec());
    let mut trainer = Trainer::new(parameters.clone(), stepper);
    for iteration in 0..iterations {
        let mut gradients = Vec::new();
        for worker in 0..workers {
            let model = pass(&mut models[worker], &mut copies[worker], &parameters);
            let mut gradient = vec![0.0; length];
            let draw = Draw {
                worker: worker as u32,
                offset: iteration * u64::from(job.setup.batch),
                samples: job.setup.batch,
            };
            let loss = replicas[worker].gradient(&model, draw, &mut gradient);
            gradients.push((pass(&mut updates[worker], &mut arrivals[worker], &gradient), loss));
        }
        let task = |worker| TaskId { worker: WorkerId(worker), number: iteration };
        let weight = 1.0 / workers as f32;
        let contributions: Vec<Contribution<'_>> = (0..)
            .zip(&gradients)
            .map(|(worker, (gradient, loss))| Contribution {
                task: task(worker),
                gradient,
                weight,
                loss: *loss,
                rates: &[],
            })
            .collect();
        let commit = Commit {
            version: Version(iteration + 1),
            updates: Default::default(),
            step: CommitStep::Optimizer,
            rate_factor: 1.0,
        };
        trainer.commit(&commit, &contributions, workers);
        parameters = trainer.parameters().to_vec();
    }
    parameters
}

#[test]
fn rounding_to_int8_gives_the_bits_that_the_codecs_alone_give() {
    let job = job("bsp", 4, &format!("iterations={ITERATIONS}"));
    let expected = rounded(&job, ITERATIONS);
    let exact = simulated(&job);
    assert_ne!(expected, exact);
    let transport = TransportOptions { payload: PayloadFormat::Int8.into(), ..TransportOptions::default() };
    for _ in 0..2 {
        let outcome = run(&job, &[TransportKind::Tcp; 4], 1.0, transport.clone(), &mut ());
        assert!(outcome.parameters == expected);
    }
    // The rounding moves the model far less than the training does.
    let distance = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>().sqrt();
    let (moved, error) = (distance(&exact, &job.initial()), distance(&exact, &expected));
    assert!(error < 0.02 * moved, "{error} of {moved}");
}

#[test]
fn shared_memory_sends_no_values() {
    let job = job("bsp", 2, "iterations=20");
    let outcome = run(&job, &[TransportKind::Shared; 2], 1.0, TransportOptions::default(), &mut ());
    let one_vector = 4 * job.model.layout().len() as u64;
    assert!(outcome.summary.bytes < one_vector, "{} bytes", outcome.summary.bytes);
}
