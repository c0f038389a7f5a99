//! Every scheme, end to end: four workers over both transports, one of them three times slower, reach a target.

mod common;

use common::{TransportKind, job, run};
use paceline_core::{CATALOGUE, Decision, Event, Time};
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
    for entry in CATALOGUE {
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
