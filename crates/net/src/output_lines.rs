//! What a process writes, cut into what can be shown at once: lines, and the tracebacks of Python as a whole.

use std::mem::take;
use std::time::{Duration, Instant};

/// A longer line is cut, in bytes.
const MAX_LINE: usize = 64 * 1024;

/// A longer traceback is cut, in bytes.
const MAX_TRACEBACK: usize = 256 * 1024;

/// How often a line that is rewritten with carriage returns is shown.
const REWRITE_INTERVAL: Duration = Duration::from_millis(500);

/// A traceback is complete when nothing follows it for so long.
pub(crate) const TRACEBACK_PAUSE: Duration = Duration::from_millis(200);

/// A traceback is complete so long after its start, whatever follows.
const TRACEBACK_LIMIT: Duration = Duration::from_secs(2);

/// What is shown at once.
#[derive(Debug, PartialEq)]
pub(crate) enum OutputUnit {
    /// One line, without its end.
    Line(String),
    /// The lines of a traceback with those of the errors that it is chained to, and the lines that came right after.
    /// These may be more of the message, or have nothing to do with it.
    Traceback { error: Vec<String>, rest: Vec<String> },
}

/// Cuts one stream of a process. Units come out in the order of the stream.
pub(crate) struct OutputLines {
    /// The line so far.
    line: Vec<u8>,
    /// Whether the last byte was a carriage return.
    is_returned: bool,
    /// What the line was before it was rewritten, unless that has been shown.
    rewritten: Option<Vec<u8>>,
    rewrite_shown: Option<Instant>,
    finds_tracebacks: bool,
    traceback: Option<TracebackLines>,
    units: Vec<OutputUnit>,
}

/// A traceback so far.
struct TracebackLines {
    started: Instant,
    /// When its last line came.
    last: Instant,
    lines: Vec<String>,
    bytes: usize,
    /// How many lines belong to the error for sure.
    sure: usize,
    /// Whether the line with the exception is yet to come.
    in_frames: bool,
}

impl OutputLines {
    /// Python writes tracebacks to standard error only.
    pub(crate) fn new(finds_tracebacks: bool) -> Self {
        OutputLines {
            line: Vec::new(),
            is_returned: false,
            rewritten: None,
            rewrite_shown: None,
            finds_tracebacks,
            traceback: None,
            units: Vec::new(),
        }
    }

    /// Takes what was read, and returns what can be shown.
    pub(crate) fn push(&mut self, bytes: &[u8], now: Instant) -> Vec<OutputUnit> {
        for &byte in bytes {
            if take(&mut self.is_returned) && byte != b'\n' {
                self.rewrite(now);
            }
            match byte {
                b'\n' => self.end_line(now),
                b'\r' => self.is_returned = true,
                _ => {
                    self.line.push(byte);
                    if self.line.len() == MAX_LINE {
                        let rest = self.line.split_off(character_end(&self.line));
                        self.end_line(now);
                        self.line = rest;
                    }
                }
            }
        }
        take(&mut self.units)
    }

    /// Whether a traceback may be incomplete.
    pub(crate) fn is_waiting(&self) -> bool {
        self.traceback.is_some()
    }

    /// What can be shown since nothing more came.
    pub(crate) fn wait(&mut self, now: Instant) -> Vec<OutputUnit> {
        if self.traceback.as_ref().is_some_and(|traceback| now.duration_since(traceback.last) >= TRACEBACK_PAUSE) {
            self.end_traceback();
        }
        take(&mut self.units)
    }

    /// The rest: the stream has ended.
    pub(crate) fn finish(&mut self, now: Instant) -> Vec<OutputUnit> {
        if !self.line.is_empty() || self.rewritten.is_some() {
            self.end_line(now);
        }
        self.end_traceback();
        take(&mut self.units)
    }

    fn rewrite(&mut self, now: Instant) {
        let line = take(&mut self.line);
        if line.trim_ascii().is_empty() {
            return;
        }
        let is_due = self.rewrite_shown.is_none_or(|shown| now.duration_since(shown) >= REWRITE_INTERVAL);
        if is_due {
            self.rewrite_shown = Some(now);
            self.rewritten = None;
            self.on_line(&line, now);
        } else {
            self.rewritten = Some(line);
        }
    }

    fn end_line(&mut self, now: Instant) {
        let (line, rewritten) = (take(&mut self.line), self.rewritten.take());
        let line = if line.is_empty() { rewritten.unwrap_or(line) } else { line };
        self.on_line(&line, now);
    }

