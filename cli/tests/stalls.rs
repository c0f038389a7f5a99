//! Real processes that stand still, become slow, freeze or are killed: the server knows which is which.

mod common;

use std::fs;
use std::thread;
use std::time::Duration;

use common::process::PacelineProcess;
use serde_json::Value;
use tempfile::tempdir;

const MODEL: [&str; 8] = ["--model", "softmax", "--data", "digits:600,200", "--batch", "16", "--lr", "0.05"];

/// Starts `paceline train` with three workers whose tasks take these times.
fn train(scheme: &str, times: &str, until: &str, transport: &str, folder: &str) -> PacelineProcess {
    let run = ["--workers", "3", "--scheme", scheme, "--emulate", times, "--until", until];
    let rest = ["--transport", transport, "--out", folder, "--json"];
    PacelineProcess::start(&[&["train"], &MODEL[..], &run, &rest].concat())
}

/// Waits for a successful exit. Returns the summary and all lines of standard error.
fn finish(server: PacelineProcess) -> (Value, Vec<String>) {
    let (code, text, lines) = server.end();
    assert_eq!(code, Some(0), "{lines:?}");
    (serde_json::from_str(&text).unwrap(), lines)
}

/// Stops a server for four seconds, then for twenty. Its workers go on meanwhile, and their reports lie in its sockets.
fn stop_the_server(scheme: &str, transport: &str) {
    let folder = tempdir().unwrap();
    let out = folder.path().join("run");
    // Under `dbw` iterations may be short. The others end with a commit, so that no update is left over.
    let until = if scheme == "dbw" { "time=40" } else { "iterations=100,time=300" };
    let server = train(scheme, "0-2=deterministic:0.1", until, transport, out.to_str().unwrap());
    server.await_line("worker 2 joined");
    for seconds in [4, 20] {
        thread::sleep(Duration::from_secs(2));
        server.signal("STOP");
        thread::sleep(Duration::from_secs(seconds));
        server.signal("CONT");
        server.await_line("the server stood still for ");
    }
    let (summary, lines) = finish(server);
    assert!(!lines.iter().any(|line| line.contains("left: ")), "{scheme}, {transport}: {lines:?}");
    // Under `dbw` updates are late by design.
    if scheme != "dbw" {
        assert_eq!(summary["samples_lost"], 0, "{scheme}, {transport}: {summary}");
    }
    let events = fs::read_to_string(out.join("events.jsonl")).unwrap();
    assert_eq!(events.matches("\"event\":\"joined\"").count(), 3, "{scheme}, {transport}");
}

#[test]
fn no_worker_is_dismissed_because_the_server_stood_still() {
    thread::scope(|scope| {
        for scheme in ["bsp", "dbw", "esync", "lb-bsp"] {
            for transport in ["shared-memory", "tcp"] {
                scope.spawn(move || stop_the_server(scheme, transport));
            }
        }
    });
}

#[test]
fn a_worker_that_becomes_five_times_slower_stays_and_is_named() {
    let folder = tempdir().unwrap();
    let times = folder.path().join("times.csv");
    let row = |seconds: f64| format!("{seconds},0.25,0.25\n");
    let rows: String = (0..10).map(|_| row(0.25)).chain((0..6).map(|_| row(1.25))).collect();
    fs::write(&times, rows).unwrap();
    let emulated = format!("0-2=trace:{}", times.display());
    let out = folder.path().join("run");
    let server = train("bsp", &emulated, "iterations=16,time=300", "shared-memory", out.to_str().unwrap());
    let (summary, lines) = finish(server);
    assert_eq!(summary["iterations"], 16);
    assert_eq!(summary["samples_lost"], 0, "{summary}");
    assert!(!lines.iter().any(|line| line.contains("left: ")), "{lines:?}");
    let late: Vec<&String> = lines.iter().filter(|line| line.contains(" is late: ")).collect();
    assert_eq!(late.len(), 1, "the first slow task is late, then slow tasks are expected: {lines:?}");
    assert!(late[0].starts_with("worker 0 "), "{late:?}");
}

/// Freezes one worker and kills another, while tasks take `task` seconds.
fn lose_workers(task: &str) {
    let folder = tempdir().unwrap();
    let out = folder.path().join("run");
    let address = format!("local:paceline-lost-{}-{task}", std::process::id());
    let rest = ["--listen", &address, "--workers", "3", "--until", "time=300", "--out", out.to_str().unwrap()];
    let server = PacelineProcess::start(&[&["serve"], &MODEL[..], &rest].concat());
    let emulated = format!("deterministic:{task}");
    let work = |rank: &str| {
        PacelineProcess::start(&["work", "--join", &address, "--rank", rank, "--emulate", &emulated, "--json"])
    };
    let [first, second, third] = ["0", "1", "2"].map(work);
    (0..3).for_each(|_| drop(server.await_line("worker ")));
    third.kill();
    server.await_line("worker 2 left: connection closed");
    second.signal("STOP");
    let line = server.await_line("worker 1 left: no sign of life for ");
    let seconds: f64 = line.split_whitespace().nth(8).unwrap().parse().unwrap();
    assert!(seconds <= 3.0, "{line}");
    second.signal("CONT");
    server.await_line("worker 1 joined");
    [first, second].into_iter().for_each(PacelineProcess::kill);
    server.kill();
}

#[test]
fn a_lost_worker_is_known_within_seconds_however_long_its_tasks_are() {
    thread::scope(|scope| {
        for task in ["0.1", "60"] {
            scope.spawn(move || lose_workers(task));
        }
    });
}
