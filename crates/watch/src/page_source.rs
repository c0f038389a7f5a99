//! The page of a run's server: all of the run over HTTP, then server-sent events.

use std::io::{self, BufRead, BufReader, ErrorKind, Read};
use std::thread;
use std::time::Duration;

use paceline_report::page::PageRun;
use paceline_report::view::ViewData;
use serde::de::DeserializeOwned;
use ureq::http::Response;
use ureq::{Agent, Body};

use crate::error::WatchError;
use crate::source::RunNews;

/// How long a server may take to answer. It sends changes twice a second, so that one that is silent for longer is gone.
const TIMEOUT: Duration = Duration::from_secs(10);

/// How long to wait before a connection is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// The longest message that is read, in bytes; pages stay under 3 MB.
const LONGEST_MESSAGE: u64 = 64 * 1024 * 1024;

/// The page of a run.
#[derive(Debug, Clone)]
pub struct PageSource {
    /// Without a slash at its end.
    address: String,
}

/// How a stream of events ended.
#[derive(Debug, PartialEq, Eq)]
enum StreamEnd {
    /// The run has ended, or nobody listens any more.
    Over,
    /// The connection was lost, for this reason.
    Lost(String),
}

impl PageSource {
    /// The page at `HOST:PORT` or at an address that begins with `http://` or `https://`.
    pub fn new(text: &str) -> Option<Self> {
        let has_scheme = text.starts_with("http://") || text.starts_with("https://");
        let port = |text: &str| text.rsplit_once(':').filter(|(host, _)| !host.is_empty())?.1.parse::<u16>().ok();
        let address = if has_scheme { text.into() } else { port(text).map(|_| format!("http://{text}"))? };
        Some(PageSource { address: address.trim_end_matches('/').into() })
    }

    fn agent() -> Agent {
        let config = Agent::config_builder()
            .proxy(None)
            .max_redirects(0)
            .http_status_as_error(false)
            .timeout_connect(Some(TIMEOUT))
            .timeout_recv_response(Some(TIMEOUT))
            .timeout_per_read(Some(TIMEOUT));
        config.build().new_agent()
    }

    /// The answer to a request for one of the page's paths.
    fn ask(&self, path: &str, kind: &str) -> Result<Response<Body>, WatchError> {
        let address = format!("{}{path}", self.address);
        let answer = Self::agent().get(&address).call();
        let answer =
            answer.map_err(|error| WatchError::Unreachable { address: self.address.clone(), problem: plain(error) })?;
        let found = answer.headers().get("content-type").and_then(|kind| kind.to_str().ok()).unwrap_or("nothing");
        if answer.status() != 200 || !found.starts_with(kind) {
            let problem =
                if answer.status() == 200 { format!("{found}, not {kind}") } else { answer.status().to_string() };
            return Err(WatchError::NoPage { address, problem });
        }
        Ok(answer)
    }

    /// All of the run as JSON.
    pub(crate) fn json(&self) -> Result<String, WatchError> {
        let mut answer = self.ask("/view", "application/json")?;
        let text = answer.body_mut().with_config().limit(LONGEST_MESSAGE).read_to_string();
        text.map_err(|error| WatchError::Unreachable { address: self.address.clone(), problem: plain(error) })
    }

    pub(crate) fn read(&self) -> Result<PageRun, WatchError> {
        let problem = |error: String| WatchError::NoPage { address: self.address.clone(), problem: error };
        parsed(&self.json()?).map_err(problem)
    }

    /// Sends what is new until the run has ended, or nobody listens. A connection that is lost is tried again.
    pub(crate) fn follow(&self, send: &dyn Fn(RunNews) -> bool) {
        loop {
            let end = match self.ask("/events", "text/event-stream") {
                Ok(answer) => follow_stream(BufReader::new(answer.into_body().into_reader()), send),
                Err(error) => StreamEnd::Lost(error.to_string()),
            };
            let StreamEnd::Lost(problem) = end else { return };
            if !send(RunNews::Lost(problem)) {
                return;
            }
            thread::sleep(RETRY);
        }
    }
}

/// Reads server-sent events. Each has a name and one line of data.
fn follow_stream(mut stream: impl BufRead, send: &dyn Fn(RunNews) -> bool) -> StreamEnd {
    let (mut name, mut line) = (String::new(), Vec::new());
    loop {
        let news = match next_line(&mut stream, &mut line) {
            Err(error) => return StreamEnd::Lost(plain(error.into())),
            Ok(None) => return StreamEnd::Lost("the server closed the connection".into()),
            Ok(Some(text)) => match (text.strip_prefix("event: "), text.strip_prefix("data: "), name.as_str()) {
                (Some(event), ..) => {
                    name = event.into();
                    continue;
                }
                (_, Some(data), "run") => parsed(data).map(|run| (false, RunNews::Run(run))),
                (_, Some(data), "change") => {
                    parsed(data).map(|change: Box<ViewData>| (change.has_ended(), RunNews::Change(change)))
                }
                _ => continue,
            },
        };
        match news {
            Ok((is_last, news)) => {
                if !send(news) || is_last {
                    return StreamEnd::Over;
                }
            }
            Err(problem) => return StreamEnd::Lost(problem),
        }
    }
}

/// The next line without its end; `None` at the end of the stream.
fn next_line<'a>(stream: &mut impl BufRead, line: &'a mut Vec<u8>) -> io::Result<Option<&'a str>> {
    line.clear();
    stream.take(LONGEST_MESSAGE).read_until(b'\n', line)?;
    let Some(text) = line.strip_suffix(b"\n") else {
        return if line.is_empty() { Ok(None) } else { Err(ErrorKind::UnexpectedEof.into()) };
    };
    str::from_utf8(text).map(Some).map_err(io::Error::other)
}

fn parsed<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    serde_json::from_str(text).map_err(|error| format!("it sends what this version can't read: {error}"))
}

/// An error without the name of its kind.
fn plain(error: ureq::Error) -> String {
    match error {
        ureq::Error::Io(error) => error.to_string(),
        error => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Option<String> {
        PageSource::new(text).map(|page| page.address)
    }

    #[test]
    fn addresses_are_those_that_a_run_prints() {
        assert_eq!(address("127.0.0.1:7078"), Some("http://127.0.0.1:7078".into()));
        assert_eq!(address("http://node1:80/"), Some("http://node1:80".into()));
        assert_eq!(address("[::1]:7078"), Some("http://[::1]:7078".into()));
        assert_eq!(address("https://runs.example.org/7"), Some("https://runs.example.org/7".into()));
        for other in ["", "runs/1", "7078", ":7078", "node1:http", "node1:70780"] {
            assert_eq!(address(other), None, "{other}");
        }
    }

    #[test]
    fn a_stream_that_breaks_off_or_is_no_run_is_lost() {
        let end = |text: &str| follow_stream(text.as_bytes(), &|_| true);
        assert_eq!(end(""), StreamEnd::Lost("the server closed the connection".into()));
        assert_eq!(end("event: other\ndata: 1\n\n"), StreamEnd::Lost("the server closed the connection".into()));
        for broken in ["event: run\ndata: {", "event: run\ndata: {}\n\n", "event: change\ndata: []\n\n"] {
            assert!(matches!(end(broken), StreamEnd::Lost(_)), "{broken}");
        }
    }
}
