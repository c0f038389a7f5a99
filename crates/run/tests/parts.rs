//! A run with all its parts, as a library call.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use paceline_core::Setup;
use paceline_net::{RunOutcome, Worker};
use paceline_run::{RunBuilder, RunError};
use paceline_runtime::{Iteration, Job, Monitor, Observer, read_metrics};
use paceline_workload::{Order, Partition, Sampler, SoftmaxRegression, synthetic_digits};

fn job(goals: &str) -> Job {
    let splits = synthetic_digits(1, 600, 200).unwrap();
    let sampler = Sampler::new(splits.train().labels(), Partition::Iid, Order::Epochs, 2, 1).unwrap();
    let workload = Arc::new(SoftmaxRegression::new(splits, sampler, 0.0));
    Job { goals: goals.parse().unwrap(), ..Job::new(workload, Setup::new(2, 16)) }
}

fn builder(job: &Job) -> RunBuilder<'_> {
    RunBuilder::new(job, ["127.0.0.1:0".parse().unwrap()])
}

/// Runs to the end with two workers, and saves.
fn run(job: &Job, run: RunBuilder<'_>) -> Result<RunOutcome, RunError> {
    let run = run.prepare()?;
    let address = run.addresses()[0].clone();
    std::thread::scope(|scope| {
        let workload = job.model.workload().unwrap();
        for _ in 0..2 {
            let worker = Worker::new(address.clone());
            scope.spawn(move || worker.run(|_| Ok(workload.clone()), &mut |_| {}));
        }
        run.run()?.save()
    })
}

fn files(path: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        path.read_dir().unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Counts iterations, and asks for the status once.
struct StatusReader {
    address: SocketAddr,
    iterations: u64,
    answer: String,
}

impl Observer for StatusReader {
    fn on_iteration(&mut self, _: &Iteration, _: &Monitor) {
        self.iterations += 1;
        if self.iterations == 10 {
            let mut stream = TcpStream::connect(self.address).unwrap();
            stream.write_all(b"GET /status HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
            stream.read_to_string(&mut self.answer).unwrap();
        }
    }
}

#[test]
fn a_run_leaves_everything_that_was_asked_for_and_resumes() {
    let temporary = tempfile::tempdir().unwrap();
    let (folder, times) = (temporary.path().join("run"), temporary.path().join("times.csv"));
    let first = job("iterations=40");
    let http = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut reader = StatusReader { address: http.local_addr().unwrap(), iterations: 0, answer: String::new() };
    let all = builder(&first).folder(&folder).configuration("seed = 1\n");
    let all = all.checkpoint_every(Duration::ZERO).http(http).record(&times).observer(&mut reader);
    let outcome = run(&first, all).unwrap();
    assert_eq!(outcome.summary.iterations, 40);
    assert_eq!(reader.iterations, 40, "the observer saw every iteration");
    let answer = reader.answer;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("\"scheme\":\"bsp\""), "{answer}");
    let names = files(&folder);
    for name in ["checkpoints", "config.toml", "events.jsonl", "metrics.csv", "model.safetensors", "report.html"] {
        assert!(names.iter().any(|found| found == name), "{name} in {names:?}");
    }
    assert!(std::fs::read_to_string(&times).unwrap().lines().count() > 40, "the times are recorded");

    let over = builder(&first).resume(&folder).prepare();
    assert!(over.err().unwrap().to_string().contains("is over"), "it reached its goal");
    let second = job("iterations=60");
    let outcome = run(&second, builder(&second).resume(&folder)).unwrap();
    assert_eq!(outcome.summary.iterations, 60);
    let rows = read_metrics(&folder).unwrap();
    assert_eq!(rows.iter().map(|row| row.iteration).collect::<Vec<_>>(), (1..=60).collect::<Vec<_>>());
    assert!(rows.iter().take(40).all(|row| row.samples == 32 * row.iteration));
}

#[test]
fn a_run_without_parts_leaves_nothing_and_gives_the_same_model() {
    let temporary = tempfile::tempdir().unwrap();
    let job = job("iterations=20");
    let alone = run(&job, builder(&job)).unwrap();
    let kept = run(&job, builder(&job).folder(temporary.path().join("run"))).unwrap();
    assert!(alone.parameters == kept.parameters);
    assert_eq!(files(temporary.path()), ["run"]);
}

#[test]
fn what_processes_print_is_shown_and_logged() {
    let temporary = tempfile::tempdir().unwrap();
    let job = job("iterations=20");
    let run = builder(&job).folder(temporary.path().join("run")).prepare().unwrap();
    let (sender, shown) = channel();
    let show = move |_, text: &str| sender.send(text.to_string()).unwrap();
    let traceback = "Traceback (most recent call last):\n  File x\nValueError: broken\n";
    let command = |_: &_, _| {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("printf '{traceback}' >&2; exit 1")]);
        command
    };
    let outcome = run.run_with_processes(2, command, Box::new(show)).unwrap().save().unwrap();
    assert!(outcome.summary.stopped_by.contains("exited with code 1 before the run started"), "{:?}", outcome.summary);
    let shown: String = shown.iter().collect();
    let (first, second) = if shown.starts_with("[0]") { (0, 1) } else { (1, 0) };
    let whole: String = traceback.lines().map(|line| format!("[{first}] {line}\n")).collect();
    assert_eq!(shown, format!("{whole}[{second}] the same error as worker {first}\n"));
    for log in ["0.log", "1.log"] {
        assert_eq!(std::fs::read_to_string(temporary.path().join("run/workers").join(log)).unwrap(), traceback);
    }
}
