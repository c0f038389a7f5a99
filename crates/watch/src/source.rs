//! Where a run is seen: the page of its server, or its run folder.

use std::path::Path;
use std::str::FromStr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use paceline_report::page::PageRun;
use paceline_report::view::ViewData;

use crate::error::WatchError;
use crate::folder_source::FolderSource;
use crate::page_source::PageSource;

/// What is new about a run.
#[derive(Debug)]
pub enum RunNews {
    /// All of it.
    Run(Box<PageRun>),
    /// What changed.
    Change(Box<ViewData>),
    /// It can't be seen at present, for this reason. It is tried again.
    Lost(String),
}

/// Where a run is seen.
#[derive(Debug, Clone)]
pub enum RunSource {
    /// The page that its server serves.
    Page(PageSource),
    /// Its run folder.
    Folder(FolderSource),
}

impl FromStr for RunSource {
    type Err = WatchError;

    /// A folder if there is one of this name, else an address.
    fn from_str(text: &str) -> Result<Self, WatchError> {
        if Path::new(text).is_dir() {
            return FolderSource::new(Path::new(text)).map(RunSource::Folder);
        }
        let page = PageSource::new(text).ok_or_else(|| WatchError::NoSource(text.into()))?;
        Ok(RunSource::Page(page))
    }
}

impl RunSource {
    /// All of the run as JSON, as its page gets it.
    ///
    /// # Errors
    /// If the run can't be seen.
    pub fn json(&self) -> Result<String, WatchError> {
        match self {
            RunSource::Page(page) => page.json(),
            RunSource::Folder(folder) => Ok(serde_json::to_string(&folder.read()?).unwrap_or_default()),
        }
    }

    /// All of the run.
    ///
    /// # Errors
    /// If the run can't be seen.
    pub fn read(&self) -> Result<PageRun, WatchError> {
        match self {
            RunSource::Page(page) => page.read(),
            RunSource::Folder(folder) => folder.read(),
        }
    }

    /// Whether the run tells at once what changes.
    pub fn is_live(&self) -> bool {
        matches!(self, RunSource::Page(_))
    }

    /// What is new about the run from now on, until it has ended. The thread that sends it ends when the receiver is dropped.
    pub fn follow(self) -> Receiver<RunNews> {
        let (sender, news) = channel();
        let send = |sender: &Sender<RunNews>, news| sender.send(news).is_ok();
        thread::spawn(move || match self {
            RunSource::Page(page) => page.follow(&|news| send(&sender, news)),
            RunSource::Folder(folder) => folder.follow(&|news| send(&sender, news)),
        });
        news
    }
}
