//! A program that runs while the test goes on.

use std::cell::RefCell;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use std::{fs, thread};

/// The longest time that a test waits for anything.
const TIMEOUT: Duration = Duration::from_secs(300);

/// A process, and the lines of its standard error.
pub struct PacelineProcess {
    pub child: Child,
    lines: Receiver<String>,
    /// The lines read so far.
    read: RefCell<Vec<String>>,
}

impl PacelineProcess {
    pub fn start(arguments: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_paceline"));
        command.args(arguments);
        Self::spawn(command)
    }

    pub fn spawn(mut command: Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (sender, lines) = channel();
        let errors = BufReader::new(child.stderr.take().unwrap());
        thread::spawn(move || errors.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        PacelineProcess { child, lines, read: RefCell::default() }
    }

    /// Waits for a line that starts with `start`.
    pub fn await_line(&self, start: &str) -> String {
        loop {
            let line = match self.lines.recv_timeout(TIMEOUT) {
                Ok(line) => line,
                Err(RecvTimeoutError::Timeout) => panic!("no line '{start}': {:?}", self.read),
                Err(_) => panic!("the process ended without a line '{start}': {:?}", self.read),
            };
            self.read.borrow_mut().push(line.clone());
            if line.starts_with(start) {
                return line;
            }
        }
    }

    /// Waits until something is true, while the process runs.
    pub fn wait_until(&mut self, is_true: impl Fn() -> bool) {
        let start = Instant::now();
        while !is_true() {
            assert!(self.child.try_wait().unwrap().is_none(), "the process has exited: {:?}", self.lines.try_recv());
            assert!(start.elapsed() < TIMEOUT, "nothing happened");
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until the process handles SIGINT.
    pub fn await_handler(&mut self) {
        let status = format!("/proc/{}/status", self.child.id());
        self.wait_until(|| {
            let text = fs::read_to_string(&status).unwrap();
            let caught = text.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
            u64::from_str_radix(caught.trim(), 16).unwrap() & 0b10 != 0
        });
    }

    pub fn signal(&self, name: &str) {
        let status = Command::new("kill").args([&format!("-{name}"), &self.child.id().to_string()]).status().unwrap();
        assert!(status.success());
    }

    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits for the exit. Returns the exit code, standard output and all lines of standard error.
    pub fn end(mut self) -> (Option<i32>, String, Vec<String>) {
        let mut text = String::new();
        self.child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        let mut errors = self.read.take();
        errors.extend(self.lines.iter());
        (self.child.wait().unwrap().code(), text, errors)
    }

    /// Waits for a successful exit, and reads the JSON on standard output.
    pub fn finish(self) -> serde_json::Value {
        let (code, text, errors) = self.end();
        assert_eq!(code, Some(0), "{errors:?}");
        serde_json::from_str(&text).unwrap()
    }
}

impl Drop for PacelineProcess {
    fn drop(&mut self) {
        // If a test fails, the process may still be running or stopped.
        let _ = self.child.kill();
    }
}
