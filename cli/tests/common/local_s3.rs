//! An S3 server on this machine, and places to write to.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::process::PacelineProcess;
use super::python::python_with;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/local_s3.py");

/// moto, which serves S3 in memory, with a bucket named `bucket`.
pub struct LocalS3 {
    process: Child,
    pub port: u16,
}

impl LocalS3 {
    /// `None` where no Python has moto.
    pub fn start() -> Option<Self> {
        LocalS3::start_at(0)
    }

    /// The same at a port; 0 for a free one.
    pub fn start_at(port: u16) -> Option<Self> {
        let mut process = Command::new(python_with("moto.server, flask_cors", "moto[s3], flask and flask-cors")?)
            .args([SCRIPT, &port.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        let mut line = String::new();
        BufReader::new(process.stdout.take()?).read_line(&mut line).ok()?;
        let port = line.trim().parse().ok()?;
        let server = LocalS3 { process, port };
        server.request("PUT /bucket");
        Some(server)
    }

    fn request(&self, what: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        write!(stream, "{what} HTTP/1.0\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    /// The names of all objects of the bucket.
    pub fn objects(&self) -> Vec<String> {
        let text = self.request("GET /bucket?list-type=2");
        let keys = text.split("<Key>").skip(1);
        keys.filter_map(|rest| rest.split_once("</Key>")).map(|(key, _)| key.into()).collect()
    }
}

impl Drop for LocalS3 {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A place for checkpoints, and how processes reach it.
pub struct TestPlace {
    pub place: String,
    pub endpoint: String,
}

impl TestPlace {
    /// A prefix of the bucket that a server has at this port.
    pub fn bucket(port: u16, prefix: &str) -> Self {
        TestPlace { place: format!("s3://bucket/{prefix}"), endpoint: format!("http://127.0.0.1:{port}") }
    }

    /// A folder.
    pub fn folder(path: &Path) -> Self {
        TestPlace { place: format!("file://{}", path.display()), endpoint: String::new() }
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_paceline"));
        command.args(arguments).env("AWS_ENDPOINT_URL", &self.endpoint).env("AWS_REGION", "us-east-1");
        command.env("AWS_ACCESS_KEY_ID", "test").env("AWS_SECRET_ACCESS_KEY", "test");
        command
    }

    pub fn start(&self, arguments: &[&str]) -> PacelineProcess {
        PacelineProcess::spawn(self.command(arguments))
    }

    /// Runs `paceline` with a place that does not work. It must say so in one line.
    pub fn refused(&self, arguments: &[&str]) -> String {
        let output = self.command(arguments).stdin(Stdio::null()).output().unwrap();
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {message}");
        assert!(message.starts_with("error: ") && message.trim_end().lines().count() == 1, "{arguments:?}: {message}");
        message
    }
}
