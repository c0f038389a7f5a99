//! Models in shards: the same bits as with one server, under every scheme.

mod common;

use std::collections::HashMap;
use std::sync::Arc;

use common::bowl::Bowl;
use common::{TransportKind, run};
use paceline_core::{
    Action, Assignment, Commit, CommitStep, Decision, Event, LocalLength, Setup, TaskId, Time, WorkerId, catalogue,
};
use paceline_net::{Keys, PayloadFormat, PayloadRule, RunOutcome, ShardCount, TransportOptions};
use paceline_runtime::{
    Contribution, Job, LocalReplica, Observer, ServerObserver, Stepper, compensate, local_optimizer,
};
use paceline_store::{BLOCK, Layout, Optimizer};
use paceline_workload::Draw;

/// A run on a bowl, whose parameters end in the middle of a block, with statistics behind them.
fn job(scheme: &str, workers: usize, goals: &str) -> Job {
    let tensors = [("a.weight", vec![BLOCK, 2]), ("a.bias", vec![777]), ("b", vec![2 * BLOCK])];
    let layout = Layout::new(tensors, [("mean", vec![BLOCK / 2])]);
    Job {
        scheme: scheme.parse().unwrap(),
        workload_spec: "bowl".into(),
        optimizer: "momentum:0.5;*bias:rate=0.5".parse().unwrap(),
        rate: 0.05,
        goals: goals.parse().unwrap(),
        seed: 3,
        ..Job::new(Arc::new(Bowl::new(layout)), Setup::new(workers, 16))
    }
}

fn shards(count: &str) -> TransportOptions {
    TransportOptions { shards: count.parse().unwrap(), ..TransportOptions::default() }
}

fn run_sharded(job: &Job, slower: f64, options: TransportOptions, observer: &mut dyn ServerObserver) -> RunOutcome {
    run(job, &vec![TransportKind::Tcp; job.setup.workers], slower, options, observer)
}

/// For schemes and settings whose decisions do not depend on times.
#[test]
fn any_number_of_shards_gives_the_bits_of_one_server() {
    for (scheme, clip) in [
        ("bsp", None),
        ("bsp", Some(20.0)),
        ("esync:margin=3600", None),
        ("local-sgd:tau=3,outer=nesterov,momentum=0.8,rate=0.7", None),
        ("easgd:tau=2", None),
    ] {
        let mut job = job(scheme, 4, "iterations=12");
        job.clip_sum = clip;
        let expected = run_sharded(&job, 1.0, TransportOptions::default(), &mut ());
        for count in ["1", "2", "4", "hosts"] {
            let outcome = run_sharded(&job, 1.0, shards(count), &mut ());
            assert_eq!(outcome.summary.iterations, 12);
            assert!(outcome.parameters == expected.parameters, "{scheme}, clip {clip:?}, {count} shards");
            assert_eq!(outcome.summary.loss, expected.summary.loss, "{scheme}");
        }
    }
}

/// What the scheme decided.
#[derive(Default)]
struct Decisions {
    assignments: HashMap<TaskId, Assignment>,
    commits: Vec<Commit>,
}

impl Observer for Decisions {
    fn on_turn(&mut self, _: Time, _: &Event, decisions: &[Decision]) {
        for Decision { action, .. } in decisions {
            match action {
                Action::Assign(assignment) => _ = self.assignments.insert(assignment.task, *assignment),
                Action::Commit(commit) => self.commits.push(commit.clone()),
                _ => {}
            }
        }
    }
}

impl ServerObserver for Decisions {}

