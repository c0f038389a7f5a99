//! Runs whose real processes are killed, stopped, continued and restarted: they reach their target and keep the laws.

mod common;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use std::{fs, thread};

use serde_json::Value;
use tempfile::tempdir;

use common::process::PacelineProcess;
use common::{get, json, refused};

fn await_file(path: &Path, server: &mut PacelineProcess, is_ready: impl Fn(&Path) -> bool) {
    while !is_ready(path) {
        assert!(server.child.try_wait().unwrap().is_none(), "the server has exited");
        thread::sleep(Duration::from_millis(10));
    }
}

fn check_faults(scheme: &str) {
    let folder = tempdir().unwrap();
    let out = folder.path().join("run");
    let address = format!("local:paceline-survive-{}-{}", std::process::id(), scheme.split(':').next().unwrap());
    let work = |rank: &str| {
        let straggler = ["--emulate", "deterministic:0.01", "--json"];
        PacelineProcess::start(&[&["work", "--join", &address, "--rank", rank], &straggler[..]].concat())
    };
    let data = ["--model", "softmax", "--data", "digits:600,200", "--batch", "16", "--lr", "0.05"];
    let rest = ["--listen", &address, "--workers", "3", "--scheme", scheme, "--out", out.to_str().unwrap()];
    // The time limit ends the run if an expected line never comes.
    let limits = ["--checkpoint-every", "0.1", "--timeout", "5", "--until", "time=300"];
    let mut server = PacelineProcess::start(&[&["serve"], &data[..], &rest, &limits].concat());
    let [first, second, third] = ["0", "1", "2"].map(work);
    await_file(&out.join("metrics.csv"), &mut server, |path| fs::read(path).is_ok_and(|text| text.len() > 500));

    // Killed: noticed at once, and replaced.
    third.kill();
    assert!(server.await_line("worker 2 left: ").contains("workers remain"), "{scheme}");
    let third = work("2");
    server.await_line("worker 2 joined");

    // Stopped: dismissed when its heartbeats stay away, and rejoins when it continues.
    second.signal("STOP");
    server.await_line("worker 1 left: no sign of life for ");
    second.signal("CONT");
    server.await_line("worker 1 joined");

    // The server is killed and resumes from its last checkpoint; the workers rejoin.
    let checkpoint = |path: &Path| fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_some());
    await_file(&out.join("checkpoints"), &mut server, checkpoint);
    server.kill();
    let server = PacelineProcess::start(&["serve", "--resume", out.to_str().unwrap(), "--until", "loss<0.8", "--json"]);
    server.await_line("resumed from version ");
    server.await_line("worker ");
    let run = server.finish();
    assert_eq!(run["reached"], true, "{scheme}: {run}");
    // Workers that rejoined before the target was reached have exited already.
    [first, second, third].into_iter().for_each(PacelineProcess::kill);
    let replayed = json(&["replay", out.join("events.jsonl").to_str().unwrap(), "--json"]);
    assert!(replayed[0]["events"].as_u64() > run["iterations"].as_u64(), "{scheme}: {replayed:?}");
    let metrics = fs::read_to_string(out.join("metrics.csv")).unwrap();
    assert_eq!(
        metrics.lines().count() as u64,
        run["iterations"].as_u64().unwrap() + 1,
        "{scheme}: one row per iteration"
    );
}

#[test]
fn bsp_and_backup_survive_faults() {
    ["bsp", "backup:k=2"].into_iter().for_each(check_faults);
}

#[test]
fn dbw_and_elastic_bsp_survive_faults() {
    ["dbw", "elastic-bsp"].into_iter().for_each(check_faults);
}

#[test]
fn esync_and_lb_bsp_survive_faults() {
    ["esync", "lb-bsp"].into_iter().for_each(check_faults);
}

