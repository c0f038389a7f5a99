//! What follows a run: the folder with its checkpoints, the status, the recorded times, and the user's own observers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use paceline_core::{Decision, Event, Span, TaskId, Time};
use paceline_report::live::FollowedRun;
use paceline_runtime::{
    Checkpointer, Iteration, Lease, LeaseLost, Monitor, Notice, Observer, RunFolder, RunState, ServerObserver,
    SharedStatus,
};
use paceline_trace::Recorder;

use crate::NoticeLogger;

/// Passes everything on to the parts of a run.
pub(crate) struct RunFollower<'a> {
    pub(crate) folder: Option<(RunFolder, Checkpointer)>,
    /// Keeps every time in memory.
    pub(crate) recorder: Option<Recorder>,
    pub(crate) status: SharedStatus,
    /// What a page shows, if there is one.
    pub(crate) live: Option<FollowedRun>,
    /// Becomes true after the first iteration.
    pub(crate) started: Arc<AtomicBool>,
    pub(crate) observers: Vec<&'a mut dyn Observer>,
    /// What allows to go on, if there is such a thing.
    pub(crate) lease: Option<Lease>,
}

impl Observer for RunFollower<'_> {
    fn on_turn(&mut self, now: Time, event: &Event, decisions: &[Decision]) {
        self.observers.on_turn(now, event, decisions);
        NoticeLogger.on_turn(now, event, decisions);
        let mut status = self.status.lock();
        if let Some((folder, checkpointer)) = &mut self.folder {
            folder.on_turn(now, event, decisions);
            if let Some(warning) = checkpointer.poll() {
                tracing::warn!("{warning}");
            }
            status.checkpoint = checkpointer.saved();
        }
        status.on_turn(Instant::now(), now, event, decisions);
        drop(status);
        self.live.iter_mut().for_each(|live| live.on_turn(now, event, decisions));
    }

    fn on_task(&mut self, task: TaskId, compute: Span) {
        self.observers.on_task(task, compute);
        if let Some(recorder) = &mut self.recorder {
            recorder.on_task(task, compute);
        }
    }

    fn on_iteration(&mut self, iteration: &Iteration, monitor: &Monitor) {
        self.started.store(true, Ordering::Relaxed);
        self.observers.on_iteration(iteration, monitor);
        if let Some((folder, _)) = &mut self.folder {
            folder.on_iteration(iteration, monitor);
        }
        self.status.lock().on_iteration(Instant::now(), iteration, monitor);
        self.live.iter_mut().for_each(|live| live.on_iteration(iteration, monitor));
    }

    fn on_notice(&mut self, notice: &Notice) {
        self.observers.on_notice(notice);
        NoticeLogger.on_notice(notice);
        self.status.lock().on_notice(Instant::now(), notice);
        self.live.iter_mut().for_each(|live| live.on_notice(notice));
    }
}

impl ServerObserver for RunFollower<'_> {
    fn await_lease(&mut self) -> Result<(), LeaseLost> {
        self.lease.as_ref().map_or(Ok(()), Lease::hold)
    }

    fn wants_checkpoint(&self) -> bool {
        self.folder.as_ref().is_some_and(|(_, checkpointer)| checkpointer.is_due())
    }

    fn takes_parts(&self) -> bool {
        self.folder.as_ref().is_some_and(|(_, checkpointer)| checkpointer.takes_parts())
    }

    fn on_checkpoint(&mut self, state: &RunState<'_>) {
        if let Some((folder, checkpointer)) = &mut self.folder {
            checkpointer.save(state, folder);
        }
    }

    fn on_end(&mut self) {
        self.status.lock().on_end();
    }
}
