//! Equal results: schemes that must agree, and thread counts that must not matter.

mod common;

use common::{observed, outcome, training, with_dispatch, with_scheme};
use paceline_core::{Dispatch, Setup};
use paceline_runtime::{EventLog, EventLogHeader, replay};

const TIMES: &str = "shifted-exponential:0.3,0.7";
const SCHEMES: [&str; 16] = [
    "bsp",
    "backup:k=5",
    "backup:k=3,dispatch=pull",
    "dbw",
    "b-dbw:memory=window-9",
    "adasync",
    "asp",
    "ssp:staleness=2",
    "dssp:min=1,max=3",
    "elastic-bsp:r=4",
    "dc-asgd",
    "async-local-sgd:tau=4",
    "async-local-sgd:tau=4,outer=delayed-nesterov,rate=0.7,momentum=0.5",
    "esync",
    "esync:mode=non-blocking",
    "easgd:tau=1",
];

fn bits(parameters: Option<Vec<f32>>) -> Vec<u32> {
    parameters.unwrap().iter().map(|value| value.to_bits()).collect()
}

#[test]
fn backup_of_all_workers_is_bsp_bit_for_bit() {
    let bsp = training("bsp", 8, TIMES, "iterations=30", 0.1, 1);
    let expected = bits(outcome(&bsp).parameters);
    for dispatch in [Dispatch::Pull, Dispatch::PushWait, Dispatch::PushInterrupt] {
        let backup = with_dispatch(with_scheme(bsp.clone(), "backup:k=8"), dispatch);
        assert_eq!(bits(outcome(&backup).parameters), expected, "{dispatch}");
    }
}

#[test]
fn ssp_without_staleness_is_bsp() {
    let bsp = outcome(&training("bsp", 8, TIMES, "iterations=20", 0.16, 1));
    // Eight steps of an eighth each. No worker runs ahead, so all gradients are of the same parameters.
    let ssp = outcome(&training("ssp:staleness=0", 8, TIMES, "iterations=160", 0.02, 1));
    assert_eq!(bsp.summary.time, ssp.summary.time, "the schedules are the same");
    assert_eq!(bsp.summary.idle_share, ssp.summary.idle_share);
    for (bsp, ssp) in bsp.parameters.unwrap().iter().zip(ssp.parameters.unwrap()) {
        assert!((bsp - ssp).abs() <= 5e-5 * bsp.abs().max(0.1), "{bsp} {ssp}");
    }
}

#[test]
fn threads_and_repeats_change_no_bit() {
    for scheme in SCHEMES {
        let runs = [1, 2, 2, 3].map(|threads| outcome(&training(scheme, 8, TIMES, "iterations=40", 0.1, threads)));
        let first = bits(runs[0].parameters.clone());
        for run in &runs[1..] {
            assert_eq!(bits(run.parameters.clone()), first, "{scheme}");
            assert_eq!(run.summary, runs[0].summary, "{scheme}");
        }
    }
}

#[test]
fn every_scheme_reaches_the_target_loss() {
    for scheme in SCHEMES {
        let summary = outcome(&training(scheme, 8, TIMES, "loss<0.7,iterations=2000", 0.1, 1)).summary;
        assert!(summary.reached && summary.accuracy.unwrap() > 0.6, "{summary:?}");
    }
}

#[test]
fn an_event_log_replays_bit_for_bit() {
    let script = "3 slow 0-2 4\n4 crash 1 2\n5 leave 2\n7 join 2\n9 join 1\n";
    let path = std::env::temp_dir().join(format!("paceline-replay-{}", std::process::id()));
    std::fs::write(&path, script).unwrap();
    let script = paceline_sim::Script::read(&path, 6).unwrap();
    std::fs::remove_file(&path).unwrap();
    for scheme in SCHEMES {
        let mut simulation = training(scheme, 6, TIMES, "time=60", 0.1, 1);
        simulation.script = script.clone();
        let setup = Setup::new(6, 16);
        let mut bytes = Vec::new();
        let mut log = EventLog::new(&mut bytes, &EventLogHeader::new(scheme.parse().unwrap(), &setup)).unwrap();
        let summary = observed(&simulation, &mut log);
        log.finish().unwrap();
        let replayed = replay(bytes.as_slice()).unwrap();
        assert!(summary.iterations > 5 && replayed.events > summary.iterations, "{summary:?} {replayed:?}");
    }
}
