//! A run over HTTP, read-only: `/metrics`, `/healthz` and `/status`; and, with a [`LivePage`], `/`, `/view` and `/events`.
//!
//! One thread serves all connections, so that no client delays another. A connection is for one request. Answers take hardly
//! any time to compute, so every open connection waits for its client: the oldest has waited longest, and is closed first.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::ready;
use std::io::{self, ErrorKind};
use std::net::{self, IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, HeaderName, HeaderValue};
use hyper::header::{REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tokio::time::{interval, sleep, timeout};

use crate::http_stream::{Clients, HttpAnswer, Lifetime, message};
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

/// How often a page takes in what happened …
const FOLD_INTERVAL: Duration = Duration::from_millis(250);

/// … and after how many times its clients are told.
const FOLDS_PER_MESSAGE: u64 = 2;

/// What the browser may do with an answer: run the page's own script, and ask this server.
const POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; img-src data:; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// A page that follows a run.
pub trait LivePage: Send {
    /// The page.
    fn page(&self) -> String;

    /// Takes in what happened. Called several times a second, whether or not somebody looks.
    fn advance(&self);

    /// All of the run so far, as JSON in one line.
    fn whole(&self) -> String;

    /// What changed since the last call, as JSON in one line.
    fn changes(&self) -> String;
}

/// A page with its clients.
struct FollowedPage {
    page: Box<dyn LivePage>,
    clients: Clients,
}

impl FollowedPage {
    /// A stream for a new client. The others are told first, since the changes start anew from here.
    fn follow(&mut self, lifetime: &Arc<Lifetime>) -> HttpAnswer {
        let changes = self.page.changes();
        self.clients.send(&message("change", &changes));
        self.clients.add(message("run", &self.page.whole()), lifetime)
    }

    fn tell(&mut self) {
        if !self.clients.is_empty() {
            let changes = self.page.changes();
            self.clients.send(&message("change", &changes));
        }
    }
}

/// What the answers are made of.
#[derive(Clone)]
struct Served {
    status: SharedStatus,
    page: Option<Arc<Mutex<FollowedPage>>>,
    /// Whether only this machine can connect.
    is_loopback: bool,
}

fn lock(page: &Mutex<FollowedPage>) -> MutexGuard<'_, FollowedPage> {
    page.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Serves the status of a run until it is dropped.
#[derive(Debug)]
pub struct StatusServer {
    address: SocketAddr,
    /// Dropped to end the thread.
    running: Option<oneshot::Sender<Infallible>>,
    thread: Option<JoinHandle<()>>,
}

impl StatusServer {
    /// Serves the status, and a page if there is one, at a bound address. `warn` is called, once, when connections can't be
    /// accepted.
    ///
    /// # Errors
    /// If the address has none, or the thread can't be started.
    pub fn start(
        listener: net::TcpListener,
        status: SharedStatus,
        page: Option<Box<dyn LivePage>>,
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
        let page = page.map(|page| Arc::new(Mutex::new(FollowedPage { page, clients: Clients::default() })));
        let served = Served { status, page, is_loopback: address.ip().is_loopback() };
        let serve = move || runtime.block_on(serve(listener, served, warn, ended));
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
    served: Served,
    warn: impl FnOnce(String),
    mut ended: oneshot::Receiver<Infallible>,
) {
    let mut http = http1::Builder::new();
    http.keep_alive(false).max_buf_size(REQUEST_LIMIT).timer(TokioTimer::new()).header_read_timeout(REQUEST_TIMEOUT);
    let shutdown = GracefulShutdown::new();
    let mut connections: VecDeque<AbortHandle> = VecDeque::new();
    let mut warn = Some(warn);
    let follow = served.page.clone().map(|page| tokio::spawn(follow(page)).abort_handle());
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
                let (served, lifetime) = (served.clone(), Arc::new(Lifetime::default()));
                let own = lifetime.clone();
                let service = service_fn(move |request| ready(Ok::<_, Infallible>(served.respond(&request, &own))));
                let connection = shutdown.watch(http.serve_connection(TokioIo::new(stream), service));
                // A client that disconnects or is too slow gets no answer.
                let connection = async move {
                    tokio::select! {
                        _ = connection => {}
                        () = lifetime.over(CONNECTION_TIMEOUT) => {}
                    }
                };
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
    if let (Some(page), Some(follow)) = (&served.page, follow) {
        follow.abort();
        let mut page = lock(page);
        page.tell();
        page.clients.close();
    }
    // What is still open then is closed.
    let _ = timeout(END_TIMEOUT, shutdown.shutdown()).await;
}

fn close_oldest(connections: &mut VecDeque<AbortHandle>) {
    if let Some(oldest) = connections.pop_front() {
        oldest.abort();
    }
}

/// Keeps a page up to date, and tells its clients.
async fn follow(page: Arc<Mutex<FollowedPage>>) {
    let mut folds = interval(FOLD_INTERVAL);
    for fold in 1_u64.. {
        folds.tick().await;
        let mut page = lock(&page);
        page.page.advance();
        if fold.is_multiple_of(FOLDS_PER_MESSAGE) {
            page.tell();
        }
    }
}

impl Served {
    fn respond(&self, request: &Request<Incoming>, lifetime: &Arc<Lifetime>) -> Response<HttpAnswer> {
        const TEXT: &str = "text/plain; charset=utf-8";
        const JSON: &str = "application/json";
        let whole = |text: String| HttpAnswer::Whole(Full::from(text));
        let (code, kind, body) = if request.method() != Method::GET {
            (StatusCode::METHOD_NOT_ALLOWED, TEXT, whole("only GET is supported\n".into()))
        } else if self.is_loopback && !names_this_machine(request) {
            (StatusCode::FORBIDDEN, TEXT, whole("ask for localhost or an IP address, not for another name\n".into()))
        } else {
            let (status, now) = (|| self.status.lock(), Instant::now());
            match (request.uri().path(), &self.page) {
                ("/", Some(page)) => (StatusCode::OK, "text/html; charset=utf-8", whole(lock(page).page.page())),
                ("/view", Some(page)) => (StatusCode::OK, JSON, whole(lock(page).page.whole() + "\n")),
                ("/events", Some(page)) => (StatusCode::OK, "text/event-stream", lock(page).follow(lifetime)),
                ("/metrics", _) => (StatusCode::OK, "text/plain; version=0.0.4", whole(status().metrics(now))),
                ("/healthz", _) => {
                    let health = status().health(now);
                    match health.reason {
                        None => (StatusCode::OK, TEXT, whole(format!("{}\n", health.state))),
                        Some(_) => (StatusCode::SERVICE_UNAVAILABLE, JSON, whole(json(&health))),
                    }
                }
                ("/status", _) => (StatusCode::OK, JSON, whole(json(&status().full(now)))),
                _ => {
                    let text = "not found; try /, /metrics, /healthz or /status\n";
                    (StatusCode::NOT_FOUND, TEXT, whole(text.into()))
                }
            }
        };
        let mut response = Response::new(body);
        *response.status_mut() = code;
        let headers: [(HeaderName, &'static str); 6] = [
            (CONTENT_TYPE, kind),
            (CACHE_CONTROL, "no-store"),
            (CONTENT_SECURITY_POLICY, POLICY),
            (REFERRER_POLICY, "no-referrer"),
            (X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        ];
        for (name, value) in headers {
            response.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        response
    }
}

/// Whether a request is for an IP address or `localhost`. A page from elsewhere could lead its own name to this machine, and
/// read what only this machine may.
fn names_this_machine(request: &Request<Incoming>) -> bool {
    let Some(host) = request.headers().get(HOST) else { return true };
    let Ok(host) = host.to_str() else { return false };
    let name = if host.ends_with(']') { host } else { host.rsplit_once(':').map_or(host, |(name, _)| name) };
    let name = name.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
}

fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default() + "\n"
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::TcpStream;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use paceline_core::{Event, Reason, Time, WorkerId};

    use super::*;
    use crate::{Monitor, Notice};

    fn start(status: SharedStatus) -> StatusServer {
        let listener = net::TcpListener::bind("127.0.0.1:0").unwrap();
        StatusServer::start(listener, status, None, |warning| panic!("{warning}")).unwrap()
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
        let metrics = ask(&server, "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert!(metrics.starts_with("HTTP/1.1 200 OK\r\n") && metrics.contains("\npaceline_version 7\n"), "{metrics}");
        assert!(ask(&server, "GET /healthz HTTP/1.0\r\n\r\n").ends_with("\r\n\r\nwaiting for workers\n"));
        let answer = ask(&server, "GET /status?pretty HTTP/1.1\r\nHost: localhost\r\n\r\n");
        let json: serde_json::Value = serde_json::from_str(answer.split("\r\n\r\n").nth(1).unwrap()).unwrap();
        assert_eq!((json["version"].as_u64(), json["workers"]["0"].as_str()), (Some(7), Some("here")));
        assert!(ask(&server, "GET /stop HTTP/1.1\r\nHost: localhost\r\n\r\n").starts_with("HTTP/1.1 404"));
        assert!(ask(&server, "POST /status HTTP/1.1\r\nHost: localhost\r\n\r\n").starts_with("HTTP/1.1 405"));
        assert!(ask(&server, "\u{1}\u{2}\r\n\r\n").starts_with("HTTP/1.1 400"));
    }

    /// A page that counts what is asked of it.
    #[derive(Default)]
    struct CountedPage {
        changes: AtomicUsize,
        /// How long all of the run is, in bytes.
        length: usize,
    }

    impl LivePage for Arc<CountedPage> {
        fn page(&self) -> String {
            "<p>the page</p>".into()
        }
        fn advance(&self) {}
        fn whole(&self) -> String {
            format!("\"{}\"", "x".repeat(self.length))
        }
        fn changes(&self) -> String {
            self.changes.fetch_add(1, Ordering::Relaxed).to_string()
        }
    }

    fn start_page(length: usize) -> (StatusServer, Arc<CountedPage>) {
        let page = Arc::new(CountedPage { length, ..CountedPage::default() });
        let listener = net::TcpListener::bind("127.0.0.1:0").unwrap();
        let boxed: Box<dyn LivePage> = Box::new(page.clone());
        let warn = |warning| panic!("{warning}");
        (StatusServer::start(listener, SharedStatus::default(), Some(boxed), warn).unwrap(), page)
    }

    /// The data of the next server-sent event, with its name.
    fn next_event(stream: &mut BufReader<TcpStream>) -> (String, String) {
        let mut lines = stream.by_ref().lines().map(Result::unwrap);
        let name = lines.find_map(|line| line.strip_prefix("event: ").map(String::from)).unwrap();
        let data = lines.find_map(|line| line.strip_prefix("data: ").map(String::from)).unwrap();
        (name, data)
    }

    #[test]
    fn a_client_gets_all_of_the_run_then_changes_and_nothing_is_written_before() {
        let (server, page) = start_page(3);
        let answer = ask(&server, "GET / HTTP/1.1\r\nHost: 127.0.0.1:80\r\n\r\n");
        assert!(
            answer.contains("content-security-policy: default-src 'none'") && answer.ends_with("<p>the page</p>"),
            "{answer}"
        );
        assert!(ask(&server, "GET /view HTTP/1.1\r\nHost: [::1]\r\n\r\n").ends_with("\"xxx\"\n"));
        thread::sleep(3 * FOLD_INTERVAL);
        assert_eq!(page.changes.load(Ordering::Relaxed), 0, "nobody looks");
        let mut client = BufReader::new(connect(&server, "GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n"));
        assert_eq!(next_event(&mut client), ("run".into(), "\"xxx\"".into()));
        let [first, second] = [(); 2].map(|()| next_event(&mut client));
        assert_eq!((first.0.as_str(), second.0.as_str()), ("change", "change"));
        assert!(first.1 < second.1, "{first:?} {second:?}");
        // The stream ends with the run.
        drop(server);
        client.read_to_string(&mut String::new()).unwrap();
    }

    #[test]
    fn a_page_from_elsewhere_reads_nothing() {
        let (server, _) = start_page(3);
        for host in ["evil.example", "evil.example:7078", "localhost.evil.example", "127.0.0.1.evil.example"] {
            for path in ["/", "/view", "/events", "/status"] {
                let answer = ask(&server, &format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
                assert!(answer.starts_with("HTTP/1.1 403") && !answer.contains("xxx"), "{host}{path}: {answer}");
            }
        }
    }

    #[test]
    fn clients_that_do_not_read_are_forgotten() {
        // No socket buffer holds all of the run, so messages wait.
        let (server, page) = start_page(64 << 20);
        let stuck = connect(&server, "GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n");
        while page.changes.load(Ordering::Relaxed) == 0 {
            thread::sleep(FOLD_INTERVAL);
        }
        let (mut last, mut now) = (0, 1);
        while now > last {
            thread::sleep(4 * FOLD_INTERVAL * FOLDS_PER_MESSAGE as u32);
            (last, now) = (now, page.changes.load(Ordering::Relaxed));
        }
        assert!(now > 3, "it was told at first: {now}");
        assert!(ask(&server, "GET /healthz HTTP/1.1\r\n\r\n").ends_with("waiting for workers\n"));
        drop((server, stuck));
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
