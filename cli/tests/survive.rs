//! Real processes that are killed, stopped, continued and restarted: the run goes on to its target, and keeps the laws.

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::{fs, thread};

use serde_json::Value;
use tempfile::tempdir;

use common::{json, refused};

/// A process, and what it says on standard error, line by line.
struct Process {
    child: Child,
    lines: Receiver<String>,
}

impl Process {
    fn start(arguments: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_paceline"));
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (sender, lines) = channel();
        let errors = BufReader::new(child.stderr.take().unwrap());
        thread::spawn(move || errors.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        Process { child, lines }
    }

    /// Waits for a line that begins so.
    fn hear(&self, beginning: &str) -> String {
        let mut heard = Vec::new();
        for line in &self.lines {
            if line.starts_with(beginning) {
                return line;
            }
            heard.push(line);
        }
        panic!("it ended without saying '{beginning}': {heard:?}");
    }

    fn signal(&self, name: &str) {
        let status = Command::new("kill").args([&format!("-{name}"), &self.child.id().to_string()]).status().unwrap();
        assert!(status.success());
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits for its end, which must be good, and reads what it left on standard output.
    fn finish(mut self) -> Value {
        let mut text = String::new();
        self.child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        let errors: Vec<String> = self.lines.iter().collect();
        assert!(self.child.wait().unwrap().success(), "{errors:?}");
        serde_json::from_str(&text).unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Only where a test failed is it still there, perhaps stopped.
        let _ = self.child.kill();
    }
}

fn await_file(path: &Path, server: &mut Process, is_so: impl Fn(&Path) -> bool) {
    while !is_so(path) {
        assert!(server.child.try_wait().unwrap().is_none(), "the server ended by itself");
        thread::yield_now();
    }
}

fn survives(scheme: &str) {
    let folder = tempdir().unwrap();
    let out = folder.path().join("run");
    let address = format!("local:paceline-survive-{}-{}", std::process::id(), scheme.split(':').next().unwrap());
    let work = |rank: &str| {
        let late = ["--emulate", "deterministic:0.01", "--json"];
        Process::start(&[&["work", "--join", &address, "--rank", rank], &late[..]].concat())
    };
    let data = ["--model", "softmax", "--data", "digits:600,200", "--batch", "16", "--lr", "0.05"];
    let rest = ["--listen", &address, "--workers", "3", "--scheme", scheme, "--out", out.to_str().unwrap()];
    // The time is only there to end it should something never be said.
    let keep = ["--checkpoint-every", "0.1", "--silence", "5", "--until", "time=300"];
    let mut server = Process::start(&[&["serve"], &data[..], &rest, &keep].concat());
    let [first, second, third] = ["0", "1", "2"].map(work);
    await_file(&out.join("metrics.csv"), &mut server, |path| fs::read(path).is_ok_and(|text| text.len() > 500));

    // Killed: known at once, and replaced.
    third.kill();
    assert!(server.hear("worker 2 left: ").contains("go"), "{scheme}: what was done about it");
    let third = work("2");
    server.hear("worker 2 joined");

    // Stopped: given up, and back by itself when it continues.
    second.signal("STOP");
    server.hear("worker 1 left: silent for ");
    second.signal("CONT");
    server.hear("worker 1 joined");

    // The server: killed, and back where its last checkpoint is; the workers come by themselves.
    let checkpoint = |path: &Path| fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_some());
    await_file(&out.join("checkpoints"), &mut server, checkpoint);
    server.kill();
    let server = Process::start(&["serve", "--resume", out.to_str().unwrap(), "--until", "loss<0.8", "--json"]);
    server.hear("resumed at version ");
    server.hear("worker ");
    let run = server.finish();
    assert_eq!(run["reached"], true, "{scheme}: {run}");
    // Whoever was back before the target was reached ends by itself.
    [first, second, third].into_iter().for_each(Process::kill);
    let replayed = json(&["replay", out.join("events.jsonl").to_str().unwrap(), "--json"]);
    assert!(replayed[0]["events"].as_u64() > run["iterations"].as_u64(), "{scheme}: {replayed:?}");
    assert!(fs::read_to_string(out.join("run.jsonl")).unwrap().starts_with("{\"resumed\":{\"from\":"));
    let metrics = fs::read_to_string(out.join("metrics.csv")).unwrap();
    assert_eq!(
        metrics.lines().count() as u64,
        run["iterations"].as_u64().unwrap() + 1,
        "{scheme}: a line an iteration"
    );
}

#[test]
fn bsp_and_backup_survive_anything() {
    ["bsp", "backup:k=2"].into_iter().for_each(survives);
}

#[test]
fn dbw_and_elastic_bsp_survive_anything() {
    ["dbw", "elastic-bsp"].into_iter().for_each(survives);
}

#[test]
fn esync_and_lb_bsp_survive_anything() {
    ["esync", "lb-bsp"].into_iter().for_each(survives);
}

/// What a server's HTTP port answers.
fn ask(address: &str, path: &str) -> String {
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn strangers_stay_out_and_whoever_watches_sees_it() {
    let folder = tempdir().unwrap();
    let [ours, theirs, out] = ["ours", "theirs", "run"].map(|name| folder.path().join(name).display().to_string());
    for keys in [&ours, &theirs] {
        assert!(common::paceline(&["keys", keys]).status.success());
    }
    assert!(refused(&["keys", &ours]).contains("certificate.pem is there already, and keys are never overwritten"));
    assert!(refused(&[&["serve", "--listen", "0.0.0.0:0"], &QUICK[..]].concat()).contains("--open to let anyone in"));
    assert!(refused(&[&["train", "--http", "0.0.0.0:0"], &QUICK[..]].concat()).contains("serve --open"));

    let listen = ["serve", "--listen", "127.0.0.1:0", "--keys", &ours, "--http", "127.0.0.1:0", "--workers", "1"];
    let rest = ["--until", "time=300", "--out", &out];
    let server = Process::start(&[&listen[..], &QUICK, &rest].concat());
    let address = server.hear("waiting for 1 worker on ").rsplit(' ').next().unwrap().to_string();
    let http = server.hear("the status is at http://");
    let http = http.trim_start_matches("the status is at http://").trim_end_matches("/status");
    assert!(ask(http, "/healthz").ends_with("waiting for workers\n"));
    let join = ["work", "--join", &address, "--patience", "0", "--quiet"];
    let told = common::paceline(&join);
    assert!(!told.status.success());
    assert!(String::from_utf8(told.stderr).unwrap().contains("does it want --keys?"));
    assert!(refused(&[&join[..], &["--keys", &theirs]].concat()).contains("does it use the same --keys?"));
    server.hear("127.0.0.1:");
    let worker = Process::start(&["work", "--join", &address, "--keys", &ours, "--json"]);
    server.hear("worker 0 joined");
    while !ask(http, "/metrics").contains("\npaceline_updates_total ")
        || ask(http, "/status").contains("\"version\":0,")
    {}
    let metrics = ask(http, "/metrics");
    assert!(
        metrics.contains("\npaceline_refused_total 2\n") && metrics.contains("\npaceline_workers 1\n"),
        "{metrics}"
    );
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
    let told = String::from_utf8(output.stdout).unwrap();
    assert!(
        told.contains("('optimizer.") && told.matches("(10,").count() + told.matches("(784, 10)").count() >= 2,
        "{told}"
    );
}

const QUICK: [&str; 6] = ["--model", "softmax", "--data", "digits:600,200", "--batch", "16"];

#[test]
fn damaged_checkpoints_are_passed_over_and_read_only_folders_survived() {
    let folder = tempdir().unwrap();
    let out = folder.path().join("run");
    let out = out.to_str().unwrap();
    let checkpoints = folder.path().join("run/checkpoints");
    let options = ["--workers", "2", "--checkpoint-every", "0.001", "--optimizer", "momentum:0.9"];
    json(&[&["train", "--json", "--until", "iterations=3000", "--out", out], &QUICK[..], &options].concat());
    let mut names: Vec<_> = fs::read_dir(&checkpoints).unwrap().map(|entry| entry.unwrap().path()).collect();
    names.sort();
    assert!(names.len() >= 4, "the last few are kept: {names:?}");
    // The newest is torn.
    let newest = names.last().unwrap();
    let text = fs::read(newest).unwrap();
    fs::write(newest, &text[..text.len() / 2]).unwrap();
    let resumed = ["train", "--resume", out, "--until", "iterations=3100", "--json"];
    let output = common::paceline(&resumed);
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(told.contains("is not a valid checkpoint") && told.contains("an older one is taken"), "{told}");
    let run: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(run["iterations"], 3100);

    // Nothing can be written where the checkpoints go: the run goes on and says so.
    fs::remove_dir_all(&checkpoints).unwrap();
    let again = ["train", "--resume", out, "--until", "time=300"];
    let mut run = Process::start(&again);
    run.hear("resumed at version 0; versions 1 to 3100 were lost");
    await_file(&checkpoints, &mut run, Path::exists);
    fs::remove_dir_all(&checkpoints).unwrap();
    fs::write(&checkpoints, "no folder").unwrap();
    run.hear("no checkpoint could be written: ");
    fs::remove_file(&checkpoints).unwrap();
    fs::create_dir(&checkpoints).unwrap();
    run.hear("checkpoints are written again");
    run.signal("INT");
    assert!(run.child.wait().unwrap().success());

    assert!(refused(&["train", "--resume", "nowhere"]).contains("nowhere/config.toml"));
    assert!(refused(&["train", "--resume", out, "--scheme", "asp"]).contains("it is of scheme bsp with 2 workers"));
    assert!(refused(&["train", "--resume", out, "--out", "x"]).contains("cannot be used with"));
    for checkpoint in fs::read_dir(&checkpoints).unwrap() {
        fs::write(checkpoint.unwrap().path(), "torn").unwrap();
    }
    assert!(refused(&["train", "--resume", out]).contains("no checkpoint can be read: "));
}
