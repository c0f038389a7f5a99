//! What the program tells the shell: standard output, exit codes, errors of endless input.

mod common;

use std::fs::File;
use std::process::{Command, Output, Stdio};

const LONG: [&str; 9] =
    ["simulate", "--model", "none", "--until", "iterations=500", "--seeds", "1..4", "--json", "--trace"];

fn with_output(arguments: &[&str], stdout: Stdio) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_paceline"));
    command.args(arguments).stdin(Stdio::null()).stdout(stdout).stderr(Stdio::piped()).output().unwrap()
}

#[test]
fn a_closed_pipe_is_not_an_error() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    for arguments in [&LONG[..], &["torture", "--seeds", "1"], &["--help"]] {
        let output = with_output(arguments, writer.try_clone().unwrap().into());
        assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]), "{arguments:?}");
    }
}

#[test]
fn a_full_disk_is_reported_in_one_line() {
    let Ok(full) = File::options().write(true).open("/dev/full") else {
        println!("skipped: /dev/full does not exist");
        return;
    };
    for arguments in [&LONG[..], &["torture", "--seeds", "1"], &["--help"]] {
        let output = with_output(arguments, full.try_clone().unwrap().into());
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {message}");
        assert!(message.starts_with("error: can't write to standard output: No space left"), "{message}");
        assert_eq!(message.lines().count(), 1, "{message}");
    }
}

#[test]
fn exit_codes_tell_how_a_run_ended() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("script");
    std::fs::write(&script, "1 leave 0-1\n").unwrap();
    let script = script.to_str().unwrap();
    let data = ["--model", "softmax", "--data", "digits:300,100", "--batch", "16"];
    let code = |command: &str, more: &[&str]| {
        let output = common::paceline(&[&[command], &data[..], more].concat());
        output.status.code().unwrap()
    };
    for command in ["simulate", "fit"] {
        assert_eq!(code(command, &["--until", "iterations=5"]), 0, "{command}: a limit alone is a success");
        assert_eq!(code(command, &["--until", "loss<1.5,iterations=2000"]), 0, "{command}: target reached");
        assert_eq!(code(command, &["--until", "loss<0.0001,iterations=5"]), 3, "{command}: target missed");
        assert_eq!(code(command, &["--lr", "1e37", "--until", "iterations=500"]), 4, "{command}: diverged");
        assert_eq!(code(command, &["--until", "iterations=x"]), 2, "{command}: wrong usage");
    }
    assert_eq!(code("simulate", &["--workers", "2", "--script", script, "--until", "time=100"]), 5, "no workers left");
    let seeds = ["--seeds", "1,2", "--until", "loss<0.0001,iterations=5"];
    assert_eq!(code("simulate", &seeds), 3);
    let out = folder.path().join("run");
    let train = ["--workers", "2", "--out", out.to_str().unwrap(), "--until", "loss<0.0001,iterations=5"];
    assert_eq!(code("train", &train), 3);
    let diverged = folder.path().join("diverged");
    let train = ["--workers", "2", "--out", diverged.to_str().unwrap(), "--lr", "1e37", "--until", "iterations=500"];
    assert_eq!(code("train", &train), 4);
    let summary = std::fs::read_to_string(diverged.join("summary.json")).unwrap();
    assert!(summary.contains("\"ending\": \"diverged\""), "{summary}");
    assert_eq!(common::paceline(&["simulate", "--model", "none"]).status.code(), Some(0), "it has no target");
    for command in [&["--help"][..], &["train", "--help"], &["work", "--help"]] {
        let help = String::from_utf8(common::paceline(command).stdout).unwrap();
        assert!(help.contains("3 target missed") && help.contains("130"), "{help}");
    }
}

#[test]
fn a_line_without_end_is_refused_before_it_fills_the_memory() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| {
        let path = folder.path().join(name);
        File::create(&path).unwrap().set_len(30 << 30).unwrap();
        path.display().to_string()
    };
    let (table, log, text) = (file("times.csv"), file("events.jsonl"), file("script"));
    std::os::unix::fs::symlink("/dev/zero", folder.path().join("zero.csv")).unwrap();
    let zero = folder.path().join("zero.csv").display().to_string();
    let run = folder.path().display().to_string();
    let commands: [&[&str]; 10] = [
        &["whatif", &table],
        &["whatif", &log],
        &["whatif", &zero],
        &["replay", &log],
        &["report", &run],
        &["plan", "speeds", &log],
        &["plan", "barrier", &text],
        &["plan", "times", &text],
        &["plan", "batches", &text],
        &["simulate", "--script", &text],
    ];
    for command in commands {
        // Four gigabytes of addresses are not enough for the whole line.
        let mut limited = Command::new("sh");
        limited.args(["-c", "ulimit -v 4000000; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_paceline")]).args(command);
        let output = limited.stdin(Stdio::null()).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{command:?}: {error}");
        assert!(error.contains("line 1 is longer than "), "{command:?}: {error}");
    }
    let (data, scheme) = (format!("text:{text}"), format!("cutoff:predictor=dmm,model={text}"));
    let error = common::refused(&["fit", "--model", "charlm", "--data", &data]);
    assert!(error.contains("script: larger than 4096 MiB"), "{error}");
    let error = common::refused(&["simulate", "--model", "none", "--scheme", &scheme]);
    assert!(error.contains("script: larger than 1024 MiB"), "{error}");
    let config = common::refused(&["simulate", "--config", &text]);
    assert!(config.contains("script: line 1 is longer than 1 MiB"), "{config}");
}
