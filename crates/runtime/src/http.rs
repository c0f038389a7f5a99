//! The status over HTTP, read-only: `/metrics`, `/healthz` and `/status`.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use crate::status::SharedStatus;

/// The longest request, in bytes.
const REQUEST_LIMIT: usize = 8 * 1024;

/// How many header lines a request may have.
const HEADERS: usize = 64;

/// How long a request may take to arrive, and its answer to be read.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Serves the status at a bound address, one request after another, until the process ends.
///
/// # Errors
/// If the address has none, or no thread can be started.
pub fn serve_status(listener: TcpListener, status: SharedStatus) -> io::Result<SocketAddr> {
    let address = listener.local_addr()?;
    let serve = move || {
        for stream in listener.incoming().flatten() {
            // A client that disconnects or is too slow gets no answer.
            let _ = respond_to(stream, &status);
        }
    };
    thread::Builder::new().name("http".into()).spawn(serve)?;
    Ok(address)
}

fn respond_to(mut stream: TcpStream, status: &SharedStatus) -> io::Result<()> {
    stream.set_write_timeout(Some(TIMEOUT))?;
    let (code, kind, body) = match request(&mut stream)? {
        Some((method, path)) => respond(&method, &path, status),
        None => ("400 Bad Request", "text/plain", "not an HTTP request\n".into()),
    };
    let head = format!(
        "HTTP/1.1 {code}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())
}

/// The method and path of the request; `None` if it is not HTTP.
fn request(stream: &mut TcpStream) -> io::Result<Option<(String, String)>> {
    let deadline = Instant::now() + TIMEOUT;
    let mut bytes = Vec::new();
    loop {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS];
        let mut request = httparse::Request::new(&mut headers);
        match request.parse(&bytes) {
            Ok(httparse::Status::Complete(_)) => {
                let named = request.method.zip(request.path);
                return Ok(named.map(|(method, path)| (method.into(), path.into())));
            }
            Ok(httparse::Status::Partial) if bytes.len() < REQUEST_LIMIT => {}
            _ => return Ok(None),
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        let mut portion = [0; 1024];
        match stream.read(&mut portion)? {
            0 => return Ok(None),
            count => bytes.extend_from_slice(&portion[..count]),
        }
    }
}

fn respond(method: &str, path: &str, status: &SharedStatus) -> (&'static str, &'static str, String) {
    const OK: &str = "200 OK";
    if method != "GET" {
        return ("405 Method Not Allowed", "text/plain", "only GET is supported\n".into());
    }
    let status = status.lock();
    match path.split('?').next().unwrap_or(path) {
        "/metrics" => (OK, "text/plain; version=0.0.4", status.metrics()),
        "/healthz" => {
            let (healthy, state) = status.health();
            (if healthy { OK } else { "503 Service Unavailable" }, "text/plain", format!("{state}\n"))
        }
        "/status" => (OK, "application/json", serde_json::to_string(&*status).unwrap_or_default() + "\n"),
        _ => ("404 Not Found", "text/plain", "not found; try /metrics, /healthz or /status\n".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(address: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn the_status_can_be_read_and_not_changed() {
        let status = SharedStatus::default();
        status.lock().version = 7;
        status.lock().workers.insert(0, "here".into());
        let address = serve_status(TcpListener::bind("127.0.0.1:0").unwrap(), status).unwrap();
        let metrics = ask(address, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(metrics.starts_with("HTTP/1.1 200 OK\r\n") && metrics.contains("\npaceline_version 7\n"), "{metrics}");
        assert!(ask(address, "GET /healthz HTTP/1.0\r\n\r\n").ends_with("\r\n\r\nrunning\n"));
        let answer = ask(address, "GET /status?pretty HTTP/1.1\r\nHost: x\r\n\r\n");
        let json: serde_json::Value = serde_json::from_str(answer.split("\r\n\r\n").nth(1).unwrap()).unwrap();
        assert_eq!((json["version"].as_u64(), json["workers"]["0"].as_str()), (Some(7), Some("here")));
        assert!(ask(address, "GET /stop HTTP/1.1\r\nHost: x\r\n\r\n").starts_with("HTTP/1.1 404"));
        assert!(ask(address, "POST /status HTTP/1.1\r\nHost: x\r\n\r\n").starts_with("HTTP/1.1 405"));
        assert!(ask(address, "\u{1}\u{2}\r\n\r\n").starts_with("HTTP/1.1 400"));
    }
}
