//! What a run consists of.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use paceline_net::{Address, Server, TransportOptions};
use paceline_report::live::follow;
use paceline_runtime::{
    Checkpointer, EventLogHeader, FolderLock, Job, KeepEvents, Lease, Observer, ResumePoint, RunFolder, RunFolderError,
    SharedStatus, StatusServer, StoredRun, check_free, check_unfinished, folder_leases,
};
use paceline_store::{ObjectStorage, create_folder};
use paceline_trace::Recorder;

use crate::follower::RunFollower;
use crate::{PreparedRun, RunError};

/// Where a run leaves its files.
enum FolderChoice {
    /// Nowhere.
    None,
    /// In a new folder.
    New(PathBuf),
    /// In the folder of the run that it continues.
    Resumed(PathBuf),
    /// The same, from a process that may still have its files open.
    TakenOver(PathBuf, Lease),
}

/// A run and its parts. Only the job and an address are required.
pub struct RunBuilder<'a> {
    job: &'a Job,
    addresses: Vec<Address>,
    transport: TransportOptions,
    folder: FolderChoice,
    configuration: String,
    checkpoint_every: Duration,
    keep_events: KeepEvents,
    http: Option<TcpListener>,
    record: Option<PathBuf>,
    observers: Vec<&'a mut dyn Observer>,
    server: Option<Server>,
    started: Arc<AtomicBool>,
    keeps_workers: bool,
    lease: Option<Duration>,
    stored: Option<StoredRun>,
}

impl<'a> RunBuilder<'a> {
    /// A run of `job` with the workers that join at any of `addresses`. It leaves nothing behind yet.
    pub fn new(job: &'a Job, addresses: impl Into<Vec<Address>>) -> Self {
        RunBuilder {
            job,
            addresses: addresses.into(),
            transport: TransportOptions::default(),
            folder: FolderChoice::None,
            configuration: String::new(),
            checkpoint_every: Duration::from_secs(30),
            keep_events: KeepEvents::default(),
            http: None,
            record: None,
            observers: Vec::new(),
            server: None,
            started: Arc::default(),
            keeps_workers: false,
            lease: None,
            stored: None,
        }
    }

    /// Uses a server that listens already, because its workers have sent it the model. It keeps its addresses and its
    /// transport.
    pub fn server(mut self, server: Server) -> Self {
        self.server = Some(server);
        self
    }

    /// Sets this flag after the first iteration, e.g. for [`LocalWorkers`](paceline_net::LocalWorkers).
    pub fn started(mut self, flag: Arc<AtomicBool>) -> Self {
        self.started = flag;
        self
    }

    /// If the run is interrupted, its workers wait for it to be resumed.
    pub fn keeping_workers(mut self) -> Self {
        self.keeps_workers = true;
        self
    }

    /// How values travel over TCP, and who may join.
    pub fn transport(mut self, transport: TransportOptions) -> Self {
        self.transport = transport;
        self
    }

    /// Writes event log, metrics, checkpoints, model, summary and report to a new folder.
    pub fn folder(mut self, path: impl Into<PathBuf>) -> Self {
        self.folder = FolderChoice::New(path.into());
        self
    }

    /// Writes checkpoints to this storage in place of the run folder, with all that another machine needs to go on with
    /// the run; its lease is there too. A run that resumes gets its folder's files from there. Shards write their parts
    /// themselves.
    pub fn checkpoints(mut self, objects: Arc<dyn ObjectStorage>) -> Self {
        self.stored = Some(StoredRun::new(objects));
        self
    }

    /// Goes on with the run in this folder, from its last checkpoint.
    pub fn resume(mut self, path: impl Into<PathBuf>) -> Self {
        self.folder = FolderChoice::Resumed(path.into());
        self
    }

    /// Goes on with the run in this folder, whose server has let its lease run out (see [`LeaseWatch`]), under the next lease.
    ///
    /// [`LeaseWatch`]: paceline_runtime::LeaseWatch
    pub fn take_over(mut self, path: impl Into<PathBuf>, lease: Lease) -> Self {
        self.folder = FolderChoice::TakenOver(path.into(), lease);
        self
    }

