//! Every transport and the simulator yield the same model, bit for bit.

mod common;

use common::{TransportKind, job, run};
use paceline_net::{PayloadFormat, TransportOptions};
use paceline_runtime::Job;
use paceline_sim::{Script, Simulation, Slowness, Times, TimesSpec, Training};

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
    for scheme in ["esync:margin=3600", "local-sgd:tau=3,rate=0.8", "adacomm:tau=2,interval=1e9", "easgd:tau=2"] {
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
fn half_precision_halves_the_traffic_and_still_trains() {
    let job = job("bsp", 2, "iterations=20");
    let bytes = |payload| {
        let transport = TransportOptions { payload, ..TransportOptions::default() };
        let outcome = run(&job, &[TransportKind::Tcp; 2], 1.0, transport, &mut ());
        assert!(outcome.summary.loss.unwrap() < 2.2, "{:?}", outcome.summary);
        outcome.summary.bytes as f64
    };
    let full = bytes(PayloadFormat::F32);
    for payload in [PayloadFormat::F16, PayloadFormat::Bf16] {
        let share = bytes(payload) / full;
        assert!((0.45..0.55).contains(&share), "{payload}: {share} of the traffic of f32");
    }
}

#[test]
fn shared_memory_sends_no_values() {
    let job = job("bsp", 2, "iterations=20");
    let outcome = run(&job, &[TransportKind::Shared; 2], 1.0, TransportOptions::default(), &mut ());
    let one_vector = 4 * job.model.layout().len() as u64;
    assert!(outcome.summary.bytes < one_vector, "{} bytes", outcome.summary.bytes);
}