/// The model that one stepper makes of the decisions of a scheme of gradients, or of fixed numbers of local iterations.
fn carried_out(job: &Job, decisions: &Decisions) -> Vec<f32> {
    let layout = job.model.layout();
    let mut stepper = Stepper::new(layout, job.server_optimizer(), job.rate_spec()).clipping(job.clip_sum);
    // Of the workers' local iterations.
    let mut optimizers: HashMap<WorkerId, Optimizer> = HashMap::new();
    let mut replica = job.model.workload().unwrap().replica();
    let mut versions = vec![job.initial()];
    for commit in &decisions.commits {
        let old = versions.last().unwrap();
        let gradients = commit.updates.iter().map(|share| {
            let Assignment { task, version, work, offset, samples, .. } = decisions.assignments[&share.task];
            let then = &versions[version.0 as usize];
            let mut gradient = vec![0.0; layout.len()];
            if let Some(LocalLength::Iterations(count)) = work.length() {
                let optimizer = local_optimizer(optimizers.get(&task.worker), &job.optimizer, layout);
                let mut local = LocalReplica::new(then.clone(), optimizer, job.rate);
                for iteration in 0..u64::from(count) {
                    let offset = offset + iteration * u64::from(samples);
                    let loss = local.begin(replica.as_mut(), Draw { worker: task.worker.0, offset, samples });
                    local.complete(loss);
                }
                let (loss, optimizer) = local.finish(then, &mut gradient);
                optimizers.insert(task.worker, optimizer);
                return (gradient, loss);
            }
            let loss = replica.gradient(then, Draw { worker: task.worker.0, offset, samples }, &mut gradient);
            if let CommitStep::Compensated { lambda } = commit.step {
                compensate(&mut gradient[..layout.trainable()], lambda, old, then);
            }
            (gradient, loss)
        });
        let gradients: Vec<_> = gradients.collect();
        let contributions: Vec<_> = commit
            .updates
            .iter()
            .zip(&gradients)
            .map(|(share, (gradient, loss))| Contribution {
                task: share.task,
                gradient,
                weight: share.weight,
                loss: *loss,
                rates: &[],
            })
            .collect();
        let mut new = vec![0.0; layout.len()];
        stepper.commit(commit, old, &mut new, &contributions, job.setup.workers);
        versions.push(new);
    }
    versions.pop().unwrap()
}

#[test]
fn shards_carry_out_what_a_scheme_decides_bit_for_bit() {
    for scheme in [
        "backup:k=3",
        "dbw",
        "lb-bsp",
        "asp",
        "dc-asgd",
        "async-local-sgd:tau=4",
        "async-local-sgd:tau=4,outer=delayed-nesterov,delay=3,rate=0.7",
        "ssp:staleness=2",
        "cutoff",
        "lb-bsp+cutoff",
        "backup:k=3+late",
    ] {
        let job = job(scheme, 4, "iterations=40");
        let mut decisions = Decisions::default();
        let outcome = run_sharded(&job, 3.0, shards("3"), &mut decisions);
        assert!(outcome.parameters == carried_out(&job, &decisions), "{scheme}");
    }
}

#[test]
fn every_scheme_reaches_its_target_with_shards() {
    for entry in catalogue() {
        let job = job(&entry.example("", 4), 4, "loss<0.05");
        let outcome = run_sharded(&job, 3.0, shards("2"), &mut ());
        assert!(outcome.summary.reached, "{}: {:?}", job.scheme, outcome.summary);
    }
}

#[test]
fn shards_speak_tls_and_send_what_the_payload_says() {
    let folder = tempfile::tempdir().unwrap();
    Keys::generate(folder.path()).unwrap();
    let keys = Keys::read(folder.path()).unwrap();
    let job = job("bsp", 3, "loss<0.05");
    let mut losses = Vec::new();
    for payload in [PayloadFormat::F32.into(), PayloadFormat::Int8.into(), PayloadRule::Auto] {
        let options = TransportOptions { payload, keys: Some(keys.clone()), ..shards("3") };
        let server = common::server(options);
        let outcome = std::thread::scope(|scope| {
            for rank in 0..3 {
                let mut worker = common::worker(common::address(&server, TransportKind::Tcp), rank);
                worker.keys = Some(keys.clone());
                let job = &job;
                scope.spawn(move || common::work(worker, job).unwrap());
            }
            server.run(&job, &mut ()).unwrap()
        });
        assert!(outcome.summary.reached, "{payload}: {:?}", outcome.summary);
        losses.push(outcome.parameters);
    }
    assert_ne!(losses[0], losses[1], "int8 rounds");
}

#[test]
fn more_shards_than_workers_are_refused() {
    let job = job("bsp", 2, "iterations=5");
    let server = common::server(shards("3"));
    let error = std::thread::scope(|scope| {
        for rank in 0..2 {
            let worker = common::worker(common::address(&server, TransportKind::Tcp), rank);
            let job = &job;
            scope.spawn(move || common::work(worker, job));
        }
        server.run(&job, &mut ()).unwrap_err()
    });
    assert!(error.to_string().contains("--shards 3: 2 workers can hold a shard"), "{error}");
    assert_eq!(
        "0".parse::<ShardCount>().unwrap_err(),
        "'0': expected none, hosts, N or apart:N, with a number N of at least 1"
    );
}