    /// Serves the run under a lease beside its checkpoints, so that another process can take it over. The run stops when that
    /// happens. It may go on for `length` after the lease was last renewed.
    pub fn lease(mut self, length: Duration) -> Self {
        self.lease = Some(length);
        self
    }

    /// The text of the folder's `config.toml`.
    pub fn configuration(mut self, text: impl Into<String>) -> Self {
        self.configuration = text.into();
        self
    }

    /// The interval between checkpoints, by default 30 s; zero for one at the end only.
    pub fn checkpoint_every(mut self, interval: Duration) -> Self {
        self.checkpoint_every = interval;
        self
    }

    /// How much of the event log and the metrics a long run keeps.
    pub fn keep_events(mut self, keep: KeepEvents) -> Self {
        self.keep_events = keep;
        self
    }

    /// Serves a page that follows the run, `/metrics`, `/healthz` and `/status` to whoever reaches this listener.
    pub fn http(mut self, listener: TcpListener) -> Self {
        self.http = Some(listener);
        self
    }

    /// Writes every worker's run times to this file, a trace.
    pub fn record(mut self, path: impl Into<PathBuf>) -> Self {
        self.record = Some(path.into());
        self
    }

    /// Tells an observer of everything that happens. There may be several.
    pub fn observer(mut self, observer: &'a mut dyn Observer) -> Self {
        self.observers.push(observer);
        self
    }

    /// Reads all input, tries all output, locks the run folder and listens.
    ///
    /// # Errors
    /// If the folder is in use, is not empty, or is that of another run or of one that is over; if it can't be written; if
    /// the server can't listen; or if the status can't be served. Nothing is changed then.
    pub fn prepare(mut self) -> Result<PreparedRun<'a>, RunError> {
        let resumed = match (&self.folder, &mut self.stored) {
            (FolderChoice::Resumed(path) | FolderChoice::TakenOver(path, _), Some(stored)) => {
                Some(restore(path, self.job, stored)?)
            }
            (FolderChoice::Resumed(path), None) => Some(load(path, self.job, FolderLock::acquire)?),
            (FolderChoice::TakenOver(path, _), None) => Some(load(path, self.job, FolderLock::take_over)?),
            (FolderChoice::None | FolderChoice::New(_), _) => None,
        };
        let server = match self.server.take() {
            Some(server) => server,
            None => Server::bind(&self.addresses, std::mem::take(&mut self.transport))?,
        };
        let status = SharedStatus::default();
        (status.lock().scheme, status.lock().expected_workers) = (self.job.scheme.to_string(), self.job.setup.workers);
        let (mut live, mut status_server) = (None, None);
        if let Some(listener) = self.http.take() {
            let header = EventLogHeader::new(self.job.scheme.clone(), &self.job.setup);
            let (observer, page) = follow(self.title(), header, self.configuration.clone());
            live = Some(observer);
            let warn = |warning| tracing::warn!("{warning}");
            let server = StatusServer::start(listener, status.clone(), Some(Box::new(page)), warn);
            status_server = Some(server.map_err(RunError::Http)?);
        }
        // Last, since only this leaves something behind.
        let leases = self.stored.as_ref().map(|stored| stored.objects().clone());
        let (mut folder, resume_point) = self.open_folder(resumed)?;
        if let (Some(live), Some((folder, _)), Some(_)) = (&live, &folder, &resume_point)
            && let Err(error) = live.read(folder.path())
        {
            tracing::warn!("the page does not show what happened before: {error}");
        }
        let lease = match (&mut folder, self.folder, self.lease) {
            (Some(_), FolderChoice::TakenOver(_, lease), _) => Some(lease),
            (Some((folder, _)), _, Some(length)) => {
                Some(Lease::take(&leases.unwrap_or_else(|| folder_leases(folder.path())), length)?)
            }
            _ => None,
        };
        if let Some((_, checkpointer)) = &mut folder {
            checkpointer.hold(lease.clone());
        }
        let server = server.under_lease(lease.as_ref().map_or(0, Lease::epoch));
        let server = if self.keeps_workers { server.keeping_workers() } else { server };
        if let Some(server) = &status_server {
            tracing::info!("watch the run at http://{}", server.address());
        }
        let follower = RunFollower {
            folder,
            recorder: self.record.as_ref().map(|_| Recorder::default()),
            status,
            live,
            started: self.started,
            observers: self.observers,
            lease,
        };
        Ok(PreparedRun { job: self.job, server, resume_point, follower, status_server, record: self.record })
    }

    /// What the page calls the run.
    fn title(&self) -> String {
        match &self.folder {
            FolderChoice::New(path) | FolderChoice::Resumed(path) | FolderChoice::TakenOver(path, _) => {
                path.file_name().unwrap_or(path.as_os_str()).display().to_string()
            }
            FolderChoice::None => self.job.scheme.to_string(),
        }
    }

    /// Creates the folder, or continues it, and takes its checkpoints.
    fn open_folder(&mut self, resumed: Option<(FolderLock, ResumePoint)>) -> Result<OpenFolder, RunError> {
        let (job, layout) = (self.job, self.job.model.layout());
        let header = EventLogHeader::new(job.scheme.clone(), &job.setup);
        let (mut folder, point) = match (&self.folder, resumed) {
            (FolderChoice::New(path), _) => {
                check_free(path)?;
                self.stored.iter().try_for_each(|stored| stored.begin(&self.configuration))?;
                (RunFolder::create(path, &self.configuration, &header, Some(layout))?, None)
            }
            (_, Some((lock, point))) => {
                self.stored.iter().try_for_each(|stored| stored.resume(&self.configuration))?;
                let (folder, lost) = RunFolder::resume(lock, &self.configuration, &header, &point, layout)?;
                point.skipped.iter().for_each(|problem| tracing::warn!("{problem}; using an older checkpoint"));
                if let Some(problem) = &point.afresh {
                    tracing::warn!("scheme {} starts afresh, without its state: {problem}", job.scheme);
                }
                point.check(folder.lock(), |warning| tracing::warn!("{warning}"));
                tracing::info!("{}", resumption(point.checkpoint.version, lost));
                (folder, Some(point))
            }
            (_, None) => return Ok((None, None)),
        };
        folder.keep_events(self.keep_events);
        let (layout, interval) = (Arc::new(layout.clone()), self.checkpoint_every);
        let mut checkpointer = match self.stored.take() {
            None => Checkpointer::new(folder.path(), layout, interval)?,
            Some(stored) => Checkpointer::stored(stored, layout, interval)?,
        };
        if let Some(point) = &point {
            checkpointer.resumed(point.checkpoint.version);
        }
        Ok((Some((folder, checkpointer)), point))
    }
}

