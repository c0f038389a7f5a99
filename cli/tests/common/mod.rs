//! Runs the program.
#![allow(dead_code, reason = "not every test uses all of it")]

use std::cell::RefCell;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use serde_json::Value;

/// Runs `paceline` to its end.
pub fn paceline(arguments: &[&str]) -> Output {
    let program = env!("CARGO_BIN_EXE_paceline");
    Command::new(program).args(arguments).stdin(Stdio::null()).output().expect("the program was built")
}

/// Runs `paceline` and reads its standard output, one JSON object per line.
pub fn json(arguments: &[&str]) -> Vec<Value> {
    let output = paceline(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
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

/// A process, and the lines of its standard error.
pub struct PacelineProcess {
    pub child: Child,
    pub lines: Receiver<String>,
    /// The lines read so far.
    read: RefCell<Vec<String>>,
}

impl PacelineProcess {
    pub fn start(arguments: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_paceline"));
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (sender, lines) = channel();
        let errors = BufReader::new(child.stderr.take().unwrap());
        thread::spawn(move || errors.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        PacelineProcess { child, lines, read: RefCell::default() }
    }

    /// Waits for a line that starts with `start`.
    pub fn await_line(&self, start: &str) -> String {
        for line in &self.lines {
            self.read.borrow_mut().push(line.clone());
            if line.starts_with(start) {
                return line;
            }
        }
        panic!("the process ended without a line '{start}': {:?}", self.read);
    }

    pub fn signal(&self, name: &str) {
        let status = Command::new("kill").args([&format!("-{name}"), &self.child.id().to_string()]).status().unwrap();
        assert!(status.success());
    }

    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits for a successful exit, and reads the JSON on standard output.
    pub fn finish(self) -> Value {
        self.finish_with_lines().0
    }

    /// Waits for a successful exit. Reads the JSON on standard output, and all lines of standard error.
    pub fn finish_with_lines(mut self) -> (Value, Vec<String>) {
        let mut text = String::new();
        self.child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        let mut lines = self.read.take();
        lines.extend(self.lines.iter());
        assert!(self.child.wait().unwrap().success(), "{lines:?}");
        (serde_json::from_str(&text).unwrap(), lines)
    }
}

impl Drop for PacelineProcess {
    fn drop(&mut self) {
        // If a test fails, the process may still be running or stopped.
        let _ = self.child.kill();
    }
}
