//! The event log of a run folder, in segments.
//!
//! `events.jsonl` is the segment under way. Older segments are compressed, in the folder `events`, and numbered. A segment
//! is cut at the first checkpoint after it has got [`CUT_AFTER`] bytes; the next one begins with the state that the
//! checkpoint holds. So a run can resume, and every segment can be replayed, without those before it.
//!
//! A run that is killed at any moment can resume. In this order:
//!
//! 1. The checkpoint is on disk. It names a segment and a position in it, up to which the log was synced before. A run
//!    that resumes continues there, whatever follows in the log.
//! 2. The compressed segment is written under another name, synced and renamed. As long as `events.jsonl` has the same
//!    number, it counts and the compressed one is ignored.
//! 3. The next `events.jsonl`, with nothing but its header, is written under another name, synced and renamed. From here on
//!    the position in the checkpoint is in the compressed segment, which becomes `events.jsonl` again if the run resumes.
//! 4. Old segments are removed, the oldest first. If that of the checkpoint is among them, a run that resumes begins a new
//!    segment with the state in the checkpoint.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use paceline_core::SavedLedger;
use paceline_spec::open_input;
use paceline_store::{create_folder, write_file};
use serde::{Deserialize, Serialize};

use crate::EventLogHeader;
use crate::event_log::read_header;
use crate::retrying_file::RetryingFile;

/// The segment under way.
pub const EVENTS: &str = "events.jsonl";

/// The folder of the older segments.
const OLDER: &str = "events";

/// How the name of an older segment ends.
pub(crate) const COMPRESSED: &str = ".jsonl.gz";

/// A segment is cut at the first checkpoint after it has got this many bytes.
const CUT_AFTER: u64 = 4 * 1024 * 1024;

/// How many older segments of the event log are kept.
///
/// As text: `all`, or a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeepEvents {
    /// All of them.
    All,
    /// The latest.
    Latest(usize),
}

impl Default for KeepEvents {
    /// A thousand: some gigabytes of events.
    fn default() -> Self {
        KeepEvents::Latest(1000)
    }
}

impl FromStr for KeepEvents {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        let number = || text.parse().map(KeepEvents::Latest).map_err(|_| "expected all, or a whole number");
        if text == "all" { Ok(KeepEvents::All) } else { number() }
    }
}

impl fmt::Display for KeepEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeepEvents::All => f.write_str("all"),
            KeepEvents::Latest(count) => count.fmt(f),
        }
    }
}

/// A position in an event log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LogPosition {
    /// The number of the segment.
    pub(crate) segment: u64,
    /// The bytes of the segment before the position.
    pub(crate) bytes: u64,
}

/// Opens an event log: that of a run folder, all its segments one after another, or one segment.
///
/// # Errors
/// If it can't be read.
pub fn open_events(path: &Path) -> io::Result<Box<dyn Read>> {
    if !path.is_dir() {
        let file = open_input(path)?;
        let is_compressed = path.extension().is_some_and(|extension| extension == "gz");
        return Ok(if is_compressed { Box::new(GzDecoder::new(file)) } else { Box::new(file) });
    }
    let under_way = path.join(EVENTS);
    let older = older_segments(path)?;
    let mut log: Box<dyn Read> = Box::new(File::open(&under_way)?);
    if older.is_empty() {
        return Ok(log);
    }
    let first = File::open(&under_way).and_then(|file| read_header(file).map_err(io::Error::other))?.segment;
    for (_, path) in older.into_iter().rev().filter(|&(number, _)| number < first) {
        log = Box::new(OpenedLater::Closed(path).chain(log));
    }
    Ok(log)
}

/// A compressed segment that is opened when it is read.
enum OpenedLater {
    Closed(PathBuf),
    Open(Box<GzDecoder<File>>),
}

impl Read for OpenedLater {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if let OpenedLater::Closed(path) = self {
            *self = OpenedLater::Open(Box::new(GzDecoder::new(File::open(path)?)));
        }
        match self {
            OpenedLater::Closed(_) => Ok(0),
            OpenedLater::Open(stream) => stream.read(buffer),
        }
    }
}

