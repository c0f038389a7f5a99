//! The status over HTTP, read-only: `/metrics`, `/healthz` and `/status`.
//!
//! One thread serves all connections, so that no client delays another. A connection is for one request. Answers take no
//! time to compute, so every open connection waits for its client: the oldest has waited longest, and is closed first.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::ready;
use std::io::{self, ErrorKind};
use std::net::{self, SocketAddr};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use crate::status::SharedStatus;

/// How many connections may be open. A further one closes the oldest.
const MAX_CONNECTIONS: usize = 128;

/// The longest request, in bytes.
const REQUEST_LIMIT: usize = 8 * 1024;

/// How long a request may take to arrive.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a connection may last: the request arrives, and its answer is read.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);

/// How long the server waits after a connection could not be accepted, for example because no file handle is free.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How long answers may take to be sent after the end of the run.
const END_TIMEOUT: Duration = Duration::from_secs(1);

/// Serves the status of a run until it is dropped.
#[derive(Debug)]
pub struct StatusServer {
    address: SocketAddr,
    /// Dropped to end the thread.
    running: Option<oneshot::Sender<Infallible>>,
    thread: Option<JoinHandle<()>>,
}

impl StatusServer {
    /// Serves the status at a bound address. `warn` is called, once, when connections can't be accepted.
    ///
    /// # Errors
    /// If the address has none, or the thread can't be started.
    pub fn start(
        listener: net::TcpListener,
        status: SharedStatus,
        warn: impl FnOnce(String) + Send + 'static,
    ) -> io::Result<Self> {
        let address = listener.local_addr()?;
        listener.set_nonblocking(true)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let listener = {
            let _context = runtime.enter();
            TcpListener::from_std(listener)?
        };
        let (running, ended) = oneshot::channel();
        let serve = move || runtime.block_on(serve(listener, status, warn, ended));
        let thread = thread::Builder::new().name("http".into()).spawn(serve)?;
        Ok(StatusServer { address, running: Some(running), thread: Some(thread) })
    }

    /// The address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for StatusServer {
    fn drop(&mut self) {
        self.running = None;
        if let Some(thread) = self.thread.take() {
            // If it panicked, there is nothing left to end.
            let _ = thread.join();
        }
    }
}