#[test]
fn workers_without_the_keys_are_refused_and_counted() {
    let folder = tempdir().unwrap();
    let [ours, theirs, out] = ["ours", "theirs", "run"].map(|name| folder.path().join(name).display().to_string());
    for keys in [&ours, &theirs] {
        assert!(common::paceline(&["keys", keys]).status.success());
    }
    assert!(refused(&["keys", &ours]).contains("certificate.pem exists, and keys are never overwritten"));
    assert!(
        refused(&[&["serve", "--listen", "0.0.0.0:0"], &QUICK[..]].concat()).contains("--open to let any worker join")
    );
    assert!(refused(&[&["train", "--http", "0.0.0.0:0"], &QUICK[..]].concat()).contains("serve --open"));

    let listen = ["serve", "--listen", "127.0.0.1:0", "--keys", &ours, "--http", "127.0.0.1:0", "--workers", "1"];
    let rest = ["--until", "time=300", "--out", &out];
    let server = PacelineProcess::start(&[&listen[..], &QUICK, &rest].concat());
    let http = server.await_line("watch the run at http://");
    let http = http.trim_start_matches("watch the run at http://");
    let address = server.await_line("waiting for 1 worker on ").rsplit(' ').next().unwrap().to_string();
    assert!(get(http, "/healthz").ends_with("waiting for workers\n"));
    let join = ["work", "--join", &address, "--join-timeout", "0", "--quiet"];
    let without_keys = common::paceline(&join);
    assert!(!without_keys.status.success());
    assert!(String::from_utf8(without_keys.stderr).unwrap().contains("does the server require --keys?"));
    assert!(refused(&[&join[..], &["--keys", &theirs]].concat()).contains("does the server use the same --keys?"));
    server.await_line("127.0.0.1:");
    let worker = PacelineProcess::start(&["work", "--join", &address, "--keys", &ours, "--json"]);
    server.await_line("worker 0 joined");
    while !get(http, "/metrics").contains("\npaceline_updates_total ")
        || get(http, "/status").contains("\"version\":0,")
    {}
    let metrics = get(http, "/metrics");
    assert!(
        metrics.contains("\npaceline_refused_total 2\n") && metrics.contains("\npaceline_workers 1\n"),
        "{metrics}"
    );
    assert!(metrics.contains("\npaceline_worker_member{worker=\"0\"} 1\n"), "{metrics}");
    assert!(get(http, "/healthz").ends_with("\r\n\r\nrunning\n"));
    server.signal("INT");
    assert_eq!(worker.finish()["reason"], "interrupted");
}

#[test]
fn python_reads_a_checkpoint() {
    let script = "import sys\nfrom safetensors.numpy import load_file\nt = load_file(sys.argv[1])\nprint(sorted((k, v.shape) for k, v in t.items()))";
    let python = |arguments: &[&str]| Command::new("python3").args(arguments).stdin(Stdio::null()).output();
    if !python(&["-c", "import safetensors, numpy"]).is_ok_and(|output| output.status.success()) {
        println!("skipped: python3 has no safetensors");
        return;
    }
    let folder = tempdir().unwrap();
    let out = folder.path().join("run");
    let options = ["--until", "iterations=5", "--optimizer", "adam", "--workers", "1", "--out", out.to_str().unwrap()];
    json(&[&["train", "--json"], &QUICK[..], &options].concat());
    let checkpoint = out.join("checkpoints/checkpoint-00000001.safetensors");
    let output = python(&["-c", script, checkpoint.to_str().unwrap()]).unwrap();
    let message = String::from_utf8(output.stdout).unwrap();
    assert!(
        message.contains("('optimizer.") && message.matches("(10,").count() + message.matches("(784, 10)").count() >= 2,
        "{message}"
    );
}

const QUICK: [&str; 6] = ["--model", "softmax", "--data", "digits:600,200", "--batch", "16"];