fn older_path(folder: &Path, segment: u64) -> PathBuf {
    folder.join(OLDER).join(format!("{segment:08}{COMPRESSED}"))
}

/// Whether the event log of a run folder has older segments.
pub fn has_older_events(folder: &Path) -> bool {
    older_segments(folder).is_ok_and(|older| !older.is_empty())
}

/// The older segments with their numbers, ascending.
fn older_segments(folder: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let entries = match fs::read_dir(folder.join(OLDER)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().map(|name| name.display().to_string()).unwrap_or_default();
        found.extend(name.strip_suffix(COMPRESSED).and_then(|number| number.parse().ok()).map(|number| (number, path)));
    }
    found.sort_unstable();
    Ok(found)
}

/// Replaces the segment under way: complete and opened to append, or unchanged.
fn replace(folder: &Path, write: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<RetryingFile> {
    write_file(&folder.join(EVENTS), |file| {
        write(file)?;
        RetryingFile::new(file.try_clone()?, 1)
    })
}

/// The event log of a run folder during the run.
#[derive(Debug)]
pub(crate) struct EventSegments {
    folder: PathBuf,
    /// Of the run's first segment.
    header: EventLogHeader,
    keep: KeepEvents,
    /// The segment under way.
    file: RetryingFile,
    segment: u64,
}

impl EventSegments {
    fn open(folder: &Path, header: &EventLogHeader, segment: u64, file: RetryingFile) -> Self {
        let (folder, header) = (folder.to_path_buf(), header.clone());
        EventSegments { folder, header, keep: KeepEvents::default(), file, segment }
    }

    /// Starts the log of a run.
    pub(crate) fn create(folder: &Path, header: &EventLogHeader) -> io::Result<Self> {
        let mut file = File::create_new(folder.join(EVENTS))?;
        file.write_all(&header.line()?)?;
        Ok(EventSegments::open(folder, header, header.segment, RetryingFile::new(file, 1)?))
    }

    /// Starts the log of a run over.
    pub(crate) fn start_over(folder: &Path, header: &EventLogHeader) -> io::Result<Self> {
        let line = header.line()?;
        let file = replace(folder, |file| file.write_all(&line))?;
        remove_from(folder, 0)?;
        Ok(EventSegments::open(folder, header, header.segment, file))
    }

    /// Continues the log of a run at a position, to which this state belongs. What follows it is removed.
    pub(crate) fn resume(
        folder: &Path,
        header: &EventLogHeader,
        position: LogPosition,
        state: &SavedLedger,
    ) -> io::Result<Self> {
        let LogPosition { segment, bytes } = position;
        let stream = File::options().read(true).write(true).open(folder.join(EVENTS))?;
        let under_way = read_header(&stream).map_err(io::Error::other)?.segment;
        let older = older_path(folder, segment);
        let (segment, file) = if under_way == segment && stream.metadata()?.len() >= bytes {
            stream.set_len(bytes)?;
            (segment, RetryingFile::new(stream, 1)?)
        } else if older.is_file() {
            let mut text = GzDecoder::new(File::open(&older)?).take(bytes);
            (segment, replace(folder, |file| io::copy(&mut text, file).map(drop))?)
        } else {
            let line = header.of_segment(segment + 1, state.clone()).line()?;
            (segment + 1, replace(folder, |file| file.write_all(&line))?)
        };
        remove_from(folder, segment)?;
        Ok(EventSegments::open(folder, header, segment, file))
    }

    /// Sets how many older segments are kept.
    pub(crate) fn keep(&mut self, keep: KeepEvents) {
        self.keep = keep;
    }

    /// Appends lines. What can't be written now is written later.
    ///
    /// # Errors
    /// If too much waits to be written.
    pub(crate) fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        self.file.write_all(lines)
    }

    /// Writes all lines so far. Returns the position after them.
    ///
    /// # Errors
    /// If they can't be written.
    pub(crate) fn flush(&mut self) -> io::Result<LogPosition> {
        self.file.flush()?;
        Ok(LogPosition { segment: self.segment, bytes: self.file.written() })
    }

    /// Syncs all lines so far to disk. Returns the position after them.
    ///
    /// # Errors
    /// If they can't be written.
    pub(crate) fn sync(&mut self) -> io::Result<LogPosition> {
        self.file.sync()?;
        self.flush()
    }

    /// The older segments that are kept, by their paths in the run folder.
    pub(crate) fn older(&self) -> io::Result<Vec<(String, PathBuf)>> {
        let older = older_segments(&self.folder)?.into_iter().filter(|&(number, _)| number < self.segment);
        Ok(older.map(|(number, path)| (format!("{OLDER}/{number:08}{COMPRESSED}"), path)).collect())
    }

    /// Ends the segment if it is large enough, and begins the next one in this state, which a checkpoint on disk holds.
    ///
    /// # Errors
    /// If a file can't be written. The log goes on in the same segment.
    pub(crate) fn cut_if_large(&mut self, state: &SavedLedger) -> io::Result<()> {
        // A segment can begin only with a state from which its events follow.
        if self.file.written() >= CUT_AFTER && state.has_scheme() { self.cut(state) } else { Ok(()) }
    }

    /// Ends the segment and begins the next one in this state.
    ///
    /// # Errors
    /// If a file can't be written. The log goes on in the same segment.
    pub(crate) fn cut(&mut self, state: &SavedLedger) -> io::Result<()> {
        self.sync()?;
        create_folder(&self.folder.join(OLDER))?;
        write_file(&older_path(&self.folder, self.segment), |file| {
            let mut encoder = GzEncoder::new(file, Compression::default());
            io::copy(&mut File::open(self.folder.join(EVENTS))?, &mut encoder)?;
            encoder.finish().map(drop)
        })?;
        let line = self.header.of_segment(self.segment + 1, state.clone()).line()?;
        self.file = replace(&self.folder, |file| file.write_all(&line))?;
        self.segment += 1;
        if let KeepEvents::Latest(count) = self.keep {
            let older = older_segments(&self.folder)?;
            let surplus = older.len().saturating_sub(count);
            older[..surplus].iter().try_for_each(|(_, path)| fs::remove_file(path))?;
        }
        Ok(())
    }
}