    fn on_line(&mut self, line: &[u8], now: Instant) {
        let line = String::from_utf8_lossy(line).into_owned();
        let is_start = self.finds_tracebacks && is_traceback(&line);
        if self.traceback.as_ref().is_some_and(|traceback| traceback.ends_before(is_start, now)) {
            self.end_traceback();
        }
        match &mut self.traceback {
            Some(traceback) => traceback.push(line, is_start, now),
            None if is_start => {
                let (lines, bytes) = (Vec::new(), 0);
                let mut traceback = TracebackLines { started: now, last: now, lines, bytes, sure: 0, in_frames: true };
                traceback.push(line, true, now);
                self.traceback = Some(traceback);
            }
            None => self.units.push(OutputUnit::Line(line)),
        }
    }

    fn end_traceback(&mut self) {
        if let Some(TracebackLines { mut lines, sure, in_frames, .. }) = self.traceback.take() {
            let rest = lines.split_off(if in_frames { lines.len() } else { sure });
            self.units.push(OutputUnit::Traceback { error: lines, rest });
        }
    }
}

impl TracebackLines {
    fn push(&mut self, line: String, is_start: bool, now: Instant) {
        let is_indented = line.starts_with([' ', '\t']);
        self.last = now;
        self.bytes += line.len();
        self.lines.push(line);
        if is_start {
            self.in_frames = true;
        } else if is_indented {
            // Notes and long messages are indented.
            if !self.in_frames && self.sure + 1 == self.lines.len() {
                self.sure += 1;
            }
        } else if self.in_frames {
            self.in_frames = false;
            self.sure = self.lines.len();
        }
    }

    /// Whether the next line is no part of it. A traceback is chained to the last only after a line that says so.
    fn ends_before(&self, is_start: bool, now: Instant) -> bool {
        const CHAINED: [&str; 2] =
            ["During handling of the above exception", "The above exception was the direct cause"];
        let is_chained =
            || self.lines[self.sure..].iter().any(|line| CHAINED.iter().any(|start| line.starts_with(start)));
        self.bytes > MAX_TRACEBACK
            || (!self.in_frames && now.duration_since(self.started) >= TRACEBACK_LIMIT)
            || (is_start && !self.in_frames && !is_chained())
    }
}

/// Whether a line starts a traceback. Those of exception groups are indented with bars.
fn is_traceback(line: &str) -> bool {
    let line = line.trim_start_matches([' ', '|', '+']);
    line.strip_prefix("Exception Group ").unwrap_or(line) == "Traceback (most recent call last):"
}

