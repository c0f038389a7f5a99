//! `paceline doctor` says what is there, and what is wrong.

mod common;

use std::process::{Command, Stdio};

use serde_json::Value;
use tempfile::tempdir;

use common::process::PacelineProcess;

/// What it prints, with these variables alone, and its exit code.
fn doctor(variables: &[(&str, &str)], arguments: &[&str]) -> (String, Option<i32>) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_paceline"));
    command.arg("doctor").args(arguments).env_clear().env("PATH", std::env::var("PATH").unwrap_or_default());
    let output = command.envs(variables.iter().copied()).stdin(Stdio::null()).output().unwrap();
    (String::from_utf8(output.stdout).unwrap(), output.status.code())
}

fn findings(variables: &[(&str, &str)], arguments: &[&str]) -> (Value, Option<i32>) {
    let (text, code) = doctor(variables, &[&["--json"], arguments].concat());
    (serde_json::from_str(&text).unwrap(), code)
}

fn named<'a>(found: &'a Value, name: &str) -> &'a Value {
    let all = found["findings"].as_array().unwrap();
    all.iter().find(|finding| finding["name"] == name).unwrap_or_else(|| panic!("no {name}: {found}"))
}

#[test]
fn a_machine_is_described_in_lines_and_in_json() {
    let (text, code) = doctor(&[], &[]);
    assert_eq!(code, Some(0), "{text}");
    let (found, code) = findings(&[], &[]);
    assert_eq!(code, Some(0), "{found}");
    for name in [
        "started by",
        "host",
        "processors",
        "memory",
        "GPUs",
        "shared memory",
        "open files",
        "clock",
        "python",
        "loopback",
        "TCP",
    ] {
        let finding = named(&found, name);
        assert!(
            text.contains(&format!("      {name:<15}")) || text.contains(&format!("note  {name:<15}")),
            "{name}: {text}"
        );
        assert_ne!(finding["verdict"], "wrong", "{finding}");
        assert_eq!(finding["verdict"] == "fine", finding["advice"].is_null(), "{finding}");
    }
    assert_eq!(named(&found, "started by")["found"], "no launcher");
    assert!(text.contains("\npaceline work needs --join ADDRESS.\n"), "{text}");
}

#[test]
fn what_would_make_a_run_fail_is_wrong_and_the_exit_code_says_so() {
    let (found, code) =
        findings(&[("RANK", "7"), ("WORLD_SIZE", "4"), ("MASTER_ADDR", "a"), ("MASTER_PORT", "1")], &[]);
    assert_eq!((code, &named(&found, "started by")["verdict"]), (Some(1), &Value::from("wrong")));
    let folder = tempdir().unwrap();
    let keys = folder.path().join("none").display().to_string();
    let (text, code) = doctor(&[], &["--keys", &keys, "--join", "127.0.0.1:1"]);
    assert_eq!(code, Some(1));
    assert!(text.contains("wrong keys           "), "{text}");
    assert!(text.contains("wrong server         127.0.0.1:1: Connection refused"), "{text}");
    let (_, code) = doctor(&[], &["--join", "nonsense:port"]);
    assert_eq!(code, Some(2));
}

#[test]
fn a_server_that_is_tried_goes_on() {
    let name = format!("local:paceline-doctor-{}", std::process::id());
    let folder = tempdir().unwrap();
    let out = folder.path().join("run").display().to_string();
    let data = ["--model", "softmax", "--data", "digits:600,200", "--workers", "1", "--until", "iterations=20"];
    let serve = ["serve", "--listen", "127.0.0.1:0", "--listen", &name, "--out", &out, "--json"];
    let server = PacelineProcess::start(&[&serve[..], &data].concat());
    let line = server.await_line("waiting for 1 worker on ");
    let tcp = line.rsplit(" on ").next().unwrap().split(' ').next().unwrap();
    for address in [tcp, &name] {
        let (found, code) = findings(&[], &["--join", address]);
        assert_eq!(code, Some(0), "{found}");
        let text = named(&found, "server")["found"].as_str().unwrap();
        assert!(text.starts_with(&format!("{address} accepts a connection within ")), "{text}");
    }
    let worker = PacelineProcess::start(&["work", "--join", &name]);
    assert_eq!(server.finish()["reached"], true);
    let (code, ..) = worker.end();
    assert_eq!(code, Some(0));
}
