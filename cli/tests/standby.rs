//! A standby takes over a run whose server is killed, or stands still for too long.

mod common;

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use serde_json::Value;
use tempfile::tempdir;

use common::process::PacelineProcess;
use common::{json, refused};

/// A run with a server under a lease, a standby and two workers, after its first checkpoint.
struct WatchedRun {
    folder: tempfile::TempDir,
    server: PacelineProcess,
    standby: PacelineProcess,
    workers: Vec<PacelineProcess>,
}

impl WatchedRun {
    fn start(scheme: &str) -> Self {
        let folder = tempdir().unwrap();
        let out = folder.path().join("run").display().to_string();
        let name = folder.path().file_name().unwrap().display().to_string();
        let [first, second] = ["first", "second"].map(|which| format!("local:paceline-{which}-{name}"));
        let data = ["--model", "softmax", "--data", "digits:600,200", "--batch", "16", "--lr", "0.05"];
        let rest = ["--listen", &first, "--workers", "2", "--scheme", scheme, "--out", &out, "--lease", "1"];
        // The time limit ends the run if an expected line never comes.
        let limits = ["--checkpoint-every", "0.1", "--until", "time=300"];
        let server = PacelineProcess::start(&[&["serve"], &data[..], &rest, &limits].concat());
        server.await_line("waiting for 2 workers");
        let until = ["--until", "loss<0.8", "--json"];
        let standby =
            PacelineProcess::start(&[&["serve", "--standby", &out, "--listen", &second], &until[..]].concat());
        standby.await_line("standing by for ");
        let join = format!("{first},{second}");
        let work = |rank: &str| {
            let slow = ["--emulate", "deterministic:0.02", "--json"];
            PacelineProcess::start(&[&["work", "--join", &join, "--rank", rank], &slow[..]].concat())
        };
        let workers = ["0", "1"].map(work).into();
        let run = WatchedRun { folder, server, standby, workers };
        while !fs::read_dir(run.path().join("checkpoints")).is_ok_and(|mut entries| entries.next().is_some()) {
            thread::sleep(Duration::from_millis(10));
        }
        run
    }

    fn path(&self) -> std::path::PathBuf {
        self.folder.path().join("run")
    }
}

/// The run reached its target, with one row per iteration and a log that replays.
fn check(path: &Path, run: &Value) {
    assert_eq!(run["reached"], true, "{run}");
    let replayed = json(&["replay", path.to_str().unwrap(), "--json"]);
    assert!(replayed[0]["events"].as_u64() > run["iterations"].as_u64(), "{replayed:?}");
    let metrics = fs::read_to_string(path.join("metrics.csv")).unwrap();
    assert_eq!(metrics.lines().count() as u64, run["iterations"].as_u64().unwrap() + 1, "one row per iteration");
}

#[test]
fn a_standby_takes_over_from_a_server_that_is_killed() {
    for scheme in ["bsp", "dbw", "esync"] {
        let run = WatchedRun::start(scheme);
        let path = run.path();
        let WatchedRun { folder: _folder, server, standby, workers } = run;
        server.kill();
        assert!(standby.await_line("process ").ends_with("has let its lease run out: taking over"));
        standby.await_line("resumed from version ");
        check(&path, &standby.finish());
        for worker in workers {
            assert!(worker.finish()["reason"].as_str().unwrap().contains("loss<0.8"), "{scheme}");
        }
    }
}

#[test]
fn a_server_that_stood_still_gives_way_to_the_standby_and_writes_nothing_more() {
    let run = WatchedRun::start("bsp");
    let path = run.path();
    let WatchedRun { folder: _folder, server, standby, workers } = run;
    server.signal("STOP");
    standby.await_line("resumed from version ");
    server.signal("CONT");
    server.await_line("error: another coordinator has taken over the run: process ");
    check(&path, &standby.finish());
    workers.into_iter().for_each(|worker| assert!(worker.finish()["tasks"].as_u64() > Some(0)));
    assert!(path.join("model.safetensors").exists());
    server.kill();
}

#[test]
fn a_run_without_a_lease_has_no_standby() {
    let folder = tempdir().unwrap();
    let out = folder.path().join("run").display().to_string();
    let address = format!("local:paceline-unleased-{}", std::process::id());
    let server = PacelineProcess::start(&["serve", "--listen", &address, "--model", "softmax", "--out", &out]);
    server.await_line("waiting for ");
    server.kill();
    assert!(refused(&["serve", "--standby", &out]).contains("has no lease: start its server with --lease SECONDS"));
    assert!(refused(&["serve", "--lease", "0.1"]).contains("expected seconds, 1 to 3600"));
}
