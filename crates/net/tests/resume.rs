//! Runs that end, and resume from their last checkpoint.

mod common;

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use common::{TransportKind, job, run_on, server};
use paceline_core::{
    CommitRequest, Decision, Event, Reason, RestoreError, Scheme, SchemeEntry, SchemeError, Settings, Setup, Time,
    Turn, Update, WorkerId, add_scheme, catalogue,
};
use paceline_net::{RunOutcome, TransportOptions};
use paceline_runtime::{
    Checkpointer, EventLogHeader, FolderLock, Iteration, Job, Monitor, Observer, ResumePoint, RunFolder, RunState,
    ServerObserver, open_events, replay,
};

const TRANSPORTS: [TransportKind; 2] = [TransportKind::Shared, TransportKind::Tcp];

/// Writes the run folder and its checkpoints.
struct FolderFollower {
    folder: RunFolder,
    checkpointer: Checkpointer,
}

impl Observer for FolderFollower {
    fn on_turn(&mut self, now: Time, event: &Event, decisions: &[Decision]) {
        self.folder.on_turn(now, event, decisions);
    }

    fn on_iteration(&mut self, iteration: &Iteration, monitor: &Monitor) {
        self.folder.on_iteration(iteration, monitor);
    }
}

impl ServerObserver for FolderFollower {
    fn on_checkpoint(&mut self, state: &RunState<'_>) {
        self.checkpointer.save(state, &mut self.folder);
    }
}

fn header(job: &Job) -> EventLogHeader {
    EventLogHeader::new(job.scheme.clone(), &job.setup)
}

/// Runs a job, or resumes it.
fn run_in(path: &Path, job: &Job, folder: RunFolder, point: Option<ResumePoint>) -> RunOutcome {
    let mut checkpointer = Checkpointer::new(path, Arc::new(job.model.layout().clone()), Duration::ZERO).unwrap();
    if let Some(point) = &point {
        checkpointer.resumed(point.checkpoint.version);
    }
    let mut follower = FolderFollower { folder, checkpointer };
    let outcome = run_on(server(TransportOptions::default()), job, &TRANSPORTS, 1.0, |server| match point {
        None => server.run(job, &mut follower),
        Some(point) => server.resume(job, point, &mut follower),
    });
    let FolderFollower { folder, mut checkpointer } = follower;
    assert_eq!(checkpointer.finish(), None);
    folder.finish(&outcome.summary, None).unwrap();
    outcome
}

/// Runs a scheme, and resumes it. Returns why it started afresh, if it did.
fn resume(scheme: &str) -> Option<RestoreError> {
    let temporary = tempfile::tempdir().unwrap();
    let path = temporary.path();
    let first = job(scheme, 2, "iterations=8");
    let folder = RunFolder::create(path, "", &header(&first), Some(first.model.layout())).unwrap();
    let done = run_in(path, &first, folder, None).summary;

    let second = job(scheme, 2, "iterations=16");
    let lock = FolderLock::acquire(path).unwrap();
    let point = ResumePoint::load(&lock, &second).unwrap();
    let afresh = point.afresh.clone();
    assert_eq!(point.checkpoint.version, done.iterations, "{scheme}");
    assert_eq!(point.ledger.version().0, done.iterations, "{scheme}");
    assert_eq!(point.ledger.samples().used, done.samples_used, "{scheme}");
    let layout = second.model.layout();
    let (folder, lost) = RunFolder::resume(lock, "", &header(&second), &point, layout).unwrap();
    assert_eq!(lost, None, "{scheme}");
    let (sender, warnings) = channel();
    point.check(folder.lock(), move |warning| sender.send(warning).unwrap());
    let resumed = run_in(path, &second, folder, Some(point)).summary;
    assert!(resumed.reached && resumed.iterations == 16, "{scheme}: {resumed:?}");
    assert!(resumed.updates_committed > done.updates_committed, "{scheme}");

    // The check has ended by the end of this.
    assert_eq!(warnings.iter().collect::<Vec<String>>(), Vec::<String>::new(), "{scheme}");
    let replayed = replay(open_events(path).unwrap()).unwrap();
    assert!(replayed.from_version.0 == 0 && replayed.events > 16, "{scheme}: {replayed:?}");
    afresh
}

#[test]
fn every_scheme_resumes_with_its_state_and_its_whole_log_replays() {
    let own = |entry: &&SchemeEntry| ![UNSAVED.name, OUTDATED.name].contains(&entry.name);
    for entry in catalogue().into_iter().filter(own) {
        assert_eq!(resume(&entry.example("", 2)), None, "{}", entry.name);
    }
    assert_eq!(resume("local-sgd:tau=2,outer=nesterov,momentum=0.8,rate=0.7"), None);
    // The first run ends in the middle of a delay.
    assert_eq!(resume("async-local-sgd:tau=2,outer=delayed-nesterov,delay=3"), None);
}

/// A scheme from outside that applies updates on arrival.
struct OnArrival {
    batch: u32,
    /// What it saves. It reads no state.
    saved: Option<&'static str>,
}

impl Scheme for OnArrival {
    fn on_joined(&mut self, turn: &mut Turn<'_>, worker: WorkerId) {
        turn.assign(worker, self.batch, Reason::Joined);
    }

    fn on_left(&mut self, _turn: &mut Turn<'_>, _worker: WorkerId) {}

    fn on_reported(&mut self, turn: &mut Turn<'_>, update: &Update) {
        turn.commit(CommitRequest::of(&[update.task]), Reason::OnArrival);
        turn.assign(update.task.worker, self.batch, Reason::NewVersion);
    }

    fn save(&self) -> Option<String> {
        self.saved.map(String::from)
    }

    fn restore(&mut self, state: &str) -> Result<(), RestoreError> {
        Err(RestoreError::new(format!("'{state}' is of another version")))
    }
}

static UNSAVED: SchemeEntry = SchemeEntry::new("unsaved", "can't be saved", [1, 2, 3], build_unsaved);
static OUTDATED: SchemeEntry = SchemeEntry::new("outdated", "can't be read", [1, 2, 3], build_outdated);

fn build_unsaved(_: &Settings<'_>, setup: &Setup) -> Result<Box<dyn Scheme>, SchemeError> {
    Ok(Box::new(OnArrival { batch: setup.batch, saved: None }))
}

fn build_outdated(_: &Settings<'_>, setup: &Setup) -> Result<Box<dyn Scheme>, SchemeError> {
    Ok(Box::new(OnArrival { batch: setup.batch, saved: Some("one") }))
}

#[test]
fn a_scheme_without_a_state_that_it_reads_starts_afresh_and_the_run_goes_on() {
    for entry in [&UNSAVED, &OUTDATED] {
        add_scheme(entry).unwrap();
    }
    assert_eq!(resume("unsaved").unwrap().to_string(), "it can't be saved");
    assert_eq!(resume("outdated").unwrap().to_string(), "'one' is of another version");
}