/// Where the last character of a line that is cut starts, unless it is ASCII: it may be incomplete.
fn character_end(line: &[u8]) -> usize {
    let is_inside = |byte: &&u8| **byte & 0b1100_0000 == 0b1000_0000;
    let inside = line.iter().rev().take(3).take_while(is_inside).count();
    let start = line.len() - inside;
    if line[start - 1] >= 0b1100_0000 { start - 1 } else { line.len() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    const TRACEBACK: &str =
        "Traceback (most recent call last):\n  File \"a.py\", line 1, in <module>\n    f()\n    ~^^\n";

    /// The lines of a text, without times.
    fn lines(text: &[u8]) -> Vec<String> {
        let (mut lines, now) = (OutputLines::new(false), Instant::now());
        let mut units = lines.push(text, now);
        units.extend(lines.finish(now));
        let line = |unit| match unit {
            OutputUnit::Line(line) => line,
            other => panic!("{other:?}"),
        };
        units.into_iter().map(line).collect()
    }

    /// The units of a text on standard error, each with the lines of its traceback and of the rest.
    fn units(text: &str) -> Vec<(usize, usize)> {
        let (mut lines, now) = (OutputLines::new(true), Instant::now());
        let mut units = lines.push(text.as_bytes(), now);
        units.extend(lines.finish(now));
        let count = |unit: &OutputUnit| match unit {
            OutputUnit::Line(_) => (0, 1),
            OutputUnit::Traceback { error, rest } => (error.len(), rest.len()),
        };
        assert_eq!(units.iter().map(count).map(|(error, rest)| error + rest).sum::<usize>(), text.lines().count());
        units.iter().map(count).collect()
    }

    #[test]
    fn lines_are_whole_and_valid() {
        assert_eq!(lines(b"a\r\n\nb\xFFc\nno end"), ["a", "", "b\u{FFFD}c", "no end"]);
        let long = lines("ä".repeat(MAX_LINE).as_bytes());
        assert!(long.len() > 2 && long.iter().all(|piece| piece.len() <= MAX_LINE));
        assert_eq!(long.concat(), "ä".repeat(MAX_LINE));
    }

    proptest! {
        #[test]
        fn it_does_not_matter_how_a_stream_is_read(pieces in vec("(Traceback \\(most recent call last\\):|[ aé\n\r]{0,9})", 0..30)) {
            let (mut whole, mut parts, now) = (OutputLines::new(true), OutputLines::new(true), Instant::now());
            let text = pieces.concat();
            let mut expected = whole.push(text.as_bytes(), now);
            let mut found: Vec<_> = pieces.iter().flat_map(|piece| parts.push(piece.as_bytes(), now)).collect();
            expected.extend(whole.finish(now));
            found.extend(parts.finish(now));
            prop_assert_eq!(&found, &expected);
            if !text.contains('\r') {
                let lines = found.into_iter().flat_map(|unit| match unit {
                    OutputUnit::Line(line) => vec![line],
                    OutputUnit::Traceback { error, rest } => [error, rest].concat(),
                });
                prop_assert_eq!(lines.collect::<Vec<_>>(), text.lines().collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn a_rewritten_line_is_shown_now_and_then_and_at_its_end() {
        let (mut lines, start) = (OutputLines::new(true), Instant::now());
        let mut shown = Vec::new();
        for step in 0..=100 {
            let text = format!("\r{step} %");
            shown.extend(lines.push(text.as_bytes(), start + Duration::from_millis(20) * step));
        }
        shown.extend(lines.push(b"\nnext\n", start + Duration::from_secs(3)));
        let expected = ["0 %", "25 %", "50 %", "75 %", "100 %", "next"].map(|line| OutputUnit::Line(line.into()));
        assert_eq!(shown, expected);
    }

    #[test]
    fn the_end_of_a_rewritten_line_is_shown() {
        assert_eq!(lines(b"1\r2\r3\r\n"), ["1", "3"]);
        assert_eq!(lines(b"1\r2\r3\r      \rnext\n"), ["1", "next"]);
        assert_eq!(lines(b"1\r2\r3\r"), ["1", "3"]);
    }

    #[test]
    fn a_traceback_is_one_unit() {
        assert_eq!(units(&format!("before\n{TRACEBACK}ValueError: x\n")), [(0, 1), (5, 0)]);
        // More lines of the message, or other output: nobody can tell.
        assert_eq!(units(&format!("{TRACEBACK}ValueError: x\n  note\nmore\nlines\n")), [(6, 2)]);
        let chained = "\nDuring handling of the above exception, another exception occurred:\n\n";
        assert_eq!(units(&format!("{TRACEBACK}ValueError: x\n{chained}{TRACEBACK}KeyError\n")), [(13, 0)]);
        assert_eq!(units(&format!("{TRACEBACK}ValueError: x\n{TRACEBACK}KeyError\nend\n")), [(5, 0), (5, 1)]);
        assert_eq!(units(TRACEBACK), [(4, 0)]);
        let group =
            "  + Exception Group Traceback (most recent call last):\n  |   File\n  | ExceptionGroup: two\n  +-+---\n";
        assert_eq!(units(group), [(4, 0)]);
    }

    #[test]
    fn a_traceback_ends_with_a_pause_or_after_a_while() {
        let (mut lines, start) = (OutputLines::new(true), Instant::now());
        assert_eq!(lines.push(format!("{TRACEBACK}KeyError\n").as_bytes(), start), []);
        assert!(lines.is_waiting());
        assert_eq!(lines.wait(start + TRACEBACK_PAUSE / 2), []);
        assert!(matches!(&lines.wait(start + TRACEBACK_PAUSE)[..], [OutputUnit::Traceback { .. }]));
        assert!(!lines.is_waiting());
        // A process that lives on and never pauses.
        lines.push(format!("{TRACEBACK}KeyError\nepoch 1\n").as_bytes(), start);
        let [OutputUnit::Traceback { error, rest }, OutputUnit::Line(line)] =
            &lines.push(b"epoch 2\n", start + TRACEBACK_LIMIT)[..]
        else {
            panic!("a traceback and a line");
        };
        assert_eq!((error.len(), &rest[..], &line[..]), (5, &["epoch 1".to_string()][..], "epoch 2"));
    }
}