/// A run folder with its checkpoints, and where its run resumes; each if there is one.
type OpenFolder = (Option<(RunFolder, Checkpointer)>, Option<ResumePoint>);

/// Locks the folder of a run, and reads where it resumes. Changes nothing else.
fn load(
    path: &Path,
    job: &Job,
    lock: fn(&Path) -> Result<FolderLock, RunFolderError>,
) -> Result<(FolderLock, ResumePoint), RunError> {
    check_unfinished(path, &job.goals)?;
    let lock = lock(path)?;
    let point = ResumePoint::load(&lock, job)?;
    Ok((lock, point))
}

/// The same from storage, which the folder is made a copy of.
fn restore(path: &Path, job: &Job, stored: &mut StoredRun) -> Result<(FolderLock, ResumePoint), RunError> {
    stored.check_unfinished(&job.goals)?;
    create_folder(path).map_err(|error| RunFolderError::Io { path: path.into(), error })?;
    let lock = FolderLock::acquire(path)?;
    let header = EventLogHeader::new(job.scheme.clone(), &job.setup);
    let latest = stored.restore(path, job.model.layout(), &header)?;
    let point = ResumePoint::new(&lock, job, latest)?;
    Ok((lock, point))
}

fn resumption(version: u64, lost: Option<u64>) -> String {
    match lost {
        None => format!("resumed from version {version}, the last one on disk"),
        Some(last) => {
            format!("resumed from version {version}; versions {} to {last} were lost and are repeated", version + 1)
        }
    }
}