#[test]
fn damaged_checkpoints_are_skipped_and_failed_ones_do_not_stop_training() {
    let folder = tempdir().unwrap();
    let out = folder.path().join("run");
    let out = out.to_str().unwrap();
    let checkpoints = folder.path().join("run/checkpoints");
    let options = ["--workers", "2", "--checkpoint-every", "0.001", "--optimizer", "momentum:0.9"];
    json(&[&["train", "--json", "--until", "iterations=3000", "--out", out], &QUICK[..], &options].concat());
    let mut names: Vec<_> = fs::read_dir(&checkpoints).unwrap().map(|entry| entry.unwrap().path()).collect();
    names.sort();
    assert!(names.len() >= 4, "several checkpoints are kept: {names:?}");
    // The newest one is truncated.
    let newest = names.last().unwrap();
    let text = fs::read(newest).unwrap();
    fs::write(newest, &text[..text.len() / 2]).unwrap();
    let resumed = ["train", "--resume", out, "--until", "iterations=3100", "--json"];
    let output = common::paceline(&resumed);
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(
        message.contains("is not a valid checkpoint") && message.contains("using an older checkpoint"),
        "{message}"
    );
    let run: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(run["iterations"], 3100);

    // If checkpoints can't be written, the run warns and continues.
    fs::remove_dir_all(&checkpoints).unwrap();
    let again = ["train", "--resume", out, "--until", "time=300"];
    let mut run = PacelineProcess::start(&again);
    run.await_line("resumed from version 0; versions 1 to 3100 were lost");
    let has_checkpoint = |path: &Path| fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_some());
    await_file(&checkpoints, &mut run, has_checkpoint);
    fs::rename(&checkpoints, folder.path().join("moved")).unwrap();
    fs::write(&checkpoints, "not a folder").unwrap();
    run.await_line("checkpoint failed: ");
    fs::remove_file(&checkpoints).unwrap();
    fs::create_dir(&checkpoints).unwrap();
    run.await_line("checkpoints are written again");
    run.signal("INT");
    assert_eq!(run.child.wait().unwrap().code(), Some(130));

    assert!(refused(&["train", "--resume", "nowhere"]).contains("nowhere/config.toml"));
    assert!(refused(&["train", "--resume", out, "--scheme", "asp"]).contains("the run has scheme bsp, 2 workers"));
    assert!(refused(&["train", "--resume", out, "--out", "x"]).contains("cannot be used with"));
    for checkpoint in fs::read_dir(&checkpoints).unwrap() {
        fs::write(checkpoint.unwrap().path(), "truncated").unwrap();
    }
    assert!(refused(&["train", "--resume", out]).contains("no checkpoint can be read: "));
}

#[test]
fn the_event_log_of_a_long_run_is_cut_and_what_is_kept_replays() {
    let folder = tempdir().unwrap();
    let out = folder.path().join("run");
    let out = out.to_str().unwrap();
    let options = ["--workers", "2", "--scheme", "asp", "--checkpoint-every", "0.05", "--keep-events", "1"];
    json(&[&["train", "--json", "--until", "iterations=60000", "--out", out], &QUICK[..], &options].concat());
    let older = || fs::read_dir(folder.path().join("run/events")).unwrap().count();
    assert_eq!(older(), 1);
    let replays_to = |version: u64| {
        let replayed = &json(&["replay", out, "--json"])[0];
        let from = replayed["from_version"].as_u64().unwrap();
        assert!(from > 0 && replayed["events"].as_u64().unwrap() >= 2 * (version - from), "{replayed:?}");
    };
    replays_to(60000);
    let resumed = common::paceline(&["train", "--resume", out, "--until", "iterations=61000", "--json"]);
    let message = String::from_utf8(resumed.stderr).unwrap();
    assert!(message.contains("resumed from version 6") && !message.contains("do not lead"), "{message}");
    replays_to(61000);
    assert!(common::paceline(&["report", out, "--out", &format!("{out}/again.html")]).status.success());
    let error = refused(&["train", "--keep-events", "some"]);
    assert!(error.contains("expected all, or a whole number"), "{error}");
}

/// The processes that `train` has started, by rank.
fn worker_process(train: &PacelineProcess, rank: &str) -> Option<u32> {
    let children = format!("/proc/{0}/task", train.child.id());
    let tasks = fs::read_dir(children).ok()?.flatten();
    let all: String = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok()).collect();
    let is_worker = |pid: &u32| {
        let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&arguments).contains(&format!("\0--rank\0{rank}\0"))
    };
    all.split_whitespace().filter_map(|pid| pid.parse().ok()).find(is_worker)
}

fn kill_worker(train: &mut PacelineProcess, rank: &str) {
    let pid = loop {
        assert!(train.child.try_wait().unwrap().is_none(), "the run has ended");
        if let Some(pid) = worker_process(train, rank) {
            break pid;
        }
        thread::yield_now();
    };
    assert!(Command::new("kill").args(["-KILL", &pid.to_string()]).status().unwrap().success());
}

