//! Errors of writing to standard output.

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
