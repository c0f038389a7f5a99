//! The event stream: everything that happened to a scheme and everything it decided, one JSON object a line.
//!
//! The first line is the [`EventLogHeader`]; every other holds a time in nanoseconds, an event and the decisions it led to.
//! Feeding the events to the same scheme again must give the same decisions: [`replay`] checks that.

use std::collections::BTreeSet;
use std::io::{self, BufRead, Write};

use paceline_core::{Decision, Dispatch, Event, Ledger, LedgerError, SchemeSpec, Setup, SpecError, Time, WorkerId};
use paceline_store::TensorFileError;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::monitor::{Monitor, Observer};
use crate::pretrained::load_pretrained;

/// The format written, and the only one read.
const FORMAT: u32 = 1;

/// What is needed to build the recorded scheme again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventLogHeader {
    /// The number of the format.
    format: u32,
    /// The scheme.
    pub scheme: SchemeSpec,
    /// How many workers the run started with.
    pub workers: usize,
    /// Samples per worker and iteration.
    pub batch: u32,
    /// How work is handed out, if the user chose.
    pub dispatch: Option<Dispatch>,
}

impl EventLogHeader {
    /// The header of a run of `scheme` with `setup`.
    pub fn new(scheme: SchemeSpec, setup: &Setup) -> Self {
        EventLogHeader { format: FORMAT, scheme, workers: setup.workers, batch: setup.batch, dispatch: setup.dispatch }
    }