#[test]
fn train_restarts_a_worker_that_died_and_ends_when_none_is_left() {
    let folder = tempdir().unwrap();
    let out = folder.path().join("run");
    let options = ["--workers", "1", "--until", "time=300", "--out", out.to_str().unwrap()];
    let mut run = PacelineProcess::start(&[&["train"], &QUICK[..], &options].concat());
    run.await_line("worker 0 joined");
    await_file(&out.join("metrics.csv"), &mut run, |path| fs::read(path).is_ok_and(|text| text.len() > 500));
    for attempt in 1..=3 {
        kill_worker(&mut run, "0");
        let line = run.await_line("worker 0 was killed by signal 9; it is restarted in ");
        assert!(line.ends_with(&format!("(attempt {attempt} of 3)")), "{line}");
        run.await_line("worker 0 joined");
    }
    kill_worker(&mut run, "0");
    run.await_line("worker 0 was killed by signal 9; it is not restarted");
    let (code, table, errors) = run.end();
    assert_eq!(code, Some(5), "{errors:?}");
    assert!(table.contains("no worker left"), "{table}");
    // It can be resumed.
    let run = json(&["train", "--resume", out.to_str().unwrap(), "--until", "loss<1.5", "--json"]);
    assert_eq!(run[0]["reached"], true, "{run:?}");
}

#[test]
fn a_server_ends_when_its_workers_stay_away_and_when_its_parent_exits() {
    let folder = tempdir().unwrap();
    let serve = |name: &str, rest: &[&str]| {
        let out = folder.path().join(name).display().to_string();
        let address = format!("local:paceline-left-{}-{name}", std::process::id());
        let data = ["--model", "softmax", "--data", "digits:600,200", "--workers", "1", "--until", "time=300"];
        let arguments = [&["serve", "--listen", &address, "--out", &out], &data[..], rest].concat();
        (address.clone(), arguments.iter().map(ToString::to_string).collect::<Vec<_>>())
    };
    let (address, arguments) = serve("empty", &["--empty-timeout", "0.2"]);
    let server = PacelineProcess::start(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    let worker = PacelineProcess::start(&["work", "--join", &address]);
    server.await_line("worker 0 joined");
    worker.kill();
    let (code, _, errors) = server.end();
    assert_eq!(code, Some(5), "{errors:?}");
    let summary: Value = serde_json::from_slice(&fs::read(folder.path().join("empty/summary.json")).unwrap()).unwrap();
    assert_eq!(summary["stopped_by"], "no worker left; none came back within 0.2 s");

    // A shell starts a server and ends, and so does who reads their output: the server ends with its result.
    let (address, arguments) = serve("orphan", &["--parent", "$$"]);
    let script = format!("\"$PROGRAM\" {} & exec sleep 300", arguments.join(" "));
    let mut shell = Command::new("sh");
    shell.env("PROGRAM", env!("CARGO_BIN_EXE_paceline")).args(["-c", &script]).stdin(Stdio::null());
    let mut shell = shell.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut worker = PacelineProcess::start(&["work", "--join", &address]);
    let path = |name: &str| folder.path().join("orphan").join(name);
    await_file(&path("metrics.csv"), &mut worker, |path| fs::read(path).is_ok_and(|text| text.len() > 500));
    drop((shell.stdout.take(), shell.stderr.take()));
    shell.kill().unwrap();
    shell.wait().unwrap();
    let (code, _, errors) = worker.end();
    assert_eq!(code, Some(0), "{errors:?}");
    let start = Instant::now();
    while !path("report.html").exists() && start.elapsed() < Duration::from_secs(60) {
        thread::sleep(Duration::from_millis(10));
    }
    let summary: Value = serde_json::from_slice(&fs::read(path("summary.json")).unwrap()).unwrap();
    assert_eq!(summary["ending"], "interrupted");

    for wrong in ["0", "-1", "x"] {
        let error = refused(&["serve", "--empty-timeout", wrong]);
        assert!(
            error.contains(&format!("'{wrong}' for '--empty-timeout <SECONDS>': expected seconds, above 0")),
            "{error}"
        );
    }
}
