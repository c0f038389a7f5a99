//! The event log: every event of a run and every decision of its scheme, one JSON object per line.
//!
//! The log is a sequence of segments. The first line of a segment is its [`EventLogHeader`], with the state at its start
//! unless that is the start of the run. Every other line holds a time in nanoseconds, an event and the decisions that
//! followed. The same events must give the same decisions again: [`replay`] checks that, from the first segment on that
//! there is.

use std::io::{self, BufRead, BufReader, Read, Write};

use paceline_core::{
    Decision, Dispatch, Event, Ledger, LedgerError, RateRule, RestoreError, SavedLedger, Scheme, SchemeError,
    SchemeSpec, Setup, Time, Version,
};
use paceline_spec::LineLimit;
use paceline_store::TensorFileError;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::monitor::Observer;
use crate::pretrained::load_pretrained;

/// The format that is written, and the only one that is read.
const FORMAT: u32 = 3;

/// What the header of every format has.
#[derive(Deserialize)]
struct HeaderFormat {
    format: u32,
}

/// The number of a run's first segment.
const FIRST_SEGMENT: u64 = 1;

fn first_segment() -> u64 {
    FIRST_SEGMENT
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_first_segment(segment: &u64) -> bool {
    *segment == FIRST_SEGMENT
}

/// The first line of a segment: what is needed to build the recorded scheme again.
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
    /// How work is dispatched, if the user chose.
    pub dispatch: Option<Dispatch>,
    /// How the learning rate of a step depends on its number of gradients.
    pub rate_rule: RateRule,
    /// Whether its time is a simulation's.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub virtual_time: bool,
    /// The number of the segment.
    #[serde(default = "first_segment", skip_serializing_if = "is_first_segment")]
    pub(crate) segment: u64,
    /// The state at the start of the segment; `None` at the start of the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    start: Option<Box<SavedLedger>>,
}

impl EventLogHeader {
    /// The header of a run of `scheme` with `setup`.
    pub fn new(scheme: SchemeSpec, setup: &Setup) -> Self {
        let Setup { workers, batch, dispatch, rate_rule } = *setup;
        let (segment, virtual_time) = (FIRST_SEGMENT, false);
        EventLogHeader {
            format: FORMAT,
            scheme,
            workers,
            batch,
            dispatch,
            rate_rule,
            virtual_time,
            segment,
            start: None,
        }
    }

    /// The header of a simulation.
    pub fn simulated(scheme: SchemeSpec, setup: &Setup) -> Self {
        EventLogHeader { virtual_time: true, ..EventLogHeader::new(scheme, setup) }
    }

    /// The header of another segment of the same run, which starts in this state.
    pub(crate) fn of_segment(&self, segment: u64, start: SavedLedger) -> Self {
        EventLogHeader { segment, start: Some(Box::new(start)), ..self.clone() }
    }

    /// The same for the first segment of the run.
    pub(crate) fn of_run(&self) -> Self {
        EventLogHeader { segment: FIRST_SEGMENT, start: None, ..self.clone() }
    }

    /// The line of the header.
    pub(crate) fn line(&self) -> io::Result<Vec<u8>> {
        let mut line = serde_json::to_vec(self)?;
        line.push(b'\n');
        Ok(line)
    }

    fn build(&self) -> Result<Box<dyn Scheme>, ReplayError> {
        Ok(load_pretrained(self.scheme.clone())?.build(&self.setup())?)
    }

    /// The ledger at the start of the segment.
    fn ledger(&self, line: usize) -> Result<Ledger, ReplayError> {
        match &self.start {
            None => Ok(Ledger::new(self.build()?)),
            Some(start) => Ledger::restore(self.build()?, start.as_ref().clone())
                .map_err(|error| ReplayError::Restore { line, error }),
        }
    }

    fn setup(&self) -> Setup {
        let &EventLogHeader { workers, batch, dispatch, rate_rule, .. } = self;
        Setup { workers, batch, dispatch, rate_rule }
    }
}

