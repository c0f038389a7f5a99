//! `paceline torture` as its users see it.

mod common;

use common::{json, paceline, refused};

#[test]
fn a_campaign_replays_with_any_number_of_threads() {
    let run = |threads: &str| {
        let mut report = json(&["torture", "--seeds", "3", "--threads", threads, "--json"]).remove(0);
        report.as_object_mut().unwrap().remove("seconds");
        report
    };
    let report = run("1");
    assert_eq!(report["seeds"], 3);
    assert!(report["histories"].as_u64().unwrap() > 3 * 20 && report["versions"].as_u64().unwrap() > 100, "{report}");
    assert_eq!(report, run("3"));
    let one = ["torture", "--seed", "11", "--scheme", "backup:k=5", "--json"];
    assert_eq!(json(&one)[0]["events"], json(&one)[0]["events"]);
}

#[test]
fn invalid_arguments_are_refused_in_one_line() {
    assert!(refused(&["torture", "--scheme", "backup:k=2000"]).contains("scheme 'backup': k=2000"));
    assert!(refused(&["torture", "--seeds", "0"]).contains("expected a whole number from 1 to 100000000"));
    assert!(refused(&["torture", "--seed", "-1"]).contains("'-1' for '--seed <SEED>': expected a whole number"));
    assert!(refused(&["torture", "--seeds", "5", "--seed", "1"]).contains("cannot be used with"));
    let help = paceline(&["torture", "--help"]);
    assert!(String::from_utf8(help.stdout).unwrap().contains("paceline torture --seeds 10000"));
}
