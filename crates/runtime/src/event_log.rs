//! The event log: every event of a run and every decision of its scheme, one JSON object per line.
//!
//! The first line is the [`EventLogHeader`]. Every other line holds a time in nanoseconds, an event and the decisions that
//! followed. The same events must give the same decisions again: [`replay`] checks that.

use std::collections::BTreeSet;
use std::io::{self, BufRead, BufReader, Read, Write};

use paceline_core::{
    Decision, Dispatch, Event, Ledger, LedgerError, RateRule, SchemeError, SchemeSpec, Setup, Time, WorkerId,
};
use paceline_spec::LineLimit;
use paceline_store::TensorFileError;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::monitor::{Monitor, Observer};
use crate::pretrained::load_pretrained;

/// The format that is written, and the only one that is read.
const FORMAT: u32 = 3;

/// What the header of every format has.
#[derive(Deserialize)]
struct HeaderFormat {
    format: u32,
}

/// The first line: what is needed to build the recorded scheme again.
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
}

impl EventLogHeader {
    /// The header of a run of `scheme` with `setup`.
    pub fn new(scheme: SchemeSpec, setup: &Setup) -> Self {
        let Setup { workers, batch, dispatch, rate_rule } = *setup;
        EventLogHeader { format: FORMAT, scheme, workers, batch, dispatch, rate_rule }
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
        serde_json::to_writer(&mut out, header)?;
        out.write_all(b"\n")?;
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
    /// The log is too short.
    #[error("the event log has {found} events; expected at least {expected}")]
    CutShort {
        /// How many there are.
        found: u64,
        /// How many there should be at least.
        expected: u64,
    },
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
    /// How many events were replayed.
    pub events: u64,
    /// How many decisions were compared.
    pub decisions: u64,
    /// Whether the last line is incomplete and was left out, as in the log of a run that was killed.
    pub cut_short: bool,
}

/// An event with its decisions, and the number of its line.
type RecordedTurn = (usize, EventLine<Event, Vec<Decision>>);

/// The events of a log, one after another.
struct TurnReader<S> {
    stream: BufReader<LineLimit<S>>,
    /// The number of the last line read; counts from 1.
    line: usize,
    /// Whether the last line is incomplete, as in the log of a run that was killed.
    cut_short: bool,
}

impl<S: Read> TurnReader<S> {
    /// Reads the header.
    fn open(stream: S) -> Result<(EventLogHeader, Self), ReplayError> {
        let mut turns = TurnReader { stream: BufReader::new(LineLimit::new(stream)), line: 0, cut_short: false };
        let text = turns.text()?;
        if text.is_empty() {
            return Err(ReplayError::Empty);
        }
        let malformed = |error| ReplayError::Malformed { line: 1, error };
        let HeaderFormat { format } = serde_json::from_slice(&text).map_err(malformed)?;
        if format != FORMAT {
            return Err(ReplayError::OtherFormat { found: format });
        }
        let header = serde_json::from_slice(&text).map_err(malformed)?;
        Ok((header, turns))
    }

    /// The next line with its line break; empty at the end.
    fn text(&mut self) -> Result<Vec<u8>, ReplayError> {
        self.line += 1;
        let mut text = Vec::new();
        self.stream.read_until(b'\n', &mut text)?;
        Ok(text)
    }

    fn turn(&mut self) -> Result<Option<RecordedTurn>, ReplayError> {
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

impl<S: Read> Iterator for TurnReader<S> {
    type Item = Result<RecordedTurn, ReplayError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.turn().transpose()
    }
}

/// Shows the events of a log to an observer. An incomplete last line is left out.
///
/// # Errors
/// At the first line that can't be read.
pub fn read_events(stream: impl Read, observer: &mut dyn Observer) -> Result<EventLogHeader, ReplayError> {
    let (header, turns) = TurnReader::open(stream)?;
    for turn in turns {
        let (_, EventLine { time, event, decisions }) = turn?;
        observer.on_turn(time, &event, &decisions);
    }
    Ok(header)
}

/// Feeds the events of a log to its scheme and compares every decision. An incomplete last line is left out.
///
/// # Errors
/// At the first line that can't be read or decision that differs.
pub fn replay(stream: impl Read) -> Result<Replayed, ReplayError> {
    let ReplayState { header, events, decisions, cut_short, .. } = ReplayState::replay(stream, None)?;
    Ok(Replayed { scheme: header.scheme.to_string(), events, decisions, cut_short })
}

/// The state to which the first events of a log led. A run can resume from it.
pub struct ReplayState {
    /// The header of the log.
    pub header: EventLogHeader,
    /// The ledger with its scheme.
    pub ledger: Ledger,
    /// The run's metrics.
    pub monitor: Monitor,
    /// The time of the last event.
    pub now: Time,
    /// The workers that were members then.
    pub workers: BTreeSet<WorkerId>,
    events: u64,
    decisions: u64,
    cut_short: bool,
}

impl ReplayState {
    /// Feeds the first `events` events of a log to its scheme, and compares every decision.
    ///
    /// # Errors
    /// At the first line that can't be read or decision that differs, and if there are fewer events.
    pub fn read(stream: impl Read, events: u64) -> Result<ReplayState, ReplayError> {
        let state = ReplayState::replay(stream, Some(events))?;
        if state.events < events {
            return Err(ReplayError::CutShort { found: state.events, expected: events });
        }
        Ok(state)
    }

    fn replay(stream: impl Read, limit: Option<u64>) -> Result<ReplayState, ReplayError> {
        let (header, mut turns) = TurnReader::open(stream)?;
        let ledger = Ledger::new(load_pretrained(header.scheme.clone())?.build(&header.setup())?);
        let (monitor, workers) = (Monitor::default(), BTreeSet::new());
        let mut state = ReplayState {
            header,
            ledger,
            monitor,
            now: Time::START,
            workers,
            events: 0,
            decisions: 0,
            cut_short: false,
        };
        for turn in turns.by_ref().take(limit.map_or(usize::MAX, |limit| limit as usize)) {
            let (line, EventLine { time, event, decisions }) = turn?;
            let decided =
                state.ledger.handle(time, event.clone()).map_err(|error| ReplayError::Ledger { line, error })?;
            if let Some(position) = first_difference(&decisions, decided) {
                let at = |list: &[Decision]| list.get(position).cloned().map(Box::new);
                let (recorded, decided) = (at(&decisions), at(decided));
                return Err(ReplayError::Differs { line, now: time, position, recorded, decided });
            }
            state.monitor.observe(time, &event, decided);
            state.events += 1;
            state.decisions += decided.len() as u64;
            state.now = time;
            match event {
                Event::Joined { worker } => _ = state.workers.insert(worker),
                Event::Left { worker } => _ = state.workers.remove(&worker),
                _ => {}
            }
        }
        state.cut_short = turns.cut_short;
        Ok(state)
    }
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
        let state = ReplayState::read(stream.as_bytes(), 2).unwrap();
        assert_eq!((state.workers.len(), state.ledger.live(), state.now), (2, 2, Time(9)));
        let state = ReplayState::read(stream.as_bytes(), 5).unwrap();
        assert_eq!((state.ledger.samples().used, state.ledger.samples().dropped), (0, 4), "the update was broken");
        let short = ReplayState::read(stream.as_bytes(), 6).err().map(|error| error.to_string());
        assert_eq!(short.as_deref(), Some("the event log has 5 events; expected at least 6"));
        let twice: Vec<&str> = stream.lines().take(2).chain(stream.lines().nth(1)).collect();
        assert!(replay(twice.join("\n").as_bytes()).unwrap_err().to_string().contains("line 3: event refused"));
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