/// Removes the older segments from this number on.
pub(crate) fn remove_from(folder: &Path, segment: u64) -> io::Result<()> {
    let later = older_segments(folder)?.into_iter().filter(|&(number, _)| number >= segment);
    later.into_iter().try_for_each(|(_, path)| fs::remove_file(path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay;
    use paceline_core::{Event, Ledger, Report, Setup, Span, TaskId, WorkerId};

    /// A run of two workers whose log is cut after every commit.
    struct CutRun {
        folder: tempfile::TempDir,
        ledger: Ledger,
        segments: EventSegments,
        /// After each commit: the position and the state there.
        checkpoints: Vec<(LogPosition, SavedLedger)>,
    }

    fn header() -> EventLogHeader {
        EventLogHeader::new("asp".parse().unwrap(), &Setup::new(2, 4))
    }

    impl CutRun {
        fn new(keep: KeepEvents) -> Self {
            let folder = tempfile::tempdir().unwrap();
            let mut segments = EventSegments::create(folder.path(), &header()).unwrap();
            segments.keep(keep);
            let ledger = Ledger::new(header().scheme.build(&Setup::new(2, 4)).unwrap());
            let mut run = CutRun { folder, ledger, segments, checkpoints: Vec::new() };
            (0..2).for_each(|worker| run.feed(Event::Joined { worker: WorkerId(worker) }));
            run
        }

        fn feed(&mut self, event: Event) {
            let now = self.ledger.save().latest() + Span(7);
            let decisions = self.ledger.handle(now, event.clone()).unwrap();
            let line = serde_json::json!({ "time": now, "event": event, "decisions": decisions });
            self.segments.append(format!("{line}\n").as_bytes()).unwrap();
        }

        fn commit(&mut self, number: u64) {
            let task = TaskId { worker: WorkerId(0), number };
            self.feed(Event::Reported { task, report: Report::default() });
            self.feed(Event::Committed { version: self.ledger.version(), aggregate: None });
            self.checkpoints.push((self.segments.sync().unwrap(), self.ledger.save()));
        }

        fn cut(&mut self) {
            self.segments.cut(&self.ledger.save()).unwrap();
        }

        fn events(&self) -> u64 {
            replay(open_events(self.folder.path()).unwrap()).unwrap().events
        }
    }

    #[test]
    fn all_segments_replay_together_and_each_alone() {
        let mut run = CutRun::new(KeepEvents::All);
        for number in 0..5 {
            run.commit(number);
            run.cut();
        }
        assert_eq!(run.events(), 12);
        let mut files: Vec<PathBuf> =
            older_segments(run.folder.path()).unwrap().into_iter().map(|found| found.1).collect();
        files.push(run.folder.path().join(EVENTS));
        let events: Vec<u64> = files.iter().map(|path| replay(open_events(path).unwrap()).unwrap().events).collect();
        assert_eq!(events, [4, 2, 2, 2, 2, 0]);
    }

    #[test]
    fn old_segments_are_removed_and_the_rest_replays() {
        let mut run = CutRun::new(KeepEvents::Latest(2));
        for number in 0..5 {
            run.commit(number);
            run.cut();
        }
        let replayed = replay(open_events(run.folder.path()).unwrap()).unwrap();
        assert_eq!((replayed.events, replayed.from_version.0), (4, 3));
    }

    #[test]
    fn a_log_continues_at_every_checkpoint() {
        for keep in [KeepEvents::All, KeepEvents::Latest(1), KeepEvents::Latest(0)] {
            for (commits, index) in (1..6).flat_map(|commits| (0..commits).map(move |index| (commits, index))) {
                let mut run = CutRun::new(keep);
                for number in 0..commits {
                    run.commit(number as u64);
                    // Not at every checkpoint, so that there are some within a segment.
                    if number % 2 == 1 {
                        run.cut();
                    }
                }
                run.segments.append(b"{\"time\":").unwrap();
                let (position, state) = run.checkpoints[index].clone();
                run.segments = EventSegments::resume(run.folder.path(), &header(), position, &state).unwrap();
                run.segments.keep(keep);
                let scheme = header().scheme.build(&Setup::new(2, 4)).unwrap();
                run.ledger = Ledger::restore(scheme, state.clone()).unwrap();
                let check = |run: &CutRun, more: u64| {
                    let replayed = replay(open_events(run.folder.path()).unwrap()).unwrap();
                    let before = 2 + 2 * (index as u64 + 1);
                    let whole = replayed.from_version.0 == 0;
                    assert!(!whole || replayed.events == before + more, "{keep} {commits} {index}: {replayed:?}");
                    assert!(whole || keep != KeepEvents::All);
                };
                check(&run, 0);
                run.commit(index as u64 + 1);
                run.cut();
                check(&run, 2);
            }
        }
    }

    #[test]
    fn a_run_that_is_killed_while_a_segment_is_cut_resumes() {
        let mut run = CutRun::new(KeepEvents::All);
        run.commit(0);
        run.commit(1);
        let before = fs::read(run.folder.path().join(EVENTS)).unwrap();
        run.cut();
        let (position, state) = run.checkpoints[1].clone();
        // The compressed segment is there, and the next one is not.
        fs::write(run.folder.path().join(EVENTS), &before).unwrap();
        assert_eq!(run.events(), 6);
        run.segments = EventSegments::resume(run.folder.path(), &header(), position, &state).unwrap();
        assert_eq!((run.events(), older_segments(run.folder.path()).unwrap().len()), (6, 0));
        run.commit(2);
        assert_eq!(run.events(), 8);
    }

    #[test]
    fn the_number_of_segments_is_text() {
        for text in ["all", "0", "25"] {
            assert_eq!(text.parse::<KeepEvents>().unwrap().to_string(), text);
        }
        assert_eq!("some".parse::<KeepEvents>().unwrap_err(), "expected all, or a whole number");
    }
}
