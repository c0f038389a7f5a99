//! `paceline train`, `serve` and `work`, with real processes and connections.

mod common;

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use paceline_core::catalogue;
use tempfile::tempdir;

use common::{json, paceline, refused};

const QUICK: [&str; 6] = ["--model", "softmax", "--data", "digits:600,200", "--batch", "16"];

fn train(out: &Path, more: &[&str]) -> serde_json::Value {
    let out = ["--out", out.to_str().unwrap(), "--json"];
    json(&[&["train"], &QUICK[..], &out, more].concat()).remove(0)
}

fn start(arguments: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_paceline"));
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

#[test]
fn every_scheme_trains_and_its_events_replay() {
    let folder = tempdir().unwrap();
    let schemes = catalogue().into_iter().map(|entry| entry.example("", 4));
    let combined = ["lb-bsp+backup:k=3+late", "cutoff+lb-bsp", "dbw+late", "local-sgd:tau=4+lb-bsp"].map(String::from);
    for (index, scheme) in schemes.chain(combined).enumerate() {
        let out = folder.path().join(index.to_string());
        let run = train(&out, &["--scheme", &scheme, "--emulate", "3=3", "--until", "loss<1.2,iterations=5000"]);
        assert_eq!(run["reached"], true, "{run}");
        assert_eq!(run["emulated"]["3"], "3× slower", "{run}");
        let replayed = json(&["replay", out.join("events.jsonl").to_str().unwrap(), "--json"]);
        assert_eq!(replayed[0]["scheme"], scheme);
    }
}

#[test]
fn bsp_gives_the_simulators_model_over_every_transport() {
    let folder = tempdir().unwrap();
    let model = |name: &str| fs::read(folder.path().join(name).join("model.safetensors")).unwrap();
    let until = ["--until", "iterations=20", "--seed", "5"];
    for transport in ["shared-memory", "tcp"] {
        train(&folder.path().join(transport), &[&until[..], &["--transport", transport]].concat());
    }
    let simulated = folder.path().join("simulated");
    let options = ["--workers", "4", "--until", "iterations=20", "--seeds", "5", "--out", simulated.to_str().unwrap()];
    json(&[&["simulate", "--json"], &QUICK[..], &options].concat());
    assert_eq!(model("shared-memory"), model("simulated"));
    assert_eq!(model("tcp"), model("simulated"));
}

#[test]
fn workers_join_a_server_by_flags_or_environment() {
    let folder = tempdir().unwrap();
    let address = format!("local:paceline-test-{}", std::process::id());
    let out = folder.path().join("run");
    let listen = ["serve", "--workers", "2", "--listen", &address, "--listen", "127.0.0.1:0", "--json"];
    let rest = ["--until", "iterations=30", "--out", out.to_str().unwrap()];
    let server = start(&[&listen[..], &QUICK, &rest].concat());
    let workers = ["0", "1"].map(|rank| start(&["work", "--join", &address, "--rank", rank, "--json"]));
    for worker in workers {
        let output = worker.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let done: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(done["tasks"].as_u64().unwrap() >= 30, "{done}");
    }
    assert!(server.wait_with_output().unwrap().status.success());
    assert!(out.join("model.safetensors").exists());
}

#[test]
fn an_interrupted_run_ends_cleanly_and_resumes() {
    let folder = tempdir().unwrap();
    let out = folder.path().join("run");
    // Worker 3 straggles, so that gradients are waiting most of the time.
    let straggler = ["--until", "iterations=100000000", "--emulate", "3=deterministic:0.02"];
    let mut run = start(&[&["train", "--out", out.to_str().unwrap()], &QUICK[..], &straggler].concat());
    // Waits for the first iterations: each adds a row.
    while fs::metadata(out.join("metrics.csv")).map_or(0, |file| file.len()) < 1_000 {
        assert!(run.try_wait().unwrap().is_none(), "the run ended by itself");
        std::thread::yield_now();
    }
    assert!(Command::new("kill").args(["-INT", &run.id().to_string()]).status().unwrap().success());
    let output = run.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8(output.stdout).unwrap().contains("interrupted"));
    assert!(out.join("model.safetensors").exists());

    let summary: serde_json::Value = serde_json::from_slice(&fs::read(out.join("summary.json")).unwrap()).unwrap();
    let done = summary["iterations"].as_u64().unwrap();
    let until = format!("iterations={}", done + 2);
    let resumed = paceline(&["train", "--resume", out.to_str().unwrap(), "--until", &until, "--json"]);
    let message = String::from_utf8(resumed.stderr).unwrap();
    assert!(message.contains(&format!("resumed from version {done}, the last one on disk")), "{message}");
    let summary: serde_json::Value = serde_json::from_slice(&resumed.stdout).unwrap();
    assert_eq!(summary["iterations"], done + 2);
    assert!(paceline(&["replay", out.join("events.jsonl").to_str().unwrap()]).status.success());
}

#[test]
fn bad_input_is_refused_in_one_line() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    assert!(refused(&[&["serve", "--listen", &address], &QUICK[..]].concat()).contains("is in use"));
    assert!(refused(&["work"]).contains("no server to join: give --join"));
    let absent = refused(&["work", "--join", "local:paceline-absent", "--join-timeout", "0", "--quiet"]);
    assert!(absent.contains("can't reach a server at local:paceline-absent"), "{absent}");
    assert!(
        refused(&["train", "--emulate", "4=2"])
            .contains("--emulate 4=2: worker 4 does not exist; expected ranks 0 to 3")
    );
    assert!(refused(&["train", "--emulate", "1=0.5"]).contains("expected a factor of at least 1"));
    assert!(refused(&["train", "--scheme", "backup:k=5"]).contains("scheme 'backup': k=5; expected 1 to 4"));
    for command in ["train", "serve"] {
        let record = refused(&[&[command, "--record", "nodir/times.csv"], &QUICK[..]].concat());
        assert!(record.contains("--record nodir/times.csv: folder nodir does not exist"), "{record}");
    }
    let help = paceline(&["work", "--help"]);
    assert!(String::from_utf8(help.stdout).unwrap().contains("MASTER_ADDR"));
}