/// One event with its decisions.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct EventLine<E, D> {
    time: Time,
    event: E,
    decisions: D,
}

/// Writes an event log during a run.
pub struct EventLog<W: Write> {
    out: W,
    failed: Option<io::Error>,
}

impl<W: Write> EventLog<W> {
    /// Starts a log.
    ///
    /// # Errors
    /// If the header can't be written.
    pub fn new(mut out: W, header: &EventLogHeader) -> io::Result<Self> {
        out.write_all(&header.line()?)?;
        Ok(EventLog { out, failed: None })
    }

    /// Continues a log whose first part `out` already holds.
    pub fn resumed(out: W) -> Self {
        EventLog { out, failed: None }
    }

    /// Writes everything so far.
    ///
    /// # Errors
    /// If that fails, or writing failed before.
    pub fn flush(&mut self) -> io::Result<()> {
        match &self.failed {
            Some(error) => Err(io::Error::new(error.kind(), error.to_string())),
            None => self.out.flush(),
        }
    }

    /// Ends the log.
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
            let line = EventLine { time: now, event, decisions };
            let written = serde_json::to_writer(&mut self.out, &line).map_err(io::Error::from);
            self.failed = written.and_then(|()| self.out.write_all(b"\n")).err();
        }
    }
}

/// Why an event log could not be replayed.
#[derive(Debug, Error)]
pub enum ReplayError {
    /// The log can't be read.
    #[error("{0}")]
    Unreadable(#[from] io::Error),
    /// A line is not in the format.
    #[error("line {line} is not a line of an event log: {error}")]
    Malformed {
        /// Counts from 1.
        line: usize,
        /// What is wrong.
        error: serde_json::Error,
    },
    /// There is no header.
    #[error("the event log is empty")]
    Empty,
    /// The log was written by another version.
    #[error("the event log is of format {found}; this version of paceline reads format {FORMAT}")]
    OtherFormat {
        /// Its format.
        found: u32,
    },
    /// The recorded scheme can't be built.
    #[error("line 1: {0}")]
    Scheme(#[from] SchemeError),
    /// The scheme's pretrained model can't be read.
    #[error("line 1: {0}")]
    Pretrained(#[from] TensorFileError),
    /// The scheme does not read its state at the start of a segment.
    #[error("line {line}: the saved state of the scheme: {error}")]
    Restore {
        /// Counts from 1.
        line: usize,
        /// What is wrong.
        error: RestoreError,
    },
    /// The same decisions lead to another state than the saved one.
    #[error("line {line}: the events before lead to another state than the saved one")]
    OtherState {
        /// Counts from 1.
        line: usize,
    },
    /// The ledger does not accept a recorded event.
    #[error("line {line}: {error}")]
    Ledger {
        /// Counts from 1.
        line: usize,
        /// What is wrong.
        error: LedgerError,
    },
    /// The scheme decides differently now.
    #[error("line {line}, {now}: decision {} differs\n  recorded: {}\n  now:      {}", position + 1, described(recorded), described(decided))]
    Differs {
        /// Counts from 1.
        line: usize,
        /// The event's time.
        now: Time,
        /// Which of the event's decisions, from 0.
        position: usize,
        /// The recorded decision, if there is one at this position.
        recorded: Option<Box<Decision>>,
        /// The present decision, if there is one at this position.
        decided: Option<Box<Decision>>,
    },
}

fn described(decision: &Option<Box<Decision>>) -> String {
    decision.as_ref().map_or("nothing".into(), |decision| format!("{:?} ({})", decision.action, decision.reason))
}

/// A successful replay.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Replayed {
    /// The scheme.
    pub scheme: String,
    /// The version of the model at the first of the events: 0, unless the log begins in the middle of the run.
    pub from_version: Version,
    /// How many events were replayed.
    pub events: u64,
    /// How many decisions were compared.
    pub decisions: u64,
    /// Whether the last line is incomplete and was left out, as in the log of a run that was killed.
    pub cut_short: bool,
}

/// A line of a log.
enum LogLine {
    /// A segment begins.
    Header(Box<EventLogHeader>),
    Turn(EventLine<Event, Vec<Decision>>),
}

/// The lines of a log with their numbers, one after another.
struct LogReader<S> {
    stream: BufReader<LineLimit<S>>,
    /// The number of the last line read; counts from 1.
    line: usize,
    /// Whether the last line is incomplete, as in the log of a run that was killed.
    cut_short: bool,
}

impl<S: Read> LogReader<S> {
    /// Reads the first header.
    fn open(stream: S) -> Result<(EventLogHeader, Self), ReplayError> {
        let mut lines = LogReader { stream: BufReader::new(LineLimit::new(stream)), line: 0, cut_short: false };
        let text = lines.text()?;
        if text.is_empty() {
            return Err(ReplayError::Empty);
        }
        let header = lines.header(&text)?;
        Ok((header, lines))
    }

    /// The next line with its line break; empty at the end.
    fn text(&mut self) -> Result<Vec<u8>, ReplayError> {
        self.line += 1;
        let mut text = Vec::new();
        self.stream.read_until(b'\n', &mut text)?;
        Ok(text)
    }

    fn malformed(&self, error: serde_json::Error) -> ReplayError {
        ReplayError::Malformed { line: self.line, error }
    }

    fn header(&self, text: &[u8]) -> Result<EventLogHeader, ReplayError> {
        let HeaderFormat { format } = serde_json::from_slice(text).map_err(|error| self.malformed(error))?;
        if format != FORMAT {
            return Err(ReplayError::OtherFormat { found: format });
        }
        serde_json::from_slice(text).map_err(|error| self.malformed(error))
    }

    fn log_line(&mut self) -> Result<Option<LogLine>, ReplayError> {
        let text = self.text()?;
        if text.is_empty() {
            return Ok(None);
        }
        if text.starts_with(HEADER_START) {
            return self.header(&text).map(|header| Some(LogLine::Header(Box::new(header))));
        }
        match serde_json::from_slice(&text) {
            Ok(turn) => Ok(Some(LogLine::Turn(turn))),
            Err(_) if !text.ends_with(b"\n") => {
                self.cut_short = true;
                Ok(None)
            }
            Err(error) => Err(self.malformed(error)),
        }
    }
}

/// How the line of a header starts.
const HEADER_START: &[u8] = b"{\"format\":";

impl<S: Read> Iterator for LogReader<S> {
    type Item = Result<LogLine, ReplayError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.log_line().transpose()
    }
}

/// Reads the first header of a log.
///
/// # Errors
/// If there is none.
pub fn read_header(stream: impl Read) -> Result<EventLogHeader, ReplayError> {
    Ok(LogReader::open(stream)?.0)
}

/// Shows the events of a log to an observer. An incomplete last line is left out.
///
/// # Errors
/// At the first line that can't be read.
pub fn read_events(stream: impl Read, observer: &mut dyn Observer) -> Result<EventLogHeader, ReplayError> {
    let (header, lines) = LogReader::open(stream)?;
    for line in lines {
        if let LogLine::Turn(EventLine { time, event, decisions }) = line? {
            observer.on_turn(time, &event, &decisions);
        }
    }
    Ok(header)
}

/// Feeds the events of a log to its scheme and compares every decision, and the saved state at the start of every
/// segment but the first. An incomplete last line is left out.
///
/// # Errors
/// At the first line that can't be read, or decision or state that differs.
pub fn replay(stream: impl Read) -> Result<Replayed, ReplayError> {
    Ok(replay_all(stream)?.0)
}

/// Checks that the events of a log lead to this state.
///
/// # Errors
/// As [`replay`], and if they lead to another state.
pub fn check_state(stream: impl Read, state: &SavedLedger) -> Result<(), ReplayError> {
    let (_, ledger, line) = replay_all(stream)?;
    if is_same(&ledger.save(), state) { Ok(()) } else { Err(ReplayError::OtherState { line }) }
}

/// Replays a log. Returns also the ledger at its end, and the number of lines.
fn replay_all(stream: impl Read) -> Result<(Replayed, Ledger, usize), ReplayError> {
    let (header, mut lines) = LogReader::open(stream)?;
    let mut ledger = header.ledger(lines.line)?;
    let (from_version, mut events, mut compared) = (ledger.version(), 0, 0);
    while let Some(next) = lines.next() {
        let line = lines.line;
        match next? {
            LogLine::Header(header) => match &header.start {
                Some(start) if start.has_scheme() && is_same(start, &ledger.save()) => {}
                // The scheme started afresh.
                Some(start) if !start.has_scheme() => ledger = header.ledger(line)?,
                _ => return Err(ReplayError::OtherState { line }),
            },
            LogLine::Turn(EventLine { time, event, decisions }) => {
                let decided = ledger.handle(time, event).map_err(|error| ReplayError::Ledger { line, error })?;
                if let Some(position) = first_difference(&decisions, decided) {
                    let at = |list: &[Decision]| list.get(position).cloned().map(Box::new);
                    let (recorded, decided) = (at(&decisions), at(decided));
                    return Err(ReplayError::Differs { line, now: time, position, recorded, decided });
                }
                events += 1;
                compared += decided.len() as u64;
            }
        }
    }
    let scheme = header.scheme.to_string();
    let replayed = Replayed { scheme, from_version, events, decisions: compared, cut_short: lines.cut_short };
    Ok((replayed, ledger, lines.line))
}

/// Whether two states are written in the same way. NaN is the same as NaN.
fn is_same(one: &SavedLedger, other: &SavedLedger) -> bool {
    one == other || serde_json::to_string(one).ok() == serde_json::to_string(other).ok()
}

fn first_difference(recorded: &[Decision], decided: &[Decision]) -> Option<usize> {
    let longest = recorded.len().max(decided.len());
    (0..longest).find(|&position| recorded.get(position) != decided.get(position))
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_core::{Aggregate, Report, Span, TaskId, UpdateNorm, Version, WorkerId};

    fn recorded() -> String {
        let scheme: SchemeSpec = "backup:k=1".parse().unwrap();
        let setup = Setup::new(2, 4);
        let mut ledger = Ledger::new(scheme.build(&setup).unwrap());
        let mut bytes = Vec::new();
        let mut log = EventLog::new(&mut bytes, &EventLogHeader::new(scheme, &setup)).unwrap();
        let report = Event::Reported {
            task: TaskId { worker: WorkerId(1), number: 0 },
            report: Report { compute: Span(7), cpu: Some(0.25), ..Report::default() },
        };
        // A model that has diverged.
        let aggregate = Aggregate {
            loss: f64::NAN,
            rate: 1.0,
            scheduled_rate: 1.0,
            mean_square: f64::INFINITY,
            square_of_mean: f64::NEG_INFINITY,
            norms: [UpdateNorm { task: TaskId { worker: WorkerId(1), number: 0 }, square: 2.5 }].into(),
        };
        let committed = Event::Committed { version: Version(1), aggregate: Some(aggregate) };
        let broken = Event::Broken { task: TaskId { worker: WorkerId(1), number: 0 } };
        let [first, second] = [0, 1].map(|worker| Event::Joined { worker: WorkerId(worker) });
        for event in [first, second, report, committed, broken] {
            let decisions = ledger.handle(Time(9), event.clone()).unwrap();
            log.on_turn(Time(9), &event, decisions);
        }
        log.finish().unwrap();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn a_recorded_log_replays() {
        let replayed = replay(recorded().as_bytes()).unwrap();
        // Two first assignments; then the commit and both workers' next work.
        assert_eq!((replayed.events, replayed.decisions), (5, 5));
        let mut again = Vec::new();
        let header = EventLogHeader::new("backup:k=1".parse().unwrap(), &Setup::new(2, 4));
        let mut log = EventLog::new(&mut again, &header).unwrap();
        assert_eq!(read_events(recorded().as_bytes(), &mut log).unwrap(), header);
        log.finish().unwrap();
        assert_eq!(String::from_utf8(again).unwrap(), recorded());
    }

    #[test]
    fn a_difference_is_an_error() {
        let stream = recorded();
        let tampered = stream.replace("\"samples\":4,\"offset\":4", "\"samples\":3,\"offset\":4");
        let error = replay(tampered.as_bytes()).unwrap_err().to_string();
        assert!(error.starts_with("line 4, 0.000 s: decision 2 differs"), "{error}");
        let bad = stream.lines().take(3).chain(["{", ""]).collect::<Vec<_>>().join("\n");
        assert!(replay(bad.as_bytes()).unwrap_err().to_string().starts_with("line 4 is not a line of an event log"));
        let other = stream.replacen("\"format\":3", "\"format\":9", 1);
        assert!(replay(other.as_bytes()).unwrap_err().to_string().contains("format 9"));
        assert!(matches!(replay(&b""[..]), Err(ReplayError::Empty)));
        let (_, ledger, _) = replay_all(stream.as_bytes()).unwrap();
        assert_eq!((ledger.samples().used, ledger.samples().dropped), (0, 4), "the update was broken");
        let twice: Vec<&str> = stream.lines().take(2).chain(stream.lines().nth(1)).collect();
        assert!(replay(twice.join("\n").as_bytes()).unwrap_err().to_string().contains("line 3: event refused"));
    }

    #[test]
    fn segments_replay_together_and_alone() {
        let stream = recorded();
        let lines: Vec<&str> = stream.split_inclusive('\n').collect();
        let header = read_header(stream.as_bytes()).unwrap();
        let first: String = lines[..3].concat();
        let (_, ledger, _) = replay_all(first.as_bytes()).unwrap();
        let second = |start: SavedLedger, rest: &[&str]| {
            let header = header.of_segment(2, start).line().unwrap();
            String::from_utf8(header).unwrap() + &rest.concat()
        };
        let alone = second(ledger.save(), &lines[3..]);
        let replayed = replay(alone.as_bytes()).unwrap();
        assert_eq!((replayed.events, replayed.from_version), (3, Version(0)));
        let replayed = replay((first.clone() + &alone).as_bytes()).unwrap();
        assert_eq!((replayed.events, replayed.decisions), (5, 5));
        let (_, end, _) = replay_all(alone.as_bytes()).unwrap();
        assert!(check_state(stream.as_bytes(), &end.save()).is_ok());
        assert!(check_state(first.as_bytes(), &end.save()).is_err());
        // Another state is an error, unless the scheme started afresh.
        let other = first.clone() + &second(end.save(), &[]);
        assert!(
            replay(other.as_bytes()).unwrap_err().to_string().starts_with("line 4: the events before lead to another")
        );
        let afresh = first + &second(ledger.save().without_scheme(), &[lines[1], lines[2]]);
        let error = replay(afresh.as_bytes()).unwrap_err().to_string();
        assert!(error.starts_with("line 5, 0.000 s: decision 1 differs"), "task numbers go on: {error}");
        let broken = alone.replacen("quorum_size", "another", 1);
        assert!(
            replay(broken.as_bytes()).unwrap_err().to_string().starts_with("line 1: the saved state of the scheme")
        );
    }

    #[test]
    fn an_incomplete_last_line_is_left_out() {
        let stream = recorded();
        let replayed = replay(&stream.as_bytes()[..stream.len() - 9]).unwrap();
        assert_eq!((replayed.events, replayed.cut_short), (4, true));
        // Only its end of line is missing.
        assert!(!replay(stream.trim_end().as_bytes()).unwrap().cut_short);
        let cut = stream.lines().next().unwrap();
        assert!(matches!(replay(&cut.as_bytes()[..9]), Err(ReplayError::Malformed { line: 1, .. })));
    }
}
