//! The examples, with real processes: a model and a scheme that Paceline does not know.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use tempfile::tempdir;

/// The program of an example. `cargo test` builds examples unless it is told which tests to run.
fn program(name: &str) -> PathBuf {
    let this = std::env::current_exe().unwrap();
    let program = this.ancestors().nth(2).unwrap().join("examples").join(name);
    assert!(program.is_file(), "{} is missing; run 'cargo build --release --examples'", program.display());
    program
}

/// Runs a command of an example, which must succeed, and reads its result.
fn run(example: &str, folder: &Path, arguments: &[&str]) -> Vec<Value> {
    let mut command = Command::new(program(example));
    let output = command.args(arguments).arg("--json").current_dir(folder).stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_model_of_ones_own_trains_and_resumes_with_four_processes() {
    let folder = tempdir().unwrap();
    let example = |arguments: &[&str]| run("custom_model", folder.path(), arguments);
    let options = ["--scheme", "backup:k=3", "--lr", "0.5", "--emulate", "0=5", "--out", "run"];
    let first = &example(&[&["train", "--until", "accuracy>0.8,iterations=4000"], &options[..]].concat())[0];
    assert_eq!((&first["reached"], &first["workers"]), (&true.into(), &4.into()), "{first}");
    let more = &example(&["train", "--resume", "run", "--until", "accuracy>0.9,iterations=8000"])[0];
    assert_eq!(more["reached"], true, "{more}");
    assert!(more["iterations"].as_u64() > first["iterations"].as_u64(), "{more}");
    for file in ["report.html", "model.safetensors", "checkpoints"] {
        assert!(folder.path().join("run").join(file).exists(), "{file}");
    }
    let simulated = &example(&["simulate", "--lr", "0.5", "--until", "accuracy>0.9,iterations=4000"])[0];
    assert_eq!(simulated["reached"], true, "{simulated}");
    let refused = Command::new(program("custom_model")).args(["train", "--data", "digits"]).output().unwrap();
    let message = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(message, "error: model 'spiral': the data are images; expected its own (--data own)\n");
}

#[test]
fn a_scheme_of_ones_own_races_simulated_and_trains_with_real_processes() {
    let folder = tempdir().unwrap();
    let example = |arguments: &[&str]| run("own_scheme", folder.path(), arguments);
    let data = ["--model", "softmax", "--data", "digits:600,200", "--batch", "16"];
    for kind in [&["--seeds", "1,2"][..], &["--seeds", "1", "--real"]] {
        let race = ["race", "--schemes", "bsp,stale-asp", "--until", "loss<1.2,samples=200000"];
        let results = example(&[&race[..], &data, kind].concat());
        let text = serde_json::to_string(&results).unwrap();
        assert!(text.contains("stale-asp") && text.contains("bsp"), "{text}");
    }
    let train = ["train", "--scheme", "stale-asp:slope=0.5", "--emulate", "0=3", "--out", "run"];
    let summary = &example(&[&train[..], &data, &["--until", "loss<1.2,iterations=5000"]].concat())[0];
    assert_eq!(summary["reached"], true, "{summary}");
    let replayed = &example(&["replay", "run/events.jsonl"])[0];
    assert_eq!(replayed["scheme"], "stale-asp:slope=0.5");
}

#[test]
fn a_run_as_a_library_call_resumes() {
    let folder = tempdir().unwrap();
    let output = Command::new(program("library_run")).arg(folder.path().join("run")).output().unwrap();
    let lines = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && lines.contains(" after 1000"), "{lines}");
    let rows = std::fs::read_to_string(folder.path().join("run/metrics.csv")).unwrap();
    assert_eq!(rows.lines().count(), 1001);
}
