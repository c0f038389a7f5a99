//! Runs the program.
#![allow(dead_code, reason = "not every test uses all of it")]

pub mod browser;
pub mod local_s3;
pub mod process;
pub mod python;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// Runs `paceline` to its end.
pub fn paceline(arguments: &[&str]) -> Output {
    let program = env!("CARGO_BIN_EXE_paceline");
    Command::new(program).args(arguments).stdin(Stdio::null()).output().expect("the program was built")
}

/// Runs `paceline` and reads its standard output, one JSON object per line. A run may miss its target or diverge.
pub fn json(arguments: &[&str]) -> Vec<Value> {
    let output = paceline(arguments);
    assert!(
        matches!(output.status.code(), Some(0 | 3 | 4)),
        "{arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Runs `paceline` with bad input. It must print one line on standard error and exit with code 2.
pub fn refused(arguments: &[&str]) -> String {
    let output = paceline(arguments);
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {message}");
    assert!(output.stdout.is_empty(), "{arguments:?}");
    assert!(message.starts_with("error: ") && message.trim_end().lines().count() == 1, "{arguments:?}: {message}");
    message
}

/// The response of a server's HTTP port.
pub fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}