async fn serve(
    listener: TcpListener,
    status: SharedStatus,
    warn: impl FnOnce(String),
    mut ended: oneshot::Receiver<Infallible>,
) {
    let mut http = http1::Builder::new();
    http.keep_alive(false).max_buf_size(REQUEST_LIMIT).timer(TokioTimer::new()).header_read_timeout(REQUEST_TIMEOUT);
    let shutdown = GracefulShutdown::new();
    let mut connections: VecDeque<AbortHandle> = VecDeque::new();
    let mut warn = Some(warn);
    loop {
        let accepted = tokio::select! {
            _ = &mut ended => break,
            accepted = listener.accept() => accepted,
        };
        connections.retain(|connection| !connection.is_finished());
        match accepted {
            Ok((stream, _)) => {
                if connections.len() == MAX_CONNECTIONS {
                    close_oldest(&mut connections);
                }
                let status = status.clone();
                let service = service_fn(move |request| ready(Ok::<_, Infallible>(respond(&request, &status))));
                let connection = shutdown.watch(http.serve_connection(TokioIo::new(stream), service));
                // A client that disconnects or is too slow gets no answer.
                let connection = async { _ = timeout(CONNECTION_TIMEOUT, connection).await };
                connections.push_back(tokio::spawn(connection).abort_handle());
            }
            // The client is gone already.
            Err(error) if matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset) => {}
            Err(error) => {
                if let Some(warn) = warn.take() {
                    warn(format!("HTTP connections can't be accepted: {error}; trying again until it works"));
                }
                close_oldest(&mut connections);
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    // What is still open then is closed.
    let _ = timeout(END_TIMEOUT, shutdown.shutdown()).await;
}

fn close_oldest(connections: &mut VecDeque<AbortHandle>) {
    if let Some(oldest) = connections.pop_front() {
        oldest.abort();
    }
}

fn respond(request: &Request<Incoming>, status: &SharedStatus) -> Response<Full<Bytes>> {
    const TEXT: &str = "text/plain";
    const JSON: &str = "application/json";
    let (code, kind, body) = if request.method() == Method::GET {
        let (status, now) = (status.lock(), Instant::now());
        match request.uri().path() {
            "/metrics" => (StatusCode::OK, "text/plain; version=0.0.4", status.metrics(now)),
            "/healthz" => {
                let health = status.health(now);
                match health.reason {
                    None => (StatusCode::OK, TEXT, format!("{}\n", health.state)),
                    Some(_) => (StatusCode::SERVICE_UNAVAILABLE, JSON, json(&health)),
                }
            }
            "/status" => (StatusCode::OK, JSON, json(&status.full(now))),
            _ => (StatusCode::NOT_FOUND, TEXT, "not found; try /metrics, /healthz or /status\n".into()),
        }
    } else {
        (StatusCode::METHOD_NOT_ALLOWED, TEXT, "only GET is supported\n".into())
    };
    let mut response = Response::new(Full::from(body));
    *response.status_mut() = code;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default() + "\n"
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;

    use paceline_core::{Event, Reason, Time, WorkerId};

    use super::*;
    use crate::{Monitor, Notice};

    fn start(status: SharedStatus) -> StatusServer {
        let listener = net::TcpListener::bind("127.0.0.1:0").unwrap();
        StatusServer::start(listener, status, |warning| panic!("{warning}")).unwrap()
    }

    fn connect(server: &StatusServer, request: &str) -> TcpStream {
        let mut stream = TcpStream::connect(server.address()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        stream
    }

    fn ask(server: &StatusServer, request: &str) -> String {
        let mut text = String::new();
        connect(server, request).read_to_string(&mut text).unwrap();
        text
    }

    /// Whether the server has closed the connection without a word.
    fn is_closed(mut stream: &TcpStream) -> bool {
        stream.set_nonblocking(true).unwrap();
        match stream.read(&mut [0]) {
            Ok(count) => count == 0,
            Err(error) => error.kind() == ErrorKind::ConnectionReset,
        }
    }

    #[test]
    fn the_status_can_be_read_and_not_changed() {
        let status = SharedStatus::default();
        status.lock().version = 7;
        status.lock().workers.insert(0, "here".into());
        let server = start(status);
        let metrics = ask(&server, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(metrics.starts_with("HTTP/1.1 200 OK\r\n") && metrics.contains("\npaceline_version 7\n"), "{metrics}");
        assert!(ask(&server, "GET /healthz HTTP/1.0\r\n\r\n").ends_with("\r\n\r\nwaiting for workers\n"));
        let answer = ask(&server, "GET /status?pretty HTTP/1.1\r\nHost: x\r\n\r\n");
        let json: serde_json::Value = serde_json::from_str(answer.split("\r\n\r\n").nth(1).unwrap()).unwrap();
        assert_eq!((json["version"].as_u64(), json["workers"]["0"].as_str()), (Some(7), Some("here")));
        assert!(ask(&server, "GET /stop HTTP/1.1\r\nHost: x\r\n\r\n").starts_with("HTTP/1.1 404"));
        assert!(ask(&server, "POST /status HTTP/1.1\r\nHost: x\r\n\r\n").starts_with("HTTP/1.1 405"));
        assert!(ask(&server, "\u{1}\u{2}\r\n\r\n").starts_with("HTTP/1.1 400"));
    }

    #[test]
    fn a_model_that_stands_still_is_reported_with_the_reason() {
        let (status, worker) = (SharedStatus::default(), WorkerId(0));
        let began = Instant::now().checked_sub(Duration::from_secs(100)).unwrap();
        let joined = Notice::Joined { worker, peer: "here".into(), emulated: None };
        status.lock().on_notice(began, &joined);
        status.lock().on_turn(began, Time::START, &Event::Joined { worker }, &[]);
        let mut monitor = Monitor::default();
        let iteration = monitor.stepped(Time::START, 1, None, Reason::Free);
        status.lock().on_iteration(began + Duration::from_secs(1), &iteration, &monitor);
        let server = start(status.clone());
        let answer = ask(&server, "GET /healthz HTTP/1.1\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("application/json"), "{answer}");
        assert!(answer.contains(r#"{"state":"no progress","reason":"no iteration was completed for "#), "{answer}");
        status.lock().on_iteration(Instant::now(), &iteration, &monitor);
        assert!(ask(&server, "GET /healthz HTTP/1.1\r\n\r\n").ends_with("\r\n\r\nrunning\n"));
    }

    #[test]
    fn silent_half_open_and_slow_clients_delay_nobody_and_the_oldest_are_closed() {
        let status = SharedStatus::default();
        // An answer that no socket buffer holds.
        status.lock().scheme = "x".repeat(16 << 20);
        let server = start(status);
        let silent: Vec<TcpStream> = (0..200).map(|_| connect(&server, "")).collect();
        let waiting: Vec<TcpStream> =
            ["GET /metr", "GET /status HTTP/1.1\r\n\r\n"].map(|part| connect(&server, part)).into();
        assert!(ask(&server, "GET /healthz HTTP/1.1\r\n\r\n").ends_with("waiting for workers\n"));
        let oldest = &silent[..silent.len() - MAX_CONNECTIONS];
        assert!(oldest.iter().all(is_closed));
        // The end of the run does not wait for them.
        drop(server);
        assert!(silent.iter().chain(&waiting[..1]).all(is_closed));
    }
}
