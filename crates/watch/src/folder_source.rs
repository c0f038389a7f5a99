//! A run folder. That of a run that goes on is read again when it has grown.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use paceline_report::ReportError;
use paceline_report::page::PageRun;
use paceline_report::view::Kept;

use crate::error::WatchError;
use crate::source::RunNews;

/// How often a folder is looked at.
const LOOK: Duration = Duration::from_millis(500);

/// Reading takes at most one part of so many of the time.
const REST: u32 = 10;

/// A run folder.
#[derive(Debug, Clone)]
pub struct FolderSource(PathBuf);

impl FolderSource {
    /// This folder.
    pub(crate) fn new(path: &Path) -> Result<Self, WatchError> {
        if !path.join("events.jsonl").is_file() {
            return Err(ReportError::NoRun { path: path.into() }.into());
        }
        Ok(FolderSource(path.into()))
    }

    pub(crate) fn read(&self) -> Result<PageRun, WatchError> {
        // The name of `.` is that of the folder.
        let path = fs::canonicalize(&self.0).unwrap_or_else(|_| self.0.clone());
        let name = path.file_name().map_or_else(|| "run".into(), |name| name.to_string_lossy().into_owned());
        Ok(PageRun::read(&self.0, name, 1, Kept::Newest)?)
    }

    /// What changes when the run goes on.
    fn state(&self) -> [Option<(u64, SystemTime)>; 2] {
        ["events.jsonl", "summary.json"].map(|name| {
            let found = fs::metadata(self.0.join(name)).ok()?;
            Some((found.len(), found.modified().ok()?))
        })
    }

    /// Sends the run whenever it has grown, until it has ended, or nobody listens.
    pub(crate) fn follow(&self, send: &dyn Fn(RunNews) -> bool) {
        loop {
            let (state, start) = (self.state(), Instant::now());
            let (has_ended, news) = match self.read() {
                Ok(run) => (run.has_ended(), RunNews::Run(Box::new(run))),
                Err(error) => (false, RunNews::Lost(error.to_string())),
            };
            if !send(news) || has_ended {
                return;
            }
            thread::sleep(LOOK.max(start.elapsed() * REST));
            while self.state() == state {
                thread::sleep(LOOK);
            }
        }
    }
}