    fn setup(&self) -> Setup {
        Setup { workers: self.workers, batch: self.batch, dispatch: self.dispatch }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line<E, D> {
    time: Time,
    event: E,
    decisions: D,
}

/// Writes an event stream while a run goes on.
pub struct EventLog<W: Write> {
    out: W,
    failed: Option<io::Error>,
}

impl<W: Write> EventLog<W> {
    /// Begins a stream.
    ///
    /// # Errors
    /// If the header can't be written.
    pub fn new(mut out: W, header: &EventLogHeader) -> io::Result<Self> {
        serde_json::to_writer(&mut out, header)?;
        out.write_all(b"\n")?;
        Ok(EventLog { out, failed: None })
    }

    /// Goes on with a stream that `out` already holds the beginning of.
    pub fn resumed(out: W) -> Self {
        EventLog { out, failed: None }
    }

    /// Sees to it that all of the stream so far is written.
    ///
    /// # Errors
    /// If it can't be, or could not be before.
    pub fn flush(&mut self) -> io::Result<()> {
        match &self.failed {
            Some(error) => Err(io::Error::new(error.kind(), error.to_string())),
            None => self.out.flush(),
        }
    }

    /// Ends the stream.
    ///
    /// # Errors
    /// The first error in writing it; nothing was written after that.
    pub fn finish(mut self) -> io::Result<()> {
        match self.failed.take() {
            Some(error) => Err(error),
            None => self.out.flush(),
        }
    }
}

impl<W: Write> Observer for EventLog<W> {
    fn on_turn(&mut self, now: Time, event: &Event, decisions: &[Decision]) {
        if self.failed.is_none() {
            let line = Line { time: now, event, decisions };
            let written = serde_json::to_writer(&mut self.out, &line).map_err(io::Error::from);
            self.failed = written.and_then(|()| self.out.write_all(b"\n")).err();
        }
    }
}

/// How a replay went wrong.
#[derive(Debug, Error)]
pub enum ReplayError {
    /// The stream can't be read.
    #[error("line {line}: {error}")]
    Unreadable {
        /// Counts from 1.
        line: usize,
        /// What is wrong.
        error: io::Error,
    },
    /// A line is not what this version writes.
    #[error("line {line} is no line of an event stream: {error}")]
    Malformed {
        /// Counts from 1.
        line: usize,
        /// What is wrong.
        error: serde_json::Error,
    },
    /// There is no header.
    #[error("the event stream is empty")]
    Empty,
    /// The stream ends before it should.
    #[error("the event stream has only {found} events of {expected}")]
    CutShort {
        /// How many there are.
        found: u64,
        /// How many there should be at least.
        expected: u64,
    },
    /// The stream was written by another version.
    #[error("the event stream is of format {found}; this version reads format {FORMAT}")]
    OtherFormat {
        /// Its format.
        found: u32,
    },
    /// The recorded scheme can't be built.
    #[error("line 1: {0}")]
    Scheme(#[from] SpecError),
    /// What the scheme starts from can't be read.
    #[error("line 1: {0}")]
    Pretrained(#[from] TensorFileError),
    /// The ledger does not accept a recorded event.
    #[error("line {line}: {error}")]
    Ledger {
        /// Counts from 1.
        line: usize,
        /// What is wrong.
        error: LedgerError,
    },
    /// The scheme decides otherwise now.
    #[error("line {line}, {now}: decision {} differs\n  recorded: {}\n  now:      {}", position + 1, in_words(recorded), in_words(decided))]
    Differs {
        /// Counts from 1.
        line: usize,
        /// The event's time.
        now: Time,
        /// Which of the event's decisions, from 0.
        position: usize,
        /// What was recorded, if so many were.
        recorded: Option<Box<Decision>>,
        /// What is decided now, if so many are.
        decided: Option<Box<Decision>>,
    },
}

fn in_words(decision: &Option<Box<Decision>>) -> String {
    decision.as_ref().map_or("nothing".into(), |decision| format!("{:?} ({})", decision.action, decision.reason))
}

/// A replay that went well.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Replayed {
    /// The scheme.
    pub scheme: String,
    /// How many events were fed.
    pub events: u64,
    /// How many decisions were compared.
    pub decisions: u64,
    /// Whether the last line was cut short and left out, as in the stream of a run that was killed.
    pub cut_short: bool,
}

/// A turn with the number of its line.
type Turn = (usize, Line<Event, Vec<Decision>>);

/// A stream's turns, one after another.
struct Turns<S> {
    stream: S,
    /// The line read last; counts from 1.
    line: usize,
    /// Whether the last line was cut short, as that of a run that was killed.
    cut_short: bool,
}

impl<S: BufRead> Turns<S> {
    /// A stream's header, before its turns.
    fn begin(stream: S) -> Result<(EventLogHeader, Self), ReplayError> {
        let mut turns = Turns { stream, line: 0, cut_short: false };
        let text = turns.text()?;
        if text.is_empty() {
            return Err(ReplayError::Empty);
        }
        let header: EventLogHeader =
            serde_json::from_slice(&text).map_err(|error| ReplayError::Malformed { line: 1, error })?;
        if header.format != FORMAT {
            return Err(ReplayError::OtherFormat { found: header.format });
        }
        Ok((header, turns))
    }

    /// The next line, with its end; empty if there is none.
    fn text(&mut self) -> Result<Vec<u8>, ReplayError> {
        self.line += 1;
        let mut text = Vec::new();
        let read = self.stream.read_until(b'\n', &mut text);
        read.map_err(|error| ReplayError::Unreadable { line: self.line, error })?;
        Ok(text)
    }

    fn turn(&mut self) -> Result<Option<Turn>, ReplayError> {
        let text = self.text()?;
        match serde_json::from_slice(&text) {
            _ if text.is_empty() => Ok(None),
            Ok(turn) => Ok(Some((self.line, turn))),
            Err(_) if !text.ends_with(b"\n") => {
                self.cut_short = true;
                Ok(None)
            }
            Err(error) => Err(ReplayError::Malformed { line: self.line, error }),
        }
    }
}

impl<S: BufRead> Iterator for Turns<S> {
    type Item = Result<Turn, ReplayError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.turn().transpose()
    }
}

/// Shows a recorded stream's turns to an observer, as they were. A last line that was cut short is left out.
///
/// # Errors
/// At the first line that can't be read.
pub fn read_events(stream: impl BufRead, observer: &mut dyn Observer) -> Result<EventLogHeader, ReplayError> {
    let (header, turns) = Turns::begin(stream)?;
    for turn in turns {
        let (_, Line { time, event, decisions }) = turn?;
        observer.on_turn(time, &event, &decisions);
    }
    Ok(header)
}

/// Feeds a recorded stream to its scheme and compares every decision. A last line that was cut short is left out.
///
/// # Errors
/// At the first line that can't be read or decision that differs.
pub fn replay(stream: impl BufRead) -> Result<Replayed, ReplayError> {
    let ReplayState { header, events, decisions, cut_short, .. } = ReplayState::live(stream, None)?;
    Ok(Replayed { scheme: header.scheme.to_string(), events, decisions, cut_short })
}

/// The beginning of a run, lived through again: the state it led to, from which the run can go on.
pub struct ReplayState {
    /// What it was a run of.
    pub header: EventLogHeader,
    /// The ledger with its scheme.
    pub ledger: Ledger,
    /// The run's metrics.
    pub monitor: Monitor,
    /// When the last event was.
    pub now: Time,
    /// Who took part then.
    pub workers: BTreeSet<WorkerId>,
    events: u64,
    decisions: u64,
    cut_short: bool,
}

impl ReplayState {
    /// Feeds the first `events` events of a recorded stream to its scheme, and compares every decision.
    ///
    /// # Errors
    /// At the first line that can't be read or decision that differs, and if there are fewer events.
    pub fn read(stream: impl BufRead, events: u64) -> Result<ReplayState, ReplayError> {
        let past = ReplayState::live(stream, Some(events))?;
        if past.events < events {
            return Err(ReplayError::CutShort { found: past.events, expected: events });
        }
        Ok(past)
    }

    fn live(stream: impl BufRead, most: Option<u64>) -> Result<ReplayState, ReplayError> {
        let (header, mut turns) = Turns::begin(stream)?;
        let ledger = Ledger::new(load_pretrained(header.scheme.clone())?.build(&header.setup())?);
        let (monitor, workers) = (Monitor::default(), BTreeSet::new());
        let mut past = ReplayState {
            header,
            ledger,
            monitor,
            now: Time::START,
            workers,
            events: 0,
            decisions: 0,
            cut_short: false,
        };
        for turn in turns.by_ref().take(most.map_or(usize::MAX, |most| most as usize)) {
            let (line, Line { time, event, decisions }) = turn?;
            let decided = past.ledger.handle(time, event).map_err(|error| ReplayError::Ledger { line, error })?;
            if let Some(position) = first_difference(&decisions, decided) {
                let at = |list: &[Decision]| list.get(position).cloned().map(Box::new);
                let (recorded, decided) = (at(&decisions), at(decided));
                return Err(ReplayError::Differs { line, now: time, position, recorded, decided });
            }
            past.monitor.observe(time, &event, decided);
            past.events += 1;
            past.decisions += decided.len() as u64;
            past.now = time;
            match event {
                Event::Joined { worker } => _ = past.workers.insert(worker),
                Event::Left { worker } => _ = past.workers.remove(&worker),
                _ => {}
            }
        }
        past.cut_short = turns.cut_short;
        Ok(past)
    }
}

fn first_difference(recorded: &[Decision], decided: &[Decision]) -> Option<usize> {
    let longest = recorded.len().max(decided.len());
    (0..longest).find(|&position| recorded.get(position) != decided.get(position))
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_core::{Aggregate, Report, Span, TaskId, Version, WorkerId};

    fn recorded() -> String {
        let scheme: SchemeSpec = "backup:k=1".parse().unwrap();
        let setup = Setup { workers: 2, batch: 4, dispatch: None };
        let mut ledger = Ledger::new(scheme.build(&setup).unwrap());
        let mut bytes = Vec::new();
        let mut log = EventLog::new(&mut bytes, &EventLogHeader::new(scheme, &setup)).unwrap();
        let report = Event::Reported {
            task: TaskId { worker: WorkerId(1), number: 0 },
            report: Report { compute: Span(7), cpu: Some(0.25), ..Report::default() },
        };
        // A model that has diverged.
        let aggregate =
            Aggregate { loss: f64::NAN, rate: 1.0, sum_of_squares: f64::INFINITY, square_of_sum: f64::NEG_INFINITY };
        let committed = Event::Committed { version: Version(1), aggregate: Some(aggregate) };
        for event in [Event::Joined { worker: WorkerId(0) }, Event::Joined { worker: WorkerId(1) }, report, committed] {
            let decisions = ledger.handle(Time(9), event).unwrap();
            log.on_turn(Time(9), &event, decisions);
        }
        log.finish().unwrap();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn a_recorded_stream_replays() {
        let replayed = replay(recorded().as_bytes()).unwrap();
        // Two first assignments; then the commit and both workers' next work.
        assert_eq!((replayed.events, replayed.decisions), (4, 5));
        let mut again = Vec::new();
        let header =
            EventLogHeader::new("backup:k=1".parse().unwrap(), &Setup { workers: 2, batch: 4, dispatch: None });
        let mut log = EventLog::new(&mut again, &header).unwrap();
        assert_eq!(read_events(recorded().as_bytes(), &mut log).unwrap(), header);
        log.finish().unwrap();
        assert_eq!(String::from_utf8(again).unwrap(), recorded());
    }

    #[test]
    fn what_differs_is_told_loudly() {
        let stream = recorded();
        let tampered = stream.replace("\"samples\":4,\"offset\":4", "\"samples\":3,\"offset\":4");
        let error = replay(tampered.as_bytes()).unwrap_err().to_string();
        assert!(error.starts_with("line 4, 0.000 s: decision 2 differs"), "{error}");
        let bad = stream.lines().take(3).chain(["{", ""]).collect::<Vec<_>>().join("\n");
        assert!(replay(bad.as_bytes()).unwrap_err().to_string().starts_with("line 4 is no line of an event stream"));
        let other = stream.replacen("\"format\":1", "\"format\":9", 1);
        assert!(replay(other.as_bytes()).unwrap_err().to_string().contains("format 9"));
        assert!(matches!(replay(&b""[..]), Err(ReplayError::Empty)));
        let past = ReplayState::read(stream.as_bytes(), 2).unwrap();
        assert_eq!((past.workers.len(), past.ledger.live(), past.now), (2, 2, Time(9)));
        let short = ReplayState::read(stream.as_bytes(), 5).err().map(|error| error.to_string());
        assert_eq!(short.as_deref(), Some("the event stream has only 4 events of 5"));
        let twice: Vec<&str> = stream.lines().take(2).chain(stream.lines().nth(1)).collect();
        assert!(replay(twice.join("\n").as_bytes()).unwrap_err().to_string().contains("line 3: event refused"));
    }

    #[test]
    fn a_last_line_that_was_cut_short_is_left_out() {
        let stream = recorded();
        let replayed = replay(&stream.as_bytes()[..stream.len() - 9]).unwrap();
        assert_eq!((replayed.events, replayed.cut_short), (3, true));
        // Only its end of line is missing.
        assert!(!replay(stream.trim_end().as_bytes()).unwrap().cut_short);
        let cut = stream.lines().next().unwrap();
        assert!(matches!(replay(&cut.as_bytes()[..9]), Err(ReplayError::Malformed { line: 1, .. })));
    }
}
