//! Every scheme, end to end: four workers over both transports, one of them three times slower, reach a target.

mod common;

use common::{TransportKind, job, run};
use paceline_core::{
    CommitRequest, Decision, Event, Reason, Scheme, SchemeEntry, SchemeError, SchemeSpec, Setting, SettingDefault,
    Settings, Setup, Time, Turn, Until, Update, UpperBound, WorkerId, add_scheme, catalogue,
};
use paceline_net::TransportOptions;
use paceline_runtime::{EventLog, EventLogHeader, Job, Observer, ServerObserver, replay};

/// Writes the event log.
struct LogWriter<'a>(EventLog<&'a mut Vec<u8>>);

impl Observer for LogWriter<'_> {
    fn on_turn(&mut self, now: Time, event: &Event, decisions: &[Decision]) {
        self.0.on_turn(now, event, decisions);
    }
}

impl ServerObserver for LogWriter<'_> {}

const TRANSPORTS: [TransportKind; 4] =
    [TransportKind::Shared, TransportKind::Tcp, TransportKind::Tcp, TransportKind::Shared];

fn reaches_its_target_and_replays(job: &Job) {
    let header = EventLogHeader::new(job.scheme.clone(), &job.setup);
    let mut bytes = Vec::new();
    let mut log = LogWriter(EventLog::new(&mut bytes, &header).unwrap());
    let outcome = run(job, &TRANSPORTS, 3.0, TransportOptions::default(), &mut log);
    assert!(outcome.summary.reached, "{}: {:?}", job.scheme, outcome.summary);
    assert_eq!(outcome.emulated.len(), 1);
    assert_eq!(outcome.emulated[0].1, "3× slower");
    log.0.finish().unwrap();
    let replayed = replay(bytes.as_slice()).unwrap();
    assert!(replayed.events > outcome.summary.iterations, "{replayed:?}");
}

#[test]
fn every_scheme_reaches_its_target_and_its_events_replay() {
    for entry in catalogue() {
        let job = job(&entry.example("", 4), 4, "loss<1.5");
        reaches_its_target_and_replays(&job);
    }
}

#[test]
fn both_modes_of_esync_reach_their_target_with_every_local_optimizer() {
    for mode in ["blocking", "non-blocking"] {
        for (optimizer, rate) in [("sgd", 0.05), ("momentum:0.9", 0.01), ("adam", 0.002)] {
            let mut job = job(&format!("esync:mode={mode}"), 4, "loss<1.5");
            (job.optimizer, job.rate) = (optimizer.parse().unwrap(), rate);
            reaches_its_target_and_replays(&job);
        }
    }
}

#[test]
fn every_dispatch_reaches_its_target_and_replays() {
    for dispatch in ["pull", "push-wait", "push-interrupt"] {
        let job = job(&format!("backup:k=2,dispatch={dispatch}"), 4, "loss<1.5");
        reaches_its_target_and_replays(&job);
    }
}

/// A scheme from outside: updates are applied on arrival, and workers start again in groups.
struct Grouped {
    group: usize,
    batch: u32,
}

impl Grouped {
    fn release(&self, turn: &mut Turn<'_>) {
        let idle: Vec<WorkerId> = turn.workers().filter(|&worker| turn.is_idle(worker)).collect();
        let is_full = idle.len() >= self.group.min(turn.live());
        for worker in idle {
            if is_full {
                turn.assign(worker, self.batch, Reason::NewVersion);
            } else {
                turn.hold(worker, Until::Commit, Reason::Contributed);
            }
        }
    }
}

impl Scheme for Grouped {
    fn on_joined(&mut self, turn: &mut Turn<'_>, worker: WorkerId) {
        turn.assign(worker, self.batch, Reason::Joined);
    }

    fn on_left(&mut self, turn: &mut Turn<'_>, _worker: WorkerId) {
        self.release(turn);
    }

    fn on_reported(&mut self, turn: &mut Turn<'_>, update: &Update) {
        turn.commit(CommitRequest::of(&[update.task]), Reason::OnArrival);
        self.release(turn);
    }
}

static GROUPED: SchemeEntry = SchemeEntry::new("grouped", "start again in groups", [1, 2, 3], build_grouped)
    .settings(&[Setting::count("group", "workers that start together", 1, UpperBound::Workers)
        .default(SettingDefault::Count(2))]);

fn build_grouped(settings: &Settings<'_>, setup: &Setup) -> Result<Box<dyn Scheme>, SchemeError> {
    Ok(Box::new(Grouped { group: settings.count("group")?, batch: setup.batch }))
}

#[test]
fn a_scheme_from_outside_reaches_its_target_and_its_events_replay() {
    add_scheme(&GROUPED).unwrap();
    add_scheme(&GROUPED).unwrap();
    for settings in ["", ":group=4"] {
        reaches_its_target_and_replays(&job(&format!("grouped{settings}"), 4, "loss<1.5"));
    }
    let error = |text: &str| {
        let spec = text.parse::<SchemeSpec>().unwrap();
        spec.build(&Setup::new(4, 1)).err().map(|error| error.to_string())
    };
    assert_eq!(error("grouped:group=5").unwrap(), "scheme 'grouped': group=5; expected 1 to 4");
    assert_eq!(
        GROUPED.settings[0].to_string(),
        "group: workers that start together; 1 to the number of workers; default 2"
    );
    static SECOND: SchemeEntry = SchemeEntry::new("bsp", "", [0, 0, 0], build_grouped);
    assert_eq!(
        add_scheme(&SECOND).unwrap_err().to_string(),
        "a scheme named 'bsp' exists already; choose another name"
    );
    assert!(SECOND.spec("").is_ok(), "a spec of its own entry needs no catalogue");
}
