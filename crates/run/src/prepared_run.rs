//! A run that can start, and one that has ended.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use paceline_core::WorkerId;
use paceline_net::{Address, EXIT_TIMEOUT, LocalWorkers, RunOutcome, Server, ShowOutput, Stopper, WorkerOutput};
use paceline_report::page;
use paceline_runtime::{Checkpointer, Job, ResumePoint, RunFolder, StatusServer, WORKER_LOGS};
use paceline_trace::Recorder;

use crate::RunError;
use crate::follower::RunFollower;

/// A run that can start: all input is read, all output is tried, the run folder is locked.
pub struct PreparedRun<'a> {
    pub(crate) job: &'a Job,
    pub(crate) server: Server,
    pub(crate) resume_point: Option<ResumePoint>,
    pub(crate) follower: RunFollower<'a>,
    pub(crate) status_server: Option<StatusServer>,
    pub(crate) record: Option<PathBuf>,
}

impl PreparedRun<'_> {
    /// The addresses that the server listens on.
    pub fn addresses(&self) -> &[Address] {
        self.server.addresses()
    }

    /// A handle that stops the run.
    pub fn stopper(&self) -> Stopper {
        self.server.stopper()
    }

    /// Trains with the workers that join, until a goal is reached or the run is stopped.
    ///
    /// # Errors
    /// If the scheme makes an invalid decision, or memory runs out. A failing worker is not an error.
    pub fn run(self) -> Result<EndedRun, RunError> {
        let PreparedRun { job, server, resume_point, mut follower, status_server, record } = self;
        let outcome = match resume_point {
            None => server.run(job, &mut follower),
            Some(point) => server.resume(job, point, &mut follower),
        }?;
        let RunFollower { folder, recorder, live, .. } = follower;
        live.iter().for_each(|live| live.end(&outcome.summary));
        Ok(EndedRun { outcome, folder, record: record.zip(recorder), _status_server: status_server })
    }

    /// The same with `count` worker processes, started by `command` for the server's first address and a rank, and
    /// restarted when they die. What they print is given to `show` line by line, each with the rank before it. It is also
    /// logged to `workers/RANK.log` in the run folder, if there is one.
    ///
    /// # Errors
    /// As [`run`](PreparedRun::run), or if a process can't be started.
    pub fn run_with_processes(
        self,
        count: u32,
        command: impl Fn(&Address, WorkerId) -> Command + Sync,
        show: ShowOutput,
    ) -> Result<EndedRun, RunError> {
        let address = self.addresses()[0].clone();
        let logs = self.follower.folder.as_ref().map(|(folder, _)| folder.path().join(WORKER_LOGS));
        let workers = LocalWorkers {
            command: &|worker| command(&address, worker),
            has_evaluator: false,
            stopper: self.stopper(),
            started: Arc::clone(&self.follower.started),
            announce: &|line| tracing::warn!("{line}"),
            output: WorkerOutput::new(logs, show).map_err(RunError::Process)?,
            exit_timeout: Some(EXIT_TIMEOUT),
        };
        workers.run(count, || self.run()).map_err(RunError::Process)?
    }
}

/// A run that has ended. Its results are in memory until [`save`](EndedRun::save).
#[must_use = "its model, summary and report are not written yet"]
pub struct EndedRun {
    outcome: RunOutcome,
    folder: Option<(RunFolder, Checkpointer)>,
    record: Option<(PathBuf, Recorder)>,
    /// The status is served until everything is written.
    _status_server: Option<StatusServer>,
}

impl EndedRun {
    /// What came out.
    pub fn outcome(&self) -> &RunOutcome {
        &self.outcome
    }

    /// The run folder, if there is one.
    pub fn folder(&self) -> Option<&Path> {
        self.folder.as_ref().map(|(folder, _)| folder.path())
    }

    /// Writes the model, then the summary, the report and the recorded times.
    ///
    /// # Errors
    /// The first one. It does not keep the rest from being written.
    pub fn save(self) -> Result<RunOutcome, RunError> {
        let EndedRun { outcome, folder, record, _status_server } = self;
        let mut saved = Ok(());
        if let Some((folder, mut checkpointer)) = folder {
            if let Some(warning) = checkpointer.finish() {
                tracing::warn!("{warning}");
            }
            saved =
                page::finish_run_folder(folder, &outcome.summary, Some(&outcome.parameters)).map_err(RunError::from);
            saved = saved.and(checkpointer.end(&outcome.summary).map_err(RunError::from));
        }
        if let Some((path, recorder)) = record {
            saved = saved.and(recorder.finish().write(&path).map_err(RunError::from));
        }
        saved.map(|()| outcome)
    }
}
